"""Adam in few launches, compared with its equations and with fairseq's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_phrase.tasks.adam import Adam, few_launches
from tests.support.optimizers import build_optimizer, make_gradients, make_parameters, update
from tests.support.tolerance import assert_same
from tests.twins.adam import adam_update

BETAS = "--adam-betas=(0.9, 0.98)"


def build_fused(parameters, *flags):
    with few_launches():
        return build_optimizer(parameters, *flags)


@pytest.fixture
def flat_on_cpu(monkeypatch):
    """Fairseq flattens half precision only on a GPU; the CPU's index is None."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)


class Calls(TorchDispatchMode):
    """Counts the operations of a block."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_an_update_is_that_of_the_equations(weight_decay):
    parameters = make_parameters(torch.float64)
    before, gradients = copy.deepcopy(parameters), make_gradients(parameters, 5)
    optimizer = build_fused(parameters, BETAS, "--adam-eps=0.001", f"--weight-decay={weight_decay}")
    for step in gradients:
        update(optimizer, parameters, step, sample_size=1)
    options = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 0.001, "weight_decay": weight_decay}
    for index, parameter in enumerate(parameters):
        gradients_of_parameter = [step[index] for step in gradients]
        assert_same(
            parameter.detach(),
            adam_update(before[index].detach(), gradients_of_parameter, **options),
        )


@pytest.mark.parametrize("clip_norm", [0.0, 1.0, 1000.0])
def test_updates_in_single_precision_are_fairseqs(clip_norm):
    fused, stock = make_parameters(), make_parameters()
    optimizers = build_fused(fused, BETAS), build_optimizer(stock, BETAS)
    for gradients in make_gradients(fused, 10):
        norm, expected = (
            update(optimizer, parameters, gradients, clip_norm=clip_norm)
            for optimizer, parameters in zip(optimizers, (fused, stock), strict=True)
        )
        torch.testing.assert_close(norm, expected, rtol=1e-6, atol=0)
        for parameter, stock_parameter in zip(fused, stock, strict=True):
            torch.testing.assert_close(parameter.grad, stock_parameter.grad, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(fused, stock, rtol=1e-6, atol=1e-7)


HALF = [["--bf16"], ["--fp16"], ["--fp16", "--fp16-no-flatten-grads"]]


@pytest.mark.parametrize("flags", HALF, ids=" ".join)
@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
def test_updates_in_half_precision_are_fairseqs(flags, clip_norm, flat_on_cpu):
    dtype = torch.bfloat16 if "--bf16" in flags else torch.float16
    fused, stock = make_parameters(dtype), make_parameters(dtype)
    optimizers = build_fused(fused, *flags), build_optimizer(stock, *flags)
    assert optimizers[0].has_flat_params == (flags == ["--fp16"])
    steps = make_gradients(fused, 6)
    steps[2][1] = steps[4][0] = None  # parameters without a gradient
    for gradients in steps:
        norm, expected = (
            update(optimizer, parameters, gradients, clip_norm=clip_norm)
            for optimizer, parameters in zip(optimizers, (fused, stock), strict=True)
        )
        torch.testing.assert_close(norm, expected, rtol=1e-6, atol=0)
    single, double = (
        [p.detach() for group in optimizer.param_groups for p in group["params"]]
        for optimizer in optimizers
    )
    torch.testing.assert_close(single, double, rtol=1e-6, atol=1e-7)
    assert all(p.dtype == dtype for p in fused)
    torch.testing.assert_close(fused, stock)


def test_an_overflow_in_half_precision_is_noticed(flat_on_cpu):
    for flags in HALF[1:]:
        parameters = make_parameters(torch.float16)
        optimizer = build_fused(parameters, *flags)
        before, scale = copy.deepcopy(parameters), optimizer.scaler.loss_scale
        (gradients,) = make_gradients(parameters, 1)
        gradients[0][0, 0] = 60000.0
        with pytest.raises(OverflowError):
            update(optimizer, parameters, gradients)
        assert optimizer.scaler.loss_scale == scale / 2
        torch.testing.assert_close(parameters, before, rtol=0, atol=0)


@pytest.mark.parametrize("flags", [[], ["--bf16"]], ids=["fp32", "bf16"])
def test_a_checkpoint_continues_with_either(flags):
    dtype = torch.bfloat16 if flags else torch.float32
    uninterrupted = make_parameters(dtype)
    uninterrupted_optimizer = build_optimizer(uninterrupted, *flags)
    steps = make_gradients(uninterrupted, 6)
    for gradients in steps:
        update(uninterrupted_optimizer, uninterrupted, gradients)
    for first, second in ((build_fused, build_optimizer), (build_optimizer, build_fused)):
        parameters = make_parameters(dtype)
        saved = first(parameters, *flags)
        for gradients in steps[:3]:
            update(saved, parameters, gradients)
        loaded = copy.deepcopy(parameters)
        continued = second(loaded, *flags)
        continued.load_state_dict(copy.deepcopy(saved.state_dict()))
        if flags:
            for target, source in zip(continued.fp32_params, saved.fp32_params, strict=True):
                target.data.copy_(source.data)
        for gradients in steps[3:]:
            update(continued, loaded, gradients)
        torch.testing.assert_close(loaded, uninterrupted, rtol=1e-6, atol=1e-7)


def test_the_state_has_fairseqs_format():
    states = []
    for build in (build_fused, build_optimizer):
        parameters = make_parameters()
        optimizer = build(parameters)
        for gradients in make_gradients(parameters, 2):
            update(optimizer, parameters, gradients)
        states.append(optimizer.state_dict())
    fused, stock = states
    assert fused["param_groups"] == stock["param_groups"]
    for number, state in stock["state"].items():
        assert list(state) == list(fused["state"][number])
        assert type(fused["state"][number]["step"]) is int
    torch.testing.assert_close(fused["state"], stock["state"], rtol=1e-6, atol=1e-8)


def test_the_optimizer_keeps_the_name_that_checkpoints_record():
    for flags in ([], ["--bf16"], ["--amp"]):
        stock, fused = (
            build_optimizer(make_parameters(), *flags),
            build_fused(make_parameters(), *flags),
        )
        assert type(fused).__name__ == type(stock).__name__


def test_parameters_that_had_no_gradient_have_fewer_steps():
    fused, stock = make_parameters(), make_parameters()
    optimizers = build_fused(fused), build_optimizer(stock)
    for number, gradients in enumerate(make_gradients(fused, 6)):
        if number % 2:
            gradients[0] = None
        for optimizer, parameters in zip(optimizers, (fused, stock), strict=True):
            update(optimizer, parameters, gradients)
    steps = [optimizers[0].optimizer.state[parameter]["step"] for parameter in fused]
    assert steps == [3, 6, 6, 6]
    torch.testing.assert_close(fused, stock, rtol=1e-6, atol=1e-7)


def test_a_transposed_parameter_is_updated_as_by_fairseq():
    fused, stock = make_parameters(), make_parameters()
    optimizers = []
    for parameters, build in ((fused, build_fused), (stock, build_optimizer)):
        parameters[0] = torch.nn.Parameter(parameters[0].detach().t())
        optimizers.append(build(parameters))
    for gradients in make_gradients(fused, 3):
        for optimizer, parameters in zip(optimizers, (fused, stock), strict=True):
            update(optimizer, parameters, gradients)
    torch.testing.assert_close(fused, stock, rtol=1e-6, atol=1e-7)


def test_gradients_of_experts_are_clipped_as_by_fairseq():
    norms, gradients = [], []
    for build in (build_fused, build_optimizer):
        parameters = make_parameters()
        parameters[0].expert = True
        optimizer = build(parameters)
        (step,) = make_gradients(parameters, 1)
        norms.append(update(optimizer, parameters, step, clip_norm=0.1))
        gradients.append([parameter.grad for parameter in parameters])
    assert norms[0] == norms[1]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_without_any_gradient_nothing_changes():
    parameters = make_parameters()
    optimizer, before = build_fused(parameters), copy.deepcopy(parameters)
    optimizer.zero_grad()
    assert optimizer.clip_grad_norm(1.0) == 0
    optimizer.step()
    torch.testing.assert_close(parameters, before, rtol=0, atol=0)


def test_hooks_of_a_step_run_once():
    parameters = make_parameters()
    optimizer, calls = build_fused(parameters), []
    optimizer.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    (gradients,) = make_gradients(parameters, 1)
    update(optimizer, parameters, gradients)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.optimizer.param_groups[0]["amsgrad"] = True  # which fairseq's own step computes
    optimizer.optimizer.state.clear()
    update(optimizer, parameters, gradients)
    assert calls == ["before", "after"] * 2


@pytest.mark.parametrize("flags", [[], ["--bf16"]], ids=["fp32", "bf16"])
def test_an_update_of_many_parameters_has_few_launches(flags):
    dtype = torch.bfloat16 if flags else torch.float32
    counts = []
    for number in (5, 50):
        parameters = make_parameters(dtype, [(3, 4)] * number)
        optimizer = build_fused(parameters, *flags)
        (gradients,) = make_gradients(parameters, 1)
        update(optimizer, parameters, gradients)  # which makes the state
        optimizer.zero_grad()
        products = zip(parameters, gradients, strict=True)
        optimizer.backward(sum((parameter * gradient).sum() for parameter, gradient in products))
        with Calls() as calls:
            optimizer.multiply_grads(0.5)
            optimizer.clip_grad_norm(1.0)
            optimizer.step()
            optimizer.zero_grad()
        counts.append(calls.count)
    assert counts[0] == counts[1] <= 25


def test_what_the_kernel_does_not_take_is_computed_as_by_fairseq():
    for dtype, flags, options in (
        (torch.float16, ["--memory-efficient-fp16"], {}),
        (torch.bfloat16, ["--memory-efficient-bf16"], {}),
        (torch.float32, [], {"amsgrad": True}),
    ):
        fused, stock = make_parameters(dtype), make_parameters(dtype)
        optimizers = build_fused(fused, *flags), build_optimizer(stock, *flags)
        assert type(optimizers[0].optimizer) is Adam
        for gradients in make_gradients(fused, 3):
            for optimizer, parameters in zip(optimizers, (fused, stock), strict=True):
                optimizer.optimizer.param_groups[0] |= options
                update(optimizer, parameters, gradients)
        torch.testing.assert_close(fused, stock, rtol=0, atol=0)


def test_outside_the_block_fairseq_builds_its_own_classes():
    build_fused(make_parameters(), "--bf16")
    optimizer = build_optimizer(make_parameters(), "--bf16")
    kinds = type(optimizer), type(optimizer.fp32_optimizer), type(optimizer.optimizer)
    assert [kind.__module__ for kind in kinds] == [
        "fairseq.optim.fp16_optimizer", "fairseq.optim.adam", "fairseq.optim.adam",
    ]  # fmt: skip
