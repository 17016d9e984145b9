"""``fairseq-phrase-translate``, ``fairseq-phrase-export`` and ``fairseq_phrase.load``."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import utils
from fairseq_cli import generate, interactive

import fairseq_phrase
from fairseq_phrase.cli import export as export_command
from fairseq_phrase.cli import translate as translate_command
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.search import Hypothesis, add_targets, joined_hypotheses
from fairseq_phrase.text import digest_of, read_lines
from tests.support.gold_parser import GoldParser
from tests.support.shared import Checkpoints
from tests.support.warm_start import REAL, python

MODELS = {
    "transformer": ["--task", "translation", "--arch", "transformer"],
    "phrases": [
        "--task", "syntax_translation", "--arch", "phrase_transformer_tiny", "--phrase-source",
        "dependency",
    ],
    "tree": ["--task", "syntax_translation", "--arch", "tree_transformer_tiny"],
    "short": [
        "--task", "translation", "--arch", "transformer", "--max-source-positions", "16",
        "--skip-invalid-size-inputs-valid-test",
    ],
}  # fmt: skip
GOLD = ["--source-parser", "of-test"]


@pytest.fixture(scope="module")
def checkpoints(data_directory, tmp_path_factory):
    """A checkpoint of each model, after a few updates."""
    return Checkpoints(tmp_path_factory, data_directory, MODELS)


@pytest.fixture(autouse=True)
def _short(longest_translation):
    longest_translation(10)


@pytest.fixture
def text(synthetic_corpus, tmp_path, install_parser):
    """Twenty lines of the test set, whose gold trees ``--source-parser of-test`` knows.

    Lines that come twice have different trees.
    """
    install_parser(lambda: GoldParser(synthetic_corpus / "test.de"))
    every = list(read_lines(synthetic_corpus / "test.de"))
    lines = [line for line in every if every.count(line) == 1][:20]
    path = tmp_path / "input.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def translate(capsys, text):
    """Call the command; returns the lines that it wrote."""

    def called(*arguments):
        translate_command.main([*map(str, arguments), *GOLD])
        return capsys.readouterr().out.splitlines()

    return called


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["transformer", "phrases", "tree", "transformer:phrases:tree"])
def test_hypotheses_are_those_of_fairseq_generate(
    name, data_directory, checkpoints, translate, text, command, synthetic_corpus
):
    path = ":".join(str(checkpoints[model_name]) for model_name in name.split(":"))
    printed = command(
        generate, data_directory, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
        "--path", path, "--beam", "3", "--nbest", "2", "--batch-size", "50", "--cpu",
        "--remove-bpe", "sentencepiece", "--max-len-b", "10",
    )  # fmt: skip
    generated = re.findall(r"^H-(\d+)\t(.*)\t(.*)$", printed, re.MULTILINE)
    source = list(read_lines(synthetic_corpus / "test.de"))
    numbers = [source.index(line) for line in read_lines(text)]
    expected = [
        hypothesis for index in numbers for hypothesis in generated if int(hypothesis[0]) == index
    ]
    lines = translate(
        data_directory, "--path", path, text, "--beam", "3", "--nbest", "2", "--scores",
        "--batch-size", "7", "--device", "cpu",
    )  # fmt: skip
    assert len(lines) == 40
    for line, (_, score, hypothesis) in zip(lines, expected, strict=True):
        own_score, text_of_line = line.split("\t")
        assert text_of_line == hypothesis.strip()
        assert float(own_score) == pytest.approx(float(score), abs=2e-4)


def test_fairseq_interactive_has_constraints(data_directory, checkpoints, text, command, tmp_path):
    line = next(iter(read_lines(text)))
    (tmp_path / "both.txt").write_text(f"{line}\truns\tman\n")
    printed = command(
        interactive, data_directory, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
        "--path", checkpoints["transformer"], "--beam", "4", "--cpu", "--constraints", "unordered",
        "--tokenizer", "syntax", "--bpe", "syntax", "--source-parser", "none", "--input",
        tmp_path / "both.txt", "--max-len-b", "30",
    )  # fmt: skip
    (translation,) = re.findall(r"^D-0\t.*\t(.*)$", printed, re.MULTILINE)
    assert "runs" in translation
    assert "man" in translation


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["phrases:tree", "transformer"])
def test_scores_of_given_translations_are_those_of_fairseq_generate(
    name, data_directory, checkpoints, translate, text, command, synthetic_corpus, tmp_path
):
    path = ":".join(str(checkpoints[model_name]) for model_name in name.split(":"))
    printed = command(
        generate, data_directory, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
        "--path", path, "--batch-size", "50", "--cpu", "--score-reference",
    )  # fmt: skip
    expected = dict(re.findall(r"^H-(\d+)\t(.*)\t.*$", printed, re.MULTILINE))
    source = list(read_lines(synthetic_corpus / "test.de"))
    targets = list(read_lines(synthetic_corpus / "test.en"))
    numbers = [source.index(line) for line in read_lines(text)]
    target_file = tmp_path / "given.en"
    target_file.write_text("".join(f"{targets[index]}\n" for index in numbers))
    options = ["--path", path, text, "--device", "cpu", "--score", target_file, "--batch-size", "7"]
    scores = translate(*options)
    assert [float(score) for score in scores] == pytest.approx(
        [float(expected[str(index)]) for index in numbers], abs=2e-4
    )
    assert [line.split("\t")[0] for line in translate(*options, "--alignments")] == scores


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["transformer", "phrases", "tree"])
def test_alignments_are_those_of_fairseq_generate_between_words(
    name, data_directory, checkpoints, translate, text, command, synthetic_corpus
):
    printed = command(
        generate, data_directory, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
        "--path", checkpoints[name], "--beam", "3", "--batch-size", "50", "--cpu",
        "--print-alignment", "hard", "--max-len-b", "10",
    )  # fmt: skip
    source = list(read_lines(synthetic_corpus / "test.de"))
    options = ["--path", checkpoints[name], text, "--beam", "3", "--device", "cpu"]
    aligned_lines = translate(*options, "--alignments")
    assert [line.split("\t")[0] for line in aligned_lines] == translate(*options)
    for line, aligned_line in zip(read_lines(text), aligned_lines, strict=True):
        index = source.index(line)
        (subwords,), (target_subwords,), (pairs,) = (
            re.findall(rf"^{kind}-{index}\t(?:.*\t)?(.*)$", printed, re.MULTILINE) for kind in "SHA"
        )
        words, target_words = (
            list(itertools.accumulate(subword.startswith("▁") for subword in side.split()))
            for side in (subwords, target_subwords)
        )
        expected = {
            (words[int(source_subword)] - words[0], target_words[int(two)] - target_words[0])
            for source_subword, two in (pair.split("-") for pair in pairs.split())
        }
        aligned = aligned_line.split("\t")[1].split()
        assert aligned == [f"{source_word}-{two}" for source_word, two in sorted(expected)]


@pytest.mark.fast(1)
@pytest.mark.parametrize("terms", [{}, {"Hund": "dog", "Der": "The"}])
def test_unknown_words_are_replaced_as_fairseq_replaces_them(terms, checkpoints, text, segmenter):
    model = fairseq_phrase.load(checkpoints["phrases"], device="cpu", source_parser="of-test")
    lines, target = list(read_lines(text))[:5], "The ☃ runs ☃☃"
    targets, dictionary = [target] * len(lines), model.task.target_dictionary
    scorer = model.task.build_generator(
        model.models, SimpleNamespace(score_reference=True, print_alignment="hard")
    )
    hypotheses = model.hypotheses(lines, target=targets, replace_unk=terms or True)
    for line, (hypothesis,) in zip(lines, hypotheses, strict=True):
        (sentence,) = model.task.source_text.encode([line])
        sample = model.task.source_text.batch([sentence])
        subwords = " ".join(segmenter.segment_line(target))
        add_targets(sample, [dictionary.encode_target(subwords, ())], dictionary)
        ((plainly,),) = scorer.generate(model.models, sample)
        words = [
            segmenter.join(" ".join(np.array(sentence.subwords)[sentence.words == word]))
            for word in sentence.words
        ]
        replaced = utils.replace_unk(
            dictionary.string(plainly["tokens"]),
            " ".join(words), [source for source, _ in plainly["alignment"]], terms, "<unk>",
        )  # fmt: skip
        assert hypothesis.text == segmenter.join(replaced)
        assert "unk" not in hypothesis.text


def test_words_without_attention_cannot_be_aligned(checkpoints, text):
    model = fairseq_phrase.load(checkpoints["tree"], device="cpu", source_parser="of-test")
    decoder = model.models[0].decoder
    forward = decoder.forward

    def without(*arguments, **options):
        states, extra = forward(*arguments, **options)
        return states, {**extra, "attn": [None]}

    decoder.forward = without
    with pytest.raises(UserError, match="need a decoder with attention"):
        list(model.hypotheses(list(read_lines(text))[:1], alignments=True))


def test_lines_keep_their_places(checkpoints, translate, text, monkeypatch):
    (first, second) = translate("--path", checkpoints["phrases"], text)[:2]
    source, second_source = text.read_text(encoding="utf-8").splitlines()[:2]
    lines = f"\n{source}\n  \n\u200b\n{second_source}\n\n".encode()
    monkeypatch.setattr(
        sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines), isatty=lambda: False)
    )
    printed = translate("--path", checkpoints["phrases"], "--buffer-size", "2")
    assert printed == ["", first, "", "", second, ""]
    text.write_bytes(lines)
    printed = translate("--path", checkpoints["phrases"], text, "--scores", "--nbest", "2")
    assert [line == "\t" for line in printed] == [
        True, True, False, False, True, True, True, True, False, False, True, True,
    ]  # fmt: skip


def test_a_line_that_is_too_long_is_translated_in_segments(
    checkpoints, translate, tmp_path, caplog
):
    line = "Der Mann läuft . Die Frau sieht das Kind ."
    path = tmp_path / "long.txt"
    path.write_text(f"{line}\nDer Mann läuft .\nDie Frau sieht das Kind .\n{line * 20}\n")
    long, first, second, longest = translate("--path", checkpoints["short"], path, "--scores")
    scores, texts = zip(*(line.split("\t") for line in (long, first, second)), strict=True)
    assert texts[0] == " ".join(filter(None, texts[1:]))
    assert min(scores[1:]) <= scores[0] <= max(scores[1:])
    assert re.search(
        r"line 1 has \d+ subwords, and the model takes 16: translated in 2", caplog.text
    )
    assert "line 2" not in caplog.text
    assert longest
    model = fairseq_phrase.load(checkpoints["short"], device="cpu", source_parser="none")
    for source, target, message in (
        (
            line,
            "The man",
            "line 1 is longer than the model reads, .* divide it and its translation",
        ),
        ("Der Mann", line, r"the translation of line 1 has \d+ subwords, and the model takes 16"),
    ):
        with pytest.raises(UserError, match=message):
            model.score(source, target)


def test_data_that_moved_are_named_in_the_message(
    data_directory, checkpoints, tmp_path, text, capsys
):
    state = torch.load(checkpoints["transformer"], weights_only=True)
    state["cfg"]["task"]["data"] = "data-bin/elsewhere"
    torch.save(state, tmp_path / "moved.pt")
    with pytest.raises(SystemExit) as ended:
        translate_command.main(["--path", str(tmp_path / "moved.pt"), str(text), *GOLD])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert "data-bin/elsewhere, which is not there" in message
    assert "name the data directory" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model: give --path"),
        (["bundel"], "no model, and bundel is no folder: give --path"),
        (["--path", "nowhere.pt"], "the checkpoint nowhere.pt is not there"),
        (["--path", "{folder}"], "is a folder, but not a bundle"),
        (["--path", "{checkpoint}", "nowhere.txt"], "nowhere.txt is not there"),
        (["--path", "{checkpoint}", "--nbest", "9"], "expected 1 to the number of beams, 5"),
        (
            ["--path", "{checkpoint}", "--score", "x", "--nbest", "2"],
            "remove --nbest",
        ),
        (["--path", "{checkpoint}", "--device", "cuda:77"], "device cuda:77"),
        (["--path", "{checkpoint}", "--device", "gpu"], "gpu: expected cpu, cuda or cuda:1"),
        (["{folder}", "--path", "{checkpoint}"], "is not a data directory"),
    ],
)
def test_mistakes_are_one_message(arguments, message, checkpoints, tmp_path, text, capsys):
    places = {"folder": tmp_path, "checkpoint": checkpoints["transformer"]}
    with pytest.raises(SystemExit) as ended:
        translate_command.main([part.format(**places) for part in arguments] + GOLD)
    assert ended.value.code == 2
    stderr = capsys.readouterr().err
    assert message in stderr
    assert len(stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def exported(checkpoints, data_directory, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "bundle"
    export_command.main([str(checkpoints["tree"]), str(data_directory), str(out)])
    return out


@pytest.fixture
def bundle(exported, tmp_path):
    """A bundle of the tree Transformer, whose labels have numbers, to be changed."""
    return shutil.copytree(exported, tmp_path / "bundle")


def test_a_bundle_translates_as_its_checkpoint(bundle, checkpoints, translate, text):
    expected = translate("--path", checkpoints["tree"], text, "--scores")
    assert translate(bundle, text, "--scores") == expected
    assert translate("--path", f"{bundle}:{bundle}", text, "--scores") == expected
    moved = bundle.rename(bundle.with_name("moved"))
    assert translate("--path", moved, text, "--scores") == expected


def test_a_bundle_holds_no_pickle_and_no_path_of_its_training(bundle, data_directory, checkpoints):
    names = {path.name for path in bundle.iterdir()}
    assert names == {
        "config.json", "model.safetensors", "dict.de.txt", "dict.en.txt", "dict.deprel.txt",
        "dict.tag.txt", "dict.constituent.txt", "spm.model", "syntax.de.json",
        "README.md",
    }  # fmt: skip
    for name in ("config.json", "README.md"):
        text = (bundle / name).read_text(encoding="utf-8")
        assert str(data_directory.parent) not in text
        assert str(checkpoints["tree"].parent) not in text
    assert not (bundle / "model.safetensors").read_bytes().startswith((b"PK", b"\x80"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("changed", r"safetensors is not the file .* \(its checksum differs\)"),
        ("missing", r"is incomplete: dict\.en\.txt is missing"), ("other format", "has format 99"),
        ("no json", r"config\.json is damaged"), ("outside", r"\.\./secret is not a file of this"),
    ],
)  # fmt: skip
def test_a_damaged_bundle_is_refused(damage, message, bundle, text):
    contents = bundle / "config.json"
    described = json.loads(contents.read_text(encoding="utf-8"))["bundle"]
    if damage == "changed":
        weights = bundle / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    elif damage == "missing":
        (bundle / "dict.en.txt").unlink()
    elif damage == "other format":
        contents.write_text(json.dumps({"bundle": {**described, "format": 99}}))
    elif damage == "no json":
        contents.write_text("hello")
    else:
        described["files"]["../secret"] = "x"
        contents.write_text(json.dumps({"bundle": described}))
    with pytest.raises(UserError, match=message):
        fairseq_phrase.load(bundle, source_parser="of-test")


def test_a_hostile_bundle_opens_nothing_that_its_user_did_not_name(bundle, text, tmp_path):
    contents, manifest = bundle / "config.json", bundle / "syntax.de.json"
    contents_of_bundle = json.loads(contents.read_text(encoding="utf-8"))["bundle"]
    expected = fairseq_phrase.load(bundle, source_parser="of-test").translate("Der Hund")
    trap = tmp_path / "trap"  # opening it would be an error

    def write(model=(), task=()):
        files = {**contents_of_bundle["files"], manifest.name: digest_of(manifest)}
        changed = {
            "model": {**contents_of_bundle["model"], **dict(model)},
            "task": {**contents_of_bundle["task"], **dict(task)},
        }
        contents.write_text(
            json.dumps({"bundle": {**contents_of_bundle, "files": files, **changed}})
        )

    write(
        {"encoder_embed_path": f"{trap}", "decoder_embed_path": f"{trap}", "pretrained": f"{trap}"},
        {"source_parser": f"spacy:{trap}", "allow_difference": "parser", "data": f"{trap}"},
    )
    assert fairseq_phrase.load(bundle, source_parser="of-test").translate("Der Hund") == expected
    write(task={"eval_bleu_args": "${oc.env:HOME}"})
    with pytest.raises(UserError, match=r"its cfg\.task\.eval_bleu_args is the interpolation \$"):
        fairseq_phrase.load(bundle, source_parser="of-test")
    manifest_contents = json.loads(manifest.read_text(encoding="utf-8")) | {
        "parser": f"spacy:{trap}"
    }
    manifest.write_text(json.dumps(manifest_contents))
    write()
    with pytest.raises(UserError, match="a parser is loaded from a path only if you name it"):
        fairseq_phrase.load(bundle).translate("Der Hund")


def test_an_existing_folder_is_not_overwritten(bundle, checkpoints, data_directory, capsys):
    with pytest.raises(SystemExit):
        export_command.main([str(checkpoints["tree"]), str(data_directory), str(bundle)])
    assert "exists already" in capsys.readouterr().err


def test_load_translates_parses_scores_and_looks(checkpoints, data_directory, text):
    model = fairseq_phrase.load(
        checkpoints["phrases"], data_directory, device="cpu", source_parser="of-test"
    )
    lines = text.read_text(encoding="utf-8").splitlines()
    (best, second), *_ = model.hypotheses(lines[:1], nbest=2)
    assert model.translate(lines[0]) == best.text
    assert model.translate([*lines[:3], ""])[::3] == [best.text, ""]
    assert best.score >= second.score
    (parsed,) = model.parse(lines[:1])
    assert "".join(parsed.words) == "".join(lines[0].split())
    assert len(parsed.tree) == len(parsed.words)
    attention = model.attention(lines[0])
    nodes = len(attention.labels)
    weights = attention.weights["all nodes"]
    assert weights.shape == (2, 2, nodes, nodes)
    assert weights.sum(-1) == pytest.approx(1, abs=1e-5)
    # The same number for a translation and for its text, if it is split into the same subwords.
    target = "The man runs ."
    assert model.score(lines[0], target) < 0
    with pytest.raises(UserError, match="the source is empty"):
        model.score("", target)


def test_the_score_of_a_translation_is_that_of_the_search(checkpoints, segmenter, text):
    model = fairseq_phrase.load(checkpoints["tree"], device="cpu", source_parser="of-test")
    lines = text.read_text(encoding="utf-8").splitlines()[:5]
    compared = 0
    for line, (best,) in zip(lines, model.hypotheses(lines), strict=True):
        if len(segmenter.segment_line(best.text)) + 1 == best.tokens:
            assert model.score(line, best.text) == pytest.approx(best.score, abs=1e-4)
            compared += 1
    assert compared
    for line, (best,) in zip(lines, model.hypotheses(lines, lenpen=0.4), strict=True):
        ((scored,),) = model.hypotheses([line], target=[best.text], lenpen=0.4)
        if scored.tokens == best.tokens:
            assert scored.score == pytest.approx(best.score, abs=1e-4)
            mean = model.score(line, best.text)
            assert scored.score == pytest.approx(mean * best.tokens**0.6, abs=1e-4)
            compared -= 1
    assert compared <= 0


def test_the_score_of_a_line_of_several_sentences_has_the_length_of_all():
    # The sums of the log probabilities are -3 and -6, of 3 and 6 subwords.
    parts = [[Hypothesis("a", -3 / 3**0.5, 3)], [Hypothesis("b", -6 / 6**0.5, 6)]]
    (joined,) = joined_hypotheses(parts, 1, 0.5)
    assert (joined.text, joined.tokens) == ("a b", 9)
    assert joined.score == pytest.approx(-9 / 9**0.5)


def test_a_pipe_is_a_file(checkpoints, translate, text, monkeypatch, tmp_path):
    """On a terminal, progress counts the lines of files by reading them."""
    expected = translate("--path", checkpoints["transformer"], text)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(text.read_bytes()))
    writer.start()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert translate("--path", checkpoints["transformer"], pipe) == expected
    writer.join(10)


@pytest.mark.parametrize(("closed", "what"), [("stdin", "input"), ("stdout", "output")])
def test_a_closed_stream_is_named(closed, what, checkpoints, monkeypatch, capsys):
    monkeypatch.setattr(sys, closed, None)
    with pytest.raises(SystemExit) as ended:
        translate_command.main(["--path", str(checkpoints["transformer"])])
    assert ended.value.code == 2
    assert f"standard {what} is closed" in capsys.readouterr().err


def test_a_full_disk_is_named_by_what_does_not_fit(
    checkpoints, data_directory, tmp_path, capsys, monkeypatch
):
    def copyfile(source, target):
        error = OSError(errno.ENOSPC, "No space left on device", str(source))
        error.filename2 = str(target)
        raise error

    out = tmp_path / "bundle"
    monkeypatch.setattr(shutil, "copyfile", copyfile)
    with pytest.raises(SystemExit):
        export_command.main([str(checkpoints["tree"]), str(data_directory), str(out)])
    assert f"error: {out}.partial/dict.de.txt: No space left" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_command_that_is_interrupted_while_it_parses_ends_with_130(
    checkpoints, data_directory, synthetic_corpus, spacy_pipeline
):
    """A process that ends while a thread is in a library's C++ code would be aborted."""
    command = [
        REAL / "fairseq-phrase-translate", data_directory, "--path", checkpoints["transformer"],
        synthetic_corpus / "train.de", "--buffer-size", "200", "--beam", "1", "--device", "cpu",
        "--source-parser", f"spacy:{spacy_pipeline}",
    ]  # fmt: skip
    with subprocess.Popen(
        [python(), *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # As in a terminal, also if the tests run in the background, where shells ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as running:
        running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, messages = running.communicate(timeout=600)  # a loaded machine ends the chunk late
    assert running.returncode == 130, messages
    assert b"interrupted. To run it again:" in messages
    assert b"terminate" not in messages


def test_a_program_may_wait_for_the_translation_of_each_line_it_sends(checkpoints, data_directory):
    command = [
        REAL / "fairseq-phrase-translate", data_directory, "--path", checkpoints["transformer"],
        "--beam", "1", "--device", "cpu", "--source-parser", "none",
    ]  # fmt: skip
    with subprocess.Popen(
        [python(), *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        for line in (b"Der Mann\n", b"\n", b"Die Frau\n", b"Der Hund\n"):
            running.stdin.write(line)
            running.stdin.flush()
            assert running.stdout.readline().endswith(b"\n")
        assert running.communicate(timeout=600)[0] == b""
    assert running.returncode == 0
