"""The worker process as its parent sees it: jobs go in, and a thread hands on what comes out."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from tracemill.compiler import torch_internals

Done = Callable[[dict[str, Any]], None]

_COMMAND = "from tracemill.executors.inductor.worker import main; main()"


class WorkerProcess:
    """Compiles jobs one after another in a process of its own, which starts with the first job."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._process: subprocess.Popen[str] | None = None
        self._waiting: dict[int, tuple[subprocess.Popen[str], Done]] = {}
        self._number = 0

    def submit(self, job: dict[str, Any], done: Done) -> None:
        """Has a job compiled; `done` gets the result, in a thread of the worker's, also when the process ends before."""
        with self._lock:
            process = self._running()
            self._number += 1
            self._waiting[self._number] = process, done
            line = json.dumps(job | {"number": self._number}) + "\n"
        assert process.stdin is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except (OSError, ValueError):
            pass  # it has ended; the thread that reads from it says so

    def wait(self, timeout: float | None = None) -> bool:
        """Waits, for so many seconds at most, until no job is left; whether that is so."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._waiting, timeout)

    def stop(self) -> None:
        """Ends the process; jobs that are not done fail."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            atexit.register(self.stop)
            threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        return self._process

    def _read(self, process: subprocess.Popen[str]) -> None:
        torch_internals.inductor()  # while the process works, so that loading what it made takes little time
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                result = json.loads(line)
                self._finish(result.pop("number"), result)
        failure = {"error": f"the process ended with code {process.returncode}"}
        for number, (owner, _) in sorted(self._waiting.items()):
            if owner is process:
                self._finish(number, failure)

    def _finish(self, number: int, result: dict[str, Any]) -> None:
        _, done = self._waiting[number]
        try:
            done(result)
        finally:
            with self._idle:
                del self._waiting[number]
                self._idle.notify_all()


WORKER = WorkerProcess()
"""The one of this process."""
