"""``fairseq-phrase-export --to transformers`` and ``--to ctranslate2``: the same numbers as fairseq's."""

from __future__ import annotations

import math

import ctranslate2
import pytest
import torch
from fairseq_cli import train as fairseq_train
from transformers import AutoModel, AutoModelForSeq2SeqLM

import fairseq_phrase
from fairseq_phrase import parsers
from fairseq_phrase.cli import export as export_command
from fairseq_phrase.inference import translator
from fairseq_phrase.inference.hypotheses import Hypothesis
from tests.support.commands import SIZES, TRAINING
from tests.support.gold_parser import GoldParser

PLAIN = ["--arch", "transformer"]
MODELS = {
    "plain": PLAIN,
    "normalized before": [*PLAIN, "--encoder-normalize-before", "--decoder-normalize-before"],
    "phrases": ["--arch", "phrase_transformer_tiny", "--phrase-source", "dependency"],
    "relations": ["--arch", "relation_transformer_tiny"],
    "tree": ["--arch", "tree_transformer_tiny"],
}
ENDING = ("plain", "relations")
PADDING = 1  # in every dictionary of fairseq


@pytest.fixture(scope="module")
def checkpoints(data_directory, tmp_path_factory):
    """A checkpoint of each model, after a few updates; that of two, when translations begin to end."""
    folder = tmp_path_factory.mktemp("models")
    for name, options in MODELS.items():
        arguments = [
            data_directory, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
            *TRAINING, *SIZES, *options, "--save-dir", folder / name, "--max-tokens", "1000",
            "--max-update", "160" if name in ENDING else "30", "--disable-validation",
        ]  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["fairseq-train", *map(str, arguments)])
            fairseq_train.cli_main()
    return {name: folder / name / "checkpoint_last.pt" for name in MODELS}


@pytest.fixture
def lines(synthetic_corpus, monkeypatch):
    gold = GoldParser(synthetic_corpus / "test.de")
    built_in = parsers._BuiltIn("gold", lambda: gold)
    monkeypatch.setitem(parsers._BUILT_IN, "gold", built_in)
    return (synthetic_corpus / "test.de").read_text(encoding="utf-8").splitlines()[:6]


def exported(checkpoint, data, out, kind):
    options = ["--to", kind, "--source-parser", "none"]
    export_command.main([str(checkpoint), str(data), str(out), *options])
    return out


@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_and_searches_as_fairseq(
    name, checkpoints, data_directory, lines, tmp_path, monkeypatch
):
    longest = 100 if name in ENDING else 10
    monkeypatch.setattr(translator, "longest_target", lambda source: longest)
    out = exported(checkpoints[name], data_directory, tmp_path / "model", "transformers")
    own = fairseq_phrase.load(checkpoints[name], source_parser="gold", device="cpu")
    parse = own.inputs(lines)
    tokens, mask = parse.pop("input_ids"), parse.pop("attention_mask")
    previous = torch.cat([torch.full((6, 1), 2), torch.arange(5, 29).view(6, 4)], 1)
    with torch.no_grad():
        expected = own.models[0](tokens, mask.sum(1), previous, **parse)[0]
    model = AutoModelForSeq2SeqLM.from_pretrained(out, trust_remote_code=True)
    assert (type(model).__name__ == "FSMTForConditionalGeneration") == (name == "plain")
    with torch.no_grad():
        logits = model(
            input_ids=tokens, attention_mask=mask, decoder_input_ids=previous, use_cache=False,
            **parse,
        ).logits  # fmt: skip
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=2e-5)
    # transformers gives no score to the end of a translation that is cut off.
    beams = 5 if name in ENDING else 1
    for power in (1.0, 2.0) if beams > 1 else (1.0,):
        found = model.generate(
            input_ids=tokens, attention_mask=mask, num_beams=beams, num_return_sequences=beams,
            length_penalty=power, max_length=longest + 2, return_dict_in_generate=True,
            output_scores=True, **parse,
        )  # fmt: skip
        best = list(own.hypotheses(lines, beam=beams, nbest=beams, lenpen=power))
        texts = own.texts(found.sequences)
        if beams == 1:
            assert texts == [line[0].text for line in best]
            continue
        lengths = found.sequences.ne(PADDING).sum(1).tolist()
        scores = (found.sequences_scores / math.log(2)).tolist()
        for number, line in enumerate(best):
            its = slice(number * beams, (number + 1) * beams)
            assert max(one.tokens for one in line) < longest
            # The first token, </s>, is no part of a hypothesis.
            each = zip(texts[its], scores[its], lengths[its], strict=True)
            check_hypotheses(
                [Hypothesis(text, score, length - 1) for text, score, length in each], line
            )


def check_hypotheses(found, fairseqs):
    """Compare the hypotheses of a line.

    If more hypotheses end in the search's last step than are wanted, fairseq keeps those that it found
    before, and transformers the best ones.
    """
    last = max(one.tokens for one in fairseqs)
    left, instead = list(fairseqs), []
    for one in found:
        same = [
            other
            for other in left
            if (other.text, other.tokens) == (one.text, one.tokens)
            and other.score == pytest.approx(one.score, abs=1e-5)
        ]
        if same:
            left.remove(same[0])
        else:
            instead.append(one)
    assert len(left) == len(instead)
    assert all(one.tokens == last for one in instead)
    assert all(one.score < other.score for one in left for other in instead)
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)


def test_an_exported_folder_is_a_bundle_too(checkpoints, data_directory, lines, tmp_path):
    out = exported(checkpoints["tree"], data_directory, tmp_path / "model", "transformers")
    assert type(AutoModel.from_pretrained(out, trust_remote_code=True)).__name__ == (
        "FairseqPhraseModel"
    )
    own = fairseq_phrase.load(checkpoints["tree"], source_parser="gold", device="cpu")
    shared = fairseq_phrase.load(out, source_parser="gold", device="cpu")
    assert shared.translate(lines) == own.translate(lines)


@pytest.mark.parametrize("name", ["plain", "normalized before"])
def test_ctranslate2_scores_as_fairseq(name, checkpoints, data_directory, lines, tmp_path):
    out = exported(checkpoints[name], data_directory, tmp_path / "model", "ctranslate2")
    own = fairseq_phrase.load(checkpoints[name], source_parser="gold", device="cpu")
    dictionary = own.task.source_dictionary
    sources = [
        [dictionary[dictionary.index(x)] for x in each.pieces] for each in own._lines.encode(lines)
    ]
    targets = [own._target.subwords("The man runs.").split()] * len(lines)
    model = ctranslate2.Translator(str(out), device="cpu")
    for line, scored in zip(lines, model.score_batch(sources, targets), strict=True):
        mean = sum(scored.log_probs) / len(scored.log_probs)
        assert own.score(line, "The man runs.") == pytest.approx(mean / 0.6931472, abs=1e-4)


def test_ctranslate2_refuses_what_it_cannot_run(checkpoints, data_directory, tmp_path, capsys):
    with pytest.raises(SystemExit):
        exported(checkpoints["tree"], data_directory, tmp_path / "model", "ctranslate2")
    assert "cannot run tree_transformer_tiny" in capsys.readouterr().err
