"""tiered: programs run on torch at once, and go over to Inductor's code when a worker process has compiled it."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from tracemill.compiler.symbol import BoundSymbol
from tracemill.executors.fusion import Region
from tracemill.executors.inductor.compilation import loaded, settings_for
from tracemill.executors.inductor.executor import InductorExecutor
from tracemill.executors.inductor.worker import surroundings
from tracemill.executors.inductor.worker_process import WORKER
from tracemill.executors.lowering import inputs_of

Run = Callable[[list[Any]], Sequence[Any]]


class TieredExecutor(InductorExecutor):
    """Runs regions on torch until Inductor's code for them is there; forward and backward go over together.

    A program whose regions a worker process could not compile stays on torch, with one warning.
    """

    name: ClassVar[str] = "tiered"
    takes_symbolic: ClassVar[bool] = (
        False  # a job says what its inputs are like without their ShapeEnv
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._changeovers: WeakKeyDictionary[Any, Changeover] = WeakKeyDictionary()

    def fuse(self, region: Region) -> BoundSymbol:
        """The line that runs the region, on torch at first."""
        changeover = self._changeovers.setdefault(region.program, Changeover())
        return region.bind(changeover.add(region, self.options_of(region)), boxed=True)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits, for so many seconds at most, until no program waits for its code; whether that is so."""
        return WORKER.wait(timeout)


class TieredRegion:
    """A region's function, from a list of its inputs to its outputs.

    run: what it does at present. on_torch: what it does before there is compiled code. compiled: that code, when it is
    there. job: what is to be compiled.
    """

    __slots__ = ("__weakref__", "changeover", "compiled", "job", "on_torch", "run")

    def __init__(self, changeover: Changeover, on_torch: Run, job: dict[str, Any]) -> None:
        self.changeover = changeover
        self.on_torch = on_torch
        self.compiled: Run | None = None
        self.job = job
        self.run: Run = self.first

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        return self.run(inputs)

    def first(self, inputs: list[Any]) -> Sequence[Any]:
        """Has the program compiled, and runs."""
        self.changeover.start()
        return self.on_torch(inputs)  # also where the worker was quicker

    def warn_and_run(self, inputs: list[Any]) -> Sequence[Any]:
        """Says why the program stays on torch, where nobody has said so, and runs."""
        self.run = self.on_torch
        self.changeover.warn()
        return self.on_torch(inputs)


class Changeover:
    """The regions of one program, which go over to compiled code at once or stay on torch.

    A backward that is made later goes over by itself.
    """

    def __init__(self) -> None:
        self._regions: list[weakref.ref[TieredRegion]] = []
        self._failure = ""

    def add(self, region: Region, options: dict[str, Any]) -> TieredRegion:
        """The function of another region."""
        trace = region.trace
        run = trace.callable("minimal")
        inputs = [
            (each.shape, each.stride, str(each.dtype), str(each.device))
            for each in inputs_of(region)
        ]
        job = {
            "name": trace.name,
            "text": trace.text("minimal"),
            "inputs": inputs,
            "options": options,
            "surroundings": surroundings(),
        }
        made = TieredRegion(self, lambda values: run(*values), job)
        self._regions.append(weakref.ref(made))
        return made

    def start(self) -> None:
        """Has the regions compiled that are not yet."""
        with WORKER.lock:
            new = [region for region in self._living() if region.run == region.first]
            for region in new:
                region.run = region.on_torch
        for region in new:
            WORKER.submit(region.job, _Arrival(region))

    def arrived(self, region: TieredRegion, result: dict[str, Any]) -> None:
        """Takes note of what became of a region; when the last one is there, all go over."""
        if "error" in result:
            self._fail(result["error"])
            return
        try:
            settings = settings_for(**region.job["options"])
            region.compiled = loaded(result["key"], result["path"], settings)
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
            return
        with WORKER.lock:
            regions = self._living()
            if not self._failure and all(each.compiled for each in regions):
                for each in regions:
                    each.run = each.compiled or each.on_torch

    def _fail(self, failure: str) -> None:
        with WORKER.lock:
            if not self._failure:
                self._failure = failure
                for region in self._living():
                    if region.run != region.compiled:
                        region.run = region.warn_and_run

    def warn(self) -> None:
        """Warns, once, that the program stays on torch."""
        with WORKER.lock:
            failure, self._failure = self._failure, "told"
        if failure != "told":
            warnings.warn(
                f"executor 'tiered' could not compile a program, which stays on torch: {failure}",
                stacklevel=4,
            )

    def _living(self) -> list[TieredRegion]:
        return [region for region in (known() for known in self._regions) if region is not None]


class _Arrival:
    """Hands a result to its region, where the program still exists."""

    def __init__(self, region: TieredRegion) -> None:
        self._region = weakref.ref(region)

    def __call__(self, result: dict[str, Any]) -> None:
        region = self._region()
        if region is not None:
            region.changeover.arrived(region, result)
