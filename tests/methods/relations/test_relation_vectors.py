"""Vectors of relations against their equation in loops, in value and gradient; layers of labels."""

from __future__ import annotations

import pytest
import torch

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.methods.relations.relation_bias import GRAPH_RELATIONS, edge_pairs
from fairseq_phrase.methods.relations.relation_vectors import label_rows, most_labels
from fairseq_phrase.testing import build_model
from tests.support.tolerance import assert_same
from tests.twins.tree_relations import (
    NUM_LABELS,
    batch,
    graph,
    path_up,
    twin_bucket,
    twin_graph_relation,
    twin_relation,
)

NAME = "relation_transformer"
KEYS_VALUES = {"relation_vectors": "keys-values"}
OPTIONS = [
    KEYS_VALUES,
    {**KEYS_VALUES, "relation_labels": True, "relation_bias": "both"},
    {"relation_vectors": "keys", "relation_labels": True},
    {**KEYS_VALUES, "relation_bias": "sequence"},
    {**KEYS_VALUES, "relation_source": "enhanced"},
    {
        **KEYS_VALUES,
        "relation_source": "enhanced",
        "relation_labels": True,
        "relation_bias": "both",
    },
]


def edges_of(inputs, row, of_graph):
    """The edges of a sentence: head, dependent, label."""
    if of_graph:
        return [edge for edge in inputs["src_enhanced"][row].tolist() if edge[0] >= 0]
    heads = [head for head in inputs["src_heads"][row].tolist() if head >= 0]
    labels = inputs["src_deprels"][row].tolist()
    roots = [word for word, head in enumerate(heads) if word == head]
    # Later roots are dependents of the first.
    heads = [roots[0] if word in roots else head for word, head in enumerate(heads)]
    return [(head, word, labels[word]) for word, head in enumerate(heads)]


def vectors_of_pair(tables, inputs, row, i, j, of_graph):
    """The vectors of the relations of token j to token i."""
    query_word, key_word = (int(inputs["src_words"][row, token]) for token in (i, j))
    edges = edges_of(inputs, row, of_graph)
    vectors = []
    if "tree" in tables:
        relation = "same word" if i == j else "no word"
        if query_word >= 0 and key_word >= 0:
            heads = [head for head in inputs["src_heads"][row].tolist() if head >= 0]
            relation = (
                twin_graph_relation(edges, query_word, key_word)
                if of_graph
                else twin_relation(heads, query_word, key_word)
            )
        vectors.append(tables["tree"][GRAPH_RELATIONS.index(relation)])
    if "label" in tables and query_word >= 0 and key_word >= 0 and query_word != key_word:
        for head, dependent, label in edges:
            if (dependent, head) == (query_word, key_word):
                vectors.append(tables["label"][label])
            if (head, dependent) == (query_word, key_word):
                vectors.append(tables["label"][NUM_LABELS + label])
    if "sequence" in tables:
        vectors.append(tables["sequence"][twin_bucket(j - i)])
    return sum(vectors)


def twin_attention(attention, states, inputs, padding, of_graph):
    """One token, head and pair at a time."""
    width, outputs = attention.embed_dim // attention.num_heads, []
    for row in range(states.size(1)):
        real = [int(token) for token in (~padding[row]).nonzero()]
        for i in range(len(states)):
            heads = []
            for head in range(attention.num_heads):
                part = slice(head * width, (head + 1) * width)
                query = attention.q_proj(states[i, row])[part]
                scores, values = [], []
                for j in real:
                    key = attention.k_proj(states[j, row])[part]
                    value = attention.v_proj(states[j, row])[part]
                    pair = row, i, j, of_graph
                    key = key + vectors_of_pair(attention.relation_keys, inputs, *pair)
                    if attention.relation_values is not None:
                        value = value + vectors_of_pair(attention.relation_values, inputs, *pair)
                    scores.append(query @ key / width**0.5)
                    values.append(value)
                weights = torch.stack(scores).softmax(0)
                heads.append(sum(w * value for w, value in zip(weights, values, strict=True)))
            outputs.append(attention.out_proj(torch.cat(heads)))
    return torch.stack(outputs).unflatten(0, (states.size(1), -1)).transpose(0, 1)


@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: " ".join(map(str, options.values()))
)
def test_attention_is_the_equation_in_loops(dictionary, options, alone_beyond):
    inputs = batch(dictionary, left=True)
    inputs["src_words"], inputs["src_enhanced"] = graph(dictionary, left=True)
    inputs = {name: tensor[[0, 2]] for name, tensor in inputs.items()}
    padding = inputs["src_tokens"].eq(dictionary.pad())
    model = build_model(NAME, dictionary, **options, encoder_layers=1, encoder_embed_dim=8)
    attention = model.encoder.layers[0].self_attn
    torch.manual_seed(1)
    states = torch.randn(*padding.T.shape, 8, dtype=torch.double, requires_grad=True)
    expected_output = twin_attention(
        attention, states, inputs, padding, "relation_source" in options
    )
    direction = torch.randn_like(expected_output) * ~padding.T[:, :, None]
    parameters = [states, *attention.parameters()]
    expected = torch.autograd.grad((expected_output * direction).sum(), parameters)
    parse = ParseBatch.from_net_input({n: t for n, t in inputs.items() if n != "src_tokens"})
    structure = model.encoder.structure(inputs["src_tokens"], parse)
    for need_weights, long in ((False, 99), (False, 1), (True, 1)):
        alone_beyond(long)
        output, _ = attention(states, structure, need_weights)
        assert_same(output * direction, expected_output * direction)
        gradients = torch.autograd.grad((output * direction).sum(), parameters)
        for gradient, expected_gradient in zip(gradients, expected, strict=True):
            assert_same(gradient, expected_gradient)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_the_layers_of_labels_have_each_edge_of_a_pair_once(dictionary, left):
    words, edges = graph(dictionary, left=left)
    edges[0, :3] = torch.tensor([[0, 1, 4], [0, 1, 5], [1, 0, 4]])
    (most,) = most_labels("enhanced", words, ParseBatch({"words": words, "enhanced": edges}))
    layers = label_rows(edge_pairs(words, edges, NUM_LABELS), NUM_LABELS, most)
    largest = 0
    for row, of_row in enumerate(words.tolist()):
        for i, query_word in enumerate(of_row):
            for j, key_word in enumerate(of_row):
                labels = []
                for head, dependent, label in edges[row].tolist():
                    if head >= 0 and head != dependent and min(query_word, key_word) >= 0:
                        labels += [label] * ((dependent, head) == (query_word, key_word))
                        labels += [NUM_LABELS + label] * (
                            (head, dependent) == (query_word, key_word)
                        )
                numbers = [int(layer[row, i, j]) for layer in layers]
                assert sorted(n for n in numbers if n < 2 * NUM_LABELS) == sorted(labels)
                largest = max(largest, len(labels))
    assert len(layers) == largest >= 3


def test_a_batch_without_edges_has_one_layer_of_no_labels(dictionary):
    words, edges = torch.tensor([[0, 1, -1]]), torch.empty(1, 0, 3, dtype=torch.int64)
    (most,) = most_labels("enhanced", words, ParseBatch({"words": words, "enhanced": edges}))
    (layer,) = label_rows(edge_pairs(words, edges, 4), 4, most)
    assert layer.eq(8).all()


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_the_prior_of_distances_is_its_equation_in_value_and_gradient(dictionary, left):
    inputs = batch(dictionary, left=left)
    padding = inputs["src_tokens"].eq(dictionary.pad())
    model = build_model(NAME, dictionary, relation_bias="distance")
    attention = model.encoder.layers[0].self_attn
    states = torch.randn(*padding.T.shape, 16, dtype=torch.double, requires_grad=True)
    parse = ParseBatch.from_net_input({n: t for n, t in inputs.items() if n != "src_tokens"})
    structure = model.encoder.structure(inputs["src_tokens"], parse)
    prior = torch.zeros(len(padding), 1, *padding.T.shape[:1] * 2, dtype=torch.double)
    for row, words in enumerate(inputs["src_words"].tolist()):
        heads = [head for head in inputs["src_heads"][row].tolist() if head >= 0]
        for i, query_word in enumerate(words):
            for j, key_word in enumerate(words):
                if query_word >= 0 and key_word >= 0:
                    up, to = path_up(heads, query_word), path_up(heads, key_word)
                    prior[row, 0, i, j] = len(set(up) ^ set(to))
    query, key, value = attention.split(states)
    scores = query @ key.mT / 8**0.5 - 0.5 * prior
    weights = scores.masked_fill(padding[:, None, None], -torch.inf).softmax(-1)
    expected_output = attention.join(weights @ value, states)
    direction = torch.randn_like(expected_output) * ~padding.T[:, :, None]
    parameters = [states, *attention.parameters()]
    assert len(parameters) == 9  # the projections'
    expected = torch.autograd.grad((expected_output * direction).sum(), parameters)
    for need_weights in (False, True):
        output, attended = attention(states, structure, need_weights)
        assert_same(output * direction, expected_output * direction)
        gradients = torch.autograd.grad((output * direction).sum(), parameters)
        for gradient, expected_gradient in zip(gradients, expected, strict=True):
            assert_same(gradient, expected_gradient)
    assert_same(attended, weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relation_vectors": "keys"}, "--relation-vectors keys: a model of transformers"),
        ({"relation_bias": "distance"}, "--relation-bias distance: a model of transformers"),
    ],
)
def test_a_model_of_transformers_has_biases_only(options, message):
    defaults = {"relation_source": "heads", "relation_vectors": "none", "relation_bias": "tree"}
    with pytest.raises(UserError, match=message):
        ENCODERS["huggingface"].check(type("Options", (), defaults | options))
