"""The oracle's derivatives: what does a call do when autograd watches, and what does its backward do?

Two steps. The forward runs once per signature on fake tensors, and the fakes are kept with the graph that autograd
made of them. The backward is captured when it is wanted, once per set of cotangents that a call really has: which
outputs have one, and with which metadata.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import Ref
from tracemill.compiler.body import Body, Log, NotCapturedError, Step
from tracemill.compiler.gradients import gradients, kept_by
from tracemill.compiler.layouts import fake_tensors
from tracemill.compiler.oracle import ORACLE, STORAGE_READERS, is_pytorch, unobserved
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.sizes import Sizes
from tracemill.compiler.symbol import symbol
from tracemill.compiler.values import leaves, map_leaves

REMEMBERED_DERIVATIVES = 4096
"""How many are kept; the least recently made are forgotten first."""

ASKING_GRAD_MODE = frozenset([torch.ops.aten.mkldnn_rnn_layer.default])
"""Operations whose kernels keep less for a backward where grad mode is off, as it is in a compiled forward."""

_ASKING_PHASES = frozenset([torch.ops.aten.linalg_eig.default, torch.ops.aten._linalg_eigh.default])
"""Operations whose backwards raise, for complex vectors, where a loss depends on their phase: fakes cannot tell."""

Cotangents = Sequence[tuple[int, TensorProxy]]
"""Which outputs have a cotangent, by position among the output's leaves, and a proxy like each."""


class Backward(NamedTuple):
    """What the backward of a call does for some cotangents.

    steps: its operations on refs. cotangents: the refs of the cotangents, in the order of the question.
    gradients: for each tensor argument that wants one, by position, its ref or None.
    needs: the values of the call's forward, neither arguments nor outputs, that it reads.
    """

    steps: tuple[Step, ...]
    cotangents: tuple[Ref, ...]
    gradients: Mapping[int, Ref | None]
    needs: tuple[Ref, ...]


class Derivative:
    """One call under autograd, on fakes of `sizes`.

    body: its values. steps: the operations of its forward. models, made: the fakes that it was called on, and the leaves
    of what it returned. outputs: these leaves as refs, None for what is no tensor. differentiable: the outputs that a
    cotangent can come to. wanted: the tensor arguments that get a gradient.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tensors: Sequence[TensorProxy],
        sizes: Sizes,
        way: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._fn, self._args, self._kwargs = fn, tuple(args), dict(kwargs)
        self._tensors = list(tensors)
        self.sizes = sizes
        self._way = way
        self._log = Log()
        self._backwards: dict[Any, Backward] = {}
        with unobserved():
            models = [sizes.model(tensor) for tensor in tensors]
        for model in models:
            self._log.add(model)
        with self._watching(self._log), torch.enable_grad():
            output = self._call(models)
        self.models = models
        self.made = leaves(output)
        self.wanted = tuple(i for i, model in enumerate(models) if model.requires_grad)
        self.body = Body(self._log, len(models))
        self.outputs = tuple(
            self._log.add(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in self.made
        )
        given = {id(model) for model in models}
        self.differentiable = tuple(
            position
            for position, leaf in enumerate(self.made)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad and id(leaf) not in given
        )
        kept = [ref for ref in self.outputs if ref is not None]
        with self._watching(None), torch.no_grad():
            self.steps = self.body.take(keep=kept)
        if any(step.operation in ASKING_GRAD_MODE for step in self.steps):
            raise NotCapturedError(f"{symbol(fn).name} keeps what its backward needs in grad mode")
        if any(step.operation in _ASKING_PHASES for step in self.steps) and any(
            isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in (*models, *self.made)
        ):
            raise NotCapturedError(
                f"the backward of {symbol(fn).name} looks at what its vectors are"
            )
        self.outputs = tuple(
            None if ref is None else self.body.resolve(ref) for ref in self.outputs
        )
        self.forward_size = self.body.size
        self._same_without_grad: bool | None = None

    @contextmanager
    def _watching(self, log: Log | None) -> Generator[None]:
        """Fakes compute in the block, no mode or hook of the user's sees it, and `log` notes the operations."""
        with (
            unobserved(),
            internals.quiet_fakes(),
            self.sizes.mode,
            self._way(),
            log or nullcontext(),
        ):
            yield

    def _call(self, models: Sequence[torch.Tensor]) -> Any:
        by_proxy = dict(zip(self._tensors, models, strict=True))

        def leaf(value: Any) -> Any:
            return by_proxy[value] if isinstance(value, TensorProxy) else self.sizes.given(value)

        args, kwargs = map_leaves(leaf, (self._args, self._kwargs))
        return self._fn(*args, **kwargs)

    def backward(self, cotangents: Cotangents, arrived: Cotangents = ()) -> Backward:
        """The backward for these cotangents; raises NotCapturedError.

        arrived: what has arrived at some arguments, by position, before the call's own gradients are added to it, one
        after another. These are the last of the backward's cotangents.
        """
        key = self.sizes.key()
        parts = tuple(
            tuple((position, key.of(cotangent)) for position, cotangent in given)
            for given in (cotangents, arrived)
        )
        with _LOCK:
            known = self._backwards.get(parts)
            if known is None:
                known = self._backwards[parts] = self._captured(cotangents, arrived)
            return known

    def _captured(self, cotangents: Cotangents, arrived: Cotangents) -> Backward:
        fakes = [self.sizes.model(cotangent) for _, cotangent in (*cotangents, *arrived)]
        refs = tuple(map(self._log.add, fakes))
        outs = [self.made[position] for position, _ in cotangents]
        outs += [self.models[position] for position, _ in arrived]
        with _telling_failures(self._fn):
            found = self._differentiated(outs, fakes)
        raw = [None if gradient is None else self._log.add(gradient) for gradient in found]
        self.body.given.update(ref.index for ref in refs)
        with self._watching(None), torch.no_grad():
            steps = self.body.take()
        gradients = {
            position: None if ref is None else self.body.resolve(ref)
            for position, ref in zip(self.wanted, raw, strict=True)
        }
        return Backward(steps, refs, gradients, self._needs(steps, gradients))

    def _differentiated(self, outs: Sequence[torch.Tensor], fakes: Sequence[torch.Tensor]) -> Any:
        done = len(self._log.operations)
        failure: Exception | None = None
        for way in self.sizes.ways:
            try:
                with self._watching(self._log), way():
                    return gradients(
                        outs, [self.models[position] for position in self.wanted], fakes
                    )
            except Exception as error:
                del self._log.operations[done:]
                failure = failure or error
        assert failure is not None
        raise failure

    def _needs(self, steps: Sequence[Step], gradients: Mapping[int, Ref | None]) -> tuple[Ref, ...]:
        read = [ref for step in steps for ref in step.inputs]
        read += [ref for ref in gradients.values() if ref is not None]
        had = {ref.index for ref in self.outputs if ref is not None}
        had.update(range(len(self.models)))
        return tuple(
            dict.fromkeys(
                ref for ref in read if ref.index < self.forward_size and ref.index not in had
            )
        )

    def kept(self, positions: Iterable[int]) -> tuple[bool, ...]:
        """For the tensor arguments, then the leaves of the output, whether the backward from some outputs keeps them."""
        outputs = [self.made[position] for position in positions]
        tensors = [leaf for leaf in (*self.models, *self.made) if isinstance(leaf, torch.Tensor)]
        with _LOCK, self._watching(None):
            told = dict(zip(map(id, tensors), kept_by(outputs, tensors), strict=True))
        return tuple(told.get(id(leaf), False) for leaf in (*self.models, *self.made))

    def same_without_grad(self, kept: frozenset[int]) -> bool:
        """Whether the call does the same operations when autograd is off.

        kept: the positions of tensors that require grad all the same, being inputs of the program.
        """
        if len(self.steps) <= 1:
            return True
        if self._same_without_grad is None:
            with _LOCK, _telling_failures(self._fn):
                self._same_without_grad = self._does_the_same(kept)
        return self._same_without_grad

    def _does_the_same(self, kept: frozenset[int]) -> bool:
        log = Log()
        models: list[torch.Tensor] = []
        for position, tensor in enumerate(self._tensors):
            meta = tensor.meta
            if position not in kept:
                meta = meta.replace(requires_grad=False, is_leaf=True)
            models.append(self.sizes.model(tensor.changed("x", meta=meta)))
            log.add(models[-1])
        with self._watching(log), torch.no_grad():
            self._call(models)
        with self._watching(None), torch.no_grad():
            steps = Body(log, len(models)).take()
        ours = [step.operation for step in self.steps]
        return [step.operation for step in steps] == ours


class Derivatives:
    """Finds derivatives on fakes of `sizes`, and remembers them; one capture at a time."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._known: OrderedDict[Any, Derivative | NotCapturedError] = OrderedDict()
        self.asked = 0

    def ask(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Derivative:
        """The derivative of a call on proxies and constants.

        Raises NotCapturedError for what fakes cannot tell, and for user code, which keeps its own backward.
        """
        key = self.sizes.key()
        parts = (fn, key.of(args), key.of(kwargs) if kwargs else None, torch.get_default_dtype())
        if fn in STORAGE_READERS and self.sizes.is_symbolic:
            raise NotCapturedError(f"{symbol(fn).name} reads where in its storage a tensor begins")
        if fn in STORAGE_READERS:
            parts = (*parts, tuple(tensor.storage_offset for tensor in key.tensors))
        if key.local or not is_pytorch(fn):
            raise NotCapturedError(f"{symbol(fn).name} is not PyTorch's own")
        if any(tensor.meta.layout != torch.strided for tensor in key.tensors):
            # Fakes of sparse tensors have other metadata than real ones; a kernel that trusts it crashes.
            raise NotCapturedError(f"{symbol(fn).name} is called on a sparse tensor")
        with _LOCK:
            known = self._known.get(parts)
            if known is None:
                known = self._known[parts] = self._work_out(fn, args, kwargs, key.tensors)
                if len(self._known) > REMEMBERED_DERIVATIVES:
                    self._known.popitem(last=False)
        if isinstance(known, NotCapturedError):
            raise NotCapturedError(str(known))
        return known

    def _work_out(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tensors: Sequence[TensorProxy],
    ) -> Derivative | NotCapturedError:
        self.asked += 1
        failure: NotCapturedError | None = None
        for way in self.sizes.ways:
            try:
                with _telling_failures(fn):
                    if failure is not None and ORACLE.ask(fn, args, kwargs)[0].random:
                        break  # decompositions in Python draw other numbers than kernels, or none
                    return Derivative(fn, args, kwargs, tensors, self.sizes, way)
            except NotCapturedError as error:
                failure = failure or NotCapturedError(
                    str(error)
                )  # no traceback, whose frames hold tensors
        assert failure is not None
        return failure

    def clear(self) -> None:
        """Forgets every derivative."""
        with _LOCK:
            self._known.clear()


@contextmanager
def _telling_failures(fn: Callable[..., Any]) -> Generator[None]:
    """Turns whatever goes wrong on fakes into NotCapturedError."""
    try:
        yield
    except NotCapturedError:
        raise
    except Exception as error:
        raise NotCapturedError(
            f"{symbol(fn).name}: {type(error).__name__}: {error}"
        ) from error.with_traceback(None)


_LOCK = threading.RLock()
_FAKES = fake_tensors()
"""The fakes of all derivatives: they outlive a call, so they cannot be a thread's own; the lock guards them."""

DERIVATIVES = Derivatives(Sizes(_FAKES))
"""The process's derivatives; one serves all threads."""


def derivatives_for(sizes: Sizes) -> Derivatives:
    """The derivatives of a program: the process's, or those of its own symbolic sizes."""
    return DERIVATIVES if sizes.derivatives is None else sizes.derivatives
