"""Preprocessing: what it writes, that fairseq reads it, and that it does not depend on how."""

import gzip
import shutil
import subprocess
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from fairseq.data import Dictionary, data_utils

from fairseq_phrase.cli.inspect_data import main as inspect
from fairseq_phrase.cli.preprocess import main
from fairseq_phrase.data.preprocessing import engines
from fairseq_phrase.data.preprocessing.options import splits_of
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.data.subwords.encoded_sentences import marked_words
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.text import read_lines
from tests.support.hostile import SNIPPETS
from tests.support.stores import TREE_FIELDS
from tests.support.warm_start import python
from tests.twins.alignment import check_words


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def read_by_fairseq(directory, split, language, pair="de-en"):
    """A split's sentences as SentencePiece text, through fairseq's own reader."""
    dictionary = Dictionary.load(str(directory / f"dict.{language}.txt"))
    path = str(directory / f"{split}.{pair}.{language}")
    dataset = data_utils.load_indexed_dataset(path, dictionary, "mmap")
    return [dictionary.string(dataset[index], "sentencepiece") for index in range(len(dataset))]


def write_lines(path, lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@pytest.fixture
def small_corpus(synthetic_corpus, tmp_path):
    """A copy of the corpus' valid split as train, with its test split, free to be changed."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for new, old in (("train", "valid"), ("test", "test")):
        for suffix in ("de", "en", "de.conllu"):
            shutil.copyfile(synthetic_corpus / f"{old}.{suffix}", folder / f"{new}.{suffix}")
    return folder


def test_the_summary_shows_how_many_words_the_text_does_not_spell(tmp_path, capsys):
    def rows(words):
        for number, (word, head) in enumerate(words, start=1):
            yield f"{number}\t{word}\t_\tX\t_\t_\t{head}\tdep\t_\t_\n"

    first = "1-2\tflorist's" + "\t_" * 8 + "\n"
    first += "".join(rows([("florstst", 2), ("'s", 0), ("van", 2), ("stopped", 2)]))
    second = "1-2\tdon't" + "\t_" * 8 + "\n" + "".join(rows([("do", 2), ("n't", 0)]))
    (tmp_path / "t.xx.conllu").write_text(f"{first}\n{second}")
    write_lines(tmp_path / "t.xx", ["florist's van stopped", "don't"])
    write_lines(tmp_path / "t.en", ["a", "b"])
    arguments = ["-s", "xx", "-t", "en", "--trainpref", str(tmp_path / "t"), "--bpe", "none"]
    for parser, is_shown in (("conllu", True), ("conllu:surface", False)):
        main([*arguments, "--parser", parser, "--destdir", str(tmp_path / parser)])
        message = "2 words (33.3%) of xx that the text does not spell"
        assert (message in capsys.readouterr().out) == is_shown


def with_model_of(directory):
    """Options that reuse a data directory's subwords."""
    files = {"--sentencepiece-model": "spm.model", "--srcdict": "dict.de.txt"}
    files["--tgtdict"] = "dict.en.txt"
    return [part for name, file in files.items() for part in (name, str(directory / file))]


def preprocess(folder, destination, *options, splits=("train", "test")):
    prefixes = [f"--{split}pref={folder / split}" for split in splits]
    size = [] if "--sentencepiece-model" in options else ["--vocab-size", "200"]
    main(["-s", "de", "-t", "en", *prefixes, "--destdir", str(destination), *size, *options])
    return destination


def test_fairseq_reads_the_text_back(data_directory, synthetic_corpus):
    for split in ("train", "valid", "test"):
        for language in ("de", "en"):
            lines = list(read_lines(synthetic_corpus / f"{split}.{language}"))
            assert read_by_fairseq(data_directory, split, language) == lines


def test_the_joined_dictionary_is_one_for_both_languages(data_directory):
    german, english = ((data_directory / f"dict.{name}.txt").read_bytes() for name in ("de", "en"))
    assert german == english


def test_the_parses_are_those_of_the_treebank(data_directory, synthetic_corpus):
    store = ParseStore(data_directory, "test.de-en", "de", set(TREE_FIELDS))
    relations, tags = (
        Dictionary.load(str(data_directory / f"dict.{name}.txt")) for name in ("deprel", "tag")
    )
    text = synthetic_corpus / "test.de"
    gold = list(ConlluFiles().read(synthetic_corpus / "test.de.conllu", read_lines(text)))
    assert len(store) == len(gold)
    for index, sentence in enumerate(gold):
        parse = store[index]
        assert parse["heads"].tolist() == sentence.tree.heads.tolist()
        assert [relations[number] for number in parse["deprels"]] == sentence.deprels
        assert [tags[number] for number in parse["tags"]] == sentence.tags
        check_words(parse["words"])


def test_each_subword_is_numbered_with_the_word_it_is_of(data_directory, synthetic_corpus):
    dictionary = Dictionary.load(str(data_directory / "dict.de.txt"))
    path = str(data_directory / "test.de-en.de")
    dataset = data_utils.load_indexed_dataset(path, dictionary, "mmap")
    store = ParseStore(data_directory, "test.de-en", "de", {"words"})
    text = synthetic_corpus / "test.de"
    gold = ConlluFiles().read(synthetic_corpus / "test.de.conllu", read_lines(text))
    for index, sentence in enumerate(gold):
        spelled = [""] * len(sentence.words)
        for token, word in zip(dataset[index][:-1], store[index]["words"], strict=True):
            spelled[word] += dictionary[token]
        assert spelled == marked_words(sentence)


def test_the_manifest_counts_what_was_written(data_directory):
    manifest = Manifest.load(data_directory, "de")
    assert (manifest.parser, manifest.fields) == ("conllu", list(TREE_FIELDS))
    record = manifest.splits["test.de-en"]
    store = ParseStore(data_directory, "test.de-en", "de", {"words", "heads"})
    assert record.sentences == len(store) == 100
    assert record.words == sum(len(store[index]["heads"]) for index in range(100))
    assert record.subwords == sum(len(store[index]["words"]) for index in range(100))


def test_nothing_but_the_documented_files_is_left(data_directory):
    ends = ("bin", "idx")
    text = {f"{s}.de-en.{lang}" for s in ("train", "valid", "test") for lang in ("de", "en")}
    parses = {f"{s}.de-en.de.{field}" for s in ("train", "valid", "test") for field in TREE_FIELDS}
    dictionaries = {f"dict.{name}.txt" for name in ("de", "en", "deprel", "tag", "constituent")}
    expected = {f"{name}.{end}" for name in text | parses for end in ends} | dictionaries
    # What holds one value per word shares one index.
    expected -= {f"{name}.idx" for name in parses if name.endswith(("deprels", "tags"))}
    expected |= {"spm.model", "syntax.de.json"}
    assert {path.name for path in data_directory.iterdir()} == expected
    assert {path.name for path in data_directory.parent.iterdir()} == {data_directory.name}


def test_the_command_runs_as_a_module_and_reports_its_counts(small_corpus, tmp_path):
    command = [python(), "-m", "fairseq_phrase", "preprocess", "-s", "de", "-t", "en"]
    command += ["--trainpref", str(small_corpus / "train"), "--destdir", str(tmp_path / "out")]
    command += ["--vocab-size", "200", "--parser", "conllu"]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "train: 100 sentence pairs" in process.stdout
    assert "writing train" in process.stderr  # the progress bar
    assert len(ParseStore(tmp_path / "out", "train.de-en", "de", {"heads"})) == 100


def test_compressed_text_and_parses_give_the_same_files(small_corpus, tmp_path):
    plain = preprocess(small_corpus, tmp_path / "plain", "--parser", "conllu")
    for path in list(small_corpus.iterdir()):
        (path.parent / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    compressed = preprocess(small_corpus, tmp_path / "compressed", "--parser", "conllu")
    assert contents(compressed) == contents(plain)


@pytest.fixture
def pools(monkeypatch, block_lines):
    """Short blocks, of which workers have several; the number of pools that are started for them."""
    block_lines(7)
    monkeypatch.setattr(engines, "LINES_PER_PARSER", 10)
    monkeypatch.setattr(engines, "LINES_PER_PROCESS", 10)
    started, initialize = [], ProcessPoolExecutor.__init__

    def start(pool, *arguments):
        started.append(pool)
        initialize(pool, *arguments)

    monkeypatch.setattr(ProcessPoolExecutor, "__init__", start)
    return started


@pytest.mark.fast(1)
@pytest.mark.parametrize("parser", ["spacy", "none", "conllu"])
def test_the_number_of_workers_changes_nothing(
    small_corpus, tmp_path, parser, trained_pipeline, pools
):
    if parser != "conllu":  # whose trees are of this text
        with_gaps(small_corpus, "train")
    spec = f"spacy:{trained_pipeline}" if parser == "spacy" else parser
    single, two = (
        preprocess(small_corpus, tmp_path / number, "--parser", spec, "--workers", number,
                   "--protected-tokens", "<2de>", "--max-length", "30", splits=("train",))
        for number in "12"
    )  # fmt: skip
    assert contents(two) == contents(single)
    assert len(pools) == 1


@pytest.mark.fast(1)
@pytest.mark.parametrize("workers", "21")
def test_the_first_line_that_is_refused_is_named(small_corpus, tmp_path, workers, pools, capsys):
    with_gaps(small_corpus, "train")
    with pytest.raises(SystemExit):
        preprocess(small_corpus, tmp_path / "out", "--strict", "--workers", workers)
    assert "train.de, line 4 (and " in capsys.readouterr().err
    assert len(pools) == int(workers) - 1


@pytest.mark.fast(1)
@pytest.mark.parametrize("workers", "21")
def test_trees_after_the_last_block_are_found(small_corpus, tmp_path, workers, pools, capsys):
    for language in ("de", "en"):
        path = small_corpus / f"train.{language}"
        write_lines(path, list(read_lines(path))[: 14 * 7])
    with pytest.raises(SystemExit):
        preprocess(small_corpus, tmp_path / "out", "--parser", "conllu", "--workers", workers)
    assert "there are more trees here than lines in the text" in capsys.readouterr().err


def test_the_same_run_again_gives_the_same_files(small_corpus, tmp_path):
    first = contents(preprocess(small_corpus, tmp_path / "out", "--parser", "conllu"))
    assert contents(preprocess(small_corpus, tmp_path / "out", "--parser", "conllu")) == first


def test_without_a_parser_there_are_words_and_no_trees(small_corpus, tmp_path, capsys):
    out = preprocess(small_corpus, tmp_path / "out", splits=("train",))
    assert "no trees of de: --parser none" in capsys.readouterr().out
    assert Manifest.load(out, "de").fields == ["words"]
    assert not list(out.glob("*heads*"))
    assert not (out / "dict.deprel.txt").exists()
    words = ParseStore(out, "train.de-en", "de", {"words"})
    lines = list(read_lines(small_corpus / "train.de"))
    assert [words[i]["words"][-1] + 1 for i in range(len(words))] == [len(x.split()) for x in lines]


def test_the_current_folder_can_be_the_destination(small_corpus, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    preprocess(small_corpus, ".")
    assert (tmp_path / "here" / "syntax.de.json").is_file()
    assert not (tmp_path / "here" / ".partial").exists()


def test_a_pipelines_folder_is_named_so_that_it_is_found_from_elsewhere(
    small_corpus, tmp_path, monkeypatch, trained_pipeline
):
    monkeypatch.chdir(trained_pipeline.parent)
    out = preprocess(small_corpus, tmp_path / "out", "--parser", f"spacy:{trained_pipeline.name}")
    assert Manifest.load(out, "de").parser == f"spacy:{trained_pipeline}"


def with_gaps(folder, split):
    """Empty a source, a target and both sides; return the lines that are left whole."""
    sides = {lang: list(read_lines(folder / f"{split}.{lang}")) for lang in ("de", "en")}
    sides["de"][3] = ""
    sides["en"][5] = "  \t "
    sides["de"][8] = sides["en"][8] = "\u2028"
    for language, lines in sides.items():
        write_lines(folder / f"{split}.{language}", lines)
    return [i for i in range(len(sides["de"])) if i not in (3, 5, 8)]


def test_lines_that_are_left_out_are_listed_and_keep_their_numbers(
    small_corpus, tmp_path, capsys, refused
):
    indices = with_gaps(small_corpus, "train")
    text, listed = small_corpus / "train.de", tmp_path / "new/left_out.tsv"
    trees = (small_corpus / "train.de.conllu").read_text().split("\n\n")
    trees[10] = trees[10].replace("\t", "\twrong", 1)
    del trees[8], trees[3]  # of the lines without text
    (small_corpus / "train.de.conllu").write_text("\n\n".join(trees))
    options = ("--parser", "conllu", "--on-error", "flat", "--list-left-out", str(listed))
    out = preprocess(small_corpus, tmp_path / "out", *options, "--max-length", "49")
    rows = [row.split("\t") for row in listed.read_text().splitlines()]
    assert rows[0] == ["file", "line", "reason"]
    reasons = {int(line): reason for file, line, reason in rows[1:] if file == str(text)}
    assert {line for line, reason in reasons.items() if reason == "one side is empty"} == {4, 6, 9}
    assert reasons[11].startswith("flat tree: ")
    long = {line for line, reason in reasons.items() if "--max-length is 49" in reason}
    assert len(long) == 100 - 3 - len(ParseStore(out, "train.de-en", "de", {"heads"})) > 0
    record = Manifest.load(out, "de").splits["train.de-en"]
    assert record.left_out["empty"] == "4,6,9"
    lines = list(read_lines(text))
    remaining = [n for n in indices if n + 1 not in long]
    assert [record.line_of(index) - 1 for index in range(len(remaining))] == remaining
    assert [record.index_of(n + 1) for n in remaining] == list(range(len(remaining)))
    capsys.readouterr()
    inspect([str(out), "--line", str(remaining[-1] + 1)])
    assert f"line {remaining[-1] + 1}: " in (printed := capsys.readouterr().out)
    assert lines[remaining[-1]] in printed
    assert "line 6 of the text was left out" in refused(inspect, [str(out), "--line", "6"])


def test_lines_that_subwords_change_are_counted_and_the_first_shown(
    small_corpus, tmp_path, caplog, capsys
):
    """On both sides, in each split; and nothing is changed by default."""
    for split, language in (("train", "de"), ("test", "en")):
        lines = list(read_lines(small_corpus / f"{split}.{language}"))
        lines[3:10] = [f"{line} ca\u200cfé ½\u00a0" for line in lines[3:10]]
        write_lines(small_corpus / f"{split}.{language}", lines)
    preprocess(small_corpus, tmp_path / "kept")
    assert not caplog.records
    out = preprocess(small_corpus, tmp_path / "out", "--normal-form", "nmt_nfkc")
    train, test = caplog.messages
    assert train.startswith("7 of the 100 lines of train.de change when")
    assert "(--normal-form nmt_nfkc; identity keeps the text)" in train
    changed_lines = train.splitlines()[1:]
    assert len(changed_lines) == 3
    assert changed_lines[0].startswith(f"  {small_corpus}/train.de, line 4: '")
    assert r" ca\u200cfé" in changed_lines[0].partition("' becomes '")[0]
    assert test.startswith("7 of the 100 lines of test.en change when")
    manifest = Manifest.load(out, "de")
    assert manifest.splits["train.de-en"].changed == {"de": 7}
    assert manifest.characters == {
        "normal_form": "nmt_nfkc",
        "coverage": 1.0,
        "byte_fallback": False,
    }
    # A given model has its own normal form; characters that training lacks are counted too.
    caplog.clear()
    capsys.readouterr()
    preprocess(small_corpus, tmp_path / "again", *with_model_of(out))
    assert caplog.messages[0].startswith("7 of the 100 lines of train.de")
    assert Manifest.load(tmp_path / "again", "de").characters == {}
    with pytest.raises(SystemExit):
        preprocess(small_corpus, tmp_path / "no", *with_model_of(out), "--normal-form", "nfkc")
    assert "a given model has its own" in capsys.readouterr().err


def test_lines_with_characters_that_training_lacks_are_counted(small_corpus, tmp_path, capsys):
    for language in ("de", "en"):
        training_lines = list(read_lines(small_corpus / f"train.{language}"))
        last = "It is 中." if language == "en" else training_lines[99]
        write_lines(small_corpus / f"test.{language}", [*training_lines[:99], last])
    preprocess(small_corpus, tmp_path / "out")
    assert "lines with unknown subwords: 1 of en" in capsys.readouterr().out
    preprocess(small_corpus, tmp_path / "bytes", "--byte-fallback", "--vocab-size", "400")
    assert "unknown" not in capsys.readouterr().out


def test_test_sets_keep_every_line(small_corpus, tmp_path, capsys, data_directory):
    with_gaps(small_corpus, "test")
    limits = ("--max-length", "5", "--strict")
    reused = with_model_of(data_directory)
    out = preprocess(small_corpus, tmp_path / "out", *limits, *reused, splits=("test",))
    printed = capsys.readouterr().out
    assert "test: 100 sentence pairs" in printed
    for language in ("de", "en"):
        expected = [line.strip() for line in read_lines(small_corpus / f"test.{language}")]
        assert read_by_fairseq(out, "test", language) == expected
    words = ParseStore(out, "test.de-en", "de", {"words"})
    assert [len(words[index]["words"]) for index in (3, 8)] == [0, 0]


def test_a_training_line_over_the_limit_is_left_out_and_counted(small_corpus, tmp_path, capsys):
    for language in ("de", "en"):
        lines = list(read_lines(small_corpus / f"train.{language}"))
        lines[4] = " ".join(["Haus"] * 10_000) if language == "en" else lines[4]
        write_lines(small_corpus / f"train.{language}", lines)
    out = preprocess(small_corpus, tmp_path / "out", "--parser", "conllu")
    assert "train: 99 sentence pairs" in (printed := capsys.readouterr().out)
    assert "left out: 1 too long" in printed
    assert len(ParseStore(out, "train.de-en", "de", {"heads"})) == 99


def test_a_later_split_is_made_with_the_training_datas_model_and_dictionaries(
    small_corpus, tmp_path, data_directory
):
    options = ("--parser", "conllu", *with_model_of(data_directory))
    out = preprocess(small_corpus, tmp_path / "out", *options, splits=("test",))
    names = [f"test.de-en.{name}" for name in ("de.bin", "en.bin", "de.words.bin", "de.heads.bin")]
    for name in [*names, "dict.de.txt", "spm.model"]:
        assert (out / name).read_bytes() == (data_directory / name).read_bytes()


def test_further_valid_and_test_sets_are_numbered():
    assert list(splits_of("a", "b,c", "d,e,f")) == [
        ("train", "a"), ("valid", "b"), ("valid1", "c"), ("test", "d"), ("test1", "e"),
        ("test2", "f"),
    ]  # fmt: skip
    assert list(splits_of(None, None, "d")) == [("test", "d")]


def test_subwords_and_dictionaries_are_made_of_all_parts_of_the_training_text(tmp_path, capsys):
    words = {"a": "Haus Baum", "b": "Wald Fluss"}
    for part, text in words.items():
        for language in ("de", "en"):
            write_lines(tmp_path / f"{part}.{language}", [text, text])
    common = ["-s", "de", "-t", "en", "--trainpref", f"{tmp_path / 'a'},{tmp_path / 'b'}"]
    main([*common, "--bpe", "none", "--destdir", str(tmp_path / "words")])
    main([*common, "--joined-dictionary", "--destdir", str(tmp_path / "spm")])
    assert "unknown" not in capsys.readouterr().out
    for language in ("de", "en"):
        dictionary = Dictionary.load(str(tmp_path / "words" / f"dict.{language}.txt"))
        assert {*" ".join(words.values()).split()} <= {*dictionary.symbols}
        assert read_by_fairseq(tmp_path / "spm", "train1", language) == [words["b"]] * 2


def test_text_of_any_characters_stays_beside_its_parse(small_corpus, tmp_path, trained_pipeline):
    hostile = [text for text in SNIPPETS if "\r" not in text]
    for language in ("de", "en"):
        write_lines(small_corpus / f"test.{language}", [f"der {text} Hund" for text in hostile])
    out = preprocess(small_corpus, tmp_path / "out", "--parser", f"spacy:{trained_pipeline}")
    store = ParseStore(out, "test.de-en", "de", {"words", "heads"})
    dictionary = Dictionary.load(str(out / "dict.de.txt"))
    text = data_utils.load_indexed_dataset(str(out / "test.de-en.de"), dictionary, "mmap")
    assert len(store) == len(text) == len(hostile)
    # Every line keeps its first and last word, so no line has been truncated or shifted.
    for index in range(len(text)):
        spelled = dictionary.string(text[index], "sentencepiece").split()
        assert (spelled[0], spelled[-1]) == ("der", "Hund")
    assert np.array_equal(text.sizes - 1, [len(store[i]["words"]) for i in range(len(store))])
