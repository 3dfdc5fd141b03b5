"""Training through jit: the gradients that eager gives, in every way that one asks for them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import tracemill as tm
from tests.models import BUILDERS, Built, gpt, tensors_in
from tracemill.compiler.errors import UnsupportedError

Program = Callable[..., Any]


def gradients(
    program: Program, *inputs: torch.Tensor, outputs: list[int] | None = None
) -> list[torch.Tensor | None]:
    """The gradients of inputs that require one, for fixed cotangents of (some of) the outputs."""
    torch.manual_seed(1)
    made = [out for out in tensors_in(program(*inputs)) if out.requires_grad]
    chosen = made if outputs is None else [made[i] for i in outputs]
    cotangents = [torch.linspace(1, 2, out.numel()).view(out.shape) for out in chosen]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    return list(torch.autograd.grad(chosen, wanted, cotangents, allow_unused=True))


def assert_same(
    got: list[torch.Tensor | None], want: list[torch.Tensor | None], tolerance: float = 0.0
) -> None:
    assert [grad is None for grad in got] == [grad is None for grad in want]
    for one, other in zip(got, want, strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def check(program: Program, *inputs: torch.Tensor, outputs: list[int] | None = None) -> Any:
    """Jit's gradients are eager's, on the first and on the second call; the jitted function."""
    jitted = tm.jit(program)
    want = gradients(program, *inputs, outputs=outputs)
    assert_same(gradients(jitted, *inputs, outputs=outputs), want)
    assert_same(gradients(jitted, *inputs, outputs=outputs), want)
    assert tm.cache_info(jitted).misses == 1
    return jitted


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: (x + y).sin() * 2,
        lambda x, y: x @ y.t() + x @ x.t(),
        lambda x, y: F.layer_norm(x, (3,), y[0], y[1]).relu(),
        lambda x, y: F.softmax(x, -1).log() - y.exp().mean(),
        lambda x, y: F.dropout(x, 0.3) * F.dropout(y, 0.5),
        lambda x, y: torch.cat([x, y])[1:, ::2].split(2)[0],
        lambda x, y: F.scaled_dot_product_attention(x[None], y[None], x[None]),
        lambda x, y: torch.where(x > 0, x, y.sqrt().nan_to_num()),
        lambda x, y: F.conv1d(x[None], y[:, :, None]),
        lambda x, y: F.cross_entropy(x, torch.tensor([0, 1, 2])) + y.var(),
    ],
    ids=lambda program: program.__code__.co_firstlineno,
)
def test_gradients_are_eagers_bit_for_bit(program: Program) -> None:
    check(program, leaf(3, 3), leaf(3, 3))


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("builder", ["llama", "gpt2", "bert", "vit"])
def test_whole_models(builder: str, mode: str) -> None:
    model, args, kwargs = BUILDERS[builder]()
    model.train(mode == "train")

    def losses_and_gradients(called: Program) -> list[Any]:
        torch.manual_seed(2)
        result = called(*args, **kwargs)
        loss = sum((out.float() ** 2).mean() for out in tensors_in(result) if out.requires_grad)
        assert isinstance(loss, torch.Tensor)
        model.zero_grad()
        loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in model.parameters())]

    want = losses_and_gradients(model)
    jitted = tm.jit(model)
    assert_same(losses_and_gradients(jitted), want)
    assert_same(losses_and_gradients(jitted), want)


def test_ten_steps_of_adamw_give_the_same_losses() -> None:
    def losses(compiled: Callable[[nn.Module], Any]) -> list[float]:
        model, (tokens,), _ = gpt()
        called = compiled(model)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
        found: list[float] = []
        for _ in range(10):
            loss = F.cross_entropy(called(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            found.append(loss.item())
        return found

    assert losses(tm.jit) == pytest.approx(losses(lambda model: model), abs=1e-6)


def test_gradients_accumulate() -> None:
    x = leaf(3)
    jitted = tm.jit(lambda x: x * x)
    for _ in range(3):
        jitted(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 6 * x.detach())


@pytest.mark.parametrize("outputs", [[0], [1], [2], [0, 2], [0, 1, 2]])
def test_unused_outputs_leave_none_where_eager_does(outputs: list[int]) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.sin(), {"exp": y.exp(), "both": x * y}, 3

    check(program, leaf(3), leaf(3), outputs=outputs)


@pytest.mark.parametrize("outputs", [[0], [1], [0, 1]])
def test_a_missing_cotangent_is_no_zero(outputs: list[int]) -> None:
    """The eigenvectors' part of the derivative divides by differences of equal eigenvalues."""
    check(lambda x: torch.linalg.eigh(x @ x.t()), leaf(3, 3), outputs=outputs)


def test_unused_inputs_and_those_that_need_no_gradient() -> None:
    constant = torch.randn(3)
    jitted = check(lambda x, y, z: (x * z).detach() * y, leaf(3), leaf(3), constant)
    assert "None" in tm.last_backward_traces(jitted)[-1].text("minimal").splitlines()[-1]


def test_outputs_without_gradients_stay_so() -> None:
    def program(x: torch.Tensor) -> Any:
        return x.argmax(), x > 0, x.detach() * 2, x * 2

    x = leaf(4)
    got, want = tm.jit(program)(x), program(x)
    assert [out.requires_grad for out in got] == [out.requires_grad for out in want]
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


@pytest.mark.parametrize("switch", [torch.no_grad, torch.inference_mode])
def test_no_gradient_flows_out_of_a_region_without_grad(switch: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with switch():
            scale = x.norm().clone()
        with torch.no_grad(), torch.enable_grad():
            shift = x.exp()
        return x * scale.item() + shift if switch is torch.inference_mode else x * scale + shift

    if switch is torch.no_grad:
        check(program, leaf(3))
    else:
        check(lambda x: x * 2, leaf(3))


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad])
def test_a_view_taken_without_grad_is_a_leaf_where_gradients_end(around: Any, cache: str) -> None:
    def program(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            row, flat = w[0], w.view(-1)
        seen = flat.unsqueeze(0)
        return row, seen, (w * x).sum(), (row * seen.sum()).sum(), flat

    found = []
    for compiled in (program, tm.jit(program, cache=cache)):
        w = torch.ones(2, 2, requires_grad=True)
        with around():
            made = compiled(w, torch.ones(2))
        told = [(t.requires_grad, t.is_leaf, t._is_view(), t.tolist()) for t in made]
        if made[2].requires_grad:
            (made[2] + made[3] + made[1].sum()).backward()
        found.append((told, w.grad))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=0)


@pytest.mark.parametrize(
    "layout",
    [lambda t: t.t(), lambda t: t[:1].expand(3, 3), lambda t: t[:, ::2].repeat(1, 2)[:, :3]],
)
def test_cotangents_of_any_stride(layout: Program) -> None:
    x = leaf(3, 3)
    program = lambda x: (x.sin() @ x).view(9).view(3, 3)  # noqa: E731
    cotangent = layout(torch.randn(3, 3))
    (want,) = torch.autograd.grad(program(x), x, cotangent)
    (got,) = torch.autograd.grad(tm.jit(program)(x), x, cotangent)
    assert torch.equal(got, want)


def test_the_same_tensor_twice_and_views_of_inputs() -> None:
    x = leaf(2, 3)
    program = lambda a, b: (a * b, a.t(), b)  # noqa: E731
    got, want = tm.jit(program)(x, x), program(x, x)
    assert got[2] is x
    for one, other in zip(got[:2], want[:2], strict=True):
        assert torch.equal(
            torch.autograd.grad(one.sum(), x)[0], torch.autograd.grad(other.sum(), x)[0]
        )
    assert got[1].data_ptr() == x.data_ptr()


def test_shared_parameters_get_one_gradient() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    x = torch.randn(2, 3)
    model(x).sum().backward()
    want = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    tm.jit(model)(x).sum().backward()
    got = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(got) == 3
    assert all(map(torch.equal, got, want))


def test_hooks_on_inputs_fire_once() -> None:
    x = leaf(3)
    seen: list[torch.Tensor] = []
    x.register_hook(lambda gradient: seen.append(gradient) or gradient * 2)
    x.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor))
    tm.jit(lambda x: x.sin())(x).sum().backward()
    assert len(seen) == 2
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * x.detach().cos())


@pytest.mark.parametrize("cotangent_needs_grad", [False, True])
def test_gradients_of_gradients(cotangent_needs_grad: bool) -> None:
    x, y = leaf(3), leaf(3)
    program = lambda x, y: (x * y).sin() * y.detach()  # noqa: E731

    def twice(called: Program) -> Any:
        out = called(x, y)
        cotangent = torch.ones(3, requires_grad=cotangent_needs_grad)
        first = torch.autograd.grad(out, (x, y), cotangent, create_graph=True)
        total = torch.stack([grad.pow(2).sum() for grad in first]).sum()
        return list(torch.autograd.grad(total, (x, y)))

    assert_same(twice(tm.jit(program)), twice(program))


def test_gradients_of_gradients_are_refused_where_numbers_would_be_drawn_again() -> None:
    x = leaf(3)
    out = tm.jit(lambda x: F.dropout(x, 0.5))(x)
    with pytest.raises(tm.UnsupportedError, match=r"create_graph.*dropout"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_gradients_of_gradients_are_refused_when_an_input_is_gone() -> None:
    x = leaf(3)
    out = tm.jit(lambda x, y: x + y)(x, torch.ones(3))
    with pytest.raises(tm.UnsupportedError, match="no longer exists"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_backward_twice_needs_retain_graph() -> None:
    x = leaf(3)
    out = tm.jit(lambda x: x.sin().exp())(x).sum()
    (first,) = torch.autograd.grad(out, x, retain_graph=True)
    (second,) = torch.autograd.grad(out, x)
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, x)


def test_a_saved_value_changed_in_place_is_an_error() -> None:
    x = leaf(3)
    out = tm.jit(lambda x: x.softmax(-1))(x)
    out.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_nothing_is_kept_after_the_backward() -> None:
    """Neither what was saved nor what the backward computes, as long as the result lives, and without gc."""
    kept: list[weakref.ref[torch.Tensor]] = []

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(weakref.ref(tensor))
        return tensor

    jitted = tm.jit(lambda x, w: F.dropout((x @ w).sin() @ w, 0.5).softmax(-1))
    w = leaf(3, 3)
    gc.disable()
    try:
        x = torch.randn(3, 3)
        with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
            out = jitted(x, w)
        given = weakref.ref(x)
        del x
        alive = [reference() is not None for reference in kept]
        assert any(alive)
        out.sum().backward()
        assert given() is None
        assert all(reference() is None or reference() in {w, out} for reference in kept)
    finally:
        gc.enable()


def test_saved_tensor_hooks_see_what_is_saved() -> None:
    x = leaf(3)
    jitted = tm.jit(lambda x: x.sin().sin())
    jitted(x)
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> int:
        packed.append(tensor)
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda index: packed[index]):
        out = jitted(x)
    (got,) = torch.autograd.grad(out.sum(), x)
    assert packed
    assert torch.equal(got, torch.autograd.grad(x.sin().sin().sum(), x)[0])


class Scale(torch.autograd.Function):
    """Its backward is no derivative of its forward, so that losing it shows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x)
        ctx.factor = factor
        index = x.argmax()
        ctx.mark_non_differentiable(index)
        return x * factor, index

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        (x,) = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False)
        return cotangents[0] * 100 + x * ctx.factor, None


def test_an_autograd_function_keeps_its_backward() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        scaled, index = Scale.apply(x.sin(), 2.0)
        return scaled.cos() + index

    jitted = check(program, leaf(3))
    assert "Scale_apply" in str(tm.last_traces(jitted)[-1])
    with torch.no_grad():
        x = leaf(3)
        assert torch.equal(tm.jit(program)(x), program(x))


def test_a_custom_operator_keeps_its_backward() -> None:
    @torch.library.custom_op("tracemill_gradients::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    twice.register_autograd(lambda ctx, cotangent: cotangent * 7)

    check(lambda x: twice(x.sin()) * 3, leaf(3))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_is_checkpointed_is_computed_again(use_reentrant: bool) -> None:
    w = torch.randn(3, 3)

    def inner(x: torch.Tensor) -> torch.Tensor:
        return F.dropout((x @ w).sin() @ w, 0.5).exp()

    def program(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(inner, x, use_reentrant=use_reentrant).cos()

    def trained(called: Program) -> list[torch.Tensor | None]:
        torch.manual_seed(1)
        x = torch.ones(4, 3, requires_grad=True)
        torch.manual_seed(1)
        called(x).sum().backward()
        return [x.grad]

    jitted = tm.jit(program)
    assert_same(trained(jitted), trained(program))
    backward = tm.last_backward_traces(jitted)[-1].text("minimal")
    assert backward.count("torch.Tensor.matmul") == 2
    assert "bernoulli" not in backward
    saved = tm.last_traces(jitted)[-1].output[1][0]
    assert sorted(proxy.dtype for proxy in saved if proxy not in tm.last_traces(jitted)[-1].args)[
        -1:
    ] == [torch.bool]


@pytest.mark.parametrize("built", ["gpt", "cnn"])
def test_gradients_reach_only_parameters_that_require_them(built: str) -> None:
    made: Built = BUILDERS[built]()
    model, args, kwargs = made
    parameters = list(model.parameters())
    for parameter in parameters[::2]:
        parameter.requires_grad_(False)
    model(*args, **kwargs).sum().backward()
    want = [parameter.grad for parameter in parameters]
    model.zero_grad()
    tm.jit(model)(*args, **kwargs).sum().backward()
    assert_same([parameter.grad for parameter in parameters], want)


def test_gradients_of_a_layout_that_only_the_call_tells() -> None:
    """The kernels of packed sequences give their gradient in an order of dimensions that neither fakes nor zeros tell."""
    lstm = torch.nn.LSTM(6, 4, batch_first=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        sequences = torch.nn.utils.rnn.pack_padded_sequence(
            x.view(2, 2, 6), [2, 1], batch_first=True
        )
        padded, _ = torch.nn.utils.rnn.pad_packed_sequence(lstm(sequences)[0], batch_first=True)
        return padded

    found: list[torch.Tensor | None] = []
    x = torch.randn(4, 6)
    for call in (program, tm.jit(program)):
        given = x.clone().requires_grad_()
        call(given).sin().sum().backward()
        found.append(given.grad)
    assert_same(found[:1], found[1:])


def test_gradients_flow_through_sparse_tensors_inside() -> None:
    check(lambda x: x.to_sparse().to_dense() * 2, leaf(3, 4))


@pytest.mark.filterwarnings("ignore:.*uantiz")
def test_a_quantised_tensor_inside_is_refused_by_name() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()

    with pytest.raises(NotImplementedError, match=r"quantised tensor is made at .*test_gradients"):
        tm.jit(program)(torch.ones(3))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.linalg.eig(x)[1].real.sum(),
        lambda x: torch.linalg.eig(torch.complex(x, x))[1].imag.sum(),
        lambda x: torch.linalg.eigh(torch.complex(x, x * 0))[1].imag.sum(),
        lambda x: torch.linalg.svd(torch.complex(x, x))[0].real.sum(),
    ],
)
def test_a_loss_that_depends_on_the_phase_of_vectors_is_an_error(program: Program) -> None:
    messages = []
    for called in (program, tm.jit(program)):
        x = torch.tensor([[0.1, 0.9], [-0.8, 0.2]], requires_grad=True)
        loss = called(x)
        with pytest.raises(RuntimeError, match="up to multiplication by") as raised:
            loss.backward()
        messages.append(str(raised.value))
    assert messages[1] == messages[0]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.linalg.eig(x)[1].abs(),
        lambda x: torch.linalg.eig(x)[0].abs(),
        lambda x: torch.linalg.eigh(torch.complex(x, x * 0))[0],
        lambda x: torch.linalg.eigh(x)[1].abs(),
    ],
)
def test_a_loss_that_does_not_depend_on_the_phase_of_vectors(program: Program) -> None:
    check(program, torch.tensor([[0.1, 0.9], [-0.8, 0.2]], requires_grad=True))


def _written(keep: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Program:
    """A program that writes to what a line has read."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y, weights = x * 1, torch.tensor([0.5, 1.5])
        made = keep(y, weights)
        y.mul_(2)
        weights.add_(1)
        return made

    return program


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize(
    ("keep", "is_kept"),
    [
        (lambda y, w: y.masked_select(w > 1), True),
        (lambda y, w: y[w > 1], False),
        (lambda y, w: torch.cov(y, aweights=w), True),
        (lambda y, w: torch.cov(y), False),
        (lambda y, w: torch.linalg.lstsq(y, y + 1).solution, True),
        (lambda y, w: y * w, True),
        (lambda y, w: y + w, False),
    ],
)
def test_a_write_to_what_a_backward_keeps_is_an_error(keep: Any, is_kept: bool, cache: Any) -> None:
    program = _written(keep)
    for called in (program, tm.jit(program, cache=cache)):
        x = torch.tensor([[0.1, 0.9], [-0.8, 0.2]], requires_grad=True)
        made = called(x)
        if not is_kept:
            made.sum().backward()
            continue
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            made.sum().backward()


def test_a_write_that_a_backward_reads_and_no_count_tells_of_is_refused() -> None:
    """What `kron` keeps is a view with a count of its own: eager's backward reads what is there in the end."""
    with pytest.raises(UnsupportedError, match="does not count the writes"):
        tm.jit(_written(torch.kron))(torch.ones(2, 2, requires_grad=True))


@pytest.mark.parametrize("name", ["acosh_", "asinh_", "atanh_"])
def test_a_write_that_has_no_derivative_in_place_is_refused(name: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return getattr(x * 1.0, name)()

    x = torch.full((2,), 0.5, requires_grad=True)
    with pytest.raises(NotImplementedError, match="inplace version"):
        program(x).sum().backward()
    jitted = tm.jit(program)
    with pytest.raises(UnsupportedError, match=f"{name} .* use the functional form"):
        jitted(x)
    torch.testing.assert_close(jitted(x.detach()), program(x.detach()), equal_nan=True)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize(
    "spread",
    [
        lambda out: out.mT.contiguous().mT,
        lambda out: torch.ones(()).expand(out.shape),
        lambda out: torch.linspace(1, 2, out.numel() * 2).reshape(*out.shape, 2)[..., 1],
        lambda out: torch.linspace(1, 2, out.shape[-1]).expand(out.shape),
        lambda out: torch.linspace(1, 2, out.numel()).reshape(out.shape).flip(0).mT.clone().mT,
    ],
)
@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x @ x.mT).tanh(),
        lambda x: F.softmax(x, -1).mT,
        lambda x: x.exp()[:, 1:],
        lambda x: F.layer_norm(x, x.shape[1:]),
        lambda x: x.cumsum(0).view(x.shape[1], -1),
        lambda x: x.clone().mul_(2).mT,
    ],
)
def test_cotangents_of_other_strides(program: Program, spread: Any, cache: Any) -> None:
    jitted = tm.jit(program, cache=cache)
    for other in (torch.ones_like, spread, spread):
        found = []
        for called in (program, jitted):
            x = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
            made = called(x)
            found += [torch.autograd.grad(made, x, other(made.detach()))[0]]
        torch.testing.assert_close(found[1], found[0])
