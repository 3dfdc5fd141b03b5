"""The worker of the tiered executor: a process that compiles programs given as text.

One line of JSON for each job comes in, one for each result goes out: where the compiled program lies, or what went wrong.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from tracemill.compiler import torch_names
from tracemill.executors.inductor.compilation import compiled, settings_for
from tracemill.executors.lowering import Input, fakes_like


def compile_job(job: dict[str, Any]) -> dict[str, Any]:
    """The result of a job.

    job: `text` and `name` of a function, its `inputs`, the `options` that Inductor's settings follow
    from, and the `surroundings` that the program runs in. The result has the `key` and the `path`
    of the module that Inductor wrote, whose function `call` is the program.
    """
    namespace: dict[str, Any] = {}
    exec(job["text"], namespace)
    inputs = [
        Input(tuple(shape), tuple(stride), torch_names.lookup(dtype), torch.device(device))
        for shape, stride, dtype, device in job["inputs"]
    ]
    enter(job["surroundings"])
    settings = settings_for(**job["options"])
    made = compiled(namespace[job["name"]], fakes_like(inputs), settings)
    if made.constants:
        raise ValueError("the program holds constant tensors")
    path = sys.modules[made.current_callable.__module__].__file__
    return {"key": made.cache_key, "path": path}


_DETERMINISTIC: Any = torch.utils.deterministic


def surroundings() -> dict[str, Any]:
    """What of this process's state the code of a program depends on."""
    return {
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "filled": _DETERMINISTIC.fill_uninitialized_memory,
    }


def enter(state: dict[str, Any]) -> None:
    """Makes this process's state that of another one."""
    torch.set_num_threads(state["threads"])
    torch.set_default_dtype(torch_names.lookup(state["dtype"]))
    torch.set_default_device(state["device"])
    torch.use_deterministic_algorithms(state["deterministic"], warn_only=state["warn_only"])
    _DETERMINISTIC.fill_uninitialized_memory = state["filled"]


def main() -> None:
    """Serves jobs until the input ends."""
    os.nice(10)
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print is no result
    for line in sys.stdin:
        job = json.loads(line)
        try:
            result = compile_job(job)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result | {"number": job["number"]}), file=results, flush=True)


if __name__ == "__main__":
    main()
