"""Published methods of ``examples/methods``: the checks of every encoder, and their equations."""

from __future__ import annotations

import importlib.util
import math
import sys

import pytest
import torch

from fairseq_phrase.checkpoints.loading import register
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.testing import CHECKS, build_model, make_batch, make_dictionary
from tests.support.registrations import registrations_undone
from tests.support.repository import REPOSITORY
from tests.support.tolerance import assert_same
from tests.twins.dependency import edges_between

FOLDER = REPOSITORY / "examples/methods"
NAMES = ("ape", "depgcn", "relative_phrases", "saft", "wire")
SHARED = ("spectral", "transformed_attention")
MOST_LINES = 64


@pytest.fixture(scope="module", autouse=True)
def methods():
    """The folder as fairseq imports it by --user-dir."""
    register()
    with registrations_undone("methods"):
        spec = importlib.util.spec_from_file_location("methods", FOLDER / "__init__.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["methods"] = module
        spec.loader.exec_module(module)
        yield module


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_one_short_file(name):
    lines = (FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES
    assert {path.stem for path in FOLDER.glob("*.py")} == {"__init__", *NAMES, *SHARED}
    assert name in ENCODERS


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", CHECKS)
def test_the_checks_of_every_encoder(check, name):
    check(name, name.replace("_", " "))


def batch(lengths=(9, 4), seed=3):
    return make_batch(make_dictionary(), list(lengths), extra=1, seed=seed)


def structure_of(name, seed=3, **options):
    model = build_model(name, make_dictionary(), **options)
    inputs = batch(seed=seed)
    parse = {field: inputs[field] for field in inputs if field != "src_tokens"}
    structure = model.encoder.structure(inputs["src_tokens"], ParseBatch.from_net_input(parse))
    return model.encoder, structure, inputs


def heads_of(inputs, row):
    return [head for head in inputs["src_heads"][row].tolist() if head >= 0]


def laplacian(heads, q):
    """The magnetic Laplacian in loops, with the weights of edges."""
    matrix = torch.zeros(len(heads), len(heads), dtype=torch.complex128)
    for word, head in enumerate(heads):
        if word == head:
            continue
        weight = 1 + 0.1 * word / (word + 10)
        matrix[head, word] -= weight * complex(math.cos(2 * math.pi * q), math.sin(2 * math.pi * q))
        matrix[word, head] -= weight * complex(
            math.cos(2 * math.pi * q), -math.sin(2 * math.pi * q)
        )
        matrix[word, word] += weight
        matrix[head, head] += weight
    return matrix


@pytest.mark.parametrize("q", [0.0, 0.1, 0.25])
@pytest.mark.parametrize("first", [0, 1])
def test_the_spectrum_has_eigenvectors_of_the_magnetic_laplacian(methods, q, first):
    inputs = batch()
    words = inputs["src_words"]
    real, imaginary, values = methods.spectral.tree_spectrum(
        words, inputs["src_heads"], 12, q, first
    )
    assert not real[words < 0].any()
    assert not imaginary[words < 0].any()
    for row in range(2):
        heads = heads_of(inputs, row)
        expected = torch.linalg.eigvalsh(laplacian(heads, q))[first:]
        assert_same(values[row, 0, : len(expected)], expected)
        assert (values[row, 0, len(expected) :] == 1).all()
        columns = [words[row].tolist().index(word) for word in range(len(heads))]
        vectors = torch.complex(real[row, columns], imaginary[row, columns])
        assert not vectors[:, len(expected) :].any()
        vectors = vectors[:, : len(expected)]
        product = laplacian(heads, q) @ vectors
        torch.testing.assert_close(product, vectors * values[row, 0, : len(expected)])
        gram = vectors.mH @ vectors
        torch.testing.assert_close(gram, torch.eye(len(expected), dtype=gram.dtype))


def test_a_star_has_one_spectrum_with_and_without_padding(methods):
    """Its eigenvalues would be equal without the weights of edges."""
    words = torch.tensor([[0, 1, 2, 3, 4, -1]])
    heads = torch.tensor([[0, 0, 0, 0, 0]])
    alone = methods.spectral.tree_spectrum(words[:, :5], heads, 4)[0]
    padded = torch.nn.functional.pad(heads, (0, 7), value=-1)
    together = methods.spectral.tree_spectrum(words, padded, 4)[0]
    torch.testing.assert_close(together[:, :5], alone, rtol=1e-9, atol=1e-9)


def test_coordinates_of_wire_have_the_distances_of_the_tree():
    _, structure, inputs = structure_of("wire", wire_features=20)
    words = inputs["src_words"]
    for row in range(2):
        heads = heads_of(inputs, row)
        columns = [words[row].tolist().index(word) for word in range(len(heads))]
        distances = torch.cdist(structure.r[row, columns], structure.r[row, columns]).square()
        edges = torch.tensor([edges_between(heads, word) for word in range(len(heads))])
        # An edge of weight w counts as 1 / w.
        assert (distances <= edges + 1e-6).all()
        assert (distances >= edges / 1.1 - 1e-6).all()


def test_wire_rotates_by_what_lies_between_two_tokens():
    encoder, structure, _ = structure_of("wire")
    attention = encoder.layers[0].self_attn
    torch.manual_seed(0)
    query, key = torch.randn(2, 2, 2, structure.r.size(1), 8, dtype=torch.double)
    placed = attention.transform(query, key, structure)
    scores = placed[0] @ placed[1].mT
    for head in range(2):
        for i, j in ((0, 1), (3, 7), (5, 5)):
            angle = (structure.r[0, i] - structure.r[0, j]) @ attention.omega[head]
            x, y = query[0, head, i].view(4, 2).T, key[0, head, j].view(4, 2).T
            dot = (x * y).sum(0)
            cross = x[0] * y[1] - x[1] * y[0]
            assert_same(scores[0, head, i, j], (dot * angle.cos() + cross * angle.sin()).sum())


def test_positions_of_ape_are_products_of_the_steps_from_the_root():
    encoder, structure, inputs = structure_of("ape", ape_levels=9, ape_branches=2)
    attention = encoder.layers[0].self_attn
    torch.manual_seed(0)
    query, key = torch.randn(2, 2, 2, inputs["src_words"].size(1), 8, dtype=torch.double)
    placed = attention.transform(query, key, structure)
    heads, words = heads_of(inputs, 0), inputs["src_words"][0].tolist()
    for head in range(2):
        steps = [torch.matrix_exp(s[head] - s[head].T) for s in attention.skew]
        for column, word in enumerate(words):
            position = torch.eye(8, dtype=torch.double)
            while word >= 0 and heads[word] != word:
                earlier = sum(heads[w] == heads[word] and heads[w] != w for w in range(word))
                position = steps[min(earlier, 1)] @ position
                word = heads[word]
            assert_same(placed[0][0, head, column], position @ query[0, head, column])
            assert_same(placed[1][0, head, column], position @ key[0, head, column])
            assert_same(position @ position.T, torch.eye(8, dtype=torch.double))


def test_the_gcn_has_means_over_heads_and_dependents():
    # A head of three subwords has a dependent of one.
    encoder, structure, inputs = structure_of("depgcn", seed=16, gcn_layers=1, gcn_share=0.3)
    torch.manual_seed(0)
    words, heads = inputs["src_words"][0].tolist(), heads_of(inputs, 0)
    states = torch.randn(len(words), 2, 16, dtype=torch.double)
    output = encoder.after_layers(states, structure)[:, 0]
    itself, up, down = encoder.gcn[0].weight.chunk(3)
    biases = encoder.gcn[0].bias.chunk(3)
    of_head, of_dependent = encoder.embed_arcs.weight.chunk(2, 1)
    labels = inputs["src_deprels"][0].tolist()
    for column, word in enumerate(words):
        hidden = itself @ states[column, 0] + biases[0]
        if word >= 0:
            above = [c for c, w in enumerate(words) if w == heads[word] != word]
            for sender in above:
                hidden = hidden + (
                    up @ states[sender, 0] + biases[1] + of_head[labels[word]]
                ) / len(above)
            below = [c for c, w in enumerate(words) if w >= 0 and heads[w] == word != w]
            for sender in below:
                message = down @ states[sender, 0] + biases[2] + of_dependent[labels[words[sender]]]
                hidden = hidden + message / len(below)
        hidden = encoder.norms[0](states[column, 0] + hidden.relu())
        assert_same(output[column], 0.7 * states[column, 0] + 0.3 * hidden)


def test_relative_positions_of_phrases_are_those_of_their_first_tokens():
    options = {"phrase_max_length": 3, "relative_clip": 2, "phrase_layers": "2-2"}
    encoder, structure, _ = structure_of("relative_phrases", **options)
    attention, num_nodes = encoder.layers[1].self_attn, structure.num_nodes
    assert type(encoder.layers[0].self_attn) is type(attention), "in layers without phrases, too"
    torch.manual_seed(0)
    states = torch.randn(2, num_nodes, 16, dtype=torch.double)
    output, _ = attention(states, structure)
    keys, values = (
        table["sequential"] for table in (attention.relative_keys, attention.relative_values)
    )
    query, key, value = attention.split(states.transpose(0, 1))
    for row, members in enumerate(structure.members()):
        nodes = [node for node, of in enumerate(members) if of]
        for i in nodes[:: len(nodes) - 1]:
            between = [max(-2, min(2, members[i][0] - members[j][0])) + 2 for j in nodes]
            heads = []
            for head in range(2):
                scores = (
                    (key[row, head, nodes] + keys[between]) @ query[row, head, i] / math.sqrt(8)
                )
                heads.append(scores.softmax(0) @ (value[row, head, nodes] + values[between]))
            assert_same(output[row, i], attention.out_proj(torch.cat(heads)))
