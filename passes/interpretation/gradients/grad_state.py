"""Grad state: the `.grad` of tensors as places that the prologue checks and the epilogue writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracemill.compiler.proxy import Proxy
from tracemill.compiler.state_checks import IDENTICAL
from tracemill.passes.interpretation.gradients.grads import Grad
from tracemill.passes.interpretation.interpreter import Interpreter
from tracemill.passes.interpretation.python.conditions import StateCheck
from tracemill.passes.interpretation.python.places import Place
from tracemill.passes.interpretation.python.tables import State
from tracemill.passes.interpretation.python.writes import Write


class GradState:
    """The `.grad` of tensors as places to be checked and written.

    owners: the places of those tensors that have a proxy already, with it.
    """

    def __init__(self, interpreter: Interpreter, state: State) -> None:
        self._grads = [grad for grad in interpreter.grads if grad.real is not None]
        self._proxies = {id(real): proxy for proxy, real in interpreter.lifted.values()}
        self._inputs = set(interpreter.inputs)
        self._places: dict[int, Place] = {}
        self.owners: dict[Place, Proxy] = {}
        for grad in self._grads:
            self._find(grad, self._place(grad.real, state), state)

    def writes(self) -> Iterator[Write]:
        """The lines of the epilogue."""
        for grad in self._grads:
            if grad.is_written:
                value = None if grad.now is None else grad.now.proxy
                yield Write("{0}.grad = {1}", self._places[id(grad.real)], (value,))

    def _place(self, real: Any, state: State) -> Place:
        known = self._places.get(id(real))
        if known is None:
            proxy = self._proxies[id(real)]
            found = () if proxy in self._inputs else state.tensors.get(id(real), ())
            known = self._places[id(real)] = (
                found[0] if found else Place(real, None, (), proxy.name)
            )
            if not found:
                self.owners[known] = proxy
        return known

    def _find(self, grad: Grad, owner: Place, state: State) -> None:
        if grad.found is not None:
            place = owner.child(grad.found, (".grad",), "grad")
            state.tensors.setdefault(id(grad.found), []).append(place)
        elif grad.is_read:
            check = StateCheck(f"{owner.hint}.grad", owner, IDENTICAL, (None,), (".grad",))
            state.last.append(check)
