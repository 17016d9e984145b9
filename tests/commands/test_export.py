"""``fairseq-phrase-export --to transformers`` and ``--to ctranslate2``: the same numbers as fairseq's."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import ctranslate2
import pytest
import torch
from fairseq import checkpoint_utils, tasks
from fairseq.dataclass.configs import GenerationConfig as FairseqGenerationConfig
from fairseq.models import FairseqDecoder, FairseqEncoder
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.models.transformer.transformer_config import (
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
)
from transformers import AutoModel, AutoModelForSeq2SeqLM, GenerationConfig

import fairseq_phrase
from fairseq_phrase.cli import export as export_command
from fairseq_phrase.data.subwords.segmenters import SentencePieceSegmenter
from fairseq_phrase.inference.exports import export_obstacle, stock_options
from fairseq_phrase.inference.search import Hypothesis
from fairseq_phrase.inference.transformers_model import CACHE
from tests.support.gold_parser import GoldParser
from tests.support.shared import Checkpoints

PLAIN = ["--arch", "transformer"]
RELATIVE = [
    "--arch", "structural_transformer", "--no-sequential-absolute", "--sequential-relative",
    "--source-factors", "tags,subwords",
]  # fmt: skip
MODELS = {
    "plain": PLAIN,
    "relative": RELATIVE,
    "phrases": ["--arch", "phrase_transformer_tiny", "--phrase-source", "dependency"],
    "relations": ["--arch", "relation_transformer_tiny"],
    "tree": ["--arch", "tree_transformer_tiny"],
}
ENDING = ("plain", "relations", "relative")
#: The models of transformers.
OWN = ("plain", "phrases", "relations", "tree")
PADDING = 1  # in every dictionary of fairseq


@pytest.fixture(scope="module")
def checkpoints(data_directory, tmp_path_factory):
    """A checkpoint of each model, after a few updates; that of three, when translations begin to end."""
    models = {name: ["--task", "syntax_translation", *model] for name, model in MODELS.items()}
    return Checkpoints(tmp_path_factory, data_directory, models, dict.fromkeys(ENDING, 160))


@pytest.fixture
def lines(synthetic_corpus, install_parser):
    install_parser(lambda: GoldParser(synthetic_corpus / "test.de"))
    return (synthetic_corpus / "test.de").read_text(encoding="utf-8").splitlines()[:6]


def exported(checkpoint, data, out, kind):
    options = ["--to", kind, "--source-parser", "none"]
    export_command.main([str(checkpoint), str(data), str(out), *options])
    return out


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", OWN)
def test_transformers_computes_and_searches_as_fairseq(
    name, checkpoints, data_directory, lines, tmp_path, longest_translation
):
    longest = 100 if name in ENDING else 10
    longest_translation(longest)
    out = exported(checkpoints[name], data_directory, tmp_path / "model", "transformers")
    translator = fairseq_phrase.load(checkpoints[name], source_parser="of-test", device="cpu")
    parse = translator.inputs(lines)
    tokens, mask = parse.pop("input_ids"), parse.pop("attention_mask")
    previous = torch.cat([torch.full((6, 1), 2), torch.arange(5, 29).view(6, 4)], 1)
    with torch.no_grad():
        expected = translator.models[0](tokens, mask.sum(1), previous, **parse)[0]
    model = AutoModelForSeq2SeqLM.from_pretrained(out, trust_remote_code=True)
    with torch.no_grad():
        logits = model(
            input_ids=tokens, attention_mask=mask, decoder_input_ids=previous, use_cache=False,
            **parse,
        ).logits  # fmt: skip
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=2e-5)
    check_cache(model, tokens, previous, expected, parse)
    # transformers gives no score to the end of a translation that is truncated.
    beams = 5 if name in ENDING else 1
    for power in (1.0, 2.0) if beams > 1 else (1.0,):
        generated = model.generate(
            input_ids=tokens, attention_mask=mask, num_beams=beams, num_return_sequences=beams,
            length_penalty=power, max_length=longest + 2, return_dict_in_generate=True,
            output_scores=True, **parse,
        )  # fmt: skip
        expected_sequences = model.generate(
            input_ids=tokens, attention_mask=mask, num_beams=beams, max_length=longest + 2,
            num_return_sequences=beams, length_penalty=power, use_cache=False, **parse,
        )  # fmt: skip
        assert torch.equal(generated.sequences, expected_sequences)
        best = list(translator.hypotheses(lines, beam=beams, nbest=beams, lenpen=power))
        texts = translator.texts(generated.sequences)
        if beams == 1:
            assert texts == [line[0].text for line in best]
            continue
        lengths = generated.sequences.ne(PADDING).sum(1).tolist()
        scores = (generated.sequences_scores / math.log(2)).tolist()
        for number, line in enumerate(best):
            its = slice(number * beams, (number + 1) * beams)
            assert max(hypothesis.tokens for hypothesis in line) < longest
            # The first token, </s>, is no part of a hypothesis.
            hypotheses_of_line = zip(texts[its], scores[its], lengths[its], strict=True)
            check_hypotheses(
                [Hypothesis(text, score, length - 1) for text, score, length in hypotheses_of_line],
                line,
            )


def check_cache(model, tokens, target, expected, parse):
    """Decode a target in two calls with kept keys and values, the second with other rows."""
    order = torch.tensor([1, 0, 2, 3, 5, 4])
    # Rows that replace one another are of one sentence, as in beam search.
    repeated_parse = {name: value[order // 2] for name, value in parse.items()}
    with torch.no_grad():
        all_logits = model(
            input_ids=tokens[order // 2], decoder_input_ids=target, **repeated_parse
        ).logits
        first = model(
            input_ids=tokens[order // 2],
            decoder_input_ids=target[:, :3],
            use_cache=True,
            **repeated_parse,
        )
        first[CACHE].reorder_cache(order)
        next_logits = model(decoder_input_ids=target[order], cache=first[CACHE]).logits
        alone = model(input_ids=tokens, decoder_input_ids=target, use_cache=True, **parse).logits
    torch.testing.assert_close(first.logits, all_logits[:, :3], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(next_logits, all_logits[order, 3:], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(alone, expected, atol=2e-5, rtol=2e-5)


def check_hypotheses(found, fairseqs):
    """Compare the hypotheses of a line.

    If more hypotheses end in the search's last step than are wanted, fairseq keeps those that it found
    before, and transformers the best ones.
    """
    last = max(hypothesis.tokens for hypothesis in fairseqs)
    remaining, instead = list(fairseqs), []
    for hypothesis in found:
        equal = [
            expected
            for expected in remaining
            if (expected.text, expected.tokens) == (hypothesis.text, hypothesis.tokens)
            and expected.score == pytest.approx(hypothesis.score, abs=1e-5)
        ]
        if equal:
            remaining.remove(equal[0])
        else:
            instead.append(hypothesis)
    assert len(remaining) == len(instead)
    assert all(hypothesis.tokens == last for hypothesis in instead)
    assert all(
        missing.score < replacement.score for missing in remaining for replacement in instead
    )
    scores = [hypothesis.score for hypothesis in found]
    assert scores == sorted(scores, reverse=True)


def test_an_exported_folder_is_a_bundle_too(checkpoints, data_directory, lines, tmp_path):
    out = exported(checkpoints["tree"], data_directory, tmp_path / "model", "transformers")
    assert type(AutoModel.from_pretrained(out, trust_remote_code=True)).__name__ == (
        "FairseqPhraseModel"
    )
    translator = fairseq_phrase.load(checkpoints["tree"], source_parser="of-test", device="cpu")
    shared = fairseq_phrase.load(out, source_parser="of-test", device="cpu")
    assert shared.translate(lines) == translator.translate(lines)
    search, fairseqs = GenerationConfig.from_pretrained(out), FairseqGenerationConfig()
    assert (search.num_beams, search.max_length) == (fairseqs.beam, fairseqs.max_len_b + 2)
    assert (search.min_new_tokens, search.length_penalty) == (fairseqs.min_len, fairseqs.lenpen)


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["plain", "relative"])
def test_ctranslate2_scores_and_searches_as_fairseq(
    name, checkpoints, data_directory, lines, tmp_path, synthetic_corpus
):
    model = check_ctranslate2(checkpoints[name], data_directory, tmp_path / "model", lines)
    translator = fairseq_phrase.load(checkpoints[name], source_parser="of-test", device="cpu")
    lines = (synthetic_corpus / "test.de").read_text(encoding="utf-8").splitlines()[:50]
    results = model.translate_batch(translator.tokens(lines), beam_size=5, max_decoding_length=200)
    pairs = zip(
        translator.translate(lines),
        translator.texts([result.hypotheses[0] for result in results]),
        strict=True,
    )
    assert sum(expected == text for expected, text in pairs) >= 0.98 * len(lines)


UNSHARED = {"share_all_embeddings": False, "share_decoder_input_output_embed": False}
NORMALIZED = dict.fromkeys(("encoder_normalize_before", "decoder_normalize_before"), True)
#: Options by title, and what CTranslate2 refuses.
CASES = {
    "without effect": (
        {
            "dropout": 0.2, "attention_dropout": 0.2, "activation_dropout": 0.2, "relu_dropout": 0.2,
            "encoder_layerdrop": 0.2, "decoder_layerdrop": 0.2, "max_source_positions": 300,
            "max_target_positions": 200, "adaptive_softmax_dropout": 0.2, "base_sublayers": 2,
            "adaptive_softmax_factor": 2.0, "tie_adaptive_weights": True, "tie_adaptive_proj": True,
            "quant_noise_pq_block_size": 4, "checkpoint_activations": True, "base_shuffle": 0,
            "min_params_to_wrap": 10, "export": True,
        }, None,
    ),
    "embeddings from files": (
        {"encoder_embed_path": "words", "decoder_embed_path": "words", **UNSHARED}, None,
    ),
    "all embeddings shared": ({"share_all_embeddings": True}, None),
    "none shared": (UNSHARED, None),
    "the decoder's shared": ({**UNSHARED, "share_decoder_input_output_embed": True}, None),
    "sizes": (
        {
            "encoder_layers": 1, "decoder_layers": 3, "encoder_ffn_embed_dim": 48,
            "decoder_ffn_embed_dim": 40, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        }, None,
    ),
    "heads": ({"decoder_attention_heads": 4}, None),
    "widths": ({**UNSHARED, "encoder_embed_dim": 48, "decoder_embed_dim": 32}, None),
    "unscaled": ({"no_scale_embedding": True}, None),
    "gelu": ({"activation_fn": "gelu"}, None),
    "gelu_fast": ({"activation_fn": "gelu_fast"}, None),
    "gelu_accurate": ({"activation_fn": "gelu_accurate"}, None),
    "tanh": ({"activation_fn": "tanh"}, "--activation-fn tanh"),
    "linear": ({"activation_fn": "linear"}, "--activation-fn linear"),
    "normalized before": (NORMALIZED, None),
    "one side": ({"encoder_normalize_before": True}, None),
    "no last norm": ({**NORMALIZED, "no_decoder_final_norm": True}, None),
    "normalized embeddings": ({"layernorm_embedding": True}, None),
    "learned positions": (
        {"encoder_learned_pos": True, "decoder_learned_pos": True}, None,
    ),
    "no positions": (
        {"no_token_positional_embeddings": True}, "--no-token-positional-embeddings",
    ),
    "input width": (
        {**UNSHARED, "decoder_input_dim": 16}, "--decoder-input-dim 16",
    ),
    "output width": (
        {**UNSHARED, "decoder_output_dim": 16}, "--decoder-output-dim 16",
    ),
    "no cross-attention": ({"no_cross_attention": True}, "--no-cross-attention"),
    "cross and self": ({"cross_self_attention": True}, "--cross-self-attention"),
    "merged embeddings": (
        {**UNSHARED, "merge_src_tgt_embed": True}, "--merge-src-tgt-embed",
    ),
    "adaptive softmax": (
        {**UNSHARED, "adaptive_softmax_cutoff": "50,100"}, "--adaptive-softmax-cutoff 50,100",
    ),
    "adaptive input": ({"adaptive_input": True}, "--adaptive-input"),
    "characters": ({"char_inputs": True}, "--char-inputs"),
    "quantized": ({"quant_noise_pq": 0.1}, "--quant-noise-pq 0.1"),
}  # fmt: skip
#: With these fairseq builds or runs no model here: they need several processes, a package, a GPU, or a
#: checkpoint with more layers. Whether they are refused.
UNBUILT = {
    "base_layers": (1, True),
    "quant_noise_scalar": (0.1, True),
    "encoder_layers_to_keep": ("0", True),
    "decoder_layers_to_keep": ("0", True),
    "encoder_xformers_att_config": ("{}", True),
    "decoder_xformers_att_config": ("{}", True),
    "offload_activations": (True, False),
}


def test_the_cases_have_every_option_of_fairseqs_transformer():
    option_names = {name for options, _ in CASES.values() for name in options}
    assert option_names | {*UNBUILT} == {*stock_options()}


@pytest.fixture(scope="module")
def make_checkpoint(checkpoints, data_directory, tmp_path_factory):
    """A function that writes a checkpoint of a model with random parameters and the given options."""
    folder = tmp_path_factory.mktemp("options")

    def make(title, data=data_directory, **options):
        state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoints["plain"]))
        for name, value in options.items():
            if name.endswith("embed_path"):
                value = folder / value
                value.write_text(f"1 32\n</s> {' '.join(['0.1'] * 32)}\n", encoding="utf-8")
            setattr(state["cfg"].model, name, value if not isinstance(value, Path) else str(value))
        state["cfg"].model.decoder_input_dim = options.get("decoder_input_dim", 32)
        state["cfg"].model.decoder_output_dim = options.get("decoder_output_dim", 32)
        state["cfg"].task.data = str(data)
        torch.manual_seed(1)
        task = tasks.setup_task(state["cfg"].task)
        model = task.build_model(state["cfg"].model)
        with torch.no_grad():
            for parameter in model.parameters():  # what starts at 0 or 1 would hide what it changes
                parameter += 0.1 * torch.randn_like(parameter)
        state |= {"model": model.state_dict(), "task_state": task.state_dict()}
        path = folder / f"{title}.pt"
        torch.save(state, path)
        return path

    return make


def check_transformers(checkpoint, data, out, lines):
    """Compare the probabilities that an exported model gives with fairseq's."""
    translator = fairseq_phrase.load(checkpoint, data, source_parser="of-test", device="cpu")
    parse = translator.inputs(lines)
    tokens, mask = parse.pop("input_ids"), parse.pop("attention_mask")
    previous = torch.cat([torch.full((6, 1), 2), torch.arange(5, 29).view(6, 4)], 1)
    with torch.no_grad():
        output = translator.models[0](tokens, mask.sum(1), previous)
    expected = translator.models[0].get_normalized_probs(output, log_probs=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(
        exported(checkpoint, data, out, "transformers"), trust_remote_code=True
    )
    with torch.no_grad():
        logits = model(
            input_ids=tokens, attention_mask=mask, decoder_input_ids=previous, use_cache=False
        ).logits
    torch.testing.assert_close(logits.log_softmax(-1), expected, atol=5e-5, rtol=5e-5)


def check_ctranslate2(checkpoint, data, out, lines):
    """Compare the scores of a translation with fairseq's; return CTranslate2's model."""
    translator = fairseq_phrase.load(checkpoint, data, source_parser="of-test", device="cpu")
    targets = [SentencePieceSegmenter(data / "spm.model").segment_line("The man runs.")] * len(
        lines
    )
    model = ctranslate2.Translator(
        str(exported(checkpoint, data, out, "ctranslate2")), device="cpu"
    )
    for line, scored in zip(
        lines, model.score_batch(translator.tokens(lines), targets), strict=True
    ):
        mean = sum(scored.log_probs) / len(scored.log_probs)
        assert translator.score(line, "The man runs.") == pytest.approx(
            mean / math.log(2), abs=1e-5
        )
    return model


@pytest.mark.fast(4)
@pytest.mark.parametrize("title", CASES)
def test_every_option_is_exported_with_the_same_numbers_or_refused(
    title, make_checkpoint, data_directory, lines, tmp_path, capsys
):
    options, refused = CASES[title]
    checkpoint = make_checkpoint(title, **options)
    if refused is None:
        check_ctranslate2(checkpoint, data_directory, tmp_path / "model.ct2", lines)
        return
    with pytest.raises(SystemExit):
        exported(checkpoint, data_directory, tmp_path / "model.ct2", "ctranslate2")
    assert f"it has {refused}" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.fast(1)
@pytest.mark.parametrize("title", ["adaptive softmax", "widths"])
def test_transformers_computes_the_same_probabilities(
    title, make_checkpoint, data_directory, lines, tmp_path
):
    checkpoint = make_checkpoint(f"{title}, own", **CASES[title][0])
    check_transformers(checkpoint, data_directory, tmp_path / "model.hf", lines)


@pytest.mark.parametrize("name", UNBUILT)
def test_options_that_need_more_than_this_machine_are_known(name):
    # fairseq's defaults are classes, which must not change.
    cfg = TransformerConfig(
        encoder=EncDecBaseConfig(), decoder=DecoderConfig(), quant_noise=QuantNoiseConfig()
    )
    model = TransformerModelBase(cfg, FairseqEncoder(None), FairseqDecoder(None))
    assert export_obstacle(model) is None
    value, is_refused = UNBUILT[name]
    setattr(cfg, name, value)
    flag = f"--{name.replace('_', '-')} {value}"
    assert export_obstacle(model) == (flag if is_refused else None)


@pytest.mark.fast(1)
@pytest.mark.parametrize("shared", [False, True])
def test_dictionaries_of_different_sizes_are_exported(
    shared, make_checkpoint, data_directory, lines, tmp_path
):
    data = shutil.copytree(data_directory, tmp_path / "data")
    with open(data / "dict.en.txt", "a", encoding="utf-8") as stream:
        stream.write("another 1\nword 1\n")
    options = {**UNSHARED, "share_decoder_input_output_embed": shared}
    checkpoint = make_checkpoint(f"unequal-{shared}", data, **options)
    check_transformers(checkpoint, data, tmp_path / "model.hf", lines)
    check_ctranslate2(checkpoint, data, tmp_path / "model.ct2", lines)


@pytest.mark.fast(1)
@pytest.mark.parametrize("layer", [4, 1])
def test_an_alignment_layer_that_is_not_there_is_refused(
    layer, make_checkpoint, data_directory, lines, tmp_path, capsys
):
    align = {"arch": "transformer_align", "_name": "transformer_align", "alignment_heads": 1}
    options = {**align, "alignment_layer": layer, "full_context_alignment": False}
    checkpoint = make_checkpoint(f"align-{layer}", data_directory, **options)
    if layer == 1:
        check_ctranslate2(checkpoint, data_directory, tmp_path / "model.ct2", lines)
        return
    with pytest.raises(SystemExit):
        exported(checkpoint, data_directory, tmp_path / "model.ct2", "ctranslate2")
    assert "--alignment-layer 4, but --decoder-layers 2" in capsys.readouterr().err
