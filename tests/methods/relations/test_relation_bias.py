"""Relations of words and their biases: definitions in loops, fairseq's Transformer, options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common import biased_attention
from fairseq_phrase.methods.common.biased_attention import pair_bias
from fairseq_phrase.methods.common.tensors import masked_keys
from fairseq_phrase.methods.common.tree_positions import TreePositions
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.methods.relations.relation_bias import (
    GRAPH_RELATIONS,
    NUM_BUCKETS,
    TREE_RELATIONS,
    PairRelations,
    RelationAttention,
    RelationBias,
    edge_pairs,
    graph_relations,
    kinds_of_pairs,
    sentence_buckets,
    tree_relations,
)
from fairseq_phrase.testing import build_model, encode, make_batch
from tests.support.tolerance import assert_same
from tests.twins.tree_relations import (
    LENGTHS,
    NUM_LABELS,
    batch,
    graph,
    twin_bucket,
    twin_graph_relation,
    twin_relation,
)

NAME = "relation_transformer"


def twin_relations(words, heads, labels=None):
    """The relations of the tokens of one sentence, end of sentence included."""
    heads = [int(head) for head in heads if head >= 0]
    relations = np.zeros((len(words), len(words)), dtype=np.int64)
    for i, query_word in enumerate(words):
        for j, key_word in enumerate(words):
            if query_word < 0 or key_word < 0:
                name = "same word" if i == j else "no word"
            else:
                name = twin_relation(heads, int(query_word), int(key_word))
            relations[i, j] = TREE_RELATIONS.index(name)
            if labels is not None and name == "parent":
                relations[i, j] = len(TREE_RELATIONS) + labels[query_word]
            if labels is not None and name == "child":
                relations[i, j] = len(TREE_RELATIONS) + NUM_LABELS + labels[key_word]
    return relations


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("labelled", [False, True], ids=["", "labels"])
def test_relations_are_those_of_the_paths_to_the_root(dictionary, left, labelled):
    inputs = batch(dictionary, left=left)
    padding = inputs["src_tokens"].eq(dictionary.pad())
    tree = TreePositions(inputs["src_words"], inputs["src_heads"], padding)
    labels = inputs["src_deprels"] if labelled else None
    relations = tree_relations(tree, labels, NUM_LABELS if labelled else 0)
    kinds = set()
    for row in range(len(LENGTHS)):
        real = ~padding[row]
        words = inputs["src_words"][row][real].tolist()
        of_row = inputs["src_deprels"][row].tolist() if labelled else None
        expected = twin_relations(words, inputs["src_heads"][row].tolist(), of_row)
        assert np.array_equal(relations[row][real][:, real].numpy(), expected)
        kinds |= set(expected.flat)
    assert {0, 4, 5, 6, 7, 8, 9} < kinds


def test_every_relation_occurs_in_some_tree():
    heads = torch.tensor([[0, 0, 1, 2, 3, 4, 0, 6, 7, 8, 9]])
    words = torch.arange(heads.size(1))[None]
    padding = torch.zeros_like(words).bool()
    end = torch.cat([words, torch.tensor([[-1]])], 1), heads, torch.zeros(1, 12).bool()
    relations = tree_relations(TreePositions(*end))
    assert set(relations.unique().tolist()) == set(range(len(TREE_RELATIONS)))
    assert tree_relations(TreePositions(words, heads, padding)).max() < len(TREE_RELATIONS) - 1


def test_buckets_are_those_of_t5():
    buckets = sentence_buckets(300)[0]
    # Powers of two are on a border, where float32 and float64 may differ.
    for i, j in [(0, 0), (0, 5), (9, 0), (0, 9), (100, 70), (10, 299), (299, 3), (50, 70)]:
        assert int(buckets[i, j]) == twin_bucket(j - i)
    assert buckets.min() == 0
    assert buckets.max() == NUM_BUCKETS - 1


@pytest.mark.parametrize("parts", [1, 4], ids=["one sum a sentence", "one sum a query"])
def test_the_bias_of_a_pair_is_the_number_of_its_kind_and_its_gradient_their_sum(
    parts, monkeypatch
):
    # On a GPU there is a sum for each query.
    monkeypatch.setattr(biased_attention, "parts_of_sums", lambda *_: parts)
    table = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
    index = torch.randint(0, 5, (2, 4, 4))
    biases = pair_bias(table, index)
    for head in range(3):
        assert torch.equal(biases[:, head], table[head][index])
    direction = torch.randn_like(biases)
    (gradient,) = torch.autograd.grad((biases * direction).sum(), table)
    expected = torch.zeros(3, 5, dtype=torch.double)
    for b in range(2):
        for head in range(3):
            for i in range(4):
                for j in range(4):
                    expected[head, index[b, i, j]] += direction[b, head, i, j]
    assert_same(gradient, expected)


@pytest.mark.parametrize("kind", ["tree", "sequence", "both"])
@pytest.mark.parametrize("labelled", [False, True], ids=["", "labels"])
def test_attention_is_the_equation_in_loops(dictionary, kind, labelled, alone_beyond):
    if labelled and kind == "sequence":
        labelled = False
    torch.manual_seed(2)
    inputs = batch(dictionary, left=True)
    padding = inputs["src_tokens"].eq(dictionary.pad())
    tree = TreePositions(inputs["src_words"], inputs["src_heads"], padding)
    labels = inputs["src_deprels"] if labelled else None
    count = NUM_LABELS if labelled else 0
    attention = RelationAttention(embed_dim=8, num_heads=2, kind=kind, num_labels=count).double()
    for table in (attention.tree_bias, attention.label_bias, attention.sequence_bias):
        if table is not None:
            torch.nn.init.normal_(table)
    n = padding.size(1)
    states = torch.randn(n, len(LENGTHS), 8, dtype=torch.double, requires_grad=True)
    relations = tree_relations(tree, labels, count)
    output, weights = None, None
    expected = []
    for row in range(len(LENGTHS)):
        outputs = []
        plain = tree_relations(tree)[row]
        for i in range(n):
            heads = []
            for head in range(2):
                part = slice(4 * head, 4 * head + 4)
                query = attention.q_proj(states[i, row])[part]
                scores, values = [], []
                for j in range(n):
                    if padding[row, j]:
                        continue
                    key = attention.k_proj(states[j, row])[part]
                    score = query @ key / 2
                    if kind != "sequence":
                        score = score + attention.tree_bias[head, plain[i, j]]
                    of_label = int(relations[row, i, j]) - len(TREE_RELATIONS)
                    if labelled and of_label >= 0:
                        score = score + attention.label_bias[head, of_label]
                    if kind != "tree":
                        score = score + attention.sequence_bias[head, twin_bucket(j - i)]
                    scores.append(score)
                    values.append(attention.v_proj(states[j, row])[part])
                mix = torch.stack(scores).softmax(0)
                heads.append(sum(w * value for w, value in zip(mix, values, strict=True)))
            outputs.append(attention.out_proj(torch.cat(heads)))
        expected.append(torch.stack(outputs))
    expected_output = torch.stack(expected, 1)
    direction = torch.randn_like(expected_output) * ~padding.T[:, :, None]
    parameters = [states, *attention.parameters()]
    gradients = torch.autograd.grad((expected_output * direction).sum(), parameters)
    pairs = kinds_of_pairs(
        None if kind == "sequence" else relations, None if kind == "tree" else sentence_buckets(n)
    )
    pair_relations = PairRelations(pairs, masked_keys(padding)[:, None])
    for need_weights, long in ((False, n), (False, n - 1), (True, n - 1)):
        alone_beyond(long)
        output, weights = attention(states, pair_relations, need_weights)
        assert_same(output * direction, expected_output * direction)
        actual_gradients = torch.autograd.grad((output * direction).sum(), parameters)
        for gradient, expected_gradient in zip(actual_gradients, gradients, strict=True):
            assert_same(gradient, expected_gradient)
    assert weights.shape == (len(LENGTHS), 2, n, n)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_long_sentences_are_attended_to_alone_and_their_weights_not_kept(
    dropout, dictionary, monkeypatch, alone_beyond
):
    # Dropout without random numbers, as both ways draw different ones.
    monkeypatch.setattr(biased_attention, "dropout", lambda weights, p: weights * (1 - p))
    row = ENCODERS[NAME].variants["relation bias, graph, labels"]
    model = build_model(NAME, dictionary, **row, attention_dropout=dropout, dropout=0.0).train()
    inputs, results, largest = batch(dictionary), [], []
    pairs = inputs["src_tokens"].numel() * inputs["src_tokens"].size(1)
    for long in (100, 1):
        alone_beyond(long)
        saved_shapes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, kept=saved_shapes: kept.append(x.shape) or x, lambda x: x
        ):
            states = model.encoder(**inputs)["encoder_out"][0]
        parameters = [p for p in model.encoder.parameters() if p.requires_grad]
        results.append([states, *torch.autograd.grad(states.square().sum(), parameters)])
        largest.append(sum(len(shape) == 4 and shape.numel() > pairs for shape in saved_shapes))
    for actual, expected in zip(*results, strict=True):
        assert_same(actual, expected)
    assert largest[0] > largest[1] == 0


@pytest.mark.parametrize("long", [100, 1])
def test_frozen_biases_get_no_gradient_and_the_states_do(long, dictionary, alone_beyond):
    alone_beyond(long)
    model = build_model(NAME, dictionary, relation_bias="both")
    biases = {n: p for n, p in model.encoder.named_parameters() if n.endswith("_bias")}
    others = [p for n, p in model.encoder.named_parameters() if n not in biases]
    gradients = []
    for trains in (True, False):
        for bias in biases.values():
            bias.requires_grad_(trains)
        states = model.encoder(**batch(dictionary))["encoder_out"][0]
        gradients.append(torch.autograd.grad(states.square().sum(), others, allow_unused=True))
    pairs = [pair for pair in zip(*gradients, strict=True) if pair[0] is not None]
    assert biases
    assert pairs
    for learned, frozen in pairs:
        assert_same(frozen, learned)


def without_draws(name, dictionary, **options):
    """A model as it is made, its zeros left as they are."""
    torch.manual_seed(0)
    model = build_model(name, dictionary, **options)
    for parameter_name, parameter in model.named_parameters():
        if any(
            name.startswith(("tree_b", "co_h", "label_b", "sequence_b", "relation_"))
            for name in parameter_name.split(".")
        ):
            torch.nn.init.zeros_(parameter)
    return model


NEUTRAL = [row for row in ENCODERS[NAME].variants if row != "relation bias, distance"]


@pytest.mark.parametrize("row", [*NEUTRAL, "none"])
def test_training_starts_from_fairseqs_transformer(dictionary, row):
    options = ENCODERS[NAME].variants.get(row, {"relation_bias": "none"})
    plain = build_model("transformer", dictionary)
    model = without_draws(NAME, dictionary, **options)
    # Biases of projections are drawn by the test's helper, in another order.
    model.load_state_dict(plain.state_dict(), strict=False)
    inputs = make_batch(dictionary, LENGTHS)
    expected = plain.encoder(inputs["src_tokens"])["encoder_out"][0]
    states = model.encoder(**inputs)["encoder_out"][0]
    real = inputs["src_tokens"].ne(dictionary.pad()).T
    assert_same(states[real], expected[real])
    if row == "none":
        assert torch.equal(states, expected)


def test_the_numbers_start_at_zero_and_the_rest_as_fairseqs():
    attention = RelationAttention(embed_dim=8, num_heads=2, kind="both", num_labels=3)
    for table in (attention.tree_bias, attention.label_bias, attention.sequence_bias):
        assert not table.any()


def test_labels_decide(dictionary):
    model = build_model(NAME, dictionary, relation_labels=True)
    inputs = make_batch(dictionary, LENGTHS)
    changed = {**inputs, "src_deprels": inputs["src_deprels"].roll(1, 1)}
    assert not torch.allclose(encode(model, inputs), encode(model, changed))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"relation_labels": True, "relation_bias": "sequence"},
            "--relation-labels needs --relation-bias tree or both, not sequence",
        ),
        ({"encoder_xformers_att_config": "{}"}, "--encoder-xformers-att-config"),
        ({"relation_source": "tags"}, "'tags' has no edges: expected heads or enhanced"),
        (
            {"relation_source": "enhanced", "relation_bias": "sequence"},
            "--relation-source needs --relation-bias tree or both, not sequence",
        ),
        (
            {"relation_vectors": "keys", "relation_bias": "none"},
            "--relation-vectors needs --relation-bias tree, sequence or both, not none",
        ),
        (
            {"relation_bias": "distance", "relation_labels": True},
            "--relation-labels needs --relation-bias tree or both, not distance",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(dictionary, options, message):
    with pytest.raises(UserError) as error:
        build_model(NAME, dictionary, **options)
    assert message in str(error.value)


def test_presets_are_registered():
    assert {NAME, f"{NAME}_tiny"} <= set(ARCH_MODEL_REGISTRY)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_relations_in_a_graph_are_those_of_its_shortest_paths(dictionary, left):
    words, edges = graph(dictionary, left=left)
    relations = graph_relations(words, edges)
    names = set()
    for row, of_row in enumerate(words.tolist()):
        real = [edge for edge in edges[row].tolist() if edge[0] >= 0]
        for i, query_word in enumerate(of_row):
            for j, key_word in enumerate(of_row):
                name = "same word" if i == j else "no word"
                if query_word >= 0 and key_word >= 0:
                    name = twin_graph_relation(real, query_word, key_word)
                assert GRAPH_RELATIONS[relations[row, i, j]] == name
                names.add(name)
    assert {"parent", "child", "sibling", "co-head", "distance 9+", "ancestor 2"} < names


@pytest.mark.parametrize("width", [2, 3, 4, 5, 12])
def test_words_without_a_path_are_far_apart_in_a_batch_of_any_width(width):
    words = torch.arange(width)[None]
    relations = graph_relations(words, torch.tensor([[[0, 0, 4]]]))[0]
    apart = relations[~torch.eye(width, dtype=torch.bool)]
    assert {GRAPH_RELATIONS[number] for number in apart} == {"distance 9+"}


def test_a_checkpoint_whose_co_heads_were_siblings_computes_what_it_did(dictionary):
    options = {"relation_source": "enhanced", "relation_labels": True, "relation_bias": "both"}
    model = build_model(NAME, dictionary, **options)
    inputs = make_batch(dictionary, LENGTHS, extra=1)
    inputs["src_words"], inputs["src_enhanced"] = graph(dictionary)
    before = encode(model, inputs)
    parameters = {name: value.clone() for name, value in model.state_dict().items()}
    names = [name for name in parameters if name.endswith("co_head_bias")]
    assert len(names) == len(model.encoder.layers)
    old = {name: value for name, value in parameters.items() if name not in names}
    model.load_state_dict(old)
    sibling = GRAPH_RELATIONS.index("sibling")
    for layer in model.encoder.layers:
        bias = layer.self_attn
        assert torch.equal(bias.co_head_bias[:, 0], bias.tree_bias[:, sibling])
    assert not torch.allclose(before, encode(model, inputs))
    model.load_state_dict(parameters)
    assert torch.equal(before, encode(model, inputs))


def as_graph(heads, labels):
    """The edges of trees, with their labels."""
    positions = torch.arange(heads.size(1)).expand_as(heads)
    return torch.stack([heads, positions.where(heads >= 0, -1), labels], 2)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_a_tree_as_a_graph_has_the_relations_and_biases_of_the_tree(dictionary, left):
    inputs = batch(dictionary, left=left)
    inputs["src_heads"][2] = inputs["src_heads"][2].where(inputs["src_heads"][2] != 1, 0)
    padding = inputs["src_tokens"].eq(dictionary.pad())
    words, heads, labels = (inputs[f"src_{name}"] for name in ("words", "heads", "deprels"))
    tree = TreePositions(words, heads, padding)
    edges = as_graph(heads, labels)
    relations = graph_relations(words, edges)
    real = ~padding
    is_pair = real[:, :, None] & real[:, None]
    assert torch.equal(relations[is_pair], tree_relations(tree)[is_pair])
    bias = RelationBias(2, "tree", NUM_LABELS).double()
    for table in bias.parameters():
        torch.nn.init.normal_(table)
    expected = bias.bias(tree_relations(tree, labels, NUM_LABELS))
    biases = bias.bias(relations, edges=edge_pairs(words, edges, NUM_LABELS))
    is_pair = is_pair[:, None].expand_as(biases)
    direction = torch.randn_like(biases)
    assert_same(biases[is_pair], expected[is_pair])
    gradients = [
        torch.autograd.grad((values * direction)[is_pair].sum(), [*bias.parameters()])
        for values in (biases, expected)
    ]
    for gradient, expected_gradient in zip(*gradients, strict=True):
        assert_same(gradient, expected_gradient)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_the_bias_of_a_pair_is_the_sum_of_its_edges_labels_in_value_and_gradient(dictionary, left):
    words, edges = graph(dictionary, left=left)
    bias = RelationBias(2, "tree", NUM_LABELS, of_graph=True).double()
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter)
    table = torch.cat([bias.tree_bias, bias.co_head_bias], 1)
    relations = graph_relations(words, edges)
    biases = bias.bias(relations, edges=edge_pairs(words, edges, NUM_LABELS))
    direction = torch.randn_like(biases)
    expected, twin = torch.zeros_like(biases), torch.zeros_like(bias.label_bias)
    parallel = 0
    for b, of_row in enumerate(words.tolist()):
        for i, query_word in enumerate(of_row):
            for j, key_word in enumerate(of_row):
                expected[b, :, i, j] = table[:, relations[b, i, j]].detach()
                added = 0
                for head, dependent, label in edges[b].tolist():
                    if head < 0 or head == dependent or min(query_word, key_word) < 0:
                        continue
                    for ends, number in (
                        ((dependent, head), label),
                        ((head, dependent), NUM_LABELS + label),
                    ):
                        if ends == (query_word, key_word):
                            expected[b, :, i, j] += bias.label_bias[:, number].detach()
                            twin[:, number] += direction[b, :, i, j]
                            added += 1
                parallel += added > 1
    assert parallel > 0
    assert_same(biases, expected)
    (gradient,) = torch.autograd.grad((biases * direction).sum(), bias.label_bias)
    assert_same(gradient, twin)


def test_edges_and_their_labels_decide(dictionary):
    model = build_model(NAME, dictionary, relation_source="enhanced", relation_labels=True)
    inputs = make_batch(dictionary, LENGTHS)
    before, edges = encode(model, inputs), inputs["src_enhanced"]
    labels = edges.clone()
    labels[..., 2] = edges[..., 2].roll(1, 1)
    turned = edges[..., [1, 0, 2]]
    for changed in (labels, turned):
        assert not torch.allclose(before, encode(model, {**inputs, "src_enhanced": changed}))
    order = torch.randperm(edges.size(1))
    assert_same(before, encode(model, {**inputs, "src_enhanced": edges[:, order]}))
