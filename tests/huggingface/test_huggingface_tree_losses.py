"""Losses that teach models of transformers trees: values as in fairseq, kinds of models, Trainer."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import peft
import pytest
import torch
import transformers
from transformers import Trainer, TrainingArguments

from fairseq_phrase.errors import UserError
from fairseq_phrase.huggingface import (
    ParseLoss,
    TreePlanting,
    TreeRegularization,
    add_relation_bias,
    add_tree_losses,
    collate,
    collate_spans,
    remove_tree_losses,
)
from fairseq_phrase.huggingface.tree_losses import recorded_attention
from fairseq_phrase.methods.losses.added_losses import Call
from fairseq_phrase.methods.losses.parent_pointer import ParentPointer
from fairseq_phrase.methods.losses.tree_losses import (
    LossSetting,
    ParseLossCriterion,
    TreePlantingCriterion,
    TreeRegularizationCriterion,
)
from fairseq_phrase.methods.losses.tree_planting import tree_distances, tree_planting
from fairseq_phrase.methods.losses.tree_regularization import tree_regularization
from fairseq_phrase.testing import build_model, make_dictionary
from tests.support.huggingface_models import small_config, write_bert, write_family
from tests.twins import tree_losses as twins


def assert_same(found, expected):
    """Rotary positions are of single precision in double models."""
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


HEADS = [[1, 1, 1, 2, 2, 4], [1, 1, 1, 2]]
#: Subwords, padding, and tokens of no word on both sides.
WORDS = [[-1, 0, 1, 1, 2, 3, 4, 5, -1], [-1, 0, 1, 2, 3, -1, -1, -1, -1]]


def trees(left=False):
    words = torch.tensor(WORDS)
    if left:
        words[1] = words[1].roll(3)
    heads = torch.tensor([[*row, *[-1] * (6 - len(row))] for row in HEADS])
    return {
        "src_words": words,
        "src_heads": heads,
        **collate_spans([(row, []) for row in HEADS]),
    }


def batch(model, left=False):
    torch.manual_seed(1)
    tokens = torch.randint(4, 30, (2, 9))
    mask = torch.ones_like(tokens)
    mask[1, 6:] = 0
    if left:
        tokens[1], mask[1] = tokens[1].roll(3), mask[1].roll(3)
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "labels": torch.tensor([0, 1]) if "Sequence" in type(model).__name__ else tokens % 2,
        **trees(left),
    }


def new_model(model_type, **options):
    torch.manual_seed(0)
    config = small_config(model_type, vocab_size=30, **options)
    config.decoder_start_token_id = 2
    heads = {"gemma3_text": transformers.AutoModelForSequenceClassification}
    auto = heads.get(model_type, transformers.AutoModelForTokenClassification)
    if config.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    model = auto.from_config(config)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.2)
    return model.double().eval()


def encoder_of(model):
    return model.get_encoder() if model.config.is_encoder_decoder else model.base_model


def all_losses(**options):
    return (
        ParseLoss(0.5, **options),
        TreeRegularization(0.3, **options),
        TreePlanting(0.2, **options),
    )


TYPES = [
    "bert",
    "albert",
    "modernbert",
    "distilbert",
    "t5",
    "m2m_100",
    "llama",
    "gpt2",
    "gemma3_text",
]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", TYPES)
def test_the_weights_are_those_of_the_models_attention(model_type, implementation):
    model = new_model(model_type)
    inputs = {name: batch(model)[name] for name in ("input_ids", "attention_mask")}
    model.set_attn_implementation("eager")
    expected = encoder_of(model)(**inputs, output_attentions=True).attentions
    model.set_attn_implementation(implementation)
    add_tree_losses(model, *all_losses())
    real = inputs["attention_mask"].bool()
    with recorded_attention({1, 2}) as recorder:
        encoder_of(model)(**inputs)
    for number, weights in enumerate(expected, 1):
        actual = recorder.calls[number].weights()
        for row in range(2):  # rows of padding are free
            assert_same(actual[row][:, real[row]], weights[row][:, real[row]])


def test_weights_exclude_what_relation_vectors_add_to_values():
    model = add_relation_bias(new_model("bert"), vectors=True)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter)
    add_tree_losses(model, TreePlanting(0.1))
    inputs = batch(model)
    with recorded_attention({1}) as recorder:
        model.forward(**{name: x for name, x in inputs.items() if name != "labels"})
    call = recorder.calls[1]
    weights = call.weights()
    assert_same(weights.sum(3), torch.ones(2, 2, 9, dtype=torch.double))
    added = call.attend(torch.zeros_like(call.value))
    assert added.abs().max() > 0.1
    assert_same((weights @ call.value).transpose(1, 2) + added, call.attend(call.value))


def fairseq_layer(bert_layer):
    """A layer of fairseq with the projections of a BERT's layer."""
    model = build_model("transformer", make_dictionary(), encoder_embed_dim=16)
    layer = model.encoder.layers[0]
    attention = bert_layer.attention.self
    for name in ("query", "key", "value"):
        getattr(layer.self_attn, f"{name[0]}_proj").load_state_dict(
            getattr(attention, name).state_dict()
        )
    return layer


def of_fairseq(kind, setting, layer, inputs, outputs, parse):
    """The mean of a loss by a criterion of fairseq, from the states that enter and leave a layer."""
    criterion = kind(torch.nn.Module(), 1.0, setting).double()
    weights = []
    if kind is TreePlantingCriterion:
        states = inputs.transpose(0, 1)
        padding = batch(None)["attention_mask"] == 0
        output = layer.self_attn(
            states, states, states, padding, need_head_weights=True, static_kv=True
        )  # fmt: skip
        weights = [output[1].transpose(0, 1)]
    call = Call((inputs.transpose(0, 1),), {}, outputs.transpose(0, 1))
    summed, *_, count = criterion.taught(layer, call, parse, weights)
    return summed / count


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (ParseLoss(0.7, layer=2), ParseLossCriterion),
        (TreeRegularization(0.7, layer=2), TreeRegularizationCriterion),
        (TreeRegularization(0.7, layer=2, heads=2), TreeRegularizationCriterion),
        (TreePlanting(0.7, layer=2, heads=2), TreePlantingCriterion),
    ],
)
def test_values_and_gradients_are_those_of_fairseq(monkeypatch, loss, kind):
    monkeypatch.setattr(kind, "__init__", _without_model)
    model = new_model("bert")
    inputs = batch(model)
    plain = {n: x for n, x in inputs.items() if not n.startswith("src_")}
    output = model(**plain, output_hidden_states=True)
    layer = fairseq_layer(model.bert.encoder.layer[1])
    layer.normalize_before = False
    parse = {name.removeprefix("src_"): rows for name, rows in inputs.items()}
    setting = LossSetting(getattr(loss, "heads", 1) or 1, 8)
    expected = of_fairseq(kind, setting, layer, *output.hidden_states[1:3], parse)
    lower = list(model.bert.embeddings.parameters()) + list(
        model.bert.encoder.layer[0].parameters()
    )
    gradients = torch.autograd.grad(output.loss + 0.7 * expected, lower)

    add_tree_losses(model, loss)
    taught = model(**inputs)
    expected = expected.double()  # fairseq's weights are of single precision
    assert_same(taught.loss, output.loss + 0.7 * expected)
    assert taught.loss != output.loss
    assert_same(torch.autograd.grad(taught.loss, lower), gradients)
    assert_same(model.tree_losses.latest[loss.name], expected)


def _without_model(self, inner, weight, setting):
    """Take the place of the constructor, which needs a model of fairseq."""
    torch.nn.Module.__init__(self)
    self.setting = setting
    self.pointer = ParentPointer(setting.width)


@pytest.mark.parametrize("model_type", TYPES)
def test_sentences_of_a_padded_batch_are_taught_as_if_alone(model_type):
    model = add_tree_losses(new_model(model_type), *all_losses())
    sides = (True, False) if model_type == "llama" else (False,)
    for left in sides:
        inputs = batch(model, left)
        model(**inputs)
        together = model.tree_losses.latest
        names = "parse_loss", "tree_planting", "tree_regularization"
        sums, counts = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
        for row, words in enumerate((6, 4)):
            real = inputs["attention_mask"][row].bool()
            alone = {
                name: x[row : row + 1][:, real] if x.shape[1:] == (9,) else x[row : row + 1]
                for name, x in inputs.items()
            }
            alone["src_heads"] = alone["src_heads"][:, :words]
            model(**alone)
            states = torch.zeros(1, alone["src_words"].size(1), 1)
            *_, divided = tree_regularization(states, alone["src_words"], alone["src_spans"])
            for name in sums:
                count = int(divided) if name == "tree_regularization" else words
                counts[name] += count
                sums[name] += count * model.tree_losses.latest[name].item()
        for name, summed in sums.items():
            count = counts[name]
            assert together[name].item() == pytest.approx(summed / count, rel=1e-5), name


def test_a_causal_model_plants_trees_on_the_left_only():
    model = add_tree_losses(new_model("llama"), TreePlanting(1.0, heads=2))
    with recorded_attention({1}) as recorder:
        inputs = batch(model)
        encoder_of(model)(inputs["input_ids"], inputs["attention_mask"])
    weights, words = recorder.calls[1].weights(), inputs["src_words"]
    model(**inputs)
    losses = []
    for row, heads in enumerate(HEADS):
        tokens, edges = (
            twins.tokens_of(words[row]),
            twins.distances(torch.tensor(heads), len(heads)),
        )
        for head in range(2):
            for i in range(len(heads)):
                target = (
                    torch.tensor([-float(edges[i][j]) for j in range(i + 1)]).double().softmax(0)
                )
                visible = torch.stack([
                    weights[row, head][tokens[i]][:, tokens[j]].sum() for j in range(i + 1)
                ])  # fmt: skip
                losses.append((target * (target.log() - (visible / visible.sum()).log())).sum())
    assert_same(model.tree_losses.latest["tree_planting"], torch.stack(losses).mean())


def test_words_without_tokens_do_not_count():
    """The first and the fourth word of five have no tokens, as in truncated texts."""
    heads = [1, 1, 1, 2, 2]
    torch.manual_seed(0)
    states = torch.randn(1, 4, 6, dtype=torch.double)
    words = torch.tensor([[1, 1, 2, 4]])
    fewer = torch.tensor([[0, 0, 1, 2]])
    pointer = ParentPointer(6).double()
    result = pointer(states, states, words, torch.tensor([heads]))
    expected = pointer(states, states, fewer, torch.tensor([[0, 0, 1]]))
    assert [int(x) for x in result[1:]] == [int(x) for x in expected[1:]]
    assert_same(result.loss, expected.loss)

    spans = torch.tensor([[(0, 1, 7), (1, 5, 7), (2, 5, 7), (3, 4, 7), (0, 5, 7)]])
    result = tree_regularization(states, words, spans)
    expected = twins.regularization(
        states, fewer, torch.tensor([[(0, 3, 7), (1, 3, 7), (0, 3, 7)]])
    )
    assert_same(result[0], expected[0])
    assert [int(x) for x in result[1:]] == list(expected[1:]) == [int(result[1]), 1]

    weights = torch.rand(1, 1, 4, 4, dtype=torch.double).softmax(3)
    distances = tree_distances(words, torch.tensor([heads]))
    distances_left = distances[:, [1, 2, 4]][:, :, [1, 2, 4]]
    assert_same(
        tree_planting(weights, words, distances)[0],
        tree_planting(weights, fewer, distances_left)[0],
    )


def test_a_call_without_trees_or_labels_is_transformers_own():
    model = new_model("bert")
    plain_model = copy.deepcopy(model)
    add_tree_losses(model, *all_losses())
    inputs = batch(model)
    plain = {name: x for name, x in inputs.items() if not name.startswith("src_")}
    assert_same(model(**plain).loss, plain_model(**plain).loss)
    inputs.pop("labels")
    plain.pop("labels")
    actual, expected = model(**inputs), plain_model(**plain)
    assert actual.keys() == expected.keys() == {"logits"}
    assert_same(actual.logits, expected.logits)


@pytest.mark.parametrize("model_type", ["bert", "m2m_100"])
def test_outputs_are_those_that_the_caller_wants(model_type):
    model = new_model(model_type)
    inputs = batch(model)
    plain = {name: x for name, x in inputs.items() if not name.startswith("src_")}
    expected = [model(**plain).keys(), model(**plain, output_hidden_states=True).keys()]
    count = len(model(**plain, return_dict=False))
    add_tree_losses(model, *all_losses())
    outputs = [model(**inputs).keys(), model(**inputs, output_hidden_states=True).keys()]
    assert outputs == expected
    as_tuple = model(**inputs, return_dict=False)
    assert isinstance(as_tuple, tuple)
    assert len(as_tuple) == count
    assert_same(as_tuple[0], model(**inputs).loss)


def test_a_model_with_biases_and_losses_is_pickled():
    model = add_tree_losses(add_relation_bias(new_model("m2m_100")).eval(), *all_losses())
    loaded = pickle.loads(pickle.dumps(model))
    assert type(loaded) is type(model)
    assert torch.equal(loaded(**batch(model)).loss, model(**batch(model)).loss)
    assert type(remove_tree_losses(loaded)) is type(remove_tree_losses(model))


def test_without_its_losses_a_model_is_what_it_was():
    model = new_model("bert")
    before = copy.deepcopy(model)
    add_tree_losses(model, *all_losses())
    assert "tree_losses.losses.0.pointer.weight" in model.state_dict()
    remove_tree_losses(model)
    assert type(model) is type(before)
    assert model.state_dict().keys() == before.state_dict().keys()
    for module in model.modules():
        if hasattr(module, "config"):
            assert module.config is model.config
    with pytest.raises(UserError, match="this model has no losses of trees"):
        remove_tree_losses(model)
    add_tree_losses(model, TreePlanting(1.0))


@pytest.mark.parametrize(
    ("model_class", "labels"),
    [
        # 9 and 6 tokens, of which each but the first is predicted
        ("LlamaForCausalLM", 13), ("LlamaForTokenClassification", 15),
        ("LlamaForSequenceClassification", 2), ("BertForSequenceClassification", 2),
        ("BertForTokenClassification", 15), ("BertForMaskedLM", 15),
        ("M2M100ForConditionalGeneration", 15), ("BartForConditionalGeneration", 15),
        ("MBartForConditionalGeneration", 15), ("MarianMTModel", 15),
        ("T5ForConditionalGeneration", 15), ("PegasusForConditionalGeneration", 15),
    ],
)  # fmt: skip
def test_losses_of_several_batches_add_up_to_their_mean(model_class, labels):
    """Trainer adds up the losses of batches: of each, the part of its labels, of both losses."""
    cls = getattr(transformers, model_class)
    torch.manual_seed(0)
    config = small_config(cls.config_class.model_type, vocab_size=30)
    config.decoder_start_token_id = 2
    model = cls(config).double().eval()
    inputs = batch(model)
    if labels != 2:
        inputs["labels"] = (inputs["input_ids"] % 2).where(inputs["attention_mask"] == 1, -100)
    plain = {name: x for name, x in inputs.items() if not name.startswith("src_")}
    own, scaled = (model(**plain, num_items_in_batch=items).loss for items in (None, 40))
    add_tree_losses(model, ParseLoss(0.5))
    for items in (40, torch.tensor(40)):
        loss = model(**inputs, num_items_in_batch=items).loss
        added = 0.5 * model.tree_losses.latest["parse_loss"]
        assert_same(loss, (own + added) * labels / 40)
    assert_same(model(**inputs).loss, own + added)
    if model_class == "LlamaForCausalLM":  # the own losses of others ignore the labels of all
        assert_same(scaled, own * labels / 40)


def test_a_head_with_labels_of_other_names_is_taught():
    model = transformers.BertForQuestionAnswering(new_model("bert").config).double().train()
    add_tree_losses(model, ParseLoss(0.5))
    inputs = batch(model)
    positions = inputs.pop("labels")[:, 0]
    model(**inputs, start_positions=positions, end_positions=positions).loss.backward()
    assert model.tree_losses.losses[0].pointer.weight.grad.any()


def test_labels_that_are_missing_in_training_are_missed():
    """Trainer takes them away if it smooths them, or has a loss of its own."""
    model = add_tree_losses(new_model("bert"), *all_losses()).train()
    inputs = batch(model)
    labels = inputs.pop("labels")
    with pytest.raises(
        UserError, match=r"no labels: .* label_smoothing_factor and compute_loss_func"
    ):
        model(**inputs)
    model(inputs.pop("input_ids"), inputs.pop("attention_mask"), labels=labels, **inputs)
    with torch.no_grad():
        model(input_ids=labels)


@pytest.mark.parametrize("loss", [ParseLoss(0.5), TreePlanting(0.5), TreeRegularization(0.5)])
def test_a_loss_that_does_not_reach_the_model_is_refused(loss):
    model = add_tree_losses(new_model("bert"), loss).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    if loss.reads_attention:
        with pytest.raises(UserError, match=r"layer 1 takes no gradient: .*use_reentrant"):
            model(**batch(model))
    else:
        model(**batch(model)).loss.backward()
        assert model.bert.encoder.layer[0].attention.self.query.weight.grad.any()


def test_checkpointed_activations_have_the_same_gradients():
    gradients_of_models = []
    for checkpointed in (False, True):
        model = add_tree_losses(new_model("bert"), *all_losses()).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if checkpointed:
            model.gradient_checkpointing_enable()
        model(**batch(model)).loss.backward()
        gradients_of_models.append(
            {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        )
    assert gradients_of_models[0].keys() == gradients_of_models[1].keys()
    for name, gradient in gradients_of_models[0].items():
        assert_same(gradient, gradients_of_models[1][name])


@pytest.mark.slow
def test_a_compiled_model_with_losses_is_one_graph():
    model = add_tree_losses(new_model("bert").float(), *all_losses()).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    inputs = batch(model)
    expected = model(**inputs).loss
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    loss = compiled(**inputs).loss
    assert_same(loss, expected)
    loss.backward()
    assert model.tree_losses.losses[0].pointer.weight.grad.any()
    torch._dynamo.reset()


def test_biases_and_losses_read_one_parse():
    model = add_relation_bias(new_model("bert"))
    add_tree_losses(model, *all_losses()).train()
    model(**batch(model)).loss.backward()
    assert model.bert.encoder.layer[0].attention.self.relation_bias.tree_bias.grad.any()
    assert model.tree_losses.losses[0].pointer.weight.grad.any()
    with pytest.raises(UserError, match="losses of trees: add them after the relation biases"):
        add_relation_bias(add_tree_losses(new_model("bert"), *all_losses()))
    assert type(remove_tree_losses(model)) is type(add_relation_bias(new_model("bert")))


def test_a_model_without_the_interface_takes_tree_regularization():
    model = new_model("deberta-v2")
    with pytest.raises(
        UserError, match=r"deberta-v2 model takes no losses of attention: .*Interface"
    ):
        add_tree_losses(model, ParseLoss(0.1))
    add_tree_losses(model, TreeRegularization(0.1))
    output = model(**batch(model), output_hidden_states=True)
    parse = trees()
    summed, _, count = tree_regularization(
        output.hidden_states[1][..., :8], parse["src_words"], parse["src_spans"]
    )
    assert_same(model.tree_losses.latest["tree_regularization"], summed / count)


def without(name):
    return lambda inputs: inputs.pop(name)


def changed(name, row, column, value):
    return lambda inputs: inputs[name].__setitem__((row, column), value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("src_words"), r"need src_words: pass it \(collate\)"),
        (without("src_heads"), r"need src_heads: pass it \(collate\)"),
        (without("src_spans"), r"need src_spans: pass it \(collate_spans\)"),
        (changed("src_heads", 0, 2, 6), "src_heads: sentence 0, word 2: head 6, and .* 6 words"),
        (changed("src_words", 1, 4, 4), "src_words: sentence 1, token 4: word 4, and .* 4 words"),
        (changed("src_heads", 0, 1, 2), "src_words, src_heads: .* circle"),
        (
            changed("src_spans", 0, 1, torch.tensor([3, 3, 0])),
            "sentence 0, constituent 1: words 3 to 3",
        ),
        (
            lambda inputs: inputs.update({n: inputs[n][:1] for n in ("src_words", "src_heads")}),
            "2 sentences of 9 tokens, and src_words 1 of 9: pass the parse of the same batch",
        ),
    ],
)
def test_wrong_trees_are_named(change, message):
    model = add_tree_losses(new_model("bert"), *all_losses()).train()
    inputs = batch(model)
    change(inputs)
    with pytest.raises(UserError, match=message):
        model(**inputs)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (lambda: [ParseLoss(0.0)], "ParseLoss: weight 0.0: expected a number above 0"),
        (lambda: [ParseLoss(float("nan"))], "ParseLoss: weight nan"),
        (lambda: [ParseLoss(1.0, layer=3)], "ParseLoss: layer 3: the model has layers 1 to 2"),
        (lambda: [TreePlanting(1.0, heads=3)], "TreePlanting: heads 3: the layer has 2 heads"),
        (lambda: [], r"expected one loss or more of different kinds, and not \[\]"),
        (lambda: [ParseLoss(1.0), ParseLoss(1.0, layer=1)], "one loss or more of different kinds"),
    ],
)
def test_wrong_losses_are_named_and_leave_the_model(losses, message):
    model = new_model("bert")
    kind = type(model)
    with pytest.raises(UserError, match=message):
        add_tree_losses(model, *losses())
    assert type(model) is kind
    add_tree_losses(model, ParseLoss(1.0))
    with pytest.raises(UserError, match="has losses of trees already"):
        add_tree_losses(model, ParseLoss(1.0))


@pytest.mark.parametrize(("heads", "quarter"), [(1, 1), (3, 1), (7, 1), (8, 2), (12, 3)])
def test_a_quarter_of_the_heads_of_the_middle_layer_is_taught_by_default(heads, quarter):
    config = SimpleNamespace(num_hidden_layers=3, num_attention_heads=heads, hidden_size=24)
    for loss in (TreePlanting(1.0, heads=0), TreeRegularization(1.0)):
        loss.prepare(config, 2)
        assert (loss.heads, loss.layer) == (quarter, 2)


def test_constituents_come_from_a_parse_or_from_its_heads():
    text = "".join(
        f"{i}\tw{i}\t_\tX\t_\t_\t{head}\tdep\t_\t_\n" for i, head in ((1, 2), (2, 0), (3, 2))
    )
    spans = collate_spans([text, ([1, 1], []), ([0], [])])["src_spans"]
    assert spans.tolist() == [[[0, 3, 0]], [[0, 2, 0]], [[-1, -1, -1]]]
    with pytest.raises(
        UserError, match="sentence 1 has neither constituents nor a dependency tree"
    ):
        collate_spans([([0], []), SimpleNamespace()])
    assert collate_spans([])["src_spans"].shape == (0, 0, 3)


SENTENCES = [
    ["the", "small", "dogs", "sleep"],
    ["cats", "see", "the", "dogs"],
    ["the", "cats", "run"],
]
PARSES = [([2, 2, 3, 3], []), ([1, 1, 3, 1], []), ([1, 2, 2], [])]


def collator(tokenizer, model, causal=False):
    def collated(rows):
        encoded = tokenizer(
            [SENTENCES[row["number"]] for row in rows], is_split_into_words=True, padding=True,
            return_tensors="pt",
        )  # fmt: skip
        encoded.pop("token_type_ids", None)
        parses = [PARSES[row["number"]] for row in rows]
        ids = encoded["input_ids"]
        labels = ids.where(encoded["attention_mask"] == 1, -100)
        return {
            **encoded, **collate(encoded, parses), **collate_spans(parses),
            "labels": labels if model.config.is_encoder_decoder or causal else ids % 2,
        }  # fmt: skip

    return collated


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", ["bert", "llama", "t5"])
def test_trainer_teaches_trees(kind, tmp_path):
    # Tokenizers learn halves of words, so that words have several subwords.
    lines = [" ".join(f"{word[:2]} {word[2:]}" for word in words) for words in SENTENCES]
    if kind == "bert":
        folder = write_bert(tmp_path / "model", lines)
        auto = transformers.AutoModelForTokenClassification
    else:
        family, auto = {
            "llama": ("LlamaTokenizer", transformers.AutoModelForCausalLM),
            "t5": ("T5Tokenizer", transformers.AutoModelForSeq2SeqLM),
        }[kind]
        folder = tmp_path / "model"
        write_family(family, folder, lines)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = auto.from_pretrained(folder)
    if kind == "t5":
        model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = 1
    add_tree_losses(model, ParseLoss(1.0), TreeRegularization(1.0), TreePlanting(1.0))
    rows = [{"number": number} for number in range(3)]
    collate_rows = collator(tokenizer, model, causal=kind == "llama")
    words = collate_rows(rows)["src_words"]
    assert ((words[:, 1:] == words[:, :-1]) & (words[:, 1:] >= 0)).any()
    assert (words < 0).any()
    model.eval()(**collate_rows(rows))
    before = dict(model.tree_losses.latest)
    options = {
        "output_dir": str(tmp_path / "run"), "max_steps": 40, "learning_rate": 1e-2, "report_to": "none",
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "remove_unused_columns": False, "lr_scheduler_type": "constant",
        "eval_strategy": "steps", "eval_steps": 40, "save_steps": 40,
    }  # fmt: skip
    if kind == "t5":
        arguments = transformers.Seq2SeqTrainingArguments(**options, predict_with_generate=True)
        trainer_class = transformers.Seq2SeqTrainer
    else:
        arguments, trainer_class = TrainingArguments(**options), Trainer
    trainer = trainer_class(model, arguments, collate_rows, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    model.eval()(**collate_rows(rows))
    after = model.tree_losses.latest
    for name in ("parse_loss", "tree_regularization", "tree_planting"):
        assert after[name] < 0.7 * before[name], name
    assert len(trainer.predict(rows).predictions) in (2, 3)  # with the cache or without
    # The run continues with its pointer; transformers' own class loads the model.
    pointer = model.state_dict()["tree_losses.losses.0.pointer.weight"].clone()
    again = add_tree_losses(auto.from_pretrained(folder), *all_losses())
    again.config.decoder_start_token_id = 1
    arguments.max_steps = 41
    trainer = trainer_class(again, arguments, collate_rows, train_dataset=rows, eval_dataset=rows)
    trainer.train(resume_from_checkpoint=True)
    assert (again.state_dict()["tree_losses.losses.0.pointer.weight"] - pointer).abs().max() < 0.02
    loaded = auto.from_pretrained(tmp_path / "run" / "checkpoint-40")
    expected = remove_tree_losses(model).state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(x, expected[name]) for name, x in loaded.state_dict().items())


def test_an_adapter_trains_and_saves_the_pointer(tmp_path):
    base = add_tree_losses(new_model("bert"), *all_losses())
    options = peft.LoraConfig(task_type="TOKEN_CLS", modules_to_save=["pointer"])
    adapted = peft.get_peft_model(base, options).train()
    adapted(**batch(base)).loss.backward()
    trained = {
        name for name, p in adapted.named_parameters() if p.requires_grad and p.grad is not None
    }
    assert any("pointer.modules_to_save" in name for name in trained)
    assert any("lora_A" in name for name in trained)
    adapted.save_pretrained(tmp_path)
    saved = peft.load_peft_weights(str(tmp_path), device="cpu")
    assert "base_model.model.tree_losses.losses.0.pointer.weight" in saved
