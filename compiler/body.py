"""Bodies: the ATen operations that the oracle logged, cleaned for people and for saving.

What autograd only wraps is dropped (`detach`, `alias`), an operation that writes to a value of the body itself becomes
its functional form, and each operation is given the torch function that prints for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from tracemill.compiler.answer import (
    Answer,
    BodyOperation,
    NewTensor,
    Ref,
    SameTensor,
)
from tracemill.compiler.body_log import BodyLog, draws, written_arguments
from tracemill.compiler.errors import TracemillError
from tracemill.compiler.meta import TensorMeta, hint, memory_of
from tracemill.compiler.readable import readable
from tracemill.compiler.values import map_leaves

_WRAPPERS = (
    torch.ops.aten.detach.default,
    torch.ops.aten.alias.default,
    torch.ops.aten.lift_fresh.default,
)
_FUNCTIONAL = {torch.ops.aten.bernoulli_.float: torch.ops.aten.bernoulli.p}
"""Functional forms that are not the overload of the same name."""

_ELSE_IN_PLACE = (
    torch.ops.aten.copy.default,
    torch.ops.aten.elu.default,
    torch.ops.aten.celu.default,
    torch.ops.aten.leaky_relu.default,
    torch.ops.aten.rrelu_with_noise_functional.default,
)
"""Functional forms that autograd differentiates otherwise than what is in place, or not at all."""

_SUMS = (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)

_READERS = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.is_nonzero.default,
)


class NotCapturedError(TracemillError):
    """Raised for a call whose derivative fakes cannot tell; it is then left to autograd at each call."""


class Log(BodyLog):
    """A log that remembers what tensors were like before an operation changed their shape (`squeeze_`), and after it.

    reshaped: the metadata from before, by index. views: what the operation's functional form gives, by its number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reshaped: dict[int, TensorMeta] = {}
        self.views: dict[int, tuple[Any, torch.Tensor]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if torch.Tag.inplace_view in func.tags:
            self.reshaped.setdefault(self.add(args[0]).index, TensorMeta.of(args[0]))
            view = _functional_form(func)
            if view is not None:
                self.views[len(self.operations)] = view, view(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


class Step(NamedTuple):
    """One operation of a body: `output = fn(*args, **kwargs)` on refs.

    operation: the ATen operation that `fn` does. answer: what the oracle would say of it. inputs: its tensors.
    number: which of the log's operations it is.
    """

    fn: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    operation: Any
    answer: Answer
    inputs: tuple[Ref, ...]
    number: int

    @property
    def outputs(self) -> tuple[Ref, ...]:
        """The refs of its outputs."""
        return refs_in(self.output)

    @property
    def is_view(self) -> bool:
        """Whether all that it makes are views of its argument."""
        return not self.answer.mutated and all(
            isinstance(spec, NewTensor) and spec.storage[0] == "argument"
            for spec in _flat(self.answer.output)
        )


class Body:
    """The values and operations of a log.

    given: the values that come from outside, by index. size: how many values there are so far.
    """

    def __init__(self, log: Log, arity: int) -> None:
        self.given = set(range(arity))
        self.producers: dict[int, Step] = {}
        self._log = log
        self._taken = 0
        self._renamed: dict[int, Ref] = {}
        self._cut: dict[int, Ref] = {}
        self._metas: dict[int, TensorMeta] = {}

    @property
    def size(self) -> int:
        """How many values the log has seen."""
        return self._log.size

    def resolve(self, ref: Ref) -> Ref:
        """The value that stands for `ref` after cleaning."""
        while ref.index in self._renamed:
            ref = self._renamed[ref.index]
        return ref

    def meta(self, ref: Ref) -> TensorMeta:
        """A value's metadata."""
        meta = self._metas.get(ref.index)
        if meta is None:
            meta = TensorMeta.of(self._log.tensor(ref))
            before = self._log.reshaped.get(ref.index)
            if before is not None:
                meta = before.replace(requires_grad=meta.requires_grad, is_leaf=meta.is_leaf)
            self._metas[ref.index] = meta
        return meta

    def storage(self, ref: Ref) -> Any:
        """What a value's storage is known by: equal for values that share memory."""
        return memory_of(self._log.tensor(ref))

    def offset(self, ref: Ref) -> int:
        """Where a value begins in its storage."""
        tensor = self._log.tensor(ref)
        return hint(tensor.storage_offset()) if tensor.layout == torch.strided else 0

    def is_sum(self, ref: Ref) -> bool:
        """Whether a value is a sum, as the gradient of what a call uses more than once is."""
        step = self.producers.get(ref.index)
        return step is not None and step.operation in _SUMS

    def tensor(self, ref: Ref) -> torch.Tensor:
        """The fake that a value is; raises NotCapturedError where an operation changed its symbolic shape."""
        fake = self._log.tensor(ref)
        if ref.index in self._log.reshaped and fake._has_symbolic_sizes_strides:
            raise NotCapturedError("an operation changes a symbolic shape in place")
        return fake

    def take(self, keep: Iterable[Ref] = (), *, followed: bool = False) -> tuple[Step, ...]:
        """The operations logged since the last time, cleaned; `keep` are values that must stay values of their own.

        followed: whether gradients will flow through them again, for which a `detach` that cuts them off counts.
        """
        kept = {ref.index for ref in keep}
        begin, self._taken = self._taken, len(self._log.operations)
        steps: list[Step] = []
        for number, operation in enumerate(self._log.operations[begin:], begin):
            step = self._clean(operation, kept, number, followed=followed)
            if step is not None:
                steps.append(step)
        return tuple(steps)

    def regeneration(self, ref: Ref, known: Container[int]) -> list[Step] | None:
        """The views that make `ref` from values that are `known`, or None when more than views are needed."""
        if ref.index in known:
            return []
        step = self.producers.get(ref.index)
        if step is None or not step.is_view:
            return None
        found: list[Step] = []
        for source in step.inputs:
            steps = self.regeneration(source, known)
            if steps is None:
                return None
            found.extend(item for item in steps if item not in found)
        return [*found, step]

    def _clean(
        self, operation: BodyOperation, kept: set[int], number: int, *, followed: bool
    ) -> Step | None:
        fn, args, kwargs, output = operation
        if fn in _READERS:
            raise NotCapturedError(f"{fn} reads a tensor's data")
        if fn in _WRAPPERS and output.index not in kept and self._unwrap(output, args[0], followed):
            return None
        args, kwargs = map_leaves(self._resolved, args), map_leaves(self._resolved, kwargs)
        operation = BodyOperation(fn, args, kwargs, output)
        if torch.Tag.inplace_view in fn.tags:
            operation = self._view(operation, number)
        elif fn._schema.is_mutable:
            functional = self._functional(operation, followed=followed)
            operation = functional or BodyOperation(
                fn, args, kwargs, map_leaves(self._resolved, output)
            )
        return self._step(operation, number)

    def _unwrap(self, wrapped: Ref, given: Ref, followed: bool) -> bool:
        """Takes a value for the one that autograd wrapped in it; whether it is no other where gradients are followed.

        What autograd saves of a result is cut off from its graph, and joined to it again when it is read.
        """
        source = self.resolve(given)
        joined = self._fake(wrapped).requires_grad
        if joined or not followed:
            source = self._cut.get(source.index, source)
        if followed and joined is not self._fake(source).requires_grad:
            self._cut[wrapped.index] = source
            return False
        self._renamed[wrapped.index] = source
        return True

    def _resolved(self, leaf: Any) -> Any:
        if type(leaf) is not Ref:
            return leaf
        ref = self.resolve(leaf)
        if ref.index not in self.given and ref.index not in self.producers:
            raise NotCapturedError("an operation reads a tensor that PyTorch made out of sight")
        return ref

    def _view(self, operation: BodyOperation, number: int) -> BodyOperation:
        """An operation that changes the shape of a value of the body, as one that takes a view of it."""
        target = operation.args[0]
        known = self._log.views.get(number)
        if known is None or target.index in self.given:
            raise NotCapturedError(f"{operation.fn} changes a tensor's shape")
        view, made = known
        ref = self._log.add(made)
        self._metas[ref.index] = TensorMeta.of(made).replace(
            requires_grad=self.meta(target).requires_grad, is_leaf=self.meta(target).is_leaf
        )
        self._renamed[target.index] = ref
        return BodyOperation(view, operation.args, operation.kwargs, ref)

    def _functional(self, operation: BodyOperation, *, followed: bool) -> BodyOperation | None:
        """An operation that writes to a value of the body, as one that makes a new value; None where that differs."""
        target = operation.args[0] if operation.args else None
        if type(target) is not Ref or target.index in self.given:
            return None
        functional = _FUNCTIONAL.get(operation.fn, _functional_form(operation.fn))
        if functional is None or (followed and functional in _ELSE_IN_PLACE):
            return None
        if self._is_shared(target):
            return None
        given = _completed(operation, functional)
        args, kwargs = map_leaves(self._fake, (given, operation.kwargs))
        try:
            made = functional(*args, **kwargs)
        except Exception:  # the functional form takes other arguments
            return None
        if not isinstance(made, torch.Tensor) or not _alike(made, self._log.tensor(target)):
            return None
        ref = self._log.add(made)
        self._metas[ref.index] = TensorMeta.of(self._log.tensor(target))
        self._renamed[target.index] = ref
        return BodyOperation(functional, given, operation.kwargs, ref)

    def _is_shared(self, target: Ref) -> bool:
        """Whether another value of the body shares the target's memory."""
        key = self.storage(target)
        return any(
            index != target.index and self.storage(Ref(index)) == key
            for index in (*self.given, *self.producers)
            if self.resolve(Ref(index)) != target
        )

    def _fake(self, leaf: Any) -> Any:
        return self._log.tensor(leaf) if type(leaf) is Ref else leaf

    def _step(self, operation: BodyOperation, number: int) -> Step:
        fn, args, kwargs, output = operation
        fakes = map_leaves(self._fake, (args, kwargs))
        shown = readable(fn, *fakes)
        inputs = tuple(dict.fromkeys(refs_in((args, kwargs))))
        answer = self._answer(operation, inputs, shown)
        step = Step(shown, args, kwargs, output, fn, answer, inputs, number)
        for ref in step.outputs:
            self.producers[ref.index] = step
        return step

    def _answer(self, operation: BodyOperation, inputs: Sequence[Ref], shown: Any) -> Answer:
        fn, args, kwargs, output = operation
        positions = {ref: position for position, ref in enumerate(inputs)}
        storages: dict[Any, tuple[str, int]] = {}
        for ref, position in positions.items():
            storages.setdefault(self.storage(ref), ("argument", position))

        def spec(leaf: Any) -> Any:
            if type(leaf) is not Ref:
                return leaf
            if leaf in positions:
                return SameTensor(positions[leaf])
            index = len(inputs) + made.setdefault(leaf, len(made))
            storage = storages.setdefault(self.storage(leaf), ("new", len(storages)))
            offset = self.offset(leaf)
            if storage[0] == "argument":
                offset -= self.offset(inputs[storage[1]])
            return NewTensor(self.meta(leaf), index, storage, offset)

        made: dict[Ref, int] = {}
        specs = map_leaves(spec, output)

        def local(leaf: Any) -> Any:
            if type(leaf) is not Ref:
                return hint(leaf)
            return Ref(positions[leaf] if leaf in positions else len(inputs) + made[leaf])

        body = () if shown is fn else (BodyOperation(*map_leaves(local, tuple(operation))),)
        fakes = map_leaves(self._fake, (args, kwargs))
        written = {memory_of(tensor) for tensor in written_arguments(fn, *fakes)}
        mutated = tuple(i for i, ref in enumerate(inputs) if self.storage(ref) in written)
        random = draws(fn, args, kwargs)
        return Answer(specs, len(inputs), mutated, None, random, body)


def _functional_form(fn: Any) -> Any:
    """The overload that makes a new value of what `fn` writes in place; None where there is none."""
    name = fn._schema.name
    if not name.endswith("_"):
        return None
    packet = getattr(getattr(torch.ops, fn.namespace), name.split("::")[1][:-1], None)
    functional = getattr(packet, fn._overloadname, None)
    return None if functional is None or functional._schema.is_mutable else functional


def _completed(operation: BodyOperation, functional: Any) -> tuple[Any, ...]:
    """An operation's arguments with those that it leaves to a default that `functional` does not have."""
    args = list(operation.args)
    pairs = zip(operation.fn._schema.arguments, functional._schema.arguments, strict=False)
    for own, other in list(pairs)[len(args) :]:
        if other.has_default_value() or not own.has_default_value() or own.kwarg_only:
            break
        args.append(own.default_value)
    return tuple(args)


def refs_in(value: Any) -> tuple[Ref, ...]:
    """Every ref in a structure, in order."""
    return tuple(leaf for leaf in _flat(value) if type(leaf) is Ref)


def _flat(value: Any) -> list[Any]:
    found: list[Any] = []
    map_leaves(found.append, value)
    return found


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and one.stride() == other.stride()
        and one.device == other.device
    )
