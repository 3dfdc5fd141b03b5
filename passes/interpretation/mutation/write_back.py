"""Write back: the functional program's results, among them views of real inputs, and the epilogue."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch

from tracemill.compiler.answer import NewTensor, tensor_arguments
from tracemill.compiler.errors import MutationError
from tracemill.compiler.meta import Storage, TensorMeta
from tracemill.compiler.oracle import ORACLE
from tracemill.compiler.proxy import Proxy, TensorProxy
from tracemill.compiler.symbol import BoundSymbol, symbol
from tracemill.compiler.trace import Program, Trace
from tracemill.compiler.values import leaves, map_leaves
from tracemill.compiler.write import DATA_COPY, UNSEEN_COPY
from tracemill.passes.interpretation.mutation.memory import Memory


class RealViews:
    """Views of inputs, taken of the real inputs: what a program returns of an input that it writes to.

    They are taken by the program's own calls, anew where the program took them of a value that was written to.
    """

    def __init__(self, trace: Trace, memory: Memory) -> None:
        self._memory = memory
        self._real: dict[Proxy, Proxy] = {proxy: proxy for proxy in trace.args}
        self._made_by: dict[Proxy, BoundSymbol] = {}
        self._first: dict[Proxy, Proxy] = {}

    def taken(self, bsym: BoundSymbol, line: BoundSymbol) -> None:
        """Takes note of a call that gives views, and of its line in the functional program."""
        given = tensor_arguments(bsym.args, bsym.kwargs)
        now = tensor_arguments(line.args, line.kwargs)
        given_storages = {tensor.storage for tensor in given}
        is_real = len(given) == len(now) and all(
            self._real.get(old) is new
            for old, new in zip(given, now, strict=True)
            if any(
                isinstance(out, TensorProxy) and out.storage is old.storage for out in bsym.outputs
            )
        )
        for out, new in zip(bsym.flat_outs, line.flat_outs, strict=True):
            if isinstance(out, TensorProxy) and out.storage in given_storages:
                self._made_by.setdefault(out, bsym)
                if is_real:
                    self._real.setdefault(out, new)

    def same(self, proxy: Proxy, other: Proxy) -> None:
        """Takes note that a value is another one, known under new metadata."""
        if other in self._real:
            self._real[proxy] = self._real[other]
        self._first[proxy] = self._first.get(other, other)

    def of(self, proxy: Proxy) -> Proxy:
        """The view of a real input that `proxy` is in the program; adds its line where there is none."""
        known = self._real.get(proxy)
        if known is not None:
            return known
        if proxy in self._first:
            return self.of(self._first[proxy])
        bsym = self._made_by.get(proxy)
        if bsym is None or bsym.answer is None:
            raise MutationError(
                f"{proxy.name}, which the program returns, shares memory with an input that it writes to, by a call "
                "that writes too; return a clone of it"
            )
        tensors = tensor_arguments(bsym.args, bsym.kwargs)
        shared = {out.storage for out in bsym.outputs if isinstance(out, TensorProxy)}
        now: list[Any] = [
            self.of(tensor) if tensor.storage in shared else self._current(tensor)
            for tensor in tensors
        ]
        mapping: dict[Proxy, Any] = dict(zip(tensors, now, strict=True))
        line = bsym.substitute(mapping)
        output = self._memory.sizes.again(bsym, now, self._memory.new)
        self._memory.lines.append(line.from_bsym(output=output, answer=bsym.answer))
        for spec, out, made in zip(
            leaves(bsym.answer.output), bsym.flat_outs, leaves(output), strict=True
        ):
            if type(spec) is NewTensor:
                self._real[out] = made
        return self._real[proxy]

    def _current(self, tensor: TensorProxy) -> Any:
        memory = self._memory
        return memory.value(tensor) if tensor in memory else memory.renamed.get(tensor, tensor)


def takes_over(bsym: BoundSymbol, memory: Memory, given: Set[Storage]) -> bool:
    """Whether a line writes a value to an input as it is, which is not written to itself and lies in no input's memory.

    given: the memory of inputs.
    """
    if bsym.sym.impl is not torch.Tensor.copy_ or memory.grad:
        return False
    tensor, value = bsym.args[:2]
    base = memory.base(tensor)
    return (
        isinstance(value, TensorProxy)
        and value not in memory
        and value.storage not in given
        and tensor is base.proxy
        and tensor in base.inputs
        and _plain(value) is _plain(tensor)
    )


def _plain(proxy: TensorProxy) -> TensorMeta:
    return proxy.meta.replace(requires_grad=False, is_leaf=True)


def finished(program: Program, memory: Memory, views: RealViews) -> Program:
    """The program of the functional lines, with its epilogue."""
    before = program.epilogue
    computation = program.computation
    output = computation.output if before is None else computation.output[0]

    def now(value: Any) -> Any:
        if not isinstance(value, TensorProxy) or value not in memory:
            return memory.renamed.get(value, value) if isinstance(value, Proxy) else value
        if memory.base(value).inputs:
            return views.of(value)
        memory.arrange(value)
        return memory.value(value)

    result = map_leaves(now, output)
    kept = {} if before is None else {proxy: now(proxy) for proxy in before.args}
    lines, arguments = _write_back(program, memory)
    if before is not None:
        lines += [bsym.substitute(kept) for bsym in before.bound_symbols]
        arguments += kept.values()
    if not lines:
        made = computation.replace(bound_symbols=memory.lines, output=result)
        return program.replace(computation=made)
    arguments = list(dict.fromkeys(arguments))
    made = computation.replace(bound_symbols=memory.lines, output=(result, tuple(arguments)))
    epilogue = Trace("epilogue", arguments, lines, None, no_grad=False)
    return program.replace(computation=made, epilogue=epilogue)


def _write_back(program: Program, memory: Memory) -> tuple[list[BoundSymbol], list[Proxy]]:
    """The lines that copy what inputs hold in the end, and the values that they need."""
    lines: list[BoundSymbol] = []
    arguments: list[Proxy] = []
    given = set(program.computation.args)
    for base in memory.bases:
        if not base.inputs or memory.plain_value(base) is memory.first_value(base):
            continue
        for proxy in [base.proxy] if base.proxy in given else base.inputs:
            followed = base.followed and torch.is_grad_enabled()
            value = memory.plain_value(base) if followed else memory.value(proxy)
            if base.followed and not followed and memory.plain_value(base).requires_grad:
                raise MutationError(
                    f"{proxy.name} is written to where the program switches gradients on, by a call that has them off, so "
                    "that autograd would follow the write; call it with gradients on"
                )
            if value is proxy:
                continue
            if value.requires_grad and not followed:
                value = memory.emit(torch.Tensor.detach, (value,), {}, grad=False)
            with torch.set_grad_enabled(followed):
                answer, _ = ORACLE.ask(torch.Tensor.copy_, (proxy, value), {})
            unseen = proxy.requires_grad and torch.is_grad_enabled() and not followed
            copy = UNSEEN_COPY if unseen else symbol(torch.Tensor.copy_)
            copy = copy if base.versioned else DATA_COPY
            lines.append(BoundSymbol(copy, (proxy, value), answer=answer, grad_enabled=followed))
            arguments += [proxy, value]
    return lines, arguments
