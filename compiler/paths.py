"""Running a computation whose values may end it: by another path, or by an error that eager may go on after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracemill.compiler import prims
from tracemill.compiler.guards import OtherPath
from tracemill.compiler.random_state import Generator, random_state, set_random_state
from tracemill.compiler.trace import Program


def on_its_path(program: Program, run: Callable[..., Any], *, handles: bool) -> Callable[..., Any]:
    """`run`, raising OtherPath, with the random states as before, when a value takes another path.

    handles: whether the random states are to be as before after every error. A program without such checks, or draws,
    is run as it is.
    """
    lines = program.computation.bound_symbols
    checks = [index for index, bsym in enumerate(lines) if bsym.sym is prims.PATH]
    last = len(lines) if handles else checks[-1] if checks else 0
    draws = any(bsym.is_random for bsym in lines[:last])
    if not checks and not draws:
        return run
    subjects = {lines[index].args[0] for index in checks}

    def run_on_path(*inputs: Any) -> Any:
        state = None
        if draws:
            state = random_state([value for value in inputs if isinstance(value, Generator)])
        try:
            return run(*inputs)
        except Exception as error:
            is_path = type(error) is AssertionError and error.args[:1] and error.args[0] in subjects
            if state is not None and (is_path or handles):
                set_random_state(state)
            if not is_path:
                raise
            raise OtherPath(error.args[0]) from None

    return run_on_path


def may_run_in_eager(program: Program, *, handles: bool) -> bool:
    """Whether a call whose computation raises is to run in eager: nothing is written yet, where eager may go on, or write.

    handles: whether the program goes on after errors; only then are the numbers given back that were drawn.
    """
    draws = any(bsym.is_random for bsym in program.computation.bound_symbols)
    return handles or (program.epilogue is not None and not draws)


def note_effects(error: Exception) -> None:
    """Takes note that an error came when the call had begun to write."""
    error.__tracemill_wrote__ = True  # type: ignore[attr-defined]


def has_effects(error: Exception) -> bool:
    """Whether an error came when the call had begun to write."""
    return getattr(error, "__tracemill_wrote__", False)


def too_many_paths(limit: int, latest: str) -> str:
    """The message for a call whose values ask for one path more than `limit`."""
    return (
        f"the program has taken {limit} paths that depend on values of tensors, for inputs of this kind, and this call "
        f"would take another one ({latest}).\n{WAY_ROUND}; jit(..., paths={2 * limit}) allows more"
    )


def unsteady(latest: str) -> str:
    """The message for a value that was another one when the compiled program computed it again."""
    return (
        f"a value that Python went on with was another one when the compiled program computed it ({latest}): the same "
        f"operations do not give the same bits.\n{WAY_ROUND}"
    )


WAY_ROUND = (
    "Way round: keep the value in a tensor (torch.where instead of `if`, a mask instead of indexing by it), "
    "or compute it before the jitted function and pass it as an argument"
)
