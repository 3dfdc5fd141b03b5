"""Random states inside a program: seeds, saved states and generators, recorded and done at each call.

While a program is interpreted, PyTorch's functions on random states stand aside for these in the thread that
interprets, and the program's generators are stand-ins. A generator that the program finds by itself (a global, an
attribute) is a constant; changing its state by hand is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, Protocol

import torch

from tracemill.compiler.answer import Answer, NewTensor
from tracemill.compiler.errors import LeakedValueError, UnsupportedError
from tracemill.compiler.meta import TensorMeta
from tracemill.compiler.proxy import GeneratorProxy
from tracemill.compiler.random_state import Generator, random_state
from tracemill.compiler.symbol import Symbol, symbol
from tracemill.passes.interpretation.python.places import names_in
from tracemill.passes.interpretation.stand_in import interpretation, refusing


class Recording(Protocol):
    """What random states need of the interpreter."""

    def effect(self, sym: Symbol, args: Sequence[Any], spec: Any = None) -> Any:
        """Records a call that changes or reads a random state."""
        ...

    def value(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The value of a call that Python needs now."""
        ...

    def new_generator(self, device: torch.device) -> TracedGenerator:
        """The stand-in of a generator that the program makes."""
        ...


def _known(fn: Any, path: str) -> Symbol:
    """The symbol of a function, its path settled before anything stands in for it."""
    known = symbol(fn)
    known.__dict__["path"] = path
    known.name = path
    return known


_CPU = {
    name: _known(getattr(torch, name), f"torch.{name}")
    for name in ("manual_seed", "get_rng_state", "set_rng_state", "initial_seed")
}
_CUDA = {
    name: _known(getattr(torch.cuda, name), f"torch.cuda.{name}")
    for name in ("manual_seed", "manual_seed_all", "get_rng_state", "set_rng_state", "initial_seed")
}
_METHODS = {
    name: _known(getattr(Generator, name), f"torch.Generator.{name}")
    for name in (
        "manual_seed",
        "get_state",
        "set_state",
        "clone_state",
        "initial_seed",
        "get_offset",
        "set_offset",
    )
}
MAKE_GENERATOR = _known(Generator, "torch.Generator")
READERS = frozenset([_CPU["get_rng_state"], _CUDA["get_rng_state"], _METHODS["get_state"]])
"""Read a random state, and change nothing."""


def _state_of(size: int) -> NewTensor:
    return NewTensor(TensorMeta((size,), dtype=torch.uint8), -1, ("new", 0), 0)


_CPU_STATE = random_state()[0].numel()
_CUDA_STATE = 16


class TracedGenerator(Generator):
    """The stand-in of a generator: what changes its state is recorded."""

    proxy: GeneratorProxy

    @classmethod
    def of(cls, proxy: GeneratorProxy) -> TracedGenerator:
        """The stand-in of a generator of the trace."""
        made = cls()
        made.proxy = proxy
        return made

    @property
    def recording(self) -> Recording:
        """The interpretation under way."""
        recording: Any = interpretation.get()
        if recording is None:
            raise LeakedValueError(
                f"{self.proxy.name} is a generator of a finished trace: the traced program stored it outside"
            )
        return recording

    def manual_seed(self, seed: Any) -> TracedGenerator:
        self.recording.effect(_METHODS["manual_seed"], (self, int(seed)))
        return self

    def get_state(self) -> Any:
        size = _CPU_STATE if self.proxy.device.type == "cpu" else _CUDA_STATE
        return self.recording.effect(_METHODS["get_state"], (self,), _state_of(size))

    def set_state(self, new_state: Any) -> TracedGenerator:
        self.recording.effect(_METHODS["set_state"], (self, new_state))
        return self

    def set_offset(self, offset: Any) -> TracedGenerator:
        self.recording.effect(_METHODS["set_offset"], (self, int(offset)))
        return self

    def clone_state(self) -> Any:
        made = self.recording.new_generator(self.proxy.device)
        self.recording.effect(_METHODS["clone_state"], (self,), made)
        return made

    def initial_seed(self) -> int:
        return self.recording.value(_METHODS["initial_seed"].impl, (self.proxy,), {})  # type: ignore[arg-type]

    def get_offset(self) -> int:
        return self.recording.value(_METHODS["get_offset"].impl, (self.proxy,), {})  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.proxy.device

    @refusing
    def seed(self) -> int:
        raise UnsupportedError(_NO_SEED.format("Generator.seed"))

    @refusing
    def graphsafe_get_state(self) -> Any:
        raise UnsupportedError("Generator.graphsafe_get_state cannot be compiled; use get_state")

    @refusing
    def graphsafe_set_state(self, state: Any) -> Any:
        raise UnsupportedError("Generator.graphsafe_set_state cannot be compiled; use set_state")

    @refusing
    def __reduce__(self) -> Any:
        raise UnsupportedError("a generator cannot be copied or pickled inside a jitted function")


_NO_SEED = "{} takes its seed from the system, which no later call could repeat; use manual_seed"


def _manual_seed(recording: Recording, seed: Any) -> torch.Generator:
    recording.effect(_CPU["manual_seed"], (int(seed),))
    return torch.default_generator


def _seed(recording: Recording) -> int:
    raise UnsupportedError(_NO_SEED.format("torch.seed"))


def _initial_seed(recording: Recording) -> int:
    return recording.value(_CPU["initial_seed"].impl, (), {})  # type: ignore[arg-type]


def _get_state(recording: Recording) -> Any:
    return recording.effect(_CPU["get_rng_state"], (), _state_of(_CPU_STATE))


def _set_state(recording: Recording, new_state: Any) -> None:
    recording.effect(_CPU["set_rng_state"], (new_state,))


def _cuda_manual_seed(recording: Recording, seed: Any) -> None:
    recording.effect(_CUDA["manual_seed"], (int(seed),))


def _cuda_manual_seed_all(recording: Recording, seed: Any) -> None:
    recording.effect(_CUDA["manual_seed_all"], (int(seed),))


def _cuda_get_state(recording: Recording, device: Any = "cuda") -> Any:
    return recording.effect(_CUDA["get_rng_state"], (device,), _state_of(_CUDA_STATE))


def _cuda_set_state(recording: Recording, new_state: Any, device: Any = "cuda") -> None:
    recording.effect(_CUDA["set_rng_state"], (new_state, device))


def _cuda_get_states(recording: Recording) -> list[Any]:
    return [_cuda_get_state(recording, index) for index in range(torch.cuda.device_count())]


def _cuda_set_states(recording: Recording, new_states: Any) -> None:
    for index, state in enumerate(new_states):
        _cuda_set_state(recording, state, index)


def _cuda_initial_seed(recording: Recording) -> int:
    return recording.value(_CUDA["initial_seed"].impl, (), {})  # type: ignore[arg-type]


class TracedGenerators:
    """The stand-ins of one run of a program.

    generators: those of generators that are inputs, with the real ones, by the real one's id.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generators: dict[int, tuple[TracedGenerator, torch.Generator]] = {}

    def fresh_name(self) -> str:
        """A provisional name for a new value."""
        raise NotImplementedError

    def generator(self, name: str, generator: torch.Generator) -> TracedGenerator:
        """The stand-in of an input generator; the same generator has the same stand-in."""
        known = self.generators.get(id(generator))
        if known is None:
            made = TracedGenerator.of(GeneratorProxy(name, device=generator.device))
            known = self.generators[id(generator)] = (made, generator)
        return known[0]

    def new_generator(self, device: torch.device) -> TracedGenerator:
        """The stand-in of a generator that the program makes."""
        return TracedGenerator.of(GeneratorProxy(self.fresh_name(), device=device))


class DefaultGenerator:
    """Stands where PyTorch's functions find their generator, for those that a program imported by name."""

    def __getattr__(self, name: str) -> Any:
        recording: Any = interpretation.get()
        handler = _OF_DEFAULT.get(name)
        if recording is None or handler is None:
            return getattr(torch.default_generator, name)
        return functools.partial(handler, recording)


_OF_DEFAULT: dict[str, Callable[..., Any]] = {
    "manual_seed": _manual_seed,
    "seed": _seed,
    "initial_seed": _initial_seed,
    "get_state": _get_state,
    "set_state": _set_state,
}

STAND_INS: tuple[tuple[Any, str, Callable[..., Any]], ...] = tuple(
    (owner, name, handler)
    for owners, handlers in (
        (
            (torch, torch.random),
            {
                "_manual_seed_impl": _manual_seed,
                "manual_seed": _manual_seed,
                "seed": _seed,
                "initial_seed": _initial_seed,
                "get_rng_state": _get_state,
                "set_rng_state": _set_state,
            },
        ),
        (
            (torch.cuda, torch.cuda.random),
            {
                "manual_seed": _cuda_manual_seed,
                "manual_seed_all": _cuda_manual_seed_all,
                "seed": _seed,
                "seed_all": _seed,
                "initial_seed": _cuda_initial_seed,
                "get_rng_state": _cuda_get_state,
                "set_rng_state": _cuda_set_state,
                "get_rng_state_all": _cuda_get_states,
                "set_rng_state_all": _cuda_set_states,
            },
        ),
    )
    for owner in owners
    for name, handler in handlers.items()
    if hasattr(owner, name)
)
"""PyTorch's functions on random states, with what is done while tracing: `handler(recording, ...)`."""


def effect_answer(spec: Any, arity: int) -> Answer:
    """The answer for a call that changes or reads a random state."""
    return Answer(spec, arity, random=True)


def make_generator(recording: Recording, device: Any = "cpu") -> TracedGenerator:
    """What `torch.Generator(device)` gives inside a program."""
    made = recording.new_generator(torch.device(device))
    recording.effect(MAKE_GENERATOR, (str(made.proxy.device),), made)
    return made


def generators_of(target: Any, values: Sequence[Any]) -> list[torch.Generator]:
    """The generators that a program can reach in a few steps: attributes of its modules, closure, globals, defaults."""
    found: dict[int, torch.Generator] = {}
    for value in _within_reach(target, values):
        if isinstance(value, Generator):
            found.setdefault(id(value), value)
    return list(found.values())


def _within_reach(target: Any, values: Sequence[Any]) -> Iterator[Any]:
    for value in (target, *values):
        owner = getattr(value, "__self__", value)
        if isinstance(owner, torch.nn.Module):
            for module in owner.modules():
                yield from list(module.__dict__.values())
        elif not isinstance(owner, torch.Tensor):
            yield from list(getattr(owner, "__dict__", {}).values())
    function = getattr(target, "forward", target)
    function = getattr(function, "__func__", function)
    if isinstance(function, FunctionType):
        yield from _of_function(function)


def _of_function(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # still empty
            continue
        yield value
        yield from list(getattr(value, "__dict__", {}).values())
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in dict.fromkeys(names_in(function.__code__)):
        value = function.__globals__.get(name)
        yield value
        if not isinstance(value, (type(torch), type, FunctionType)):
            yield from list(getattr(value, "__dict__", {}).values())
