"""Language tags and other protected tokens: one entry, no word, the same trees; raw text too."""

from __future__ import annotations

import re
import shutil
from types import SimpleNamespace

import pytest
import sentencepiece
from fairseq.data import Dictionary
from fairseq_cli import generate, interactive
from fairseq_cli import train as fairseq_train

from fairseq_phrase.cli.inspect_data import main as inspect
from fairseq_phrase.cli.preprocess import main as preprocess
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.data.subwords.encoded_sentences import encode_sentence
from fairseq_phrase.data.subwords.protected_tokens import JOINER, ProtectedTokens
from fairseq_phrase.data.subwords.segmenters import (
    SentencePieceSegmenter,
    SubwordNmtSegmenter,
    TokenizerSegmenter,
    WholeWords,
)
from fairseq_phrase.data.subwords.text_encoder import TextEncoder, segmenter_of
from fairseq_phrase.inference.raw_lines import TargetForm, source_form
from fairseq_phrase.parsers.interfaces import split_at_white_space
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from fairseq_phrase.syntax.sentence import ParsedSentence
from fairseq_phrase.text import read_lines
from tests.support.attaching import GOLD, attach, binarize, subwords_of, write_lines
from tests.support.commands import SIZES, TRAINING, translations
from tests.support.huggingface_models import tokenizer_of_bytes

TAGS = ("<2de>", "<BT>", "[en_XX]")


@pytest.mark.parametrize(
    ("line", "text", "tokens"),
    [
        ("<2de> a b", "a b", [(0, 0, "<2de>")]),
        ("<2de> <BT> a", "a", [(0, 0, "<2de>"), (0, 0, "<BT>")]),
        ("a  b [en_XX]", "a  b", [(2, 0, "[en_XX]")]),
        ("a <BT> b c", "a b c", [(1, 0, "<BT>")]),
        ("a<BT> x<2de> b", "a<BT> x<2de> b", []),
        (" a ", " a ", []),
        ("<BT>", "", [(0, 0, "<BT>")]),
    ],
)
def test_without_a_joiner_tokens_stand_between_white_space(line, text, tokens):
    """Data of earlier versions are so."""
    protected = ProtectedTokens(WholeWords(), TAGS)
    separated, of_line = protected.separate(line)
    assert (separated, [token[:3] for token in of_line]) == (text, tokens)
    assert protected.segment_line(line) == line.split()
    assert protected.join(" ".join(line.split())) == " ".join(line.split())


# A line with inline tags, its text, and its words and tokens, with + for a joiner.
GLUED = [
    ("the <g1>valve</g1> now.", "the valve now.", "the <g1> + valve + </g1> now."),
    ("valve<g2/> now", "valve now", "valve + <g2/> now"),
    ("valve <g2/>, now", "valve , now", "valve <g2/> + , now"),
    ("Haus<g2/>tür", "Haustür", "Haus + <g2/> + tür"),
    ("(<g1>a</g1>) b", "(a) b", "( + <g1> + a + </g1> + ) b"),
    ("<g1><g2/>a </g1>", "a", "<g1> + <g2/> + a </g1>"),
    ("\u00a0<g2/>\u00a0", "", "<g2/>"),
    ("BT ABTEI BTX xBT BT.", "ABTEI BTX xBT .", "BT ABTEI BTX xBT BT + ."),
]


@pytest.fixture(params=["none", "sentencepiece", "subword_nmt", "huggingface"])
def around_tags(request, segmenter, tmp_path):
    """What segments lines with inline tags, by each kind of subword model."""
    inner = WholeWords()
    if request.param == "sentencepiece":
        inner = segmenter
    if request.param == "subword_nmt":
        (tmp_path / "codes").write_text("#version: 0.2\na l\nH au\n")
        inner = SubwordNmtSegmenter(tmp_path / "codes")
    if request.param == "huggingface":
        tokenizer_of_bytes([line for line, *_ in GLUED]).save(str(tmp_path / "tokenizer.json"))
        inner = TokenizerSegmenter(tmp_path / "tokenizer.json")
    return ProtectedTokens(inner, ["<g1>", "</g1>", "<g2/>", "BT", JOINER])


@pytest.mark.parametrize(("line", "text", "subwords"), GLUED)
def test_tokens_that_touch_words_are_protected_and_their_spaces_kept(
    around_tags, line, text, subwords
):
    separated, tokens = around_tags.separate(line)
    assert separated == text
    assert [token.token for token in tokens] == [
        subword.replace("+", JOINER)
        for subword in subwords.split()
        if subword in {"+", *around_tags.tokens}
    ]
    segmented = around_tags.segment_line(line)
    assert [subword for subword in segmented if subword in around_tags.tokens] == [
        t.token for t in tokens
    ]
    assert around_tags.join(" ".join(segmented)) == line.strip()
    # The words of a parser, split one by one, are split in the same way.
    for words in (split_at_white_space(separated), by_characters(separated)):
        encoded = encode_sentence(words, around_tags, tokens, separated)
        if isinstance(around_tags.segmenter, SentencePieceSegmenter):
            assert around_tags.join(" ".join(encoded.subwords)) == line.strip()
        is_token = [subword in around_tags.tokens for subword in encoded.subwords]
        assert sum(is_token) == len(tokens)
        assert encoded.num_words == len(words.words)
    if isinstance(around_tags.segmenter, WholeWords):
        assert segmented == subwords.replace("+", JOINER).split()


def by_characters(text):
    """Each character is a word, as for a parser that splits more than white space does."""
    words = [character for character in text if not character.isspace()]
    starts = [not text[index - 1 : index].strip() for index, c in enumerate(text) if c.strip()]
    return ParsedSentence(words, starts)


@pytest.mark.parametrize(
    ("line", "tokenized"),
    [
        ("Das <g1>Ventil</g1>, rot.", "Das <g1>Ventil</g1>, rot ."),
        ("Das <g1> A-B </g1> & rot.", "Das <g1> A @-@ B </g1> &amp; rot ."),
    ],
)
def test_moses_tokenizes_raw_lines_around_the_tokens(line, tokenized):
    names = ["<g1>", "</g1>", JOINER]
    manifest = SimpleNamespace(
        language="de", tokenized=True, protected=names, bpe="none", bpe_model="", labelling="",
        target_bpe="", whole_lines=False,
    )  # fmt: skip
    dictionary = SimpleNamespace(symbols=["&apos;s", "@-@"])
    assert source_form(manifest, dictionary)(line) == tokenized
    target = TargetForm("", manifest, "de")
    assert target.text(target.subwords("Das <g1>Ventil</g1> ist rot.")) == (
        "Das <g1>Ventil</g1> ist rot."
    )


def test_text_that_looks_like_a_token_is_segmented_into_characters():
    protected = ProtectedTokens(WholeWords(), ["<g1>", JOINER])
    assert protected.segment_line(f"a {JOINER} b") == ["a", *JOINER, "b"]


def test_a_token_in_a_word_that_the_parser_writes_otherwise_stands_behind_it():
    protected = ProtectedTokens(WholeWords(), ["<g1>", JOINER])
    _, tokens = protected.separate("zum<g1>Haus jetzt")
    sentence = ParsedSentence(["zu", "dem", "Haus", "jetzt"], [True, True, True, True])
    subwords = encode_sentence(sentence, protected, tokens).subwords
    assert [subword for subword in subwords if subword not in ("<g1>", JOINER)] == sentence.words


def tagged(line, number):
    """A language tag, a tag of back-translation for every third line, and a tag within or at the end."""
    words = line.split()
    if number % 4 == 1:
        words.append("[en_XX]")
    if number % 4 == 2:
        words.insert(2, "[en_XX]")
    return " ".join(["<2de>", *(["<BT>"] if number % 3 == 0 else []), *words])


@pytest.fixture(scope="module")
def texts(synthetic_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tagged")
    for name in ("plain", "tagged"):
        (folder / name).mkdir()
        for split, count in (("train", 80), ("valid", 10), ("test", 12)):
            trees = (synthetic_corpus / f"{split}.de.conllu").read_text().split("\n\n")[:count]
            (folder / name / f"{split}.de.conllu").write_text("\n\n".join(trees) + "\n\n")
            for language in ("de", "en"):
                lines = list(read_lines(synthetic_corpus / f"{split}.{language}"))[:count]
                if name == "tagged" and language == "de":
                    lines = [tagged(line, number) for number, line in enumerate(lines)]
                if name == "tagged" and language == "en":
                    lines = [f"[en_XX] {line}" for line in lines]
                (folder / name / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def data(texts):
    for name, options in (("plain", []), ("tagged", ["--protected-tokens", ",".join(TAGS)])):
        model = (
            [] if name == "plain" else ["--sentencepiece-model", f"{texts}/data.plain/spm.model"]
        )
        preprocess(
            ["-s", "de", "-t", "en", "--parser", "conllu", "--constituents", "from-dependencies"]
            + [f"--{split}pref={texts / name / split}" for split in ("train", "valid", "test")]
            + ["--destdir", f"{texts}/data.{name}", "--joined-dictionary", *model, *options]
            + (["--vocab-size", "80"] if name == "plain" else [])
        )
    return texts


def test_the_trees_are_those_of_the_text_without_tokens(data):
    stores, subwords = [], []
    for name in ("plain", "tagged"):
        folder = data / f"data.{name}"
        fields = set(Manifest.load(folder, "de").fields)
        stores.append(ParseStore(folder, "test.de-en", "de", fields))
        subwords.append(subwords_of(folder, "test"))
    assert {"heads", "spans"} <= fields
    for number in range(12):
        plain, parse = stores[0][number], stores[1][number]
        is_token = [subword in TAGS for subword in subwords[1][number]]
        assert any(is_token)
        at = [index for index, is_tag in enumerate(is_token) if is_tag]
        for index in at:  # of no word, or within the sentence of the word before them
            outside = all(is_token[:index]) or all(is_token[index:])
            before = [w for w in parse["words"][:index] if w >= 0]
            assert parse["words"][index] == (-1 if outside else before[-1])
        text_subwords = [subword for subword in subwords[1][number] if subword not in TAGS]
        assert text_subwords == subwords[0][number]
        parse["words"] = parse["words"][[not is_tag for is_tag in is_token]]
        for name in fields - {"deprels", "tags"}:
            columns = slice(0, 2) if name == "spans" else slice(None)
            assert (plain[name][..., columns] == parse[name][..., columns]).all(), name
        expected = tagged(list(read_lines(data / "plain/test.de"))[number], number).split()
        at = [index for index, word in enumerate(expected) if word in TAGS]
        joined = "".join(p if p not in TAGS else f"▁{p}" for p in subwords[1][number])
        spelled = joined.lstrip("▁").split("▁")
        assert [spelled[index] for index in at] == [expected[index] for index in at]


def test_tokens_that_touch_words_leave_trees_of_files_as_they_are(data, tmp_path):
    """And new text is segmented as the data were."""
    for language in ("de", "en"):
        lines = list(read_lines(data / f"plain/test.{language}"))
        marked = [
            re.sub(r"(\w+)", r"<g1>\1</g1>", line, count=n % 3) for n, line in enumerate(lines)
        ]
        write_lines(tmp_path / f"test.{language}", [f"{line}<g1>" for line in marked])
    shutil.copy(data / "plain/test.de.conllu", tmp_path)
    plain, out = data / "data.plain", tmp_path / "data"
    options = ["--parser", "conllu", "--constituents", "from-dependencies", "--joined-dictionary"]
    options += ["--sentencepiece-model", f"{plain}/spm.model", "--protected-tokens", "<g1>,</g1>"]
    text = ["-s", "de", "-t", "en", f"--trainpref={tmp_path}/test", "--destdir", str(out)]
    preprocess([*text, *options])
    manifest = Manifest.load(out, "de")
    assert manifest.splits["train.de-en"].changed == {}
    stores = [
        ParseStore(folder, split, "de", {"words", "heads", "spans"})
        for folder, split in ((plain, "test.de-en"), (out, "train.de-en"))
    ]
    gold = ParsingPipeline(ParsingOptions(f"gold:{data}/plain/test.de"))
    encoder = TextEncoder(gold, segmenter_of(out, manifest))
    tokens = set(manifest.protected)
    for language in ("de", "en"):
        lines = list(read_lines(tmp_path / f"test.{language}"))
        segmented = zip(lines, subwords_of(out, "train", language), strict=True)
        assert [encoder.segmenter.join(" ".join(subwords)) for _, subwords in segmented] == lines
    lines = list(read_lines(tmp_path / "test.de"))
    stored, expected = subwords_of(out, "train"), subwords_of(plain, "test")
    for number, (new, subwords) in enumerate(zip(encoder.encode_lines(lines), stored, strict=True)):
        assert [subword for subword in subwords if subword not in tokens] == expected[number]
        assert (stores[0][number]["heads"] == stores[1][number]["heads"]).all()
        assert (stores[0][number]["spans"][:, :2] == stores[1][number]["spans"][:, :2]).all()
        assert new.subwords == subwords
        assert (new.words == stores[1][number]["words"]).all()


def test_attached_parses_are_those_of_preprocessing(data, tmp_path, capsys):
    tagged_data, splits = data / "data.tagged", ("train", "test")
    for split in splits:
        for language in ("de", "en"):
            lines = map(" ".join, subwords_of(tagged_data, split, language))
            write_lines(tmp_path / f"{split}.{language}", lines)
        shutil.copy(data / f"tagged/{split}.de.conllu", tmp_path)
    dictionary = ("--joined-dictionary", "--srcdict", tagged_data / "dict.de.txt")
    attached = binarize(tmp_path, tmp_path / "data", *dictionary, splits=splits)
    options = [*GOLD, f"--sentencepiece-model={tagged_data}/spm.model", "--protected-tokens"]
    attach(attached, tmp_path, *options, ",".join(TAGS), splits=splits, bpe="sentencepiece")
    assert Manifest.load(attached, "de").protected == [*TAGS, JOINER]
    fields = {"words", "heads", "spans"}
    stores = [ParseStore(folder, "test.de-en", "de", fields) for folder in (tagged_data, attached)]
    for number in range(12):
        first, second = (store[number] for store in stores)
        for name in ("words", "heads"):
            assert (first[name] == second[name]).all()
        assert (first["spans"][:, :2] == second["spans"][:, :2]).all()
    with pytest.raises(SystemExit):
        attach(attached, tmp_path, *options, "<2fr>,<2de>", splits=splits, bpe="sentencepiece")
    assert "dict.de.txt lacks <2fr>" in capsys.readouterr().err


def test_a_later_run_does_not_forget_them(data, tmp_path, capsys, refused):
    tagged_data, splits = data / "data.tagged", ("train", "test")
    for split in splits:
        for language in ("de", "en"):
            lines = map(" ".join, subwords_of(tagged_data, split, language))
            write_lines(tmp_path / f"{split}.{language}", lines)
    dictionary = ("--joined-dictionary", "--srcdict", tagged_data / "dict.de.txt")
    attached = binarize(tmp_path, tmp_path / "data", *dictionary, splits=splits)
    options = ["--parser", "none"]
    first = [f"--sentencepiece-model={tagged_data}/spm.model", "--protected-tokens", ",".join(TAGS)]
    attach(attached, tmp_path, *options, *first, splits=splits[:1], bpe="sentencepiece")
    expected = Manifest.load(attached, "de")
    for protected in ([], ["--protected-tokens", "<2de>"]):
        with pytest.raises(SystemExit):
            attach(attached, tmp_path, *options, *protected, splits=splits[1:], bpe="sentencepiece")
        error = capsys.readouterr().err
        assert f"made with --protected-tokens {','.join(TAGS)}, and this run has " in error
        assert Manifest.load(attached, "de") == expected
    tokens = ["--protected-tokens", ",".join(reversed(TAGS))]
    attach(attached, tmp_path, *options, *tokens, splits=splits[1:], bpe="sentencepiece")
    assert Manifest.load(attached, "de").identity() == expected.identity()
    english = ["--parser", "none", "--lang", "en"]
    error = refused(attach, attached, tmp_path, *english, splits=splits, bpe="sentencepiece")
    assert f"--protected-tokens {','.join(TAGS)}, which dict.en.txt has, too" in error
    attach(attached, tmp_path, *english, *tokens, splits=splits, bpe="sentencepiece")


def test_a_dictionary_with_tokens_is_not_reused_without_them(data, tmp_path, capsys):
    tagged_data = data / "data.tagged"
    model_arguments = [
        "--srcdict",
        f"{tagged_data}/dict.de.txt",
        "--sentencepiece-model",
        f"{tagged_data}/spm.model",
    ]
    arguments = ["-s", "de", "-t", "en", f"--trainpref={data}/tagged/train", *model_arguments]
    with pytest.raises(SystemExit):
        preprocess([*arguments, "--destdir", str(tmp_path / "data")])
    tokens = ",".join(TAGS)
    assert re.search(
        rf"protected-tokens {re.escape(tokens)} and none: give --protected-tokens {re.escape(tokens)}",
        capsys.readouterr().err,
    )
    assert not (tmp_path / "data").exists()
    more = ["--protected-tokens", f"{tokens},<2fr>"]
    preprocess([*arguments, "--destdir", str(tmp_path / "data"), *more])


def test_a_subword_model_that_knows_the_tokens_segments_new_lines_as_its_text(tmp_path, data):
    """SentencePiece's user-defined symbols, in text that was segmented elsewhere."""
    model = tmp_path / "spm.model"
    lines = [re.sub(r"(\w+)", r"<g1>\1", line, count=1 + n % 2) for n, line in enumerate(
        read_lines(data / "plain/test.de"))]  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 5), model_prefix=str(model.with_suffix("")), vocab_size=60,
        user_defined_symbols=["<g1>"], minloglevel=2,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    segmented = [processor.encode(line, out_type=str) for line in lines]
    for language in ("de", "en"):
        write_lines(tmp_path / f"train.{language}", map(" ".join, segmented))
    shutil.copy(data / "plain/test.de.conllu", tmp_path / "train.de.conllu")
    attached = binarize(tmp_path, tmp_path / "data", splits=("train",))
    options = [*GOLD, f"--sentencepiece-model={model}", "--protected-tokens", "<g1>"]
    attach(attached, tmp_path, *options, splits=("train",), bpe="sentencepiece")
    segmenter = segmenter_of(attached, Manifest.load(attached, "de"))
    assert list(map(segmenter.segment_line, lines)) == segmented
    assert [segmenter.join(" ".join(subwords)) for subwords in segmented] == lines


def test_tokens_are_entries_and_in_the_record(data):
    dictionary = Dictionary.load(f"{data}/data.tagged/dict.de.txt")
    assert all(dictionary.index(tag) != dictionary.unk() for tag in TAGS)
    tokens = {*TAGS, JOINER}
    assert not any("<" in symbol for symbol in dictionary.symbols[4:] if symbol not in tokens)
    manifests = [Manifest.load(data / f"data.{name}", "de") for name in ("plain", "tagged")]
    first, second = (manifest.identity().entries["segmenter"].value for manifest in manifests)
    assert first != second
    inspect([f"{data}/data.tagged", "--sentences", "2"])


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "model",
    [
        ["--arch", "relation_transformer", "--relation-bias", "both"],
        ["--arch", "tree_transformer"],
        ["--arch", "structural_transformer", "--structural-absolute", "--structural-relative"],
        ["--arch", "phrase_transformer", "--phrase-source", "dependency"],
        ["--arch", "relation_transformer", "--tree-source", "random", "--tree-seed", "1"],
    ],
)
def test_raw_lines_have_them_too(data, tmp_path, command, model):
    folder = data / "data.tagged"
    common = [folder, "--user-dir", "fairseq_phrase", "--task", "syntax_translation", "--cpu"]
    command(
        fairseq_train, *common, *SIZES, *TRAINING[:-1], *model, "--max-tokens", "2000",
        "--max-update", "3", "--save-dir", tmp_path,
    )  # fmt: skip
    path = ["--path", tmp_path / "checkpoint_last.pt", "--max-len-b", "8", "--batch-size", "6"]
    printed = command(generate, *common, *path, "--gen-subset", "test")
    hypotheses = translations(printed)
    raw = [
        "--tokenizer", "syntax", "--bpe", "syntax", "--source-parser", f"gold:{data}/plain/test.de",
    ]  # fmt: skip
    text = ("--input", data / "tagged/test.de", "--buffer-size", "20")
    printed = command(interactive, *common, *path, *raw, *text)
    assert translations(printed) == hypotheses
    assert len(hypotheses) == 12


def test_what_does_not_go_with_them_is_said(data, texts, refused):
    prefix = ["-s", "de", "-t", "en", f"--trainpref={texts}/plain/train", "--protected-tokens"]
    assert "'<s>' cannot be protected" in refused(preprocess, [*prefix, "<s>"])
    message = "--protected-tokens is for translation"
    assert message in refused(preprocess, [*prefix, "<BT>", "--labels", "word"])
