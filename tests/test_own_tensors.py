"""The program's own tensors, and those it is given: which object a call returns, and what is said of one that is written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tracemill as tm
from tracemill.compiler.errors import MutationError, UnsupportedError

Jit = Callable[[Any], Any]
Program = Callable[[Tensor, Tensor], Any]

FOREACH_ADD: Any = getattr(torch, "_foreach_add_")  # noqa: B009 -- PyTorch exports it without saying so
CACHES = ("constant values", "symbolic values")


class Keeping(nn.Module):
    """Gives a program a tensor of its own."""

    def __init__(self, tensor: Tensor, program: Program) -> None:
        super().__init__()
        self.tensor = tensor
        self.program = program

    def forward(self, x: Tensor) -> Any:
        return self.program(self.tensor, x)


def kept_in_attribute(program: Program, tensor: Tensor, jit: Jit) -> Callable[[Tensor], Any]:
    return jit(Keeping(tensor, program))


def closed_over(program: Program, tensor: Tensor, jit: Jit) -> Callable[[Tensor], Any]:
    return jit(lambda x: program(tensor, x))


def argument(program: Program, tensor: Tensor, jit: Jit) -> Callable[[Tensor], Any]:
    called = jit(program)
    return lambda x: called(tensor, x)


def made(program: Program, tensor: Tensor, jit: Jit) -> Callable[[Tensor], Any]:
    return jit(lambda x: program(tensor * 2, x))


HOLDERS = [kept_in_attribute, closed_over, argument, made]


def plain(value: Any) -> Any:
    """A result in a form that compares: of a tensor, also what autograd says of it."""
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, Tensor):
        return value.tolist(), value.stride(), value.requires_grad, value.is_leaf
    return value


def outcome(program: Program, holder: Any, start: Tensor, jit: Jit, *, grad: bool) -> list[Any]:
    """What two calls give, raise and leave, and the gradients that come to the argument."""
    tensor = start.clone()
    called, found = holder(program, tensor, jit), list[Any]()
    for call in range(2):
        x = torch.full((2, 3), call + 0.5, requires_grad=grad)
        try:
            result = called(x)
        except UnsupportedError:
            raise
        except RuntimeError as error:
            return [*found, str(error).split("\n")[0], plain(tensor)]
        found.append(plain(result))
        last = result[-1]
        if last.requires_grad:
            last.sum().backward(retain_graph=True)
        found += [plain(x.grad), plain(tensor)]
    return found


def assert_as_eager(
    program: Program, holder: Any, cache: str, *, grad: bool = False, start: Tensor | None = None
) -> None:
    start = torch.arange(6.0).reshape(2, 3) / 4 if start is None else start
    want = outcome(program, holder, start, lambda fn: fn, grad=grad)
    got = outcome(program, holder, start, lambda fn: tm.jit(fn, cache=cache), grad=grad)
    assert got == want


RETURNING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add_": lambda t, x: t.add_(1),
    "contiguous": lambda t, x: t.contiguous(),
    "to": lambda t, x: t.to(t.dtype),
    "to_another": lambda t, x: t.to(t),
    "to_a_device": lambda t, x: t.to("cpu", torch.float32, non_blocking=True),
    "to_copy": lambda t, x: t.to(t.dtype, copy=True),
    "float": lambda t, x: t.float(),
    "double": lambda t, x: t.double(),
    "cpu": lambda t, x: t.cpu(),
    "type": lambda t, x: t.type(torch.float32),
    "type_as": lambda t, x: t.type_as(x),
    "requires_grad_": lambda t, x: t.requires_grad_(t.requires_grad),
    "relu_": lambda t, x: torch.relu_(t),
    "expand_as": lambda t, x: t.expand_as(x),
    "reshape": lambda t, x: t.reshape(t.shape),
    "ellipsis": lambda t, x: t[...],
    "real": lambda t, x: t.real,
    "conj": lambda t, x: t.conj(),
    "resolve_conj": lambda t, x: t.resolve_conj(),
    "detach": lambda t, x: t.detach(),
    "data": lambda t, x: t.data,
    "positive": lambda t, x: +t,
    "squeeze": lambda t, x: t.squeeze(),
    "out": lambda t, x: torch.add(x.detach(), 1, out=t),
    "out_of_a_part": lambda t, x: torch.sum(x.detach(), 0, out=t[0]),
    "dropout_not_training": lambda t, x: F.dropout(t, 0.5, False),
    "dropout_in_place": lambda t, x: F.dropout(t, 0.5, False, True),
    "relu_in_place": lambda t, x: F.relu(t, inplace=True),
    "identity": lambda t, x: nn.Identity()(t),
    "flatten": lambda t, x: nn.Flatten()(t),
    "as_tensor": lambda t, x: torch.as_tensor(t),
    "broadcast": lambda t, x: torch.broadcast_tensors(t, t)[0],
    "copy_": lambda t, x: t.copy_(x.detach()),
    "masked_fill_": lambda t, x: t.masked_fill_(t > 0.5, 1.0),
    "init": lambda t, x: nn.init.ones_(t),
    "aten": lambda t, x: torch.ops.aten.add_.Tensor(t, 1),
    "detach_": lambda t, x: t.detach_(),
    "foreach": lambda t, x: FOREACH_ADD([t], 1)[0],
}
"""Calls that return their argument, or a tensor like it: PyTorch says which."""


@pytest.mark.parametrize("call", RETURNING.values(), ids=RETURNING)
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_call_returns_what_it_was_given_where_eager_does(call: Any, holder: Any) -> None:
    def program(t: Tensor, x: Tensor) -> Any:
        y = call(t, x)
        return y is t, any(y is each for each in [x, t]), y in {t}, {t: 1}.get(y), y + x

    assert_as_eager(program, holder, "constant values")


@pytest.mark.parametrize("name", ["add_", "contiguous", "out", "expand_as", "to_another"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_call_returns_what_it_was_given_for_all_sizes(name: str, holder: Any) -> None:
    def program(t: Tensor, x: Tensor) -> Any:
        y = RETURNING[name](t, x)
        return y is t, y + x

    assert_as_eager(program, holder, "symbolic values")


def facts(t: Tensor) -> tuple[Any, ...]:
    """What a program may ask of a tensor that records nothing."""
    asked = (t.requires_grad, t.is_leaf, tuple(t.shape), t.stride(), t.storage_offset())
    return *asked, t.is_contiguous(), t.dtype, t.layout, t.is_inference()


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "copy_": lambda t, x: t.copy_(x),
    "add_": lambda t, x: t.add_(x),
    "item": lambda t, x: t.__setitem__(0, x[0]),
    "part": lambda t, x: t[:, 1:].mul_(x[:, 1:]),
    "row": lambda t, x: t[0].add_(x[0]),
    "element": lambda t, x: t.view(-1).__setitem__(2, x.sum()),
    "transposed": lambda t, x: t.mT.copy_(x.mT),
    "mask": lambda t, x: t.masked_fill_(t > 0.5, 0.0),
    "index": lambda t, x: t.index_add_(0, torch.tensor([0, 1]), x),
    "detached": lambda t, x: t.detach().add_(x.detach()),
    "twice": lambda t, x: t.add_(x).mul_(x),
    "in_turn": lambda t, x: FOREACH_ADD([t, t[0]], 1.0),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_said_of_a_tensor_and_its_views_after_a_write(
    write: Any, holder: Any, grad: bool
) -> None:
    def program(t: Tensor, x: Tensor) -> Any:
        row, flat, apart = t[0], t.view(-1), t.detach()
        write(t, x)
        tensors = t, row, flat, apart, t[1], x
        return *map(facts, tensors), row * 2, flat + 1, apart * 1, t * x

    assert_as_eager(program, holder, "constant values", grad=grad)


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_said_after_a_write_for_all_sizes(holder: Any) -> None:
    def program(t: Tensor, x: Tensor) -> Any:
        row = t[0]
        t.mul_(x)
        return facts(t), facts(row), t * 3 if row.requires_grad else t * 5

    assert_as_eager(program, holder, "symbolic values", grad=True)


def test_a_program_that_branches_on_what_it_wrote(assert_same: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        total = torch.zeros(3)

        def program(x: Tensor) -> Tensor:
            total.copy_(x)
            return x * 2 if total.requires_grad else x * 3

        called = jit(program)
        found = []
        for grad in (True, True, False):
            found.append(called(torch.ones(3, requires_grad=grad)))
            total.detach_()
        return found

    assert_same(scenario)


@pytest.fixture(params=CACHES)
def assert_same(request: pytest.FixtureRequest) -> Callable[[Callable[[Jit], Any]], None]:
    def check(scenario: Callable[[Jit], Any]) -> None:
        want = plain(scenario(lambda program: program))
        assert plain(scenario(lambda fn: tm.jit(fn, cache=request.param))) == want

    return check


@pytest.mark.parametrize("is_view", [False, True])
@pytest.mark.parametrize("is_made", [False, True])
def test_a_view_without_grad_of_a_leaf_requires_grad_as_its_base(
    assert_same: Any, is_view: bool, is_made: bool
) -> None:
    """That of a leaf that is a view asks what it is a view of, which requires no grad."""

    def program(x: Tensor) -> Any:
        leaf = (x.detach().clone()[1:] if is_view else x.detach().clone()) if is_made else x
        leaf.requires_grad_()
        with torch.no_grad():
            row = leaf[0]
            last = row.view(-1)[1:]
            asked = row.requires_grad, last.requires_grad, row.is_leaf, row.detach().requires_grad
        seen = leaf[0]
        return *asked, seen.requires_grad, (row * 2).requires_grad, (seen * x).sum()

    def scenario(jit: Jit) -> list[Any]:
        called = jit(program)
        other = torch.ones(4, 3)[1:] if not is_view else torch.ones(3, 3)
        own = torch.ones(4, 3)[1:] if is_view else torch.ones(3, 3)
        return [called(x.requires_grad_()) for x in (own, own, other, own)]

    assert_same(scenario)


def test_views_of_what_begins_to_require_grad(assert_same: Any) -> None:
    def program(x: Tensor) -> Any:
        made = x.detach() * 2
        row, apart, other = made[0], made.detach(), x[0]
        made.requires_grad_()
        asked = row.requires_grad, row.is_leaf, apart.requires_grad, other.requires_grad
        return *asked, (row * 2).requires_grad, (apart * 2).requires_grad, made * x

    def scenario(jit: Jit) -> list[Any]:
        called = jit(program)
        return [called(torch.ones(2, 3, requires_grad=True)) for _ in range(2)]

    assert_same(scenario)


DETACHED: dict[str, Program] = {
    "made": lambda t, x: ((y := x * 2).detach_() is y, y.requires_grad, y * 2, x * 3),
    "torch": lambda t, x: (torch.detach_(y := x * 2) is y, y.is_leaf, y * x),
    "a view": lambda t, x: (x * 2)[0].detach_(),
    "a view without grad": lambda t, x: (x.detach() * 2)[0].detach_(),
    "a view of an input": lambda t, x: t[0].detach_(),
    "its view": lambda t, x: ((y := x * 2)[0], y.detach_(), y.requires_grad, y * x)[1:],
    "detached": lambda t, x: ((y := x.detach()).detach_() is y, y * x),
    "written to": lambda t, x: ((y := x.clone()).detach_(), y.add_(1).requires_grad, y * x)[1:],
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("program", DETACHED.values(), ids=DETACHED)
def test_detaching_in_place(program: Any, cache: str) -> None:
    assert_as_eager(program, closed_over, cache, grad=True)


def test_detaching_an_input_in_place() -> None:
    called = tm.jit(lambda x: x.detach_() * 2)
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(MutationError, match=r"detaches an input"):
        called(x)
    assert x.requires_grad
    assert called(torch.ones(3)).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        called(torch.ones(3)[1:])


def test_a_diagonal_of_a_tensor_that_begins_inside_of_its_memory(assert_same: Any) -> None:
    def scenario(jit: Jit) -> list[Any]:
        base = torch.zeros(5, 3)
        called = jit(lambda t: t.fill_diagonal_(1.0) * 2)
        return [*(called(t) for t in (base[1:4], base[2:5], torch.zeros(3, 3), base[1:4])), base]

    assert_same(scenario)


def test_a_place_in_memory_of_tensors_that_begin_elsewhere() -> None:
    def program(x: Tensor) -> Any:
        x.mul_(2)
        return x.as_strided((2,), (1,), 0) * 1

    base = torch.arange(12.0).reshape(4, 3)
    called = tm.jit(program)
    assert called(base).tolist() == [0, 2]
    with pytest.raises(MutationError, match="begin where its memory begins"):
        called(base[1:])
    assert base.tolist() == (torch.arange(12.0).reshape(4, 3) * 2).tolist()


def test_an_argument_becomes_a_parameter() -> None:
    def program(x: Tensor) -> Any:
        p: Any = nn.Parameter(x)
        return isinstance(p, nn.Parameter), type(p), p.__class__, (p * 2).detach()

    given = torch.ones(3)
    want, got = program(given), tm.jit(program)(given)
    assert got[:3] == want[:3]
    assert got[3].tolist() == want[3].tolist()


@pytest.mark.parametrize(
    "program",
    [
        lambda t, x: nn.Parameter(t) * x,
        lambda t, x: t.as_subclass(torch.Tensor) * x,
        lambda t, x: torch.utils.swap_tensors(t, x.clone()),
        lambda t, x: torch.utils.swap_tensors(x.clone(), x * 2),
    ],
)
@pytest.mark.parametrize("holder", [closed_over, argument])
def test_what_is_made_of_a_tensor_unseen_is_refused(program: Any, holder: Any) -> None:
    tensor = torch.ones(3)
    before = dict(vars(tensor))
    called = holder(program, tensor, tm.jit)
    if holder is argument and program.__code__.co_names[:1] == ("nn",):
        return  # seen, and right
    with pytest.raises(UnsupportedError):
        called(torch.ones(3))
    assert tensor.tolist() == [1, 1, 1]
    assert vars(tensor) == before
