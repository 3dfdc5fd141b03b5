"""PyTorch's module database as a judge: each module of torch.nn on its samples, jit against eager.

PyTorch keeps, for its own tests, a list of its modules with arguments to make and to call them. Right means: results and
gradients of inputs and parameters equal bit for bit, of the same type, dtype, shape and strides; buffers, the random state
and the modules' own attributes the same afterwards; the same error where eager raises one. Each sample is called twice.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, NamedTuple

import optree
import pytest
import torch

import tracemill as tm
from tests import op_database

SAMPLES = 6
"""For each module and mode, spread over all: a loss has hundreds that differ in little."""

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LAST_BITS = {
    "nn.MultiheadAttention": "eager takes a kernel of its own in inference, which no compiler sees",
    "nn.TransformerDecoderLayer": "the same",
    "nn.TransformerEncoder": "the same",
    "nn.TransformerEncoderLayer": "the same",
}
"""Modules whose results in inference are equal but for rounding, and why."""

LAST_BITS_OF_SYMBOLS = {"nn.LSTM": "PyTorch takes the kernel apart where sizes are symbols"}
"""The same under symbolic values."""


@functools.cache
def _database() -> dict[str, Any]:
    from torch.testing._internal.common_modules import module_db

    found = {info.name: info for info in module_db}
    assert len(found) > 100, "the database has changed: names are no longer unique?"
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each module; the database is not imported where slow tests are left out."""
    if "name" in metafunc.fixturenames:
        left_out = "not slow" in metafunc.config.option.markexpr
        metafunc.parametrize("name", [] if left_out else list(_database()))


class Call(NamedTuple):
    """A module, made but not called, and what it is called with."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _calls(name: str, *, training: bool) -> list[Call]:
    info = _database()[name]
    torch.manual_seed(0)
    samples = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    samples = [sample for sample in samples if sample.forward_input is not None]
    step = max(len(samples) / SAMPLES, 1)
    calls: list[Call] = []
    for n in range(min(SAMPLES, len(samples))):
        made, given = samples[int(n * step)].constructor_input, samples[int(n * step)].forward_input
        module = info.module_cls(*made.args, **made.kwargs).train(training)
        calls.append(Call(module, given.args, given.kwargs))
    return calls


class Outcome(NamedTuple):
    """What a call did: its result or error, gradients, and the state that it left."""

    result: Any
    error: Exception | None
    gradients: list[torch.Tensor | None]
    state: dict[str, Any]
    random_state: torch.Tensor


def _run(function: Any, call: Call, *, grad: bool) -> Outcome:
    """Calls the function, which is or runs the call's module, on copies of its inputs."""
    args, kwargs = op_database.copied((call.args, call.kwargs))
    call.module.zero_grad()
    torch.manual_seed(op_database.SEED)
    result, error = None, None
    try:
        with torch.set_grad_enabled(grad):
            result = function(*args, **kwargs)
        _backward(result)
    except Exception as raised:
        error = raised
    given: Any = (args, kwargs)
    leaves = [leaf for leaf in optree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    gradients = [tensor.grad for tensor in (*leaves, *call.module.parameters())]
    return Outcome(result, error, gradients, _state(call.module), torch.get_rng_state())


def _backward(result: Any) -> None:
    outputs = [leaf for leaf in optree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    outputs = [leaf for leaf in outputs if leaf.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])


def _state(module: torch.nn.Module) -> dict[str, Any]:
    """The tensors and the plain attributes of a module and of those inside."""
    plain = (bool, int, float, str, tuple, type(None))
    found: dict[str, Any] = dict(module.state_dict())
    for path, inner in module.named_modules():
        found[f"{path} is"] = type(inner)
        found |= {f"{path}.{k}": v for k, v in vars(inner).items() if isinstance(v, plain)}
    return copy.deepcopy(found)


def _compare(got: Outcome, want: Outcome, *, nearly: float) -> None:
    assert type(got.error) is type(want.error), f"eager raised {want.error!r}, jit {got.error!r}"
    if want.error is not None:
        assert str(got.error) == str(want.error)
        return
    for one, other, where, tolerance in (
        (got.result, want.result, "result", nearly),
        (got.gradients, want.gradients, "gradient", nearly),
        (got.state, want.state, "state", 0.0),
    ):
        op_database._compare_tree(one, other, where, tolerance)
    assert torch.equal(got.random_state, want.random_state)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_module(name: str, training: bool, cache: str) -> None:
    for call in _calls(name, training=training):
        for grad in (True, False):
            twin = call._replace(module=copy.deepcopy(call.module))
            mine = call._replace(module=copy.deepcopy(call.module))
            jitted = tm.jit(mine.module, cache=cache)
            is_near = name in LAST_BITS and not (training or grad)
            is_near |= name in LAST_BITS_OF_SYMBOLS and cache == "symbolic values"
            nearly = 1e-5 if is_near else 0.0
            for _ in range(2):
                want = _run(twin.module, twin, grad=grad)
                _compare(_run(jitted, mine, grad=grad), want, nearly=nearly)


def test_the_judge_sees_a_fault() -> None:
    """Another value, or an attribute that was left changed."""
    call = _calls("nn.Linear", training=True)[0]
    want = _run(call.module, call, grad=True)

    def other_value(*args: Any, **kwargs: Any) -> Any:
        return call.module(*args, **kwargs) * 1.000001

    def other_state(*args: Any, **kwargs: Any) -> Any:
        call.module.in_features += 1  # pyright: ignore[reportOperatorIssue]
        return call.module(*args, **kwargs)

    for fault in (other_value, other_state):
        with pytest.raises(op_database.Difference):
            _compare(_run(fault, call, grad=True), want, nearly=0.0)
