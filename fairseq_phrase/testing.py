"""Tests for authors of encoders: random batches with parses, small models, and common checks.

With pytest, for an encoder of an installed package or of a module that is already imported::

    from fairseq_phrase.testing import CHECKS, variants_of

    @pytest.mark.parametrize("variant", variants_of("my_encoder"))
    @pytest.mark.parametrize("check", CHECKS)
    def test_my_encoder(check, variant):
        check("my_encoder", variant)
"""

import copy
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor
from torch.testing import assert_close

from fairseq_phrase.checkpoints.loading import register
from fairseq_phrase.data.batches.source_batches import (
    collate_parses,
    make_structures,
    numbered_parse,
)
from fairseq_phrase.inference.encoder_maps import attention_picture
from fairseq_phrase.inference.source_sentence import SourceSentence
from fairseq_phrase.methods.encoder_method import ENCODERS, translation_encoders
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoder
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.fields import FIELDS, PREFIX
from fairseq_phrase.syntax.sentence import Edge, EncodedSentence

LABELS = ("one", "two", "three", "four")
SIZES = {"embed_dim": 16, "ffn_embed_dim": 24, "attention_heads": 2, "layers": 2}
#: The lengths in subwords of the sentences of the checks: short ones depend on padding most.
LENGTHS = (7, 1, 2, 3, 0)


def make_dictionary(words: int = 30) -> Dictionary:
    """Make a source dictionary."""
    dictionary = Dictionary()
    for number in range(words):
        dictionary.add_symbol(f"w{number}")
    return dictionary


def any_label_dictionary(field: str) -> Dictionary:
    """Make the dictionary of a parse field's labels."""
    dictionary = Dictionary()
    for label in LABELS:
        dictionary.add_symbol(f"{field}-{label}")
    return dictionary


def build_model(name: str, dictionary: Dictionary, **options: Any) -> Any:
    """Build a small translation model in double precision, with random weights and without dropout.

    Args:
        name: as in ``--arch``.
    """
    register()
    sizes = {
        f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in SIZES.items()
    }
    if name in translation_encoders():
        cfg: Any = MODEL_DATACLASS_REGISTRY[name](**{**sizes, "dropout": 0.0, **options})
    else:
        cfg = Namespace(**{**sizes, "dropout": 0.0, **options})
    return build_configured(name, cfg, dictionary)


def build_configured(name: str, cfg: Any, dictionary: Dictionary) -> Any:
    """Build a model as :func:`build_model` does, with the options ``cfg``."""
    torch.manual_seed(0)
    task = Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        label_dictionary=any_label_dictionary,
        require_parses=lambda fields: None,
        require_structure=lambda key, make: None,
    )
    return randomized(ARCH_MODEL_REGISTRY[name].build_model(cfg, task))


def randomized(model: Any) -> Any:
    """Replace parameters that are all zero, because zeros hide the terms that they multiply."""
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.2)
    return model.double().eval()


def random_sentence(dictionary: Dictionary, subwords: int, seed: int) -> dict[str, Tensor]:
    """Make a sentence with a random, perhaps non-projective tree and random values of all other fields.

    Args:
        subwords: their number, without the end of sentence.

    Returns:
        An encoder's arguments without a batch dimension: ``src_tokens``, and all fields of
        :data:`fairseq_phrase.syntax.fields.FIELDS`, including fields of installed packages.
    """
    return {
        name: values[0] for name, values in make_batch(dictionary, [subwords], seed=seed).items()
    }


def make_batch(
    dictionary: Dictionary,
    lengths: Sequence[int],
    *,
    left: bool = False,
    extra: int = 0,
    seed: int = 7,
) -> dict[str, Tensor]:
    """Make a padded batch of sentences of :func:`random_sentence`, as an encoder's arguments.

    Args:
        lengths: number of subwords of each sentence, without the end of sentence.
        left: pad the tokens on the left.
        extra: number of additional padding columns.
        seed: seed of the first sentence; it grows by 1 for each next sentence.
    """
    shape = (len(lengths), max(lengths) + 1 + extra)
    tokens, parses = torch.full(shape, dictionary.pad()), []
    for row, (length, number) in enumerate(zip(lengths, range(seed, seed + shape[0]), strict=True)):
        sentence = _sentence(dictionary, length, np.random.default_rng(number))
        indices = [*map(dictionary.index, sentence.subwords), dictionary.eos()]
        start = shape[1] - len(indices) if left else 0
        tokens[row, start : start + len(indices)] = torch.tensor(indices)
        parses.append(numbered_parse(sentence, FIELDS, any_label_dictionary))
    return {"src_tokens": tokens, **collate_parses(tokens, parses, dictionary)}


def _sentence(dictionary: Dictionary, subwords: int, rng: np.random.Generator) -> EncodedSentence:
    tokens = rng.integers(dictionary.nspecial, len(dictionary), subwords)
    starts = rng.random(max(subwords - 1, 0)) < 0.7
    words = np.cumsum([0, *starts], dtype=np.int64)[:subwords]
    count = int(words[-1]) + 1 if subwords else 0
    heads = np.array([rng.integers(0, max(word, 1)) for word in range(count)], dtype=np.int64)
    # The words are reordered, because heads must also follow their dependents.
    order = rng.permutation(count)
    new = np.argsort(order)
    heads = new[heads[order]]
    tree = ConstituencyTree.from_dependencies(DependencyTree(heads), ["x"] * count)
    split = np.flatnonzero(np.bincount(words, minlength=count) > 1)
    tree = tree.with_lower(split[:, None] + np.array([0, 1]), ["x"] * len(split))

    def labels(field: str, number: int) -> list[str]:
        return [f"{field}-{LABELS[index]}" for index in rng.integers(0, len(LABELS), number)]

    def edges(field: str) -> list[Edge]:
        # The tree's edges, and edges between any words: several heads, parallel and opposite edges. The
        # second and the third word are co-heads of the first, and no path leads to the last word.
        ends = rng.integers(0, max(count, 1), (count, 2))
        ends = np.concatenate([np.column_stack([heads, np.arange(count)]), ends, ends[:2, ::-1]])
        ends = ends[~np.isin(ends[:, 1], (1, 2))]
        ends = np.concatenate([ends, [[1, 0], [2, 0]]])
        ends = ends[(ends < count - 1).all(1)]
        return list(map(Edge, *ends.T.tolist(), labels(field, len(ends))))

    return EncodedSentence(
        [dictionary[token] for token in tokens], words, heads=heads, deprels=labels("deprels", count),
        tags=labels("tags", count), spans=tree.spans, span_labels=labels("spans", len(tree)),
        features={name: labels(name, count) for name, field in FIELDS.items() if field.is_feature},
        edges={name: edges(name) for name, field in FIELDS.items() if field.per == "edge"},
    )  # fmt: skip


def encode(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Return the encoder's states. Shape: (batch, nodes, width)."""
    states: Tensor = model.encoder(**inputs)["encoder_out"][0].transpose(0, 1)
    return states


def variants_of(name: str) -> list[str]:
    """Return the titles of an encoder's registered variants."""
    register()
    return list(ENCODERS[name].variants)


def build_variant(name: str, variant: str, **options: Any) -> tuple[Any, Dictionary]:
    """Build the model of a variant (:func:`build_model`); return it and its source dictionary."""
    register()
    dictionary = make_dictionary()
    return build_model(
        name, dictionary, **{**ENCODERS[name].variants[variant], **options}
    ), dictionary


def _alone(dictionary: Dictionary, index: int) -> dict[str, Tensor]:
    """Make a sentence of ``make_batch(dictionary, LENGTHS)`` as a batch without padding."""
    return make_batch(dictionary, [LENGTHS[index]], seed=7 + index)


def a_sentence_in_a_padded_batch_is_encoded_as_if_alone(name: str, variant: str) -> None:
    """Check that padding on either side changes nothing."""
    model, dictionary = build_variant(name, variant)
    for left in (False, True):
        encoded = model.encoder(**make_batch(dictionary, LENGTHS, extra=2, left=left))
        together = encoded["encoder_out"][0].transpose(0, 1)
        real = ~encoded["encoder_padding_mask"][0]
        for index in range(len(LENGTHS)):
            alone = encode(model, _alone(dictionary, index))[0]
            assert_close(together[index][real[index]], alone, rtol=1e-9, atol=1e-9)


def permuting_the_batch_permutes_the_output(name: str, variant: str) -> None:
    """Check that sentences do not depend on each other."""
    model, dictionary = build_variant(name, variant)
    inputs = make_batch(dictionary, LENGTHS)
    order = torch.tensor([2, 0, 4, 3, 1])
    permuted = {key: value[order] for key, value in inputs.items()}
    assert_close(encode(model, permuted), encode(model, inputs)[order], rtol=1e-9, atol=1e-9)


def a_parse_of_another_encoder_changes_nothing(name: str, variant: str) -> None:
    """Check that the encoder reads the fields that it asks for, and no others."""
    model, dictionary = build_variant(name, variant)
    needed = {f"{PREFIX}{field}" for field in ENCODERS[name].parse_fields(model.cfg)}
    inputs = make_batch(dictionary, LENGTHS)
    needed_inputs = {key: inputs[key] for key in inputs if key in {"src_tokens", *needed}}
    assert torch.equal(encode(model, inputs), encode(model, needed_inputs))


def a_missing_parse_is_named(name: str, variant: str) -> None:
    """Check that the encoder reports each missing field."""
    model, dictionary = build_variant(name, variant)
    inputs = make_batch(dictionary, LENGTHS)
    for field in ENCODERS[name].parse_fields(model.cfg):
        fewer = {key: value for key, value in inputs.items() if key != f"{PREFIX}{field}"}
        message = f"{name} asks for {field} and does not read it"
        try:
            model.encoder(**fewer)
        except ValueError as error:
            message = str(error)
        assert f"the batch carries no {field}: use --task" in message, message


def the_parse_has_a_gradient_to_give(name: str, variant: str) -> None:
    """Check that gradients are finite, and that nearly all parameters have one."""
    model, dictionary = build_variant(name, variant)
    encode(model.train(), make_batch(dictionary, LENGTHS)).square().sum().backward()
    for parameter_name, parameter in model.encoder.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), parameter_name
    trained = [p for p in model.encoder.parameters() if p.grad is not None and p.grad.any()]
    assert len(trained) >= 0.8 * len(list(model.encoder.parameters()))


def reordered_beams_are_the_encoding_of_the_reordered_batch(name: str, variant: str) -> None:
    """Check how beam search reorders the encoder's output."""
    model, dictionary = build_variant(name, variant)
    inputs = make_batch(dictionary, LENGTHS)
    order = torch.tensor([3, 3, 0, 1, 1, 4])
    before = model.encoder(**inputs)
    copied = copy.copy(before)
    reordered = model.encoder.reorder_encoder_out(before, order)
    expected = model.encoder(**{key: value[order] for key, value in inputs.items()})
    previous = torch.full((len(order), 1), dictionary.eos())
    outputs = [
        model.decoder(previous, encoder_out=encoder_out)[0] for encoder_out in (reordered, expected)
    ]
    assert_close(*outputs, rtol=1e-9, atol=1e-9)
    assert before.keys() == copied.keys()
    assert torch.equal(before["encoder_out"][0], copied["encoder_out"][0])


def beam_search_over_a_batch_is_that_of_single_sentences(name: str, variant: str) -> None:
    """Check that translations do not depend on the batch."""
    model, dictionary = build_variant(name, variant)
    generator = SequenceGenerator([model], dictionary, beam_size=3, max_len_b=9)

    def generate(inputs: dict[str, Tensor]) -> list[list[int]]:
        lengths = inputs["src_tokens"].ne(dictionary.pad()).sum(1)
        generated = generator.generate([model], {"net_input": {**inputs, "src_lengths": lengths}})
        return [hypotheses[0]["tokens"].tolist() for hypotheses in generated]

    alone = [generate(_alone(dictionary, index))[0] for index in range(len(LENGTHS))]
    assert generate(make_batch(dictionary, LENGTHS)) == alone


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a structure."""
    if isinstance(value, Tensor):
        yield value
        return
    if is_dataclass(value):
        value = vars(value)
    parts = value.values() if isinstance(value, Mapping) else value
    for part in parts if isinstance(value, Mapping | list | tuple) else ():
        yield from _tensors(part)


def the_structure_has_no_gradient(name: str, variant: str) -> None:
    """Check that layers can be computed again from the structure, for ``--checkpoint-activations``."""
    model, dictionary = build_variant(name, variant)
    if not isinstance(model.encoder, SyntaxEncoder) or model.encoder.is_plain(model.encoder.cfg):
        return
    inputs = make_batch(dictionary, LENGTHS)
    src_tokens = inputs.pop("src_tokens")
    structure = model.encoder.structure(src_tokens, model.encoder.cfg.labels.read(inputs))
    assert not any(tensor.requires_grad for tensor in _tensors(structure)), (
        f"{name}: what structure() returns has a gradient, which --checkpoint-activations cannot compute "
        "again: return indices, and embed them in first_states, before_layer or the layer"
    )


def the_collaters_structure_is_that_of_the_encoder(name: str, variant: str) -> None:
    """Check that the result is the same if the collater has computed ``batch_structure``."""
    model, dictionary = build_variant(name, variant)
    find = getattr(model.encoder, "batch_structure", lambda *_: None)
    if (made := find(model.encoder.cfg, dictionary)) is None:
        return
    inputs = make_batch(dictionary, LENGTHS)
    parse = {key: value for key, value in inputs.items() if key != "src_tokens"}
    structures = make_structures(dict([made]), inputs["src_tokens"], parse)
    assert_close(
        encode(model, {**inputs, **structures}), encode(model, inputs), rtol=1e-9, atol=1e-9
    )


def checkpointed_activations_have_the_same_gradients(name: str, variant: str) -> None:
    """Check ``--checkpoint-activations``."""
    gradients = []
    for checkpointed in (False, True):
        model, dictionary = build_variant(name, variant, checkpoint_activations=checkpointed)
        encode(model.train(), make_batch(dictionary, LENGTHS)).square().sum().backward()
        gradients.append(
            {n: p.grad for n, p in model.encoder.named_parameters() if p.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    assert_close(gradients[0], gradients[1])


def half_precision_keeps_to_the_result(name: str, variant: str) -> None:
    """Check both half precisions."""
    for dtype in (torch.bfloat16, torch.float16):
        model, dictionary = build_variant(name, variant)
        inputs = make_batch(dictionary, LENGTHS)
        encoded = model.encoder(**inputs)
        exact, padding = encoded["encoder_out"][0], encoded["encoder_padding_mask"][0].T
        half = model.to(dtype).encoder(**inputs)["encoder_out"][0]
        assert half.dtype == dtype
        error = (half.double() - exact)[~padding].abs().mean() / exact[~padding].abs().mean()
        assert error < 0.05, f"{dtype}: {error}"


def _has_maps(name: str) -> bool:
    return hasattr(ENCODERS[name].encoder, "attention_maps")


def attention_maps_are_those_of_the_encoder(name: str, variant: str) -> None:
    """Check attention maps, if there are any, and each node's tokens, for pre-norm and post-norm."""
    if not _has_maps(name):
        return
    for pre_norm in (False, True):
        model, dictionary = build_variant(name, variant, encoder_normalize_before=pre_norm)
        inputs = make_batch(dictionary, LENGTHS)
        structure, maps = model.encoder.attention_maps(**inputs)
        members = model.encoder.node_members(inputs["src_tokens"], structure)
        assert len(maps) == SIZES["layers"]
        for block, weights in (
            (block, maps_of_layer[block]) for maps_of_layer in maps for block in maps_of_layer
        ):
            nodes = len(members[0])
            assert weights.shape == (len(LENGTHS), SIZES["attention_heads"], nodes, nodes)
            for index, sentence in enumerate(members):
                real = torch.tensor([bool(tokens) for tokens in sentence])
                rows = weights[index][:, real][:, :, real]
                if ENCODERS[name].variants[variant].get("neutral_start") and block == "all nodes":
                    # The attention of tokens to other nodes is added.
                    tokens = int(real[: inputs["src_tokens"].size(1)].sum())
                    rows = rows[:, :tokens, :tokens]
                assert_close(rows.sum(-1), torch.ones_like(rows.sum(-1)))
        for tokens, sentence in zip(inputs["src_tokens"], members, strict=True):
            unpadded = tokens.ne(dictionary.pad()).tolist()
            assert sentence[: len(tokens)] == [
                (i,) if is_token else () for i, is_token in enumerate(unpadded)
            ]


def the_states_of_every_layer_can_be_asked_for(name: str, variant: str) -> None:
    """Check ``return_all_hiddens``."""
    model, dictionary = build_variant(name, variant)
    encoded = model.encoder(**make_batch(dictionary, LENGTHS), return_all_hiddens=True)
    states, last = encoded["encoder_states"], encoded["encoder_out"][0]
    assert [layer_states.shape for layer_states in states] == [last.shape] * (SIZES["layers"] + 1)
    assert torch.equal(states[-1], last)


def its_attention_can_be_drawn(name: str, variant: str) -> None:
    """Check the numbers of ``fairseq-phrase-plot attention``, if the encoder has maps."""
    if not _has_maps(name):
        return
    model, dictionary = build_variant(name, variant)
    task = Namespace(source_dictionary=dictionary, label_dictionary=any_label_dictionary)
    inputs = make_batch(dictionary, [5], extra=1)
    picture = attention_picture(model, SourceSentence.from_batch(inputs, task))
    assert picture.num_tokens == int(inputs["src_tokens"].ne(dictionary.pad()).sum())
    for panel in picture.panels:
        assert panel.values.shape == (len(picture.labels),) * 2
        if panel.is_attention:
            weights = torch.from_numpy(panel.values)
            # Tokens of neutral starts see other nodes by an additional softmax and gate.
            if (
                ENCODERS[name].variants[variant].get("neutral_start")
                and "within" not in panel.title
            ):
                weights[: picture.num_tokens, picture.num_tokens :] = 0
            assert_close(weights.sum(1), torch.ones(len(weights), dtype=weights.dtype))


#: The checks of every encoder: functions of its name and the title of one of its variants, which raise
#: ``AssertionError``.
CHECKS: Sequence[Callable[[str, str], None]] = (
    a_sentence_in_a_padded_batch_is_encoded_as_if_alone,
    permuting_the_batch_permutes_the_output,
    a_parse_of_another_encoder_changes_nothing,
    a_missing_parse_is_named,
    the_parse_has_a_gradient_to_give,
    reordered_beams_are_the_encoding_of_the_reordered_batch,
    beam_search_over_a_batch_is_that_of_single_sentences,
    the_structure_has_no_gradient,
    the_collaters_structure_is_that_of_the_encoder,
    checkpointed_activations_have_the_same_gradients,
    half_precision_keeps_to_the_result,
    attention_maps_are_those_of_the_encoder,
    the_states_of_every_layer_can_be_asked_for,
    its_attention_can_be_drawn,
)
