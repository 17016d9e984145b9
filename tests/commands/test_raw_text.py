"""Raw lines at inference, by ``fairseq-interactive`` and the hub: each is translated by its own parse."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import weakref

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from fairseq_cli import interactive

import fairseq_phrase.tasks.user_directory  # noqa: F401  what --user-dir does to messages
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.interfaces import LineParser, split_at_white_space
from fairseq_phrase.repairs.commands import use_idle_cores
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence
from fairseq_phrase.tasks.syntax_translation import SyntaxTranslationConfig, SyntaxTranslationTask
from tests.support.commands import SIZES, train
from tests.support.warm_start import python

# ☃ and § are unknown to the dictionary, so that both lines have the same token indices.
SNOWMAN, SECTION = "Ein Mann ☃ läuft schnell .", "Ein Mann § läuft schnell ."


class CountingParser(LineParser):
    """Words at white space; the first is the root where there is a snowman, elsewhere the last."""

    version = "counting"
    fields = ("words", "heads")

    def __init__(self):
        self.parsed, self.segmented = [], []

    def parse(self, lines):
        self.parsed += lines
        return [self._sentence(line.split(), "☃" in line) for line in lines]

    def tokenize(self, lines):
        self.segmented += lines
        return [split_at_white_space(line) for line in lines]

    @staticmethod
    def _sentence(words, is_first):
        count = len(words)
        tree = DependencyTree([0 if is_first else count - 1] * count)
        return ParsedSentence(
            words, [True] * count, tree=tree, deprels=["dep"] * count, tags=["X"] * count
        )


@pytest.fixture
def parser(install_parser):
    """A parser whose trees depend on unknown words."""
    counting_parser = CountingParser()
    install_parser(lambda: counting_parser)
    return counting_parser


@pytest.fixture(scope="module")
def checkpoint(data_directory, tmp_path_factory):
    """A model with dependency phrases, after two updates."""
    return trained(data_directory, tmp_path_factory.mktemp("save"), "--phrase-source", "dependency")


@pytest.fixture(scope="module")
def ngram_checkpoint(data_directory, tmp_path_factory):
    """A model that needs no parses, after two updates."""
    return trained(data_directory, tmp_path_factory.mktemp("ngram"))


def trained(data, save, *options):
    train(
        data, save, "--arch", "phrase_transformer_tiny", *SIZES, *options, "--max-update", "2",
        "--max-tokens", "200", "--disable-validation", "--max-target-positions", "100",
    )  # fmt: skip
    return save / "checkpoint_last.pt"


@pytest.fixture
def translate(data_directory, checkpoint, parser, command, tmp_path):
    """Translate lines by ``fairseq-interactive``; returns what it printed for each."""

    def translated(lines, *options, path=checkpoint, codecs=("--tokenizer=syntax", "--bpe=syntax")):
        text = tmp_path / "input.txt"
        text.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
        printed = command(
            interactive, data_directory, "--user-dir", "fairseq_phrase", "--task",
            "syntax_translation", "--path", path, "--cpu", "--source-parser", "of-test",
            "--max-len-b", "5", "--beam", "2", "--input", text, *codecs, *options,
        )  # fmt: skip
        return re.findall(r"^H-\d+\t(.*)$", printed, re.MULTILINE)

    return translated


@pytest.fixture
def hub(data_directory, checkpoint, parser):
    return TransformerModel.from_pretrained(
        str(checkpoint.parent), checkpoint.name, str(data_directory), user_dir="fairseq_phrase",
        tokenizer="syntax", bpe="syntax", source_parser="of-test",
    )  # fmt: skip


def make_task(data):
    cfg = SyntaxTranslationConfig(
        data=str(data), train_subset="train", dataset_impl="mmap", required_seq_len_multiple=1
    )
    cfg.source_parser = "of-test"
    return SyntaxTranslationTask.setup_task(cfg)


def test_batched_lines_have_parses_of_their_own(translate):
    def scores(found):
        return [float(line.split("\t")[0]) for line in found]

    lines = [SNOWMAN, "Der Hund", SECTION, SNOWMAN, "Ein"]
    alone = [line for text in lines for line in translate([text])]
    batched = translate(lines, "--buffer-size", "5", "--batch-size", "5")
    assert scores(batched) == pytest.approx(scores(alone), abs=1e-4)
    assert scores(batched)[0] != pytest.approx(scores(batched)[2], abs=1e-4)


def test_interactive_segments_and_parses_each_line_once(translate, parser):
    lines = [SNOWMAN, SECTION, "Der Hund"]
    translate(lines, "--buffer-size", "2")
    assert sorted(parser.parsed) == sorted(lines)
    assert parser.segmented == []


def test_the_hub_translates_each_line_by_its_own_parse(hub, parser):
    def scores(lines):
        return [
            hypotheses[0]["score"].item()
            for hypotheses in hub.generate(list(map(hub.encode, lines)))
        ]

    snowman, section = scores([SNOWMAN]), scores([SECTION])
    assert snowman != section
    assert scores([SNOWMAN]) == snowman
    assert scores([SECTION, SNOWMAN]) == pytest.approx(section + snowman, abs=1e-5)
    assert hub.generate(hub.encode(SECTION))[0]["score"].item() == section[0]
    assert parser.parsed.count(SNOWMAN) == 3
    hub.translate([SNOWMAN], beam=1, verbose=True)


@pytest.mark.parametrize("fields", [[], ["words", "heads"]])
def test_batches_of_raw_lines_are_freed(data_directory, parser, fields):
    task = make_task(data_directory)
    task.require_parses(["words", *fields]) if fields else None
    tokens, lengths = task.get_interactive_tokens_and_lengths([SNOWMAN, SECTION], encoder_of(task))
    dataset = task.build_dataset_for_inference(tokens, lengths)
    assert len(list(task.get_batch_iterator(dataset).next_epoch_itr())) > 0
    reference = weakref.ref(dataset)
    del dataset
    gc.collect()
    assert reference() is None


def test_raw_text_for_ngrams_without_a_tokenizer_is_refused(translate, ngram_checkpoint):
    with pytest.raises(
        UserError, match=r"is raw text, and its word .* --tokenizer syntax --bpe syn"
    ):
        translate(["Der Hund läuft schnell."], path=ngram_checkpoint, codecs=())
    with pytest.raises(UserError, match="is raw text"):
        translate(["Der Hund läuft schnell."], path=ngram_checkpoint, codecs=("--tokenizer=space",))


def test_text_that_is_segmented_already_is_translated_as_it_is(
    translate, ngram_checkpoint, data_directory, parser
):
    encode = encoder_of(make_task(data_directory))
    lines = ["Der Hund läuft schnell.", SNOWMAN]
    translated_before = translate(map(encode, lines), path=ngram_checkpoint, codecs=())
    assert translated_before == translate(lines, path=ngram_checkpoint)


@pytest.mark.fast(1)
@pytest.mark.parametrize("model", ["dependency", "ngram"])
def test_a_byte_order_mark_is_no_word(translate, checkpoint, ngram_checkpoint, model):
    path = checkpoint if model == "dependency" else ngram_checkpoint
    lines = ["Der Hund", "Ein Mann"]
    assert translate(["\ufeffDer Hund", "Ein Mann"], path=path) == translate(lines, path=path)


def test_bytes_that_are_read_as_surrogates_are_named_with_their_line(data_directory):
    task = make_task(data_directory)
    task.get_interactive_tokens_and_lengths(["Der Hund"], lambda line: "▁")
    with pytest.raises(UserError, match="line 3 of the input is not UTF-8"):
        task.get_interactive_tokens_and_lengths(["Ein", "l\udce4uft"], lambda line: "▁")


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["-", "FILE"])
def test_input_that_is_not_utf8_is_named_with_its_line(tmp_path, name):
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"Der Hund.\n" * 3000 + "läuft\n".encode("latin-1"))
    program = (
        "import fairseq_phrase.tasks.user_directory, sys\n"
        "from fairseq_cli.interactive import buffered_read\n"
        "sys.stdin.reconfigure(encoding='utf-8', errors='strict')\n"
        "for lines in buffered_read(sys.argv[1], 100): pass"
    )
    with path.open() as stream:
        finished = subprocess.run(
            [python(), "-c", program, str(path) if name == "FILE" else name],
            stdin=stream, capture_output=True, text=True,
        )  # fmt: skip
    assert finished.returncode == 1
    place = "standard input" if name == "-" else str(path)
    assert f"error: line 3001 of {place} is not UTF-8" in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    ("load", "chosen", "expected"),
    [(0.2, {}, 7), (3.4, {}, 4), (30.0, {}, 1), (30.0, {"OMP_NUM_THREADS": "6"}, 8)],
)
def test_raw_lines_use_the_cores_that_are_idle(monkeypatch, load, chosen, expected):
    threads = [8]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    use_idle_cores()
    assert threads[-1] == expected


def test_indices_that_carry_no_line_are_spelled(data_directory, parser):
    task = make_task(data_directory)
    task.require_parses(["words", "heads"])
    (tokens,), _ = lengths = task.get_interactive_tokens_and_lengths(["Der Hund"], encoder_of(task))
    dataset = task.build_dataset_for_inference([torch.tensor(tokens.tolist())], lengths[1])
    assert dataset[0]["source"].origins[0].heads.tolist() == [1, 1]


def test_indices_with_unknown_words_that_carry_no_line_are_refused(data_directory, parser):
    task = make_task(data_directory)
    task.require_parses(["words", "heads"])
    tokens, lengths = task.get_interactive_tokens_and_lengths([SNOWMAN], encoder_of(task))
    assert task.source_dictionary.unk() in tokens[0]
    with pytest.raises(UserError, match="unknown subwords came without its line"):
        task.build_dataset_for_inference([torch.tensor(tokens[0].tolist())], lengths)


def encoder_of(task):
    """Segment a line as its parse is."""

    def encoded(line):
        (sentence,) = task.source_text.encode([line])
        return " ".join(sentence.subwords)

    return encoded
