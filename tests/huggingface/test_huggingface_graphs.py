"""Relation biases of graphs in models of transformers: fairseq's encoder, trees, published models."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import AutoModel, AutoModelForSeq2SeqLM

from fairseq_phrase.errors import UserError
from fairseq_phrase.huggingface import add_relation_bias, collate, from_pretrained, text_of
from fairseq_phrase.methods.relations.relation_bias import GRAPH_RELATIONS, graph_relations
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import Edge, ParsedSentence
from fairseq_phrase.testing import build_model
from tests.support.huggingface_models import small_config, tokenizer_of_metaspace
from tests.support.relation_models import (
    LABELS,
    PARSE,
    Tokenized,
    inputs,
    made,
    moved,
    states,
)
from tests.twins.tree_relations import NUM_LABELS, graph

#: The tree of PARSE, and an edge between words that have one, against it, and two between other words.
TREE = [[(1, 0, "det"), (2, 1, "nsubj"), (2, 2, "root")], [(1, 0, "nsubj"), (1, 1, "root")]]
GRAPH = [[*TREE[0], (0, 1, "root"), (0, 2, "det"), (0, 2, "nsubj")], [(1, 0, "nsubj")]]


def graph_inputs(model, edges=GRAPH):
    batch = {name: rows for name, rows in inputs(model).items() if name not in PARSE}
    return batch | collate(Tokenized(), edges, LABELS, "links")


def twins(encoder, model, read):
    """Pairs of what is read of the parameters of fairseq's encoder and of BART's."""
    names = {name: read(parameter) for name, parameter in model.encoder.named_parameters()}
    for name, parameter in encoder.named_parameters():
        *path, last = name.split(".")
        if name in names:
            yield read(parameter), names[name]
        elif not path[-1].startswith("relation_"):
            yield read(parameter), names[".".join([*path, "relation_bias", last])]
        elif last != "sequence":  # distances in the sentence have no vectors here
            side = "key_vectors" if path[-1] == "relation_keys" else "value_vectors"
            prefix = ".".join([*path[:-1], "relation_vectors", side])
            if last == "label":
                yield read(parameter), names[f"{prefix}.label_bias"].T
            else:
                yield read(parameter)[:-1], names[f"{prefix}.tree_bias"].T
                yield read(parameter)[-1:], names[f"{prefix}.co_head_bias"].T


def fairseq_encoder(dictionary, kind, vectors):
    options = {
        "relation_bias": kind, "relation_labels": True, "relation_source": "enhanced",
        "relation_vectors": "keys-values" if vectors else "none", "layernorm_embedding": True,
        "no_token_positional_embeddings": True, "encoder_layers": 2,
    }  # fmt: skip
    encoder = build_model("relation_transformer", dictionary, **options).encoder.double().eval()
    torch.manual_seed(2)
    for name, parameter in encoder.named_parameters():
        if "bias" in name or "relation_" in name:
            # Vectors of distances in the sentence are 0, because transformers' models lack them.
            torch.nn.init.normal_(parameter, std=float(not name.endswith("s.sequence")))
    return encoder


@pytest.mark.parametrize("kind", ["tree", "both"])
@pytest.mark.parametrize("vectors", [False, True])
def test_an_encoder_computes_as_that_of_fairseq_on_a_graph(dictionary, kind, vectors):
    encoder = fairseq_encoder(dictionary, kind, vectors)
    words, edges = graph(dictionary)
    tokens = torch.where(words < 0, dictionary.pad(), 7 + words)
    ends = (words >= 0).sum(1, keepdim=True)
    tokens = tokens.scatter(1, ends.clamp(max=tokens.size(1) - 1), dictionary.eos())
    mask = tokens.ne(dictionary.pad())
    expected = encoder(tokens, src_words=words, src_enhanced=edges)["encoder_out"][0]
    expected = expected.transpose(0, 1)[mask]

    sizes = encoder.cfg.encoder
    config = small_config(
        "bart", vocab_size=len(dictionary), d_model=sizes.embed_dim, activation_function="relu",
        encoder_ffn_dim=sizes.ffn_embed_dim, encoder_attention_heads=sizes.attention_heads,
        pad_token_id=dictionary.pad(), scale_embedding=True,
    )  # fmt: skip
    labels = list(map(str, range(NUM_LABELS)))
    model = transformers.BartModel(config).double().eval()
    add_relation_bias(model, kind, labels, vectors=vectors, source="enhanced")
    with torch.no_grad():
        model.encoder.embed_positions.weight.zero_()
        for parameter, twin in twins(encoder, model, torch.Tensor.detach):
            twin.copy_(parameter)
    actual = model.encoder(
        input_ids=tokens, attention_mask=mask.long(), src_words=words, src_edges=edges
    )[0][mask]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)

    for output in (expected, actual):
        (output * expected.detach().cos()).sum().backward()
    gradients = list(twins(encoder, model, lambda parameter: parameter.grad))
    assert len(gradients) > 30
    for gradient, twin in gradients:
        torch.testing.assert_close(twin, gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("model_type", ["bert", "modernbert", "t5", "llama"])
def test_a_tree_as_a_graph_has_the_numbers_of_the_tree(model_type, vectors):
    of_tree = moved(add_relation_bias(made(model_type), labels=LABELS, vectors=vectors))
    model = add_relation_bias(made(model_type), labels=LABELS, vectors=vectors, source="links")
    missing = model.load_state_dict(of_tree.state_dict(), strict=False).missing_keys
    assert missing
    assert all(name.endswith("co_head_bias") for name in missing)
    actual = states(model, graph_inputs(model, TREE))
    expected = states(of_tree, inputs(of_tree))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_a_graph_is_saved_loaded_and_translated(tmp_path):
    model = made("bart", AutoModelForSeq2SeqLM)
    moved(add_relation_bias(model, labels=LABELS, vectors=True, source="links"))
    batch = graph_inputs(model)
    expected = states(model, batch)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(AutoModelForSeq2SeqLM, tmp_path).eval()
    assert loaded.config.relation_bias["source"] == "links"
    torch.testing.assert_close(states(loaded, batch), expected, rtol=0, atol=1e-12)
    of_tree = states(loaded, graph_inputs(model, TREE))
    assert not torch.allclose(of_tree, expected, atol=1e-4)
    del batch["decoder_input_ids"]
    generated = loaded.generate(**batch, num_beams=2, max_new_tokens=3, decoder_start_token_id=2)
    assert len(generated) == 2


def test_older_models_have_no_source(tmp_path):
    model = moved(add_relation_bias(made("bert"), labels=LABELS))
    del model.config.relation_bias["source"]
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(AutoModel, tmp_path).eval()
    assert torch.equal(states(loaded, inputs(model)), states(model, inputs(model)))


def test_edges_of_sentences_and_of_lists_are_collated():
    edges = [Edge(1, 0, "det"), Edge(2, 0, "nsubj"), Edge(2, 2, "root")]
    sentence = ParsedSentence(
        ["der", "alte", "Hund"],
        [True] * 3,
        tree=DependencyTree([2, 2, 2]),
        edges={"enhanced": edges},
    )
    text = text_of(sentence)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_of_metaspace([text] * 9), pad_token="<pad>"
    )
    collated = collate(tokenizer([text]), [sentence], LABELS, "enhanced")
    assert collated["src_edges"].tolist() == [[[1, 0, 0], [2, 0, 1], [2, 2, 2]]]
    of_list = collate(tokenizer([text.split()], is_split_into_words=True), [edges], source="links")
    assert of_list["src_edges"].tolist() == [[[1, 0, 0], [2, 0, 0], [2, 2, 0]]]
    assert set(of_list) == {"src_words", "src_edges"}
    short = tokenizer([text.split()[:2]], is_split_into_words=True)
    assert collate(short, [edges], LABELS, "links")["src_edges"].tolist() == [[[1, 0, 0]]]
    empty = collate(short, [[]], LABELS, "links")["src_edges"]
    assert empty.shape == (1, 0, 3)
    for parse, message in (
        (sentence, r"sentence 0 has no graph 'amr', but enhanced"),
        ([(-1, 0, "det")], "sentence 0: the words of edges are numbered from 0"),
        ([(1, 0)], "sentence 0: expected the head, the dependent and the label"),
        ([(1, 0, "x")], "sentence 0: unknown labels x"),
    ):
        with pytest.raises(UserError, match=message):
            collate(tokenizer([text]) if parse is sentence else short, [parse], LABELS, "amr")


def test_bad_graphs_are_refused():
    with pytest.raises(UserError, match='a graph as source need kind="tree" or "both"'):
        add_relation_bias(made("bert"), "sequence", source="links")
    model = add_relation_bias(made("bert"), labels=LABELS, source="links")
    batch = graph_inputs(model)
    with pytest.raises(UserError, match="biases of graphs: pass src_words and src_edges"):
        model(**inputs(model))
    with pytest.raises(UserError, match="src_words, src_edges: edges must be"):
        model(**batch | {"src_edges": batch["src_edges"][:1]})
    for column, number in ((0, 6), (1, -1), (2, 3)):
        edges = batch["src_edges"].clone()
        edges[1, 0, column] = number
        with pytest.raises(UserError, match=rf"src_edges: sentence 1, edge 0: \[.*{number}"):
            model(**batch | {"src_edges": edges})


def test_rat_sql_relations_of_a_question_and_a_schema():
    """Wang et al. 2020, eq. 2: each relation of two items has a vector for keys and for values."""
    words = ["names", "singer", "name"]  # a question's word, a table, a column
    relations = ["exact-match", "belongs-to"]
    links = [(0, 2, "exact-match"), (1, 2, "belongs-to")]
    model = add_relation_bias(made("bert"), "tree", relations, vectors=True, source="schema")
    attention = model.encoder.layer[0].attention.self
    batch = {"src_words": torch.tensor([[0, 1, 2]]), "src_edges": torch.tensor([
        [[head, dependent, relations.index(label)] for head, dependent, label in links]
    ])}  # fmt: skip
    with torch.no_grad():
        for side in (
            attention.relation_vectors.key_vectors,
            attention.relation_vectors.value_vectors,
        ):
            torch.nn.init.normal_(side.label_bias)
    captured = {}
    attention.register_forward_hook(
        lambda module, args, kwargs, output: captured.update(states=args[0], output=output[0]),
        with_kwargs=True,
    )
    model(input_ids=torch.tensor([[4, 5, 6]]), **batch)
    shape = (1, len(words), 2, -1)
    query, key, value = (
        layer(captured["states"]).view(shape).transpose(1, 2)
        for layer in (attention.query, attention.key, attention.value)
    )
    vectors = attention.relation_vectors
    a_key, a_value = (torch.zeros(3, 3, query.size(3)).double() for _ in range(2))
    for head, dependent, label in links:  # as query, a dependent has other vectors than a head
        number = relations.index(label)
        for pair, row in (((dependent, head), number), ((head, dependent), 2 + number)):
            a_key[pair] = vectors.key_vectors.label_bias[:, row]
            a_value[pair] = vectors.value_vectors.label_bias[:, row]
    scores = torch.einsum("bhid,bhjd->bhij", query, key) + torch.einsum(
        "bhid,ijd->bhij", query, a_key
    )
    weights = (scores / query.size(3) ** 0.5).softmax(-1)
    expected = weights @ value + torch.einsum("bhij,ijd->bhid", weights, a_value)
    expected = expected.transpose(1, 2).flatten(2)
    torch.testing.assert_close(captured["output"], expected, rtol=0, atol=1e-12)


def test_a_local_graph_language_model_attends_within_triplets():
    """Plenz and Frank 2024: a graph's triplets as text; distances along edges; masks of triplets."""
    words = ["dog", "is", "animal", "has", "tail"]  # dog is animal, dog has tail
    edges = [
        (0, 1, ""),
        (1, 2, ""),
        (0, 3, ""),
        (3, 4, ""),
    ]  # relations are words, as in a Levi graph
    triplets = [{0, 1, 2}, {0, 3, 4}]
    model = moved(add_relation_bias(made("t5"), "tree", source="triplets"))
    together = torch.tensor(
        [[any({i, j} <= triplet for triplet in triplets) for j in range(5)] for i in range(5)]
    )
    batch = {"src_words": torch.arange(5)[None], "src_edges": torch.tensor([
        [[head, dependent, 0] for head, dependent, _ in edges]
    ])}  # fmt: skip
    tokens = torch.arange(4, 4 + len(words))[None]
    changed = tokens.clone()
    changed[0, 4] = 20  # another object of the second triplet
    options = {"attention_mask": together[None, None], "output_hidden_states": True} | batch
    first, second = (
        model.get_encoder()(input_ids=numbers, **options).hidden_states[1]
        for numbers in (tokens, changed)
    )
    assert ((first - second).abs().amax(2)[0] > 1e-9).tolist() == [True, False, False, True, True]
    signed = graph_relations(batch["src_words"], batch["src_edges"])[0, 0]
    names = [GRAPH_RELATIONS[number] for number in signed.tolist()]
    assert names == ["same word", "child", "descendant 2", "child", "descendant 2"]
