"""The synthetic corpus: sentences of a small grammar, with gold trees."""

import re
from collections import defaultdict
from dataclasses import replace

import conllu as conllu_library
import pytest

from fairseq_phrase.cli.synthetic import main
from fairseq_phrase.lab.synthetic import corpus, english, generate
from fairseq_phrase.lab.synthetic.corpus import conllu
from fairseq_phrase.lab.synthetic.grammar import Grammar, is_clear_relative
from fairseq_phrase.lab.synthetic.lexicon import DEFINITE, default_lexicon
from fairseq_phrase.lab.synthetic.meaning import PRONOUNS, Event, Name, Oblique, Pair, Thing
from fairseq_phrase.lab.synthetic.rules import arrange
from fairseq_phrase.lab.synthetic.tree import Child, Leaf, phrase, read_off

SUFFIXES = ("", ".conllu", ".ptb")


@pytest.fixture(scope="module")
def pairs():
    return list(generate(1500, seed=3))


@pytest.fixture(scope="module")
def sentences(pairs):
    return [sentence for pair in pairs for sentence in (pair.source, pair.target)]


def bracket_depths(brackets):
    """Depth of nesting after each bracket."""
    depth, depths = 0, []
    for character in brackets:
        if character in "()":
            depth += 1 if character == "(" else -1
            depths.append(depth)
    return depths


def ancestors(heads, word):
    """The words above a word; runs on for ever only if there is a cycle, hence the limit."""
    above = []
    while heads[word] != word and len(above) <= len(heads):
        word = heads[word]
        above.append(word)
    return above


def crosses(heads):
    """Whether two arcs of a dependency tree cross."""
    arcs = [tuple(sorted((i, head))) for i, head in enumerate(heads) if i != head]
    return any(a < c < b < d for a, b in arcs for c, d in arcs)


def test_the_same_seed_gives_the_same_sentences_and_another_seed_gives_others(pairs):
    assert list(generate(200, seed=3)) == pairs[:200]
    assert list(generate(200, seed=4)) != pairs[:200]


def test_as_many_sentences_come_as_were_asked_for(pairs):
    assert len(pairs) == 1500
    assert list(generate(0, seed=1)) == []


def test_every_dependency_structure_is_a_tree_with_one_root(sentences):
    for sentence in sentences:
        heads = sentence.heads
        assert [i for i, head in enumerate(heads) if head == i] == [sentence.deprels.index("root")]
        assert sentence.deprels.count("root") == 1
        assert all(len(ancestors(heads, word)) < len(heads) for word in range(len(heads)))


def test_words_spell_natural_text(sentences):
    for sentence in sentences:
        assert sentence.text == sentence.text.strip()
        assert sentence.text[0].isupper()
        assert sentence.text[-1] in ".?"
        assert re.search(r"\s[,.?]|\s\s|,,|,\.|,\?", sentence.text) is None
        assert sentence.text.replace(" ", "") == "".join(sentence.words)


def test_sentences_keep_to_the_largest_length(sentences, monkeypatch):
    assert max(len(sentence.words) for sentence in sentences) <= corpus.MAX_WORDS
    assert max(len(sentence.words) for sentence in sentences) > 20
    # The readings of one text may differ in length, so that one of them could slip through.
    monkeypatch.setattr(corpus, "MAX_WORDS", 8)
    assert all(pair.longest <= 8 for pair in generate(400, seed=1))


def test_brackets_are_balanced_and_hold_exactly_the_words(sentences):
    for sentence in sentences:
        depths = bracket_depths(sentence.brackets)
        assert depths[-1] == 0
        assert min(depths[:-1]) == 1
        preterminals = re.findall(r"\(([^\s()]+) ([^\s()]+)\)", sentence.brackets)
        assert tuple(word for _, word in preterminals) == sentence.words
        assert tuple(tag for tag, _ in preterminals) == sentence.xpos
        assert sentence.brackets.startswith("(ROOT (S")


def test_the_conllu_library_reads_back_what_was_written(sentences):
    text = "".join(conllu(sentence, str(i)) for i, sentence in enumerate(sentences))
    parsed = conllu_library.parse(text)
    assert len(parsed) == len(sentences)
    for i, (tokens, sentence) in enumerate(zip(parsed, sentences, strict=True)):
        assert tokens.metadata == {"sent_id": str(i), "text": sentence.text}
        assert tuple(token["form"] for token in tokens) == sentence.words
        assert tuple(token["upos"] for token in tokens) == sentence.tags
        assert tuple(token["deprel"] for token in tokens) == sentence.deprels
        heads = [token["head"] - 1 if token["head"] else k for k, token in enumerate(tokens)]
        assert tuple(heads) == sentence.heads
        spaced = [t["form"] + " " * (t["misc"] != {"SpaceAfter": "No"}) for t in tokens]
        assert "".join(spaced).rstrip() == sentence.text


def test_some_texts_have_two_trees_and_two_translations(pairs):
    readings = defaultdict(list)
    for pair in pairs:
        readings[pair.source.text].append(pair)
    ambiguous = [group for group in readings.values() if len(group) > 1]
    assert len(ambiguous) > 0.05 * len(pairs)
    for first, second in ambiguous:
        assert first.source.words == second.source.words
        assert first.source.heads != second.source.heads
        assert first.source.brackets != second.source.brackets
        assert first.target.text != second.target.text


@pytest.mark.parametrize("words", [("using",), ("from",), ("together", "with"), ("by",)])
def test_the_attachment_of_a_phrase_decides_its_english_words(pairs, words):
    readings = defaultdict(list)
    for pair in pairs:
        readings[pair.source.text].append(pair.target.words)
    with_word = [
        {all(word in target for word in words) for target in group}
        for group in readings.values()
        if len(group) > 1
    ]
    assert {True, False} in with_word


def test_verbs_stand_last_in_german_subordinate_clauses(pairs):
    checked = 0
    for pair in pairs:
        source = pair.source
        for word, (relation, lemma) in enumerate(zip(source.deprels, source.lemmas, strict=True)):
            clause_verb = source.heads[word]
            if relation != "mark" or lemma != "weil" or source.tags[clause_verb] != "VERB":
                continue
            dependents = {i for i, head in enumerate(source.heads) if head == clause_verb}
            clausal = {"advcl", "ccomp", "xcomp", "punct", "aux", "aux:pass"}
            arguments = [i for i in dependents if source.deprels[i] not in clausal]
            assert max(arguments) < clause_verb
            checked += 1
    assert checked > 10


def test_separable_particles_stand_far_from_their_verbs_in_main_clauses(pairs):
    distances = [
        (word - pair.source.heads[word], pair.source.words[word])
        for pair in pairs
        for word, relation in enumerate(pair.source.deprels)
        if relation == "compound:prt"
    ]
    assert all(distance > 0 for distance, _ in distances)
    assert sum(distance > 3 for distance, _ in distances) > 10
    assert {"an", "auf", "weg"} <= {particle for _, particle in distances}


def test_extraposed_relative_clauses_make_some_german_trees_non_projective(pairs):
    crossing = [pair for pair in pairs if crosses(pair.source.heads)]
    assert 0.01 * len(pairs) < len(crossing) < 0.2 * len(pairs)
    assert all("acl:relcl" in pair.source.deprels for pair in crossing)
    assert not any(crosses(pair.target.heads) for pair in pairs)


def test_every_kind_of_sentence_occurs(pairs):
    relations = {relation for pair in pairs for relation in pair.source.deprels}
    expected = "nsubj obj iobj det amod obl nmod case mark advcl acl:relcl aux aux:pass cop ccomp"
    assert set(expected.split()) <= relations
    assert {"xcomp", "compound:prt", "conj", "cc", "nsubj:pass", "nummod"} <= relations
    assert any(pair.source.text.endswith("?") for pair in pairs)
    fronted = {p.source.deprels[p.source.heads[0]] for p in pairs if p.source.deprels[0] == "mark"}
    assert "advcl" in fronted


def test_german_articles_and_adjectives_agree_with_their_nouns(pairs):
    nouns = {noun.german: noun for noun in default_lexicon().nouns}
    text = " ".join(pair.source.text for pair in pairs)
    phrases = re.findall(r"\b(mein|einen|des|diesem) (?:(\w+?)(er|en|es) )?([A-ZÄÖÜ]\w+)", text)
    allowed = {"mein": "er es", "einen": "en", "des": "en", "diesem": "en"}
    assert len(phrases) > 100
    assert {determiner for determiner, *_ in phrases} == allowed.keys()
    for determiner, adjective, ending, noun in phrases:
        if adjective:
            assert ending in allowed[determiner].split()
        if noun in nouns:
            assert nouns[noun].gender != "f"
            assert determiner != "einen" or nouns[noun].gender == "m"


def test_a_german_relative_clause_shows_which_role_its_pronoun_plays():
    verb = next(verb for verb in default_lexicon().verbs if verb.stem == "sehen")
    nouns = {noun.german: noun for noun in default_lexicon().nouns}
    woman, child, man = (Thing(nouns[word], DEFINITE) for word in ("Frau", "Kind", "Mann"))

    def is_clear(antecedent, subject):
        event = Event(verb, "present", subject, gap="object", antecedent=antecedent)
        return is_clear_relative(event)

    assert not is_clear(child, woman)  # das Kind, das die Frau sieht
    assert is_clear(child, man)  # das Kind, das der Mann sieht
    assert is_clear(man, woman)  # der Mann, den die Frau sieht
    assert is_clear(child, replace(woman, plural=True))  # das Kind, das die Frauen sehen
    assert is_clear(Thing(nouns["Buch"], DEFINITE), woman)  # books see nobody


def test_an_english_particle_precedes_a_heavy_object_and_follows_another():
    lexicon = default_lexicon()
    nouns = {noun.german: noun for noun in lexicon.nouns}
    verb = next(verb for verb in lexicon.verbs if verb.english_particle)
    man, woman = (Thing(nouns[word], DEFINITE) for word in ("Mann", "Frau"))
    sees = next(verb for verb in lexicon.verbs if verb.stem == "sehen")
    who = Event(sees, "present", None, object=woman, gap="subject", antecedent=man, rule="relative")
    heavy = [
        replace(man, attribute=Oblique("company", woman)),
        replace(man, relative=who),
        Pair(man, woman),
    ]
    adjective = replace(man, adjective=lexicon.adjectives[0])
    for entity in (man, adjective, Name("Anna"), PRONOUNS[1], *heavy):
        event = Event(verb, "present", Name("Paul"), object=entity, rule="plain")
        words = read_off(english.clause(event)).words
        particle = words.index(verb.english_particle)
        assert particle == (2 if entity in heavy else len(words) - 1)


def test_the_sentences_end_where_the_grammar_repeats_itself(monkeypatch):
    same = Grammar(default_lexicon(), 1).utterance()
    # The whole grammar hardly repeats itself.
    monkeypatch.setattr(Grammar, "utterance", lambda _: same)
    assert len([*corpus.distinct_groups(1)]) == 1


def test_the_command_writes_every_file_and_nothing_else(tmp_path):
    main(["--out", str(tmp_path), "--train", "60", "--valid", "20", "--test", "25"])
    sizes = {"train": 60, "valid": 20, "test": 25}
    names = {f"{split}.{lang}{end}" for split in sizes for lang in ("de", "en") for end in SUFFIXES}
    assert {path.name for path in tmp_path.iterdir()} == names
    for split, size in sizes.items():
        for lang in ("de", "en"):
            lines = (tmp_path / f"{split}.{lang}").read_text(encoding="utf-8").splitlines()
            parsed = conllu_library.parse((tmp_path / f"{split}.{lang}.conllu").read_text("utf-8"))
            trees = (tmp_path / f"{split}.{lang}.ptb").read_text(encoding="utf-8").splitlines()
            assert len(lines) == len(trees) == size
            assert [tokens.metadata["text"] for tokens in parsed] == lines


def test_a_corpus_is_not_replaced(tmp_path, capsys):
    sizes = ["--out", str(tmp_path), "--train", "9", "--valid", "2", "--test", "2"]
    main(sizes)
    first = (tmp_path / "train.de").read_bytes()
    # Also if only the training text of one corpus would lie next to the test set of another.
    for options in ([], ["--train", "0"]):
        with pytest.raises(SystemExit) as stopped:
            main([*sizes, "--seed", "2", *options])
        assert stopped.value.code == 2
        assert (tmp_path / "train.de").read_bytes() == first
        assert "holds a corpus already (valid.de, valid.de.conllu" in capsys.readouterr().err


def test_a_split_of_no_sentences_is_said_to_have_no_files(tmp_path, capsys):
    main(["--out", str(tmp_path / "new"), "--train", "0", "--valid", "2", "--test", "2"])
    assert "train: 0 asked for, no file written" in capsys.readouterr().out
    assert not (tmp_path / "new" / "train.de").exists()
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "none"), "--train", "0", "--valid", "0", "--test", "0"])
    assert "nothing to write: 0 sentences in" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_no_source_text_of_one_split_occurs_in_another(tmp_path):
    # Odd sizes, so that some split ends in the middle of an ambiguous pair.
    for seed in range(3):
        out = tmp_path / str(seed)
        argv = ["--train", "101", "--valid", "53", "--test", "31", "--seed", str(seed)]
        main(["--out", str(out), *argv])
        splits = [
            set((out / f"{s}.de").read_text().splitlines()) for s in ("train", "valid", "test")
        ]
        assert len(set.union(*splits)) == sum(len(split) for split in splits)


def test_a_command_that_fails_leaves_no_files(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(corpus, "MAX_TOO_LONG", 1)  # the grammar does not run out of sentences
    argv = ["--out", str(tmp_path), "--train", "9000", "--valid", "1", "--test", "1"]
    with pytest.raises(SystemExit) as exit_info:
        main(argv)
    assert exit_info.value.code == 2
    assert re.search(r"after \d+ of the 9000 asked for", capsys.readouterr().err)
    assert [*tmp_path.iterdir()] == []


def test_a_phrase_without_exactly_one_head_is_refused():
    with pytest.raises(ValueError, match="exactly one child related as 'head'"):
        phrase("NP", ("det", Leaf("der", "ART")))


def test_a_slot_that_a_word_order_has_no_place_for_is_an_error():
    slots = {"verb": Child("head", Leaf("lacht", "VVFIN")), "object": Child("obj", Leaf("X", "NE"))}
    with pytest.raises(ValueError, match="no place for \\['object'\\]"):
        arrange("S", "subject verb", slots, "$,")


def test_commas_vanish_at_the_start_and_before_other_punctuation():
    comma = [Leaf(",", "$,") for _ in range(3)]
    clause = phrase("S", ("punct", comma[0]), ("head", Leaf("geht", "VVFIN")), ("punct", comma[1]))
    root = phrase("ROOT", ("head", clause), ("punct", comma[2]), ("punct", Leaf(".", "$.")))
    sentence = read_off(root)
    assert sentence.text == "Geht."
    assert sentence.brackets == "(ROOT (S (VVFIN Geht)) ($. .))"
    assert sentence.heads == (0, 0)
