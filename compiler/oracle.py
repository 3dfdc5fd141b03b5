"""The oracle: what does a call return, alias, mutate and consist of? PyTorch is asked once per signature.

On a miss the real callable runs under a dispatch mode that logs each ATen operation; the answer is remembered under the
call's key. It runs on real zeros of the same metadata where these are few, for which a kernel takes less time than a
fake's does, and on fake tensors where they are many or the answer depends on data. What fakes cannot answer is asked with
zeros, however many.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, abc
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch

from tracemill.compiler import torch_internals as internals
from tracemill.compiler.answer import (
    Answer,
    BodyOperation,
    NewTensor,
    Ref,
    SameTensor,
)
from tracemill.compiler.body_log import BodyLog
from tracemill.compiler.errors import LeakedValueError
from tracemill.compiler.layouts import Fakes
from tracemill.compiler.meta import TensorMeta, memory_of
from tracemill.compiler.models import is_dense, stand_in_for
from tracemill.compiler.profiling import profiled, unprofiled
from tracemill.compiler.proxy import GeneratorProxy, TensorProxy
from tracemill.compiler.random_state import Generator, kept_random_state
from tracemill.compiler.settings import Ambient
from tracemill.compiler.signature import CallKey
from tracemill.compiler.symbol import symbol
from tracemill.compiler.symbolic import while_tracing
from tracemill.compiler.values import leaves, map_leaves

REMEMBERED_SIGNATURES = 16_384
"""How many answers the oracle keeps; the oldest are forgotten first."""

FEW_ELEMENTS = 2**16
"""Elements of a call's tensors up to which it is asked with zeros first."""

STORAGE_READERS = {
    torch.as_strided,
    torch.Tensor.as_strided,
    torch.Tensor.storage_offset,
    torch.ops.aten.as_strided.default,
    torch.as_strided_copy,
    torch.as_strided_scatter,
    torch.Tensor.as_strided_scatter,
}
"""Calls whose answer depends on where in its storage a tensor begins."""


_SHAPED_BY_DATA = {torch.tensor_split, torch.Tensor.tensor_split, internals.pad_packed_sequence}
"""Calls whose output has a shape that depends on the data of a second tensor, which neither fakes nor zeros tell."""


_QUANTISING = "aten::quantize_per"
"""How the names of operations begin of whose results fakes have another dtype."""


def is_pytorch(fn: Callable[..., Any]) -> bool:
    """Whether a callable is PyTorch's own, so that what is known of it stays true."""
    path = symbol(fn).path or ""
    if path.startswith("torch.ops."):
        return path.split(".")[2] in ("aten", "prims")
    return path != ""


class Oracle:
    """Answers calls, and remembers the answers; one serves all threads, each with fakes of its own."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Any, Answer] = OrderedDict()
        self._lock = threading.Lock()
        self._thread = threading.local()
        self.asked = 0

    def ask(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        local: dict[Any, Answer] | None = None,
        *,
        zeros: bool = True,
    ) -> tuple[Answer, list[TensorProxy]]:
        """The answer for a call on proxies and constants, and the call's tensors in the answer's order.

        zeros: whether zeros may tell; what symbolic fakes say besides agrees with other fakes alone.
        local: remembers answers that hold an object by identity; one dict per trace.
        Raises what eager raises for the call.
        """
        key = CallKey()
        parts = (fn, key.of(args), key.of(kwargs) if kwargs else None, Ambient.now())
        if fn in STORAGE_READERS:
            parts = (*parts, tuple(tensor.storage_offset for tensor in key.tensors))
        if not zeros:
            parts = (*parts, zeros)
        if key.local or not is_pytorch(fn):
            local = {} if local is None else local
            answer = local.get(parts)
            if answer is None:
                with profiled():
                    answer = local[parts] = self._work_out(fn, args, kwargs, key.tensors, zeros)
                answer.asked = parts[1:3]
            return answer, key.tensors
        answer = self._answers.get(parts)
        if answer is None:
            with unprofiled():
                answer = self._work_out(fn, args, kwargs, key.tensors, zeros)
            answer.asked = parts[1:3]
            with self._lock:
                self._answers[parts] = answer
                if len(self._answers) > REMEMBERED_SIGNATURES:
                    self._answers.popitem(last=False)
        return answer, key.tensors

    def clear(self) -> None:
        """Forgets every answer."""
        with self._lock:
            self._answers.clear()

    @property
    def fake_mode(self) -> internals.FakeTensorMode:
        """This thread's fake tensors: a mode shared by threads fails."""
        mode = getattr(self._thread, "fake_mode", None)
        if mode is None:
            mode = self._thread.fake_mode = Fakes(allow_non_fake_inputs=True)
            mode.cache_enabled = (
                False  # a memory of its own costs more than it saves: each call is asked once
            )
        return mode

    def _work_out(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tensors: list[TensorProxy],
        zeros: bool,
    ) -> Answer:
        self.asked += 1
        if fn in _SHAPED_BY_DATA and len(tensors) > 1:
            raise internals.DynamicOutputShapeException(cast(Any, fn))
        if zeros and is_pytorch(fn) and _are_few(tensors, (args, kwargs)):
            answer = _of_few(fn, args, kwargs, tensors)
            if answer is not None:
                return answer
        try:
            with internals.quiet_fakes():
                answer = _run(fn, args, kwargs, tensors, self.fake_mode)
        except (internals.DataDependentOutputException, internals.DynamicOutputShapeException):
            raise
        except Exception:
            # Either the call is wrong, and eager's own error is wanted, or fakes cannot do it.
            return _run(fn, args, kwargs, tensors, None)
        if _narrows(answer, tensors, (args, kwargs)):
            _raise_as_kernel(fn, args, kwargs, tensors)
        if any(step.fn._schema.name.startswith(_QUANTISING) for step in answer.body):
            return _run(fn, args, kwargs, tensors, None)
        return answer


def _are_few(tensors: Sequence[TensorProxy], given: Any) -> bool:
    """Whether a call's tensors are so small that kernels answer sooner than fakes do; of one without, what it makes."""
    if not tensors:
        numbers = [leaf for leaf in leaves(given) if isinstance(leaf, int | float)]
        return (
            all(type(number) is int for number in numbers)
            and math.prod(max(1, abs(number)) for number in numbers) <= FEW_ELEMENTS
        )
    metas = [tensor.meta for tensor in tensors]
    return (
        all(meta.device.type == "cpu" and meta.layout == torch.strided for meta in metas)
        and all(meta.numel for meta in metas)  # fakes lay out what is empty otherwise
        and sum(meta.numel for meta in metas) <= FEW_ELEMENTS
    )


def _of_few(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: list[TensorProxy],
) -> Answer | None:
    """The answer by real zeros; None where they do not tell: it depends on data, or zeros are wrong for it."""
    try:
        answer = _run(fn, args, kwargs, tensors, None)
    except Exception:
        return None
    if any(_reads_data(step, answer.metas) for step in answer.body):
        return None
    if any(not isinstance(leaf, NewTensor | SameTensor) for leaf in leaves(answer.output)):
        return None  # a number may be of the zeros
    return answer


_OF_DATA = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))


def _reads_data(step: BodyOperation, metas: Mapping[int, TensorMeta]) -> bool:
    """Whether data say what an operation gives, or how much: indexing does so by masks alone."""
    if step.fn is torch.ops.aten.index.Tensor:
        indices = [metas[leaf.index] for leaf in leaves(step.args[1]) if type(leaf) is Ref]
        return any(meta.dtype in (torch.bool, torch.uint8) for meta in indices)
    return not _OF_DATA.isdisjoint(step.fn.tags)


def _narrows(answer: Answer, tensors: Sequence[TensorProxy], given: Any) -> bool:
    """Whether a call writes to a tensor of a lesser kind of number than it is given: fakes do not tell where it may not."""
    if not answer.mutated:
        return False
    least = min(_kind(tensors[position].dtype) for position in answer.mutated)
    numbers = (_KINDS.get(type(leaf), 0) for leaf in leaves(given))
    return least < max((*numbers, *(_kind(tensor.dtype) for tensor in tensors)))


_KINDS: dict[type, int] = {bool: 0, int: 1, float: 2, complex: 3}


def _kind(dtype: torch.dtype) -> int:
    if dtype.is_complex or dtype.is_floating_point:
        return 3 if dtype.is_complex else 2
    return 0 if dtype == torch.bool else 1


def _raise_as_kernel(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: list[TensorProxy],
) -> None:
    """Raises what a kernel raises for the dtypes of a call; what it raises for zeros is no matter."""
    try:
        _run(fn, args, kwargs, tensors, None)
    except RuntimeError as error:
        if any(words in str(error) for words in ("cast", "dtype", "not implemented for")):
            raise


def _run(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: list[TensorProxy],
    fake_mode: internals.FakeTensorMode | None,
) -> Answer:
    given = [leaf for leaf in (*leaves(args), *leaves(kwargs)) if isinstance(leaf, Generator)]
    with unobserved(), kept_random_state(given) if fake_mode is None else nullcontext():
        models = [stand_in_for(tensor, fake_mode) for tensor in tensors]
        return observe(fn, args, kwargs, tensors, models, fake_mode)[1]


@contextmanager
def unobserved() -> abc.Generator[None]:
    """In the block, no mode or saved-tensor hook of the user's sees what is computed."""
    with internals.DisableTorchFunction(), internals.no_user_modes():
        before = internals.set_saved_tensor_hooks_ignored(True)
        try:
            yield
        finally:
            internals.set_saved_tensor_hooks_ignored(before)


def observe(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[TensorProxy],
    models: Sequence[torch.Tensor],
    fake_mode: internals.FakeTensorMode | None = None,
) -> tuple[Any, Answer]:
    """Runs a call with `models` in place of `tensors`, and says what it returned and what it did."""
    log = BodyLog()
    for model in models:
        log.add(model)
    by_proxy = dict(zip(tensors, models, strict=True))

    def real(leaf: Any) -> Any:
        if isinstance(leaf, TensorProxy):
            return by_proxy[leaf]
        return Generator(leaf.device) if isinstance(leaf, GeneratorProxy) else while_tracing(leaf)

    args, kwargs = map_leaves(real, (tuple(args), dict(kwargs)))
    with fake_mode or nullcontext(), log:
        output = fn(*args, **kwargs)
    return output, _answer(output, tensors, models, log)


def _answer(
    output: Any, tensors: Sequence[TensorProxy], models: Sequence[torch.Tensor], log: BodyLog
) -> Answer:
    positions = {id(model): position for position, model in enumerate(models)}
    aliases: dict[Any, tuple[str, int]] = {}
    for position, model in enumerate(models):
        aliases.setdefault(memory_of(model), ("argument", position))

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in positions:
            return SameTensor(positions[id(value)])
        storage = aliases.setdefault(memory_of(value), ("new", len(aliases)))
        offset = _offset(value)
        if storage[0] == "argument":
            offset -= _offset(models[storage[1]])
        return NewTensor(TensorMeta.of(value), log.find(value), storage, offset)

    spec = map_leaves(leaf, output)
    for value in leaves(spec):
        if isinstance(value, torch.Tensor):
            raise LeakedValueError(f"a fake tensor escaped in the answer {spec!r}")
    written = {memory_of(tensor) for tensor in log.written}
    mutated = tuple(i for i, model in enumerate(models) if memory_of(model) in written)
    returned = {leaf.position for leaf in leaves(spec) if type(leaf) is SameTensor}
    changed = {
        i: meta
        for i in sorted(returned.union(mutated))
        if (meta := TensorMeta.of(models[i])) is not tensors[i].meta
    }
    body = _without_wrapping(log.operations, spec)
    return Answer(spec, len(tensors), mutated, changed, log.random, body, log.metas)


def _without_wrapping(operations: Sequence[BodyOperation], output: Any) -> list[BodyOperation]:
    """Operations without the `detach` that autograd does of a result that it saves."""
    read = {spec.index for spec in leaves(output) if isinstance(spec, NewTensor)}

    def note(leaf: Any) -> None:
        if type(leaf) is Ref:
            read.add(leaf.index)

    for operation in operations:
        map_leaves(note, (operation.args, operation.kwargs))
    detach = torch.ops.aten.detach.default
    return [item for item in operations if item.fn is not detach or item.output.index in read]


def _offset(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) if tensor.layout == torch.strided else 0


ORACLE = Oracle()
"""The process's oracle: answers are true of PyTorch, whoever asked."""


def plain_like(meta: TensorMeta) -> TensorMeta:
    """The metadata of what `torch.empty_like` makes: dense, with the strides in the same order, and no gradient."""
    stride = meta.stride
    if meta.layout == torch.strided and not is_dense(meta):
        with ORACLE.fake_mode:
            like = torch.empty_strided(
                meta.shape, meta.stride, dtype=meta.dtype, device=meta.device
            )
            stride = torch.empty_like(like).stride()
    return TensorMeta(meta.shape, stride, meta.dtype, meta.device, layout=meta.layout)
