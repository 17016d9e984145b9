"""A training step and decoding steps of every encoder on a fake device.

There no number can be read and no shape can depend on data. So a step that runs through lets the host
wait nowhere, and has all its tensors on one device.
"""

from __future__ import annotations

import pickle
import sys

import pytest
import torch
from fairseq.models.transformer import transformer_decoder
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_phrase.data.batches.source_batches import make_structures
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.common.tree_batch import TreeBatch, counted_true_at, tree_sizes
from fairseq_phrase.methods.encoder_method import ENCODERS, translation_encoders
from fairseq_phrase.methods.relations.relation_bias import constant
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoder
from fairseq_phrase.models.huggingface_encoder import HuggingFaceEncoder
from fairseq_phrase.testing import build_model, make_batch
from tests.support.selection import first_of_each

VARIANTS = [
    (name, variant)
    for name, method in translation_encoders().items()
    if issubclass(method.encoder, (SyntaxEncoder, HuggingFaceEncoder))
    for variant in method.variants
]
META = torch.device("meta")


@pytest.fixture(autouse=True)
def like_a_gpu(monkeypatch):
    """Tensors of the device ``meta`` count as those of a GPU, whose kernels need not be there."""
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda tensor: tensor.device == META))
    read = Tensor.__bool__

    def truth(tensor: Tensor) -> bool:
        # fairseq's own wait, of its Transformer, too: whether the target has padding.
        caller = sys._getframe(1).f_globals["__name__"]
        return caller == transformer_decoder.__name__ or read(tensor)

    monkeypatch.setattr(Tensor, "__bool__", truth)
    assign = Tensor.__setitem__

    def assigned(tensor: Tensor, index: object, value: object) -> None:
        # A GPU's tensor gets a number at indices as a copy of a tensor of the host.
        indices = index if isinstance(index, tuple) else (index,)
        assert isinstance(value, Tensor) or not any(isinstance(i, Tensor) for i in indices)
        assign(tensor, index, value)

    monkeypatch.setattr(Tensor, "__setitem__", assigned)
    constant.cache_clear()
    yield
    constant.cache_clear()  # of fake tensors


class NoCopies(TorchDispatchMode):
    """Refuses copies from the host to the device: they wait unless the memory is pinned."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            source = args[function == torch.ops.aten.copy_.default]
            assert source.device == result.device, (
                f"{tuple(source.shape)} copied to {result.device}"
            )
        return result


def move(module: nn.Module, mode: FakeTensorMode) -> None:
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                fake = mode.from_tensor(parameter.detach()).to(META)
                part._parameters[name] = nn.Parameter(fake, parameter.requires_grad)
        for held in (part._buffers, vars(part)):
            for name, value in held.items():
                if isinstance(value, Tensor):
                    held[name] = mode.from_tensor(value.detach()).to(META)


def structure_of(model, dictionary):
    if not isinstance(model.encoder, SyntaxEncoder):
        return None
    return model.encoder.batch_structure(model.cfg, dictionary)


#: All variants as they are trained on a GPU, and the first variant of each encoder in fp32.
STEPS = [(name, variant, torch.bfloat16) for name, variant in VARIANTS]
STEPS += [
    (name, variant, torch.float32)
    for name, variant in VARIANTS
    if variant == next(iter(ENCODERS[name].variants))
]


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("name", "variant", "dtype"),
    first_of_each(STEPS),
    ids=[f"{variant}-{str(dtype)[6:]}" for _, variant, dtype in STEPS],
)
def test_its_steps_wait_for_nothing(dictionary, name, variant, dtype):
    # fairseq's sinusoids read a shape as a tensor. A neutral start needs positions.
    learned = {"encoder_learned_pos": True, "decoder_learned_pos": True}
    options = {**ENCODERS[name].variants[variant], **learned}
    # A decoder's second layer does what its first does.
    model = build_model(name, dictionary, decoder_layers=1, **options).to(dtype).train()
    inputs = make_batch(dictionary, [7, 1, 4, 5], extra=2)
    tokens = inputs.pop("src_tokens")
    structure = structure_of(model, dictionary)
    if structure is not None:
        inputs |= make_structures(dict([structure]), tokens, inputs)
    model.decoder._future_mask = torch.zeros(16, 16)  # fairseq's decoder copies it once
    mode = FakeTensorMode()
    move(model, mode)
    parse = {
        key: mode.from_tensor(value).to(META) if isinstance(value, Tensor) else value
        for key, value in inputs.items()
    }
    tokens = mode.from_tensor(tokens).to(META)
    with mode, NoCopies():
        logits, _ = model(tokens, None, prev_output_tokens=tokens, **parse)
        logits.float().sum().backward()
        assert all(parameter.grad is not None for parameter in model.encoder.parameters())
        model.eval()
        with torch.inference_mode():
            encoded = model.encoder(tokens, **parse)
            for beams in (1, 2) if dtype == torch.float32 else (2,):
                search(model, encoded, tokens, beams)


def search(model, encoded, tokens, beams):
    """Steps of fairseq's search, of which the last one lacks a sentence."""
    state = {}
    rows = torch.arange(len(tokens) * beams, device=META)
    encoded = model.encoder.reorder_encoder_out(encoded, rows // beams)
    for length in (1, 2, 3):
        prefix = tokens[:, :length].repeat_interleave(beams, 0)[: len(rows)]
        model.decoder(prefix, encoder_out=encoded, incremental_state=state)
        rows = rows if length == 1 else rows[beams:]
        model.decoder.reorder_incremental_state_scripting(state, rows)
        encoded = model.encoder.reorder_encoder_out(encoded, rows)


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=[variant for _, variant in VARIANTS])
def test_what_the_collater_makes_is_what_the_encoder_makes(dictionary, name, variant):
    model = build_model(name, dictionary, **ENCODERS[name].variants[variant])
    structure = structure_of(model, dictionary)
    if structure is None:
        return
    inputs = make_batch(dictionary, [7, 1, 4, 5], left=True)
    tokens = inputs.pop("src_tokens")
    key, make = pickle.loads(pickle.dumps(structure))  # as a worker that is spawned gets it
    structures = make_structures({key: make}, tokens, inputs)
    assert structures
    from_encoder, from_collater = (
        model.encoder(tokens, **inputs, **more) for more in ({}, structures)
    )
    assert torch.equal(from_encoder["encoder_out"][0], from_collater["encoder_out"][0])
    # R-Drop, which knows nothing of it, repeats all tensors of a batch.
    twice = {
        key: torch.cat([value, value]) if isinstance(value, Tensor) else value
        for key, value in (inputs | structures).items()
    }
    repeated = model.encoder(torch.cat([tokens, tokens]), **twice)["encoder_out"][0]
    torch.testing.assert_close(repeated, torch.cat([from_encoder["encoder_out"][0]] * 2, 1))


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 0, 3), (7,)])
def test_true_elements_of_a_known_number_are_found_in_order(shape):
    mask = torch.rand(shape) < 0.3
    indices = counted_true_at(mask, int(mask.sum()))
    for index, expected in zip(indices, mask.nonzero(as_tuple=True), strict=True):
        assert torch.equal(index, expected)


def test_a_deep_chain_has_sizes_that_travel():
    words = torch.arange(250).unsqueeze(0)
    spans = torch.stack([words, torch.full_like(words, 250)], -1).flip(1)
    labelled = torch.cat([spans, words[..., None]], -1)
    structure = tree_sizes(words, ParseBatch({"words": words, "spans": labelled}))
    sizes = pickle.loads(pickle.dumps(structure))
    tree = TreeBatch.from_words(words, spans, words < 0)
    assert sizes == [250, 250, tree.num_paths, tree.num_members, int(tree.subtrees.sum())]
