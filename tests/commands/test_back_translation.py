"""Large texts: sampling, parts, files that an interrupted run goes on with, and several processes."""

from __future__ import annotations

import os
from argparse import Namespace
from io import BytesIO, TextIOWrapper

import pytest
import torch

import fairseq_phrase
from fairseq_phrase.cli import translate as translate_command
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.search import base_2, seed_of
from tests.support.selection import first_fast
from tests.support.shared import checkpoints_of

SAMPLING = ["--sampling", "--sampling-topk", "20", "--nbest", "2", "--scores", "--seed", "5"]


# Few target positions, as a model that has hardly learned writes translations of the largest length.
SHORT = ["--task", "translation", "--arch", "transformer", "--max-target-positions", "30"]


@pytest.fixture(scope="module")
def checkpoint(data_directory, tmp_path_factory):
    return checkpoints_of(tmp_path_factory, data_directory, {"short": SHORT})["short"]


@pytest.fixture
def text(synthetic_corpus, tmp_path):
    lines = (synthetic_corpus / "test.de").read_text(encoding="utf-8").splitlines()[:20]
    lines[7] = ""
    path = tmp_path / "input.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def arguments(checkpoint, text):
    return [
        "--path", checkpoint, text, "--device", "cpu", "--source-parser", "none", "--buffer-size", "6",
        "--batch-size", "4",
    ]  # fmt: skip


@pytest.fixture
def translate(capsys, arguments):
    """Call the command with options; returns what it wrote, and said."""

    def called(*options):
        translate_command.main([*map(str, arguments), *map(str, options)])
        return capsys.readouterr()

    return called


DRAWS = [{"sampling_topk": 3}, {"sampling_topp": 0.3}, {"temperature": 0.4}, {"temperature": 3.0}]
DRAWS += [{"sampling_topp": 0.9, "temperature": 0.7}, {}]


@pytest.mark.parametrize("draws", first_fast(DRAWS, 2))
def test_what_is_drawn_is_fairseqs_sampling(checkpoint, text, draws):
    model = fairseq_phrase.load(checkpoint, device="cpu", source_parser="none")
    lines = text.read_text(encoding="utf-8").splitlines()[:4]
    hypotheses = [*model.hypotheses(lines, sampling=True, nbest=2, **draws, seed=9)]
    generator = model.task.build_generator(model.models, Namespace(beam=2, sampling=True, **draws))
    encode = model.task.source_text.encode
    for number, line in enumerate(lines, start=1):
        ((_, sample),) = model.task.source_text.batches(encode([line]), 12000, 32)
        torch.manual_seed(seed_of(9, number, 0))
        ((first, second),) = generator.generate(model.models, sample)
        assert [hypothesis.text for hypothesis in hypotheses[number - 1]] == model.texts(
            [first["tokens"], second["tokens"]]
        )
        assert [hypothesis.score for hypothesis in hypotheses[number - 1]] == pytest.approx(
            [base_2(hypothesis["score"]) for hypothesis in (first, second)], rel=1e-4
        )
    assert hypotheses != [*model.hypotheses(lines, sampling=True, nbest=2, **draws, seed=8)]
    state = torch.get_rng_state()
    assert hypotheses == [*model.hypotheses(lines, sampling=True, nbest=2, **draws, seed=9)]
    assert torch.equal(state, torch.get_rng_state())


def test_more_subwords_than_the_dictionary_has_are_drawn_from_all(checkpoint):
    model = fairseq_phrase.load(checkpoint, device="cpu", source_parser="none")
    entries = len(model.task.target_dictionary)
    drawn = [
        [*model.hypotheses(["Hund"], sampling=True, sampling_topk=k)] for k in (entries, 10**6)
    ]
    assert drawn[0] == drawn[1]


def test_a_low_temperature_and_a_small_share_draw_what_a_greedy_search_finds(checkpoint, text):
    model = fairseq_phrase.load(checkpoint, device="cpu", source_parser="none")
    lines = text.read_text(encoding="utf-8").splitlines()[:4]
    greedy = model.translate(lines, beam=1)
    assert model.translate(lines, sampling=True) != greedy
    assert model.translate(lines, sampling=True, sampling_topp=1e-9) == greedy
    assert model.translate(lines, sampling=True, temperature=1e-4) == greedy
    sampled = model.translate(lines, sampling=True, sampling_topp=1.0, nbest=2)
    assert sampled != greedy


@pytest.mark.parametrize("option", ["beam", "buffer_size"])
def test_numbers_below_1_are_refused(checkpoint, option):
    model = fairseq_phrase.load(checkpoint, device="cpu", source_parser="none")
    with pytest.raises(UserError, match=f"{option} 0: expected a positive number"):
        model.translate(["Hund"], sampling=True, **{option: 0})


def test_what_is_drawn_does_not_depend_on_the_other_lines(checkpoint, text):
    model = fairseq_phrase.load(checkpoint, device="cpu", source_parser="none")
    lines = text.read_text(encoding="utf-8").splitlines()[:7]
    lines[3] = " ".join([lines[3]] * 9)  # its translation may be longer

    def drawn(some, **options):
        return [
            [hypothesis.text for hypothesis in hypotheses]
            for hypotheses in model.hypotheses(some, sampling=True, nbest=2, seed=9, **options)
        ]

    expected = drawn(lines, batch_size=1, buffer_size=1)
    assert drawn(lines, batch_size=3, buffer_size=9) == expected
    assert drawn(lines, batch_size=32) == expected
    assert drawn(["", *lines[1:3]]) == [["", ""], *expected[1:3]]
    assert drawn([lines[1]]) != expected[1:2]  # another line's number


@pytest.mark.parametrize("options", [["--nbest", "2"], SAMPLING])
def test_shards_are_the_lines_of_a_single_run(options, translate, tmp_path):
    output, stderr = translate(*options)
    assert len(output.splitlines()) == 40
    parts = [translate(*options, "--shard", f"{number}/3").out for number in (1, 2, 3)]
    assert "".join(parts) == output
    assert all(parts)
    out = tmp_path / "out.en"
    for number in (3, 1, 2):
        assert not out.exists()
        stderr = translate(*options, "--shard", f"{number}/3", "--out", out).err
    assert out.read_text(encoding="utf-8") == output
    assert "lines/s" in stderr
    # A part that is there is not translated again.
    out.unlink()
    assert ": 0 lines translated" in translate(*options, "--shard", "2/3", "--out", out).err
    assert out.read_text(encoding="utf-8") == output
    parts = [f"out.en.{number}-of-3" for number in (1, 2, 3)]
    assert {path.name for path in tmp_path.iterdir()} == {
        "input.txt", "out.en", *parts, *(f"{part}.key" for part in parts),
    }  # fmt: skip


def test_no_part_of_a_few_lines_is_empty(arguments, translate, text, tmp_path):
    lines = text.read_text(encoding="utf-8").splitlines()[:5]
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    output = translate().out
    for parts in (2, 4, 5):
        parts_of_output = [translate("--shard", f"{n}/{parts}").out for n in range(1, parts + 1)]
        assert all(parts_of_output)
        assert "".join(parts_of_output) == output


def test_other_options_models_and_files_do_not_go_on_with_what_was_written(
    translate, checkpoint, text, tmp_path, refused
):
    out = tmp_path / "out.en"
    output = translate().out
    translate("--out", out)
    assert out.read_text(encoding="utf-8") == output
    assert f"{out} is there already" in refused(translate, "--out", out)
    translate("--out", tmp_path / "half.en", "--shard", "1/2")
    other_path = tmp_path / "other.pt"
    state = torch.load(checkpoint, weights_only=True)
    torch.save({**state, "extra_state": {}}, other_path)
    half = ("--out", tmp_path / "half.en", "--shard", "2/2")
    for options, difference in (
        (("--beam", "2"), "beam None; this run has beam 2"),
        (("--path", other_path), "model 1 checkpoint_last.pt"),
        (
            ("--replace-unk", "--unk-dictionary", terms := tmp_path / "terms"),
            "unk_dictionary (none)",
        ),
        (("--source-parser", "factored"), "parser of the text"),
    ):
        terms.write_text("Hund dog\n")
        assert difference in refused(translate, *half, *options)
    text.write_text(text.read_text("utf-8").replace("e", "o"), "utf-8")
    assert f"{tmp_path}/half.en.1-of-2 was made with text input.txt" in refused(translate, *half)


def test_standard_input_is_compared_with_what_was_translated(
    arguments, text, tmp_path, capsys, monkeypatch
):
    out = tmp_path / "out.en"
    command_arguments = [*map(str, (*arguments[:2], *arguments[3:])), "--out", str(out)]

    def translate(content):
        with monkeypatch.context() as patched:
            patched.setattr("sys.stdin", TextIOWrapper(BytesIO(content)))
            translate_command.main(command_arguments)

    content = text.read_bytes()
    written, calls = translate_command.output_line, []

    def interrupted(*given):
        calls.append(given)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return written(*given)

    monkeypatch.setattr(translate_command, "output_line", interrupted)
    with pytest.raises(SystemExit):
        translate(content)
    monkeypatch.setattr(translate_command, "output_line", written)
    with pytest.raises(SystemExit):
        translate(content.replace(b"e", b"o"))
    message = (
        f"{out}.partial has the output for other lines than 1 to 1 of this text: give the same"
    )
    assert message in capsys.readouterr().err
    translate(content)
    assert ": 16 lines translated" in capsys.readouterr().err
    assert len(out.read_bytes().splitlines()) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shard", "3/2"], "expected I/N with I from 1 to N, not 3/2"),
        (["--shard", "0/2"], "expected I/N with I from 1 to N, not 0/2"),
        (
            ["--shard", "1/2", "--out", "{out}"],
            "{out}.2-of-2 is there without out.2-of-2.key, which records what made it: remove it",
        ),
        # Of one option of the search; the others are in the tests of SearchOptions.
        (["--sampling", "--temperature", "0"], 'temperature="0.0": expected a number above 0'),
        (["--sampling", "--beam", "12", "--nbest", "4"], "draws, which are no samples"),
        (["--score", "{out}.2-of-2", "--sampling"], "remove the options of a search"),
        (["--out", "{out}", "--source-parser", "spacy:nothing"], "spacy download nothing"),
    ],
)
def test_mistakes_are_one_message(options, message, translate, tmp_path, refused):
    out = tmp_path / "out"
    (tmp_path / "out.2-of-2").write_text("a\nb\nc\n")
    stderr = refused(translate, *(part.format(out=out) for part in options))
    assert message.format(out=out) in stderr.splitlines()[-1]
    assert not out.exists()
    assert not [*tmp_path.glob("*.partial")]


def test_parts_of_a_pipe_are_refused(arguments, monkeypatch, capsys):
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        monkeypatch.setattr("sys.stdin", Namespace(buffer=stream, isatty=lambda: False))
        with pytest.raises(SystemExit):
            translate_command.main([*map(str, (*arguments[:2], *arguments[3:])), "--shard", "1/2"])
    assert "name text files, not a pipe" in capsys.readouterr().err
