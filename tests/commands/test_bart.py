"""A BART of one's own, in the files of the public one, from its folder to a corrected line."""

from __future__ import annotations

import math
import re
import shutil
from argparse import Namespace

import pytest
import torch
from fairseq import options as fairseq_options
from fairseq.data import Dictionary
from fairseq.tasks import setup_task
from fairseq_cli import generate, interactive
from fairseq_cli import preprocess as binarize
from fairseq_cli import train as fairseq_train
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fairseq_phrase.cli.attach import main as attach
from fairseq_phrase.cli.export import main as export
from fairseq_phrase.cli.preprocess import main as preprocess
from fairseq_phrase.cli.translate import main as translate
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.data.subwords.segmented_lines import spell
from fairseq_phrase.data.subwords.segmenters import Gpt2Segmenter, SentencePieceSegmenter, gpt2_file
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.translator import load
from fairseq_phrase.text import read_lines
from tests.support.attaching import write_lines
from tests.support.commands import run, translations
from tests.support.fairseq_bart import write_bart, write_checkpoint

LANGS = ["ar_AR", "de_DE", "en_XX"]
LINES = {"train": 80, "valid": 10, "test": 10}


#: A verb that does not agree with its subject, and the corrected line.
ERRORS = {
    "The old dog sleep here.": "The old dog sleeps here.",
    "The old dogs sleeps here.": "The old dogs sleep here.",
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Lines with errors, their trees, and the corrected lines."""
    folder = tmp_path_factory.mktemp("errors")
    for split, count in LINES.items():
        wrong = [*ERRORS] * (count // 2)
        write_lines(folder / f"{split}.src", wrong)
        write_lines(folder / f"{split}.tgt", map(ERRORS.get, wrong))
        rows = []
        for line in wrong:
            words = [*line.removesuffix(".").split(), "."]
            for number, (word, head) in enumerate(zip(words, (3, 3, 4, 0, 4, 4), strict=True), 1):
                end = "SpaceAfter=No" if number == 5 else "_"
                relation = "dep" if head else "root"
                rows.append(f"{number}\t{word}\t_\tX\t_\t_\t{head}\t{relation}\t_\t{end}")
            rows.append("")
        write_lines(folder / f"{split}.src.conllu", rows)
    return folder


@pytest.fixture(scope="module")
def bart(text, tmp_path_factory):
    """encoder.json, vocab.bpe, dict.txt and model.pt, as in bart.base.tar.gz."""
    return write_bart(tmp_path_factory.mktemp("bart"), text / "train.src")


def loss(log):
    return re.search(r"valid on 'valid' subset \| loss (\S+)", log)[1]


def training(command, data, bart, save, *options):
    return command(
        fairseq_train, data, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
        "--pretrained-model", bart / "model.pt", "--take-options", "--optimizer", "adam",
        "--criterion", "cross_entropy", "--max-tokens", "1000", "--no-progress-bar", "--cpu",
        "--num-workers", "0", "--seed", "1", "--save-dir", save, *options,
    )  # fmt: skip


def test_from_the_public_folder_to_a_corrected_line(text, bart, tmp_path, command, capsys):
    data = tmp_path / "data"
    preprocess(
        ["-s", "src", "-t", "tgt", "--parser", "conllu", "--bpe", f"gpt2:{bart}"]
        + ["--srcdict", f"{bart}/dict.txt", "--joined-dictionary", "--destdir", str(data)]
        + [f"--{split}pref={text / split}" for split in LINES]
    )
    losses = []
    for number, model in enumerate(
        (
            ["bart_base"],
            ["relation_transformer"],
            ["bart_base", "--source-factors", "deprels,subwords"],
        )
    ):
        still = ["--lr", "0", "--max-update", "1", "--arch", *model]
        losses.append(loss(training(command, data, bart, tmp_path / str(number), *still)))
    assert len(set(losses)) == 1
    training(
        command, data, bart, tmp_path / "tuned", "--arch", "relation_transformer", "--relation-bias",
        "both", "--lr", "0.01", "--adam-betas", "(0.9, 0.98)", "--max-epoch", "12", "--batch-size", "8",
        "--dropout", "0", "--no-epoch-checkpoints",
    )  # fmt: skip
    gold = f"gold:{text}/test.src"
    write_lines(tmp_path / "errors", ERRORS)
    capsys.readouterr()
    path = f"--path={tmp_path}/tuned/checkpoint_last.pt"
    errors = str(tmp_path / "errors")
    translate([str(data), errors, path, "--source-parser", gold, "--device", "cpu"])
    assert capsys.readouterr().out.splitlines() == [*ERRORS.values()]


def test_the_tags_of_an_mbart_are_protected_and_keep_their_rows(text, tmp_path, command):
    tags = ["[de_DE]", "[en_XX]"]
    tagged, mbart = tmp_path / "tagged", tmp_path / "mbart"
    mbart.mkdir()
    shutil.copytree(text, tagged)
    for split in LINES:
        write_lines(
            tagged / f"{split}.src", (f"{a} [de_DE]" for a in read_lines(text / f"{split}.src"))
        )
        write_lines(
            tagged / f"{split}.tgt", (f"[en_XX] {a}" for a in read_lines(text / f"{split}.tgt"))
        )
    options = ["-s", "src", "-t", "tgt", "--parser", "conllu", "--joined-dictionary"]
    preprocess(
        [*options, f"--trainpref={text}/train", "--vocab-size=18", f"--destdir={tmp_path}/plain"]
    )
    shutil.copy(tmp_path / "plain/dict.src.txt", mbart / "dict.txt")
    saved = write_checkpoint(mbart, "mbart_base", [*tags, "<mask>"])
    data = tmp_path / "data"
    options += [f"--{split}pref={tagged / split}" for split in LINES]
    options += [f"--sentencepiece-model={tmp_path}/plain/spm.model", f"--srcdict={mbart}/dict.txt"]
    preprocess([*options, "--protected-tokens", ",".join(tags), f"--destdir={data}"])
    assert Dictionary.load(f"{data}/dict.src.txt").symbols[-2:] == tags
    losses = []
    for arch in ("mbart_base", "relation_transformer"):
        save = tmp_path / arch
        still = ["--arch", arch, "--lr", "0", "--max-update", "1"]
        losses.append(loss(training(command, data, mbart, save, *still)))
        parameters = torch.load(save / "checkpoint_last.pt", weights_only=False)["model"]
        assert torch.equal(parameters["encoder.embed_tokens.weight"], saved[:-1])
    assert losses[0] == losses[1]


@pytest.fixture(scope="module")
def mbart(text, tmp_path_factory):
    """A folder with a checkpoint of random weights, and data of its dictionary: de_DE to en_XX."""
    folder = tmp_path_factory.mktemp("mbart")
    options = ["-s", "de_DE", "-t", "en_XX", "--parser", "conllu", "--joined-dictionary"]
    for split in LINES:
        for old, new in (("src", "de_DE"), ("src.conllu", "de_DE.conllu"), ("tgt", "en_XX")):
            shutil.copy(text / f"{split}.{old}", folder / f"{split}.{new}")
        options += [f"--{split}pref", f"{folder}/{split}"]
    preprocess([*options, "--vocab-size=18", f"--destdir={folder}/data"])
    shutil.copy(folder / "data/dict.de_DE.txt", folder / "dict.txt")
    write_checkpoint(folder, "mbart_base", [*(f"[{language}]" for language in LANGS), "<mask>"])
    return folder


def tagged(task, *options):
    """Options of a task with mBART's tags; the source is padded on the right."""
    if task != "syntax_translation":
        options = ("--left-pad-source", *options)  # which is on there
    return ["--task", task, "--langs", ",".join(LANGS), "-s", "de_DE", "-t", "en_XX", *options]


def test_the_tags_of_an_mbart_are_where_fairseq_has_them(mbart):
    batches = []
    for name in ("syntax_translation", "translation_from_pretrained_bart"):
        parser = fairseq_options.get_training_parser()
        train_arguments = [str(mbart / "data"), *tagged(name), "--arch", "mbart_base"]
        train_arguments += ["--user-dir", "fairseq_phrase"]
        task = setup_task(fairseq_options.parse_args_and_arch(parser, train_arguments))
        if name == "syntax_translation":
            task.require_parses(["heads"])
        task.load_dataset("valid")
        samples = [task.datasets["valid"][index] for index in range(4)]
        batches.append(task.datasets["valid"].collater(samples))
    ours, theirs = batches
    for name in ("src_tokens", "src_lengths", "prev_output_tokens"):
        assert torch.equal(ours["net_input"][name], theirs["net_input"][name])
    assert torch.equal(ours["target"], theirs["target"])
    assert ours["ntokens"] == theirs["ntokens"]
    words = ours["net_input"]["src_words"]
    assert words[0, -2:].tolist() == [-1, -1]
    assert (words[0, :-2] >= 0).all()


def by_fairseq(mbart, path, subset):
    """The task of fairseq itself, the model of a checkpoint, and a batch of all pairs."""
    parser = fairseq_options.get_training_parser()
    train_arguments = [str(mbart / "data"), *tagged("translation_from_pretrained_bart")]
    task = setup_task(
        fairseq_options.parse_args_and_arch(parser, [*train_arguments, "--arch", "mbart_base"])
    )
    task.load_dataset(subset)
    saved, written = (torch.load(file, weights_only=False) for file in (mbart / "model.pt", path))
    model = task.build_model(saved["args"])
    model.load_state_dict(written["model"])
    pairs = task.datasets[subset]
    return task, model.eval(), pairs.collater([pairs[index] for index in range(len(pairs))])


def loss_by_fairseq(mbart):
    """The validation loss of the checkpoint by fairseq's own task, as its log has it."""
    _, model, batch = by_fairseq(mbart, mbart / "model.pt", "valid")
    logits, _ = model(**batch["net_input"])
    entropy = cross_entropy(logits.transpose(1, 2), batch["target"], ignore_index=1)
    return f"{entropy.item() / math.log(2):.3f}"


@pytest.fixture(scope="module")
def tuned(mbart):
    """Its checkpoint, trained for a moment."""
    options = [*tagged("syntax_translation"), "--lr", "0.01", "--max-update", "60"]
    options += ["--batch-size", "8", "--arch", "mbart_base"]
    training(lambda _, *given: run("fairseq-train", *given), mbart / "data", mbart, mbart, *options)
    return mbart / "checkpoint_last.pt"


def _number(word):
    return float(word) if re.fullmatch(r"-?\d+\.\d+", word) else word


def _close(value):
    """Scores are equal to rounding; lines of P have four digits."""
    return pytest.approx(value, abs=1.01e-4) if isinstance(value, float) else value


def test_an_mbart_with_its_tags_trains_and_translates_as_in_fairseq(
    mbart, tuned, tmp_path, command, capsys
):
    data, still = mbart / "data", ["--lr", "0", "--max-update", "1"]
    for arch in ("mbart_base", "relation_transformer"):
        options = [*tagged("syntax_translation"), *still, "--arch", arch]
        log = training(command, data, mbart, tmp_path / arch, *options)
        assert float(loss(log)) == float(loss_by_fairseq(mbart))
    path, outputs = tuned, []
    for task in ("translation_from_pretrained_bart", "syntax_translation"):
        printed = command(
            generate, data, *tagged(task), "--user-dir", "fairseq_phrase", "--path", path, "--cpu",
            "--num-workers", "0",
        )  # fmt: skip
        lines = sorted(re.findall(r"^([HP]-\d+)\t(.*)$", printed, re.MULTILINE))
        outputs.append([(name, [*map(_number, line.split())]) for name, line in lines])
    for (name, row), (other_name, other_row) in zip(*outputs, strict=True):
        assert (other_name, other_row) == (name, [_close(value) for value in row])
    hypotheses = translations(printed)
    assert len(hypotheses) == LINES["test"]
    assert "[" not in "".join(hypotheses.values())
    lines, gold = f"{mbart}/test.de_DE", f"gold:{mbart}/test.de_DE"
    printed = command(
        interactive, data, *tagged("syntax_translation"), "--user-dir", "fairseq_phrase", "--path",
        path, "--cpu", "--tokenizer", "syntax", "--bpe", "syntax",
        "--source-parser", gold, "--input", lines, "--buffer-size", "20", "--batch-size", "5",
    )  # fmt: skip
    assert translations(printed) == hypotheses
    capsys.readouterr()
    translate([str(data), lines, f"--path={path}", "--source-parser", gold, "--device", "cpu"])
    assert capsys.readouterr().out.splitlines() == [
        hypotheses[str(number)].replace(" ", "").replace("▁", " ").strip()
        for number in range(LINES["test"])
    ]
    with pytest.raises(UserError, match="langs"):
        command(
            generate, data, "--task", "syntax_translation", "--user-dir", "fairseq_phrase",
            "--path", path, "--cpu",
        )  # fmt: skip


@pytest.fixture
def tagging(mbart, tuned):
    """The tuned model, for raw text."""
    return load(tuned, mbart / "data", device="cpu", source_parser="none")


def test_targets_with_tags_have_the_probabilities_of_one_forward_pass(mbart, tuned, tagging):
    _, model, batch = by_fairseq(mbart, tuned, "test")
    logits, extra = model(**batch["net_input"])
    target, source = batch["target"], batch["net_input"]["src_tokens"]
    nats = cross_entropy(logits.transpose(1, 2), target, ignore_index=1, reduction="none")
    expected = -nats.sum(1) / target.ne(1).sum(1) / math.log(2)
    lines, targets_of_lines = (
        list(read_lines(mbart / f"test.{language}")) for language in ("de_DE", "en_XX")
    )
    hypotheses = [
        hypothesis
        for (hypothesis,) in tagging.hypotheses(lines, target=targets_of_lines, alignments=True)
    ]
    for number, row in enumerate(batch["id"].tolist()):
        assert hypotheses[row].score == pytest.approx(expected[number].item(), abs=1e-5)
        # Neither an end nor a tag is aligned, nor aligned to.
        marks = [
            [
                subword.startswith("▁")
                for subword in dictionary.string(tokens[tokens.ne(1)][:-2]).split()
            ]
            for dictionary, tokens in (
                (tagging.task.source_dictionary, source[number]),
                (tagging.task.target_dictionary, target[number]),
            )
        ]
        sources, targets = ((torch.tensor(mark).cumsum(0) - 1).tolist() for mark in marks)
        attention = extra["attn"][0][number, : len(targets), source[number].ne(1)][
            :, : len(sources)
        ]
        aligned = {
            (sources[best], targets[n]) for n, best in enumerate(attention.argmax(1).tolist())
        }
        assert hypotheses[row].alignment == sorted(aligned)


def test_prefixes_of_translations_follow_their_tags(mbart, tuned, tagging):
    task, model, batch = by_fairseq(mbart, tuned, "test")
    lines = list(read_lines(mbart / "test.de_DE"))
    subwords = SentencePieceSegmenter(mbart / "data/spm.model").segment_line("The dog")
    prefix = task.target_dictionary.encode_line(" ".join(subwords), append_eos=False).long()
    generator = task.build_generator([model], Namespace(score_reference=False, beam=5))
    generated = generator.generate([model], batch, prefix_tokens=prefix.expand(len(lines), -1))
    for hypotheses in generated:
        for hypothesis in hypotheses:
            assert tagging.texts([hypothesis["tokens"]])[0].startswith("The dog")
    assert "The dog" not in tagging.translate(lines[0])


def test_fairseqs_own_constraints_are_refused_with_tags(mbart, tuned, command):
    with pytest.raises(UserError, match="--langs cannot be combined with fairseq's --constraints"):
        command(
            interactive, mbart / "data", *tagged("syntax_translation"), "--user-dir",
            "fairseq_phrase", "--path", tuned, "--cpu", "--source-parser", "none", "--constraints",
        )  # fmt: skip


def test_a_bundle_of_a_model_with_tags_translates_as_its_checkpoint(
    mbart, tuned, tagging, tmp_path
):
    export([str(tuned), str(mbart / "data"), str(tmp_path / "bundle"), "--source-parser", "none"])
    model = load(tmp_path / "bundle", device="cpu", source_parser="none")
    hypotheses = [
        [*translator.hypotheses(ERRORS, nbest=3, alignments=True)]
        for translator in (tagging, model)
    ]
    assert hypotheses[0] == hypotheses[1]


@pytest.mark.fast(1)
@pytest.mark.parametrize("dictionary", ["of the model", "of the text"])
def test_attached_text_of_numbers_has_the_words_of_its_lines(
    text, bart, segmenter, tmp_path, command, dictionary
):
    """The data are made as for fairseq's BART: numbers of GPT-2's BPE, then fairseq-preprocess."""
    segmented = tmp_path / "segmented"
    segmented.mkdir()
    for split in LINES:
        for suffix in ("src", "tgt"):
            lines = read_lines(text / f"{split}.{suffix}")
            subwords = [" ".join(segmenter.segment_line(line)) for line in lines]
            (segmented / f"{split}.{suffix}").write_text("\n".join(subwords) + "\n")
        shutil.copy(text / f"{split}.src.conllu", segmented)
    data = tmp_path / "data"
    dictionaries = ["--srcdict", bart / "dict.txt", "--tgtdict", bart / "dict.txt"]
    command(
        binarize, "-s", "src", "-t", "tgt", *(dictionaries if dictionary == "of the model" else []),
        "--destdir", data, "--workers", "1", *(f"--{split}pref={segmented / split}" for split in LINES),
    )  # fmt: skip
    attach(
        [str(data), "-s", "src", "-t", "tgt", "--bpe", f"gpt2:{bart}", "--parser", "conllu"]
        + [f"--{split}pref={segmented / split}" for split in LINES]
    )
    assert Manifest.load(data, "src").whole_lines
    store = ParseStore(data, "train.src-tgt", "src", {"words", "heads"})
    for number, line in enumerate(read_lines(text / "train.src")):
        subwords, words = segmenter.segment_line(line), store[number]["words"]
        spelled = {}
        for subword, word in zip(subwords, words.tolist(), strict=True):
            spelled[word] = spelled.get(word, b"") + segmenter.content(subword)
        assert b"".join(spelled.values()).decode() == line
        assert all(word.strip() for word in spelled.values())
        assert len(spelled) == len(store[number]["heads"])


@pytest.fixture(scope="module")
def segmenter(bart):
    return Gpt2Segmenter(gpt2_file(bart, bart / "tokenizer.json"))


@given(line=st.text(min_size=1, max_size=40))
def test_bytes_spell_their_line(segmenter, line):
    line = " ".join(line.split())
    subwords = segmenter.segment_line(line)
    assert segmenter.join(" ".join(subwords)) == line.encode(errors="replace").decode()
    segmented = spell(subwords, "gpt2", segmenter)
    if line:
        assert segmented.text == line
    assert sorted(segmented.starts) == segmented.starts
    assert len(segmented.starts) == len(subwords)


@pytest.mark.fast(2)
@pytest.mark.parametrize("change", ["fewer", "more", "missing", "damaged"])
def test_files_that_do_not_fit_the_dictionary_are_named(text, bart, tmp_path, refused, change):
    folder = shutil.copytree(bart, tmp_path / "bart")
    entries = (folder / "dict.txt").read_text().splitlines()
    match = r"does not fit encoder.json and vocab.bpe"
    if change == "fewer":
        (folder / "dict.txt").write_text("\n".join(entries[40:]) + "\n")
    elif change == "more":
        (folder / "dict.txt").write_text("\n".join([*entries, "99999 1"]) + "\n")
    elif change == "missing":
        (folder / "vocab.bpe").unlink()
        match = r"vocab.bpe"
    else:
        (folder / "encoder.json").write_text("{}")
        match = r"has no BPE of GPT-2"
    options = ["-s", "src", "-t", "tgt", "--bpe", f"gpt2:{folder}", "--joined-dictionary"]
    options += ["--srcdict", f"{folder}/dict.txt", f"--trainpref={text}/train"]
    assert re.search(match, refused(preprocess, [*options, "--destdir", str(tmp_path / "data")]))
    assert not (tmp_path / "data").exists()
