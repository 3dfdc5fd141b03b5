"""Leaf views: what autograd says of the views of a leaf that it does not follow.

    with torch.no_grad():
        row = weight[0]
    row.requires_grad  # that of the tensor whose memory it is: of weight, or of what weight is a view of

Fakes of one tensor each know nothing of what a leaf is a view of, so that is looked up here, and checked of an input where
the program depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch

from tracemill.compiler.answer import Answer, NewTensor
from tracemill.compiler.guards import base_requires_grad, check
from tracemill.compiler.proxy import TensorProxy
from tracemill.compiler.symbol import BoundSymbol
from tracemill.compiler.values import leaves, map_leaves
from tracemill.passes.interpretation.mutation.in_place import root_of


class Recording(Protocol):
    """What these need of the interpreter."""

    bound_symbols: list[BoundSymbol]
    lifted: dict[int, tuple[TensorProxy, torch.Tensor]]

    def latest(self, proxy: TensorProxy) -> TensorProxy:
        """What the stand-in of a value stands for now."""
        ...


class LeafViews:
    """The views of leaves that one run of a program took where grad is not enabled."""

    def __init__(self) -> None:
        self._inputs: dict[TensorProxy, tuple[TensorProxy, torch.Tensor] | None] = {}
        self._asked: set[TensorProxy] = set()

    def __bool__(self) -> bool:
        return bool(self._inputs)

    def taken(
        self, recording: Recording, answer: Answer, output: Any, tensors: Sequence[TensorProxy]
    ) -> Answer:
        """Makes the views among a call's outputs require grad as eager's do; the answer that says so."""
        if not any(_is_leaf(tensor) or tensor in self._inputs for tensor in tensors):
            return answer
        specs = leaves(answer.output)
        for spec, out in zip(specs, leaves(output), strict=True):
            if type(spec) is NewTensor and spec.storage[0] == "argument":
                self._take(recording, out, tensors[spec.storage[1]])
        given = dict(zip(map(id, specs), leaves(output), strict=True))

        def leaf(spec: Any) -> Any:
            return spec.known_as(given[id(spec)].meta) if type(spec) is NewTensor else spec

        return answer.with_output(map_leaves(leaf, answer.output))

    def _take(self, recording: Recording, out: TensorProxy, leaf: TensorProxy) -> None:
        if leaf in self._inputs:
            self._inputs[out] = self._inputs[leaf]
        elif _is_leaf(leaf) and out.requires_grad:
            root = root_of(leaf, recording.bound_symbols)
            given = next((real for known, real in recording.lifted.values() if known is root), None)
            self._inputs[out] = None if given is None else (root, given)
            requires_grad = None if given is None else base_requires_grad(given)
            if requires_grad is None:
                requires_grad = recording.latest(root).requires_grad
            if not requires_grad:
                out.meta = out.meta.replace(requires_grad=False)

    def asked(self, proxy: TensorProxy) -> None:
        """Takes note that the program asks whether a tensor requires grad."""
        self._asked.add(proxy)

    def checks(self, lines: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
        """The checks of inputs whose views the program asks about, or computes with where grad is enabled."""
        if not self._inputs:
            return
        read = {value for line in lines if line.grad_enabled for value in line.inputs}
        wanted = (found for view, found in self._inputs.items() if view in read | self._asked)
        for root, given in dict.fromkeys(filter(None, wanted)):
            requires_grad = base_requires_grad(given)
            subject = f"{root.name}: what it is a view of"
            yield check(subject, "{}({}) is {}", base_requires_grad, root, requires_grad)


def _is_leaf(tensor: TensorProxy) -> bool:
    return tensor.requires_grad and tensor.meta.is_leaf
