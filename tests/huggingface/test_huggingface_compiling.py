"""torch.compile makes one graph of a model of transformers with relation biases."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import _dynamo
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForTokenClassification,
    Trainer,
    TrainingArguments,
)

from fairseq_phrase.huggingface import add_relation_bias, parameter_groups
from tests.support.relation_models import (
    LABELS,
    gradients,
    inputs,
    made,
    moved,
    states,
    tables,
)

#: Learned and rotated positions, several masks, shared layers, T5's own biases.
TYPES = ("bert", "albert", "modernbert", "llama", "t5")


@pytest.fixture(autouse=True)
def nothing_compiled():
    _dynamo.reset()
    yield
    _dynamo.reset()


def compiled(model):
    """Compile a model in place, and return what counts its graphs."""
    counter = CompileCounterWithBackend("aot_eager")
    model.compile(backend=counter, fullgraph=True)
    return counter


def other_trees(batch):
    return batch | {"src_heads": torch.tensor([[0, 0, 1], [0, 0, -1]])}


@pytest.mark.fast(1)
@pytest.mark.parametrize("model_type", TYPES)
def test_one_graph_computes_the_trees_of_each_batch(model_type):
    model = moved(add_relation_bias(made(model_type), labels=LABELS, vectors=True))
    batches = inputs(model), other_trees(inputs(model))
    with torch.no_grad():
        expected = [states(model, batch) for batch in batches]
        counter = compiled(model)
        actual = [states(model, batch) for batch in batches]
    assert counter.frame_count == 1
    assert not torch.allclose(*expected, atol=1e-4)
    for result, twin in zip(actual, expected, strict=True):
        torch.testing.assert_close(result, twin, rtol=0, atol=1e-12)


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("model_type", "checkpoints"), [("bert", True), ("t5", False), ("llama", True)]
)
def test_the_gradients_of_one_graph_are_those_without(model_type, checkpoints):
    model = moved(add_relation_bias(made(model_type), labels=LABELS, vectors=True)).train()
    batches = inputs(model), other_trees(inputs(model))
    expected = gradients(model, *batches)
    if checkpoints:
        for part in model.modules():
            if hasattr(part, "config"):
                part.config.use_cache = False  # else transformers warns, which no graph can
        model.gradient_checkpointing_enable({"use_reentrant": False})
    counter = compiled(model)
    actual = gradients(model, *batches)
    assert counter.frame_count == 1
    assert actual.keys() >= expected.keys() >= tables(model).keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=0, atol=1e-12)


@pytest.mark.fast(1)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_each_thread_reads_its_own_trees(is_compiled):
    model = moved(add_relation_bias(made("bert"), labels=LABELS, vectors=True))
    batches = inputs(model), other_trees(inputs(model))
    with torch.no_grad():
        expected = [states(model, batch) for batch in batches]
    if is_compiled:
        compiled(model)
    barrier, differences = threading.Barrier(2, timeout=60), []

    def read(batch, twin):
        with torch.no_grad():
            for _ in range(20):
                barrier.wait()
                differences.append((states(model, batch) - twin).abs().max())

    threads = [
        threading.Thread(target=read, args=pair) for pair in zip(batches, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(differences) == 40
    assert max(differences) < 1e-12


@pytest.mark.slow
def test_a_compiled_model_translates():
    model = moved(add_relation_bias(made("bart", AutoModelForSeq2SeqLM), labels=LABELS))
    batch = inputs(model)
    del batch["decoder_input_ids"]
    options = {"max_new_tokens": 3, "num_beams": 2, "do_sample": False}
    options |= {"decoder_start_token_id": 2, "return_dict_in_generate": True, "output_scores": True}
    expected = [
        model.generate(**inputs_of_model, **options)
        for inputs_of_model in (batch, other_trees(batch))
    ]
    model.compile(backend="eager")
    actual = [
        model.generate(**inputs_of_model, **options)
        for inputs_of_model in (batch, other_trees(batch))
    ]
    for result, twin in zip(actual, expected, strict=True):
        assert torch.equal(result.sequences, twin.sequences)
        torch.testing.assert_close(result.sequences_scores, twin.sequences_scores)
    assert not torch.equal(expected[0].sequences_scores, expected[1].sequences_scores)


@pytest.mark.slow
def test_trainer_compiles_a_model_with_trees(tmp_path):
    rows, losses = list(range(4)), []
    for is_compiled in (False, True):
        model = add_relation_bias(
            made("bert", AutoModelForTokenClassification), labels=LABELS
        ).float()
        batch = inputs(model) | {"labels": torch.ones(2, 6, dtype=torch.long)}
        options = TrainingArguments(
            str(tmp_path), max_steps=3, logging_steps=1, report_to="none", use_cpu=True,
            per_device_train_batch_size=2, torch_compile=is_compiled,
            torch_compile_backend="aot_eager" if is_compiled else None,
        )  # fmt: skip
        adam = torch.optim.AdamW(parameter_groups(model, lr=1e-2, bias_lr=1e-1))
        trainer = Trainer(model, options, lambda _, b=batch: b, rows, optimizers=(adam, None))
        _dynamo.utils.counters.clear()
        trainer.train()
        losses.append([log["loss"] for log in trainer.state.log_history if "loss" in log])
        assert all(table.any() for table in tables(model).values())
        if is_compiled:
            assert _dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert losses[0][0] > losses[0][-1]
