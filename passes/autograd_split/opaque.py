"""Opaque links: lines that autograd differentiates anew at each call.

User code keeps its own backward (`torch.autograd.Function`, custom operators), and so does what fakes cannot tell. In
the forward, before and after:

    t0 = Scale_apply(x, 2.0)

    t1 = x.detach().requires_grad_()
    with torch.enable_grad():
      t2 = Scale_apply(t1, 2.0)
    t0 = t2.detach()

In the backward:

    t4, = torch.autograd.grad((t2,), (t1,), (t3,), retain_graph=True, allow_unused=True)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import tensor_arguments
from tracemill.compiler.gradients import kept_by
from tracemill.compiler.meta import TensorMeta, contiguous_stride
from tracemill.compiler.models import stand_in_for
from tracemill.compiler.oracle import plain_like, unobserved
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import BoundSymbol, LineWriter, Symbol
from tracemill.compiler.values import leaves, map_leaves, substitute
from tracemill.passes.autograd_split.links import UNNAMED, Gradients
from tracemill.passes.interpretation.python.trial import effects_undone


class _Leaf(Symbol):
    """`t1 = x.detach().requires_grad_()`: where a line's own graph begins."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        (tensor,) = bsym.args
        return [f"{writer.target(bsym.output)} = {writer.value(tensor)}.detach().requires_grad_()"]


class _Detached(Symbol):
    """`t0 = t2.detach()`: the value without its line's own graph."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        (tensor,) = bsym.args
        return [f"{writer.target(bsym.output)} = {writer.value(tensor)}.detach()"]


class _Watched(Symbol):
    """A call under `torch.enable_grad()`; the first argument is the symbol that is called."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        called, *args = bsym.args
        call = writer.call(called.bind(*args, output=bsym.output, **bsym.kwargs))
        return ["with torch.enable_grad():", f"  {writer.target(bsym.output)} = {call}"]


class _Gradients(Symbol):
    """`t4, = torch.autograd.grad(outputs, inputs, cotangents, ...)`: the gradients through a line's own graph."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        args = ", ".join(map(writer.value, bsym.args))
        options = "retain_graph=True, allow_unused=True"
        return [f"{writer.target(bsym.output)} = torch.autograd.grad({args}, {options})"]


class _Contiguous(Symbol):
    """`t5 = None if t4 is None else t4.contiguous()`: a gradient in the layout that others expect."""

    def lines(self, bsym: BoundSymbol, writer: LineWriter) -> list[str]:
        gradient = writer.value(bsym.args[0])
        target = writer.target(bsym.output)
        return [f"{target} = None if {gradient} is None else {gradient}.contiguous()"]


class Probed(NamedTuple):
    """What is known of a line's own backward.

    gradients: of the line's arguments that require grad, None for those that get none. kept: which of the line's values
    autograd keeps. is_guess: whether the gradients are taken to look like their arguments.
    """

    gradients: list[TensorProxy | None]
    kept: Collection[TensorProxy]
    is_guess: bool = False


LEAF = _Leaf("leaf")
DETACHED = _Detached("detached")
WATCHED = _Watched("watched")
GRADIENTS = _Gradients("gradients")
CONTIGUOUS = _Contiguous("contiguous")


class OpaqueLink:
    """A link that is left to autograd at each call."""

    def __init__(self, bsym: BoundSymbol, sizes: Sizes) -> None:
        self.bsym = bsym
        self._sizes = sizes
        tensors = tensor_arguments(bsym.args, bsym.kwargs)
        given = set(tensors)
        self.wanted = tuple(tensor for tensor in tensors if tensor.requires_grad)
        self._leaves = {
            tensor: _unnamed(tensor.meta.replace(is_leaf=True), like=tensor)
            for tensor in self.wanted
        }
        self._watched: dict[Proxy, TensorProxy] = {
            out: _unnamed(out.meta, like=out)
            for out in bsym.outputs
            if isinstance(out, TensorProxy) and out not in given
        }
        self.outputs = tuple(
            out for out in self._watched if isinstance(out, TensorProxy) and out.requires_grad
        )
        self._saved: Collection[TensorProxy] = ()

    def backward(
        self,
        cotangents: Mapping[TensorProxy, TensorProxy],
        arrived: dict[TensorProxy, TensorProxy],
        emit: Callable[[BoundSymbol], object],
    ) -> Gradients:
        pairs = [(out, cotangents[out]) for out in self.outputs if out in cotangents]
        probed = probe(self.bsym, pairs, self._sizes)
        found, self._saved = probed.gradients, probed.kept
        made = {
            tensor: gradient
            for tensor, gradient in zip(self.wanted, found, strict=True)
            if gradient is not None
        }
        emit(
            BoundSymbol(
                GRADIENTS,
                (
                    tuple(self._watched[out] for out, _ in pairs),
                    tuple(self._leaves[tensor] for tensor in made),
                    tuple(cotangent for _, cotangent in pairs),
                ),
                {},
                tuple(made.values()),
                source=self.bsym.source,
                module_path=self.bsym.module_path,
                differentiates=self.bsym,
            )
        )
        return self._arranged(made, emit) if probed.is_guess else made

    def _arranged(self, made: Gradients, emit: Callable[[BoundSymbol], object]) -> Gradients:
        """Gradients of the layout that was guessed: what kernels give may have another one."""
        arranged: dict[TensorProxy, TensorProxy] = {}
        for tensor, gradient in made.items():
            if gradient.meta.stride == contiguous_stride(gradient.meta.shape):
                found, gradient = gradient, _gradient(gradient.meta)
                emit(
                    BoundSymbol(
                        CONTIGUOUS,
                        (found,),
                        {},
                        gradient,
                        source=self.bsym.source,
                        module_path=self.bsym.module_path,
                        differentiates=self.bsym,
                    )
                )
            arranged[tensor] = gradient
        return arranged

    def saved(self, outputs: Iterable[TensorProxy]) -> Collection[TensorProxy] | None:
        return self._saved  # what the backward was asked for last

    def also_needed(self, subsets: Iterable[Sequence[TensorProxy]]) -> Iterable[Proxy]:
        return (*self._watched.values(), *self._leaves.values())

    def forward(self) -> Sequence[BoundSymbol]:
        args, kwargs = substitute((self.bsym.args, self.bsym.kwargs), {**self._leaves})
        output = substitute(self.bsym.output, {**self._watched})
        where: dict[str, Any] = {
            "source": self.bsym.source,
            "module_path": self.bsym.module_path,
        }
        return [
            *(BoundSymbol(LEAF, (old,), {}, new, **where) for old, new in self._leaves.items()),
            BoundSymbol(
                WATCHED,
                (self.bsym.sym, *args),
                kwargs,
                output,
                subsymbols=(),
                answer=self.bsym.answer,
                **where,
            ),
            *(
                BoundSymbol(DETACHED, (new,), {}, old, **where)
                for old, new in self._watched.items()
            ),
        ]


def _unnamed(meta: TensorMeta, like: TensorProxy) -> TensorProxy:
    return like.changed(UNNAMED, meta=meta)


def probe(
    bsym: BoundSymbol, cotangents: Sequence[tuple[TensorProxy, TensorProxy]], sizes: Sizes
) -> Probed:
    """What a line's own backward gives and keeps.

    Asked by running the call and its backward, on fakes if they can, else on zeros; where neither can (shapes that
    depend on data), each argument is taken to get one that looks like it.
    """
    try:
        return _probe(bsym, cotangents, sizes.model, sizes)
    except Exception:  # whatever user code raises on fakes
        sizes.specialise(bsym.args, bsym.kwargs, bsym.output, cotangents)
    for model in (Sizes().model, _zeros):
        try:
            return _probe(bsym, cotangents, model, Sizes())
        except Exception:  # or on zeros
            continue
    tensors = tensor_arguments(bsym.args, bsym.kwargs)
    like = [_gradient(plain_like(tensor.meta)) for tensor in tensors if tensor.requires_grad]
    return Probed([*like], _kept(bsym, cotangents), is_guess=True)


def _kept(
    bsym: BoundSymbol, cotangents: Sequence[tuple[TensorProxy, TensorProxy]]
) -> Collection[TensorProxy]:
    """What autograd keeps of a line whose results differ in shape with the data; all of it, where zeros do not tell."""
    try:
        return _probe(bsym, cotangents, _zeros, Sizes(), differentiates=False).kept
    except Exception:
        tensors = tensor_arguments(bsym.args, bsym.kwargs)
        return [*tensors, *(out for out in bsym.outputs if isinstance(out, TensorProxy))]


def _zeros(proxy: TensorProxy) -> torch.Tensor:
    return stand_in_for(proxy, None)


def _gradient(meta: TensorMeta) -> TensorProxy:
    proxy = TensorProxy("t", meta=meta)
    proxy._name = UNNAMED
    return proxy


def _probe(
    bsym: BoundSymbol,
    cotangents: Sequence[tuple[TensorProxy, TensorProxy]],
    model: Callable[[TensorProxy], torch.Tensor],
    sizes: Sizes,
    *,
    differentiates: bool = True,
) -> Probed:
    """What a line's own backward gives, unless that is not asked, and keeps; found with `model` of its tensors."""
    assert bsym.sym.impl is not None
    tensors = tensor_arguments(bsym.args, bsym.kwargs)
    with ExitStack() as stack:
        stack.enter_context(unobserved())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(effects_undone(bsym.sym.impl, *leaves((bsym.args, bsym.kwargs))))
        models = {tensor: model(tensor) for tensor in tensors}
        given = [model(cotangent) for _, cotangent in cotangents] if differentiates else []
        if any(isinstance(fake, internals.FakeTensor) for fake in given):
            stack.enter_context(sizes.mode)
        stack.enter_context(torch.enable_grad())
        args, kwargs = map_leaves(
            lambda leaf: models[leaf] if isinstance(leaf, TensorProxy) else sizes.given(leaf),
            (bsym.args, bsym.kwargs),
        )
        results = dict(zip(bsym.flat_outs, leaves(bsym.sym.impl(*args, **kwargs)), strict=True))
        outs = [results[out] for out, _ in cotangents]
        values = {
            **models,
            **{proxy: made for proxy, made in results.items() if isinstance(made, torch.Tensor)},
        }
        kept = list(kept_by(outs, values.values()))
        wanted = [models[tensor] for tensor in tensors if tensor.requires_grad]
        found: Any = (
            torch.autograd.grad(outs, wanted, given, allow_unused=True) if differentiates else ()
        )
    made = [
        None if gradient is None else sizes.like(_gradient(TensorMeta.of(gradient)), gradient)
        for gradient in found
    ]
    return Probed(made, [proxy for proxy, is_kept in zip(values, kept, strict=True) if is_kept])
