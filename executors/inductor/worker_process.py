"""The worker process as its parent sees it: jobs go in, and a thread hands on what comes out.

Nobody waits for the process: it is started, and given its jobs, by a thread, and ends by itself when there is nothing to do.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, Any

from tracemill.compiler import torch_internals

Done = Callable[[dict[str, Any]], None]

_COMMAND = "from tracemill.executors.inductor.worker import main; main()"
IDLE_SECONDS = 60.0
"""How long the process, which has PyTorch in memory, waits for another job."""


class _Session:
    """One process, from its start to its end.

    process: the process; None until it is started. jobs: lines for it; None is the end. ends: whether it is to end at once.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.jobs: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.ends = False


class WorkerProcess:
    """Compiles jobs one after another in a process of its own, which starts with the first job.

    idle_seconds: how long it then waits for another job before it ends. lock: for what is known of jobs, and of the
    programs that wait for them.
    """

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self.idle_seconds = idle_seconds
        self._number = 0
        self._forget()
        atexit.register(self.stop)
        os.register_at_fork(
            before=lambda: self._loading.acquire(),
            after_in_parent=lambda: self._loading.release(),
            after_in_child=self._forked,
        )

    def _forget(self) -> None:
        self.lock = threading.RLock()
        self._idle = threading.Condition(self.lock)
        self._loading = threading.RLock()
        """For what holds locks of libraries, and for half of a module: the process is copied before or after."""
        self._session: _Session | None = None
        self._waiting: dict[int, tuple[_Session, Done]] = {}

    def submit(self, job: dict[str, Any], done: Done) -> None:
        """Has a job compiled; `done` gets the result, in a thread of the worker's, also when the process ends before."""
        with self.lock:
            self._number += 1
            session = self._session
            if session is None:
                session = self._session = _Session()
                thread = threading.Thread(target=self._serve, args=(session,), daemon=True)
            else:
                thread = None
            self._waiting[self._number] = session, done
            session.jobs.put(json.dumps(job | {"number": self._number}) + "\n")
        try:
            if thread is not None:
                thread.start()
        except RuntimeError as error:  # at the interpreter's end
            self._end(session, str(error))

    def wait(self, timeout: float | None = None) -> bool:
        """Waits, for so many seconds at most, until no job is left; whether that is so."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._waiting, timeout)

    def stop(self) -> None:
        """Ends the process; jobs that are not done fail."""
        with self.lock:
            session, self._session = self._session, None
            if session is not None:
                session.ends = True
        if session is not None and session.process is not None:
            session.process.kill()

    def _serve(self, session: _Session) -> None:
        """Starts the process and gives it its jobs, until it ends or has nothing to do."""
        with self._loading:
            errors = tempfile.TemporaryFile("w+")
            try:
                process = _started(errors)
            except OSError as error:
                errors.close()
                self._end(session, f"the process could not be started: {error}")
                return
        reader = threading.Thread(target=self._read, args=(session, process), daemon=True)
        with self.lock:
            session.process = process
            if session.ends:
                process.kill()
        try:
            reader.start()
            self._write(session, process)
        except RuntimeError:  # no thread is started at the interpreter's end
            process.kill()
        process.wait()
        with errors:
            self._end(session, f"the process ended with code {process.returncode}{_last(errors)}")

    def _write(self, session: _Session, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        with suppress(OSError), process.stdin as jobs:  # OSError: it has ended
            for line in self._jobs(session):
                jobs.write(line)
                jobs.flush()

    def _jobs(self, session: _Session) -> Iterator[str]:
        while True:
            try:
                line = session.jobs.get(timeout=self.idle_seconds)
            except queue.Empty:
                if self._is_left(session):
                    return
                continue
            if line is None:
                return
            yield line

    def _is_left(self, session: _Session) -> bool:
        """Whether the process has nothing to do; it gets no more jobs then."""
        with self.lock:
            if any(owner is session for owner, _ in self._waiting.values()):
                return False
            self._leave(session)
            return True

    def _leave(self, session: _Session) -> None:
        if self._session is session:
            self._session = None

    def _read(self, session: _Session, process: subprocess.Popen[str]) -> None:
        with self._loading, suppress(Exception):  # what is wrong is said when code is loaded
            torch_internals.inductor()  # while the process works, so that loading takes little time
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                result = json.loads(line)
                with self._loading:
                    self._finish(result.pop("number"), result)
        session.jobs.put(None)

    def _end(self, session: _Session, failure: str) -> None:
        """Takes note that there is no process: its jobs fail."""
        with self.lock:
            self._leave(session)
            failed = [number for number, (owner, _) in self._waiting.items() if owner is session]
        for number in failed:
            self._finish(number, {"error": failure})

    def _finish(self, number: int, result: dict[str, Any]) -> None:
        with self.lock:
            _, done = self._waiting[number]
        try:
            done(result)
        finally:
            with self._idle:
                del self._waiting[number]
                self._idle.notify_all()

    def _forked(self) -> None:
        """In a process that is a copy: the threads are the other one's, and so is what they wait for."""
        waiting, session = self._waiting, self._session
        self._forget()
        if session is not None and session.process is not None:
            session.process.returncode = 0  # not to be waited for here
        for _, done in waiting.values():
            done({"error": "this process is a copy of the one that asked for it"})


def _started(errors: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _COMMAND],  # -P: no module of the current folder stands in
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C is for the program
    )


def _last(errors: IO[str]) -> str:
    """The last line of what the process wrote about itself."""
    errors.seek(0)
    lines = errors.read().strip().splitlines()
    return f": {lines[-1]}" if lines else ""


WORKER = WorkerProcess()
"""The one of this process."""
