"""Words and lines to subwords: nothing lost, nothing that fairseq would misread."""

from collections import Counter

import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.cli.preprocess import main as preprocess
from fairseq_phrase.data.preprocessing.subword_models import (
    CharacterOptions,
    sampled,
    train_sentencepiece,
)
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.subwords import protected_tokens
from fairseq_phrase.data.subwords.protected_tokens import JOINER, ProtectedTokens
from fairseq_phrase.data.subwords.segmented_lines import SegmentedLine
from fairseq_phrase.data.subwords.segmenters import (
    SEGMENTER_GROUP,
    SentencePieceSegmenter,
    SubwordNmtSegmenter,
    TokenizerSegmenter,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.text import is_invisible, plain_spaces, read_lines
from tests.support.data_tasks import make_task as task_of
from tests.support.hostile import SNIPPETS, lines
from tests.support.packages import install_package

SPECIAL = {"<s>", "</s>", "<pad>", "<unk>"}


@pytest.fixture(scope="module")
def plain(segmenter):
    """SentencePiece itself, with the same model."""
    return sentencepiece.SentencePieceProcessor(model_file=str(segmenter.model))


@pytest.fixture(scope="module")
def unnormalized(tmp_path_factory):
    """A model that leaves text as it is, white space and all."""
    prefix = tmp_path_factory.mktemp("identity") / "spm"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["das Haus der Frau", "die Frau im Haus", *SNIPPETS]),
        model_prefix=str(prefix), vocab_size=200, hard_vocab_limit=False, minloglevel=2,
        normalization_rule_name="identity", remove_extra_whitespaces=False,
    )  # fmt: skip
    return SentencePieceSegmenter(prefix.with_suffix(".model"))


def test_ordinary_lines_are_segmented_as_sentencepiece_does(segmenter, plain, synthetic_corpus):
    for line in read_lines(synthetic_corpus / "test.en"):
        assert segmenter.segment_line(line) == plain.encode(line, out_type=str)


def test_a_word_keeps_the_space_that_it_has_or_has_not(segmenter):
    with_space, without = segmenter.segment_word("▁Frau"), segmenter.segment_word("Frau")
    assert "".join(with_space) == "▁Frau"
    assert "".join(without) == "Frau"


@pytest.fixture(scope="module")
def byte_pairs(tmp_path_factory):
    """subword-nmt's BPE, which knows the words ``BT`` and ``X``."""
    codes = tmp_path_factory.mktemp("codes") / "bpe.codes"
    codes.write_text("#version: 0.2\nB T</w>\nB T\n")
    return SubwordNmtSegmenter(codes)


@pytest.fixture(scope="module")
def wordpieces(tmp_path_factory):
    """BERT's kind of tokenizer, which knows ``BT`` and single letters."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    entries = ["[UNK]", "BT", "##BT", *"BTX", "##B", "##T", "##X"]
    numbers = {entry: number for number, entry in enumerate(entries)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.save(str(path))
    return TokenizerSegmenter(path)


def test_the_lengths_that_a_tokenizer_was_used_with_do_not_count(wordpieces, tmp_path):
    tokenizer = tokenizers.Tokenizer.from_file(str(wordpieces.model))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    segmenter = TokenizerSegmenter(tmp_path / "tokenizer.json")
    assert segmenter.segment_line("BTX BT") == ["BT", "##X", "BT"]
    assert segmenter.segment_word("▁XTB") == ("X", "##T", "##B")


@pytest.mark.parametrize(
    ("model", "line", "subwords"),
    [
        ("byte_pairs", "XBT BT", ["X@@", "B@@", "T", "BT"]),
        ("byte_pairs", "BTX BT", ["BT@@", "X", "BT"]),
        ("wordpieces", "XBT BT", ["X", "##BT", "BT"]),
        ("wordpieces", "BTX BT", ["B", "##T", "##X", "BT"]),
    ],
)
def test_a_subword_that_looks_like_a_protected_token_spells_its_word(
    request, model, line, subwords
):
    segmenter = ProtectedTokens(request.getfixturevalue(model), ["BT", JOINER])
    assert segmenter.segment_line(line) == subwords
    assert [*segmenter.segment_word(f"▁{line[:3]}"), "BT"] == subwords
    assert segmenter.join(" ".join(subwords)) == line


@given(line=lines())
def test_the_subwords_of_a_line_spell_it_in_its_normal_form(segmenter, plain, line):
    expected = "".join(plain.encode(plain_spaces(line), out_type=str))
    assert "".join(segmenter.segment_line(line)) == "".join(expected.split())


@pytest.mark.parametrize("model", ["segmenter", "unnormalized", "normalizing"])
def test_subwords_survive_being_written_with_spaces_between_them(model, request):
    model = request.getfixturevalue(model)

    @given(lines())
    def survives(line):
        for subwords in (model.segment_line(line), *map(model.segment_word, line.split())):
            assert " ".join(subwords).split() == list(subwords)
            assert not SPECIAL & set(subwords)

    survives()


@given(word=st.text(st.characters(exclude_categories=["Cs", "Z"]), min_size=1, max_size=8))
def test_a_word_has_subwords_unless_nothing_but_spaces_is_left_of_it(normalizing, word):
    plain = sentencepiece.SentencePieceProcessor(model_file=str(normalizing.model))
    is_left = bool(plain.normalize(word).strip("▁ ")) and not is_invisible(word)
    assert bool(normalizing.segment_word("▁" + word)) == is_left


@pytest.mark.parametrize("word", ["▁\u200b", "▁▁", "▁", "", "\ufeff"])
def test_nothing_is_left_of_an_invisible_word(segmenter, normalizing, word):
    for model in (segmenter, normalizing):
        assert model.segment_word(word) == ()
        assert not "".join(model.segment_line(word.removeprefix("▁"))).strip("▁")


# Persian with zero-width non-joiners, Thai with sara am, French with U+00A0, and what NFKC changes.
KEPT = [
    "او می‌خواهد کتاب‌ها را بخواند.", "ทำไมน้ำจึงดำ", "我们去上海。", "İstanbul'da ışık",
    "«\u00a0Oui\u00a0!\u00a0»\u2028Non", "ﬁ ½ Ａ ´ e\u0301 é\u00ad\u200f",
]  # fmt: skip


def joined(segmenter, subwords):
    """The text of subwords, as it is after fairseq has written and read them."""
    return segmenter.join(" ".join(subwords))


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_a_trained_model_writes_every_line_as_it_is_but_for_white_space(tmp_path, byte_fallback):
    characters = CharacterOptions(byte_fallback=byte_fallback)
    size = 64 + 256 * byte_fallback
    train_sentencepiece(KEPT * 9, tmp_path / "spm.model", size, 1, characters)
    segmenter = SentencePieceSegmenter(tmp_path / "spm.model")
    for line in KEPT:
        subwords = segmenter.segment_line(line)
        assert " ".join(subwords).split() == subwords
        assert joined(segmenter, subwords) == " ".join(line.split())
        for word in line.split():
            assert joined(segmenter, segmenter.segment_word(f"▁{word}")) == word


def test_bytes_are_joined_to_characters_and_text_that_looks_like_them_is_kept(tmp_path):
    for fallback, size in ((False, 12), (True, 262)):
        characters = CharacterOptions(byte_fallback=fallback)
        train_sentencepiece(["<0xE4> a"] * 9, tmp_path / "spm.model", size, 1, characters)
        segmenter = SentencePieceSegmenter(tmp_path / "spm.model")
        assert joined(segmenter, segmenter.segment_line("a <0xE4>")) == "a <0xE4>"
    subwords = segmenter.segment_line("中 a")
    assert subwords == ["▁", "<0xE4>", "<0xB8>", "<0xAD>", "▁a"]
    assert joined(segmenter, subwords) == "中 a"
    segmented = SegmentedLine.from_sentencepiece(subwords)
    assert (segmented.text, segmented.subwords_of(["中", "a"])) == (
        "中 a",
        [subwords[:4], subwords[4:]],
    )
    assert joined(segmenter, ["<0xE4>", "a"]) == "\ufffda"  # as a model may write it


def test_characters_that_are_not_covered_have_no_subwords(tmp_path):
    characters = CharacterOptions(coverage=0.98)
    train_sentencepiece(["ab " * 60 + "c"] * 9, tmp_path / "spm.model", 6, 1, characters)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    assert processor.unk_id() in processor.encode("c")
    assert processor.unk_id() not in processor.encode("ab")


@pytest.mark.parametrize("text", sorted(SPECIAL))
def test_text_that_spells_a_special_token_is_segmented_into_characters(tmp_path, text):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["das Haus"] * 3), model_prefix=str(tmp_path / "spm"),
        vocab_size=20, hard_vocab_limit=False, minloglevel=2,
        unk_piece="[u]", bos_piece="[b]", eos_piece="[e]", user_defined_symbols=[text],
    )  # fmt: skip
    segmenter = SentencePieceSegmenter(tmp_path / "spm.model")
    assert list(segmenter.segment_word(text)) == list(text)
    assert segmenter.segment_line(f"das {text}")[-len(text) :] == list(text)


def test_characters_that_cannot_be_encoded_are_an_error_that_shows_them(segmenter):
    for segment in (segmenter.segment_line, segmenter.segment_word):
        with pytest.raises(UserError, match=r"udc80.* expected text that UTF-8 can hold"):
            segment("Haus\udc80")


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(UserError, match=r"gone\.model is not there"):
        SentencePieceSegmenter(tmp_path / "gone.model")


def test_a_model_whose_marks_end_words_is_refused(tmp_path):
    words = ["der Hund und die Katze", "die Hunde und der Kater"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words), model_prefix=tmp_path / "a", vocab_size=22, minloglevel=2,
        treat_whitespace_as_suffix=True,
    )  # fmt: skip
    with pytest.raises(UserError, match=r"a\.model was trained with treat_whitespace_as_suffix"):
        SentencePieceSegmenter(tmp_path / "a.model")


@pytest.mark.parametrize("content", [b"", b"no model", b"\0" * 100])
def test_a_file_that_is_no_model_is_named(tmp_path, content):
    (tmp_path / "a.model").write_bytes(content)
    with pytest.raises(
        UserError, match=r"a\.model is not a SentencePiece model(: unk is not defined\.)?$"
    ):
        SentencePieceSegmenter(tmp_path / "a.model")


def test_a_trained_model_knows_every_character_and_leaves_no_other_file(tmp_path):
    text = ["die Katze sitzt", "der Hund läuft 中"] * 20
    text += ["字" * 9000]  # SentencePiece's own limit is 4,192 bytes
    train_sentencepiece(iter(text), tmp_path / "spm.model", 22, seed=1)
    assert [path.name for path in tmp_path.iterdir()] == ["spm.model"]
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    assert processor.unk_id() not in processor.encode("中ä字")
    assert processor.get_piece_size() == 22


def test_training_twice_gives_the_same_model(tmp_path, synthetic_corpus):
    for name in ("a.model", "b.model"):
        train_sentencepiece(read_lines(synthetic_corpus / "valid.de"), tmp_path / name, 100, seed=3)
    assert (tmp_path / "a.model").read_bytes() == (tmp_path / "b.model").read_bytes()


@pytest.mark.parametrize(("text", "size"), [(["die Katze"], 5000), (["die Katze"], 3), ([], 100)])
def test_an_impossible_vocabulary_size_is_named_with_what_to_change(tmp_path, text, size):
    with pytest.raises(UserError, match=f"cannot train {size} subwords") as caught:
        train_sentencepiece(iter(text), tmp_path / "spm.model", size, seed=1)
    assert "--vocab-size" in str(caught.value)
    assert ".cc(" not in str(caught.value)  # the line of SentencePiece's code
    assert "\n" not in str(caught.value)


def test_a_sample_keeps_the_order_and_is_the_same_for_the_same_seed():
    lines = [str(number) for number in range(1000)]
    first = list(sampled(iter(lines), 1000, 100, seed=1))
    assert len(first) == 100
    assert first == sorted(set(first), key=int)
    assert first == list(sampled(iter(lines), 1000, 100, seed=1))
    assert first != list(sampled(iter(lines), 1000, 100, seed=2))


def test_every_line_has_the_same_chance_to_be_sampled():
    counts = Counter(line for seed in range(2000) for line in sampled("abcdefgh", 8, 3, seed))
    assert sum(counts.values()) == 3 * 2000
    assert all(650 < counts[line] < 850 for line in "abcdefgh")  # 750, standard deviation 22


@pytest.mark.parametrize("count", [5, 6])
def test_a_text_that_is_no_longer_than_the_sample_is_taken_whole(count):
    assert list(sampled("abcde", 5, count, seed=1)) == list("abcde")


def test_a_sample_is_drawn_without_holding_the_text():
    alive = 0

    class Line(str):
        def __new__(cls, text):
            nonlocal alive
            alive += 1
            return super().__new__(cls, text)

        def __del__(self):
            nonlocal alive
            alive -= 1

    most = 0
    for _ in sampled((Line(number) for number in range(2000)), 2000, 500, seed=1):
        most = max(most, alive)
    assert most <= 3


SYLLABLES = """
class Syllables:
    def __init__(self, model):
        self.size = int(model.read_text())

    def segment_word(self, word):
        return tuple(word[i : i + self.size] for i in range(0, len(word), self.size))

    def segment_line(self, line):
        return [subword for word in line.split() for subword in self.segment_word("▁" + word)]

    def join(self, subwords):
        return subwords.replace(" ", "").replace("▁", " ").strip()
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder as pip would leave it behind: a package with one segmenter that works and one broken."""
    entries = "syllables = syllables:Syllables\nbroken = nowhere:Nothing\n"
    install_package(tmp_path, "syllables", f"[{SEGMENTER_GROUP}]\n{entries}", syllables=SYLLABLES)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "size").write_text("4")
    return tmp_path


def test_an_installed_segmenter_segments_data_and_new_text(installed, synthetic_corpus):
    options = ["--trainpref", synthetic_corpus / "test", "--destdir", installed / "data"]
    options += ["-s", "de", "-t", "en", "--parser", "none", "--bpe", "syllables"]
    preprocess([*map(str, options), "--bpe-codes", str(installed / "size")])
    manifest = Manifest.load(installed / "data", "de")
    assert (manifest.bpe, manifest.bpe_model) == ("syllables", "bpe.model")
    text = task_of(installed / "data").source_text
    for line in list(read_lines(synthetic_corpus / "test.de"))[:9]:
        (sentence,) = text.encode([line])
        marked = ["▁" + word for word in line.split()]
        assert sentence.subwords == [
            word[i : i + 4] for word in marked for i in range(0, len(word), 4)
        ]
        assert text.encoder.segmenter.join(" ".join(sentence.subwords)) == line
        # The dictionary of the data has these subwords.
        assert 3 not in text.numbered(sentence)[0]


@pytest.mark.parametrize(
    ("bpe", "message"),
    [
        (
            "sylables",
            "error: --bpe sylables: expected one of sentencepiece, subword_nmt, huggingface, gpt2, ",
        ),
        (
            "broken",
            "error: --bpe broken: nowhere:Nothing cannot be used: No module named 'nowhere'",
        ),
        ("syllables", "error: --bpe syllables needs the model that it learned: --bpe-codes FILE"),
    ],
)
def test_a_segmenter_that_cannot_be_used_is_named(
    installed, synthetic_corpus, capsys, bpe, message
):
    options = ["--trainpref", synthetic_corpus / "test", "--destdir", installed / "data"]
    with pytest.raises(SystemExit):
        preprocess([*map(str, options), "-s", "de", "-t", "en", "--bpe", bpe])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "offset", "gap"),
    [
        ("ab c", 0, (0, 0)), ("ab c", 1, (0, 1)), ("ab c", 3, (1, 0)), ("ab c", 4, (2, 0)),
        ("ab c", 2, (1, 0)),  # after a word, before white space
        ("", 0, (0, 0)), (" a", 1, (0, 0)),
    ],
)  # fmt: skip
def test_a_protected_token_is_between_words_or_within_one(text, offset, gap):
    assert protected_tokens.gap_at(text, offset) == gap
