"""A few processes of this machine that do the same at once: what the tests in `distributed` folders start.

`Ranks(2)` spawns two processes, and `ranks.run(fn, x)` calls `fn(rank, x)` in each of them and returns both
results. Processes that wait for each other hang as soon as one of them fails, so the first one that raises,
dies or takes too long ends all of them, and the test sees what it raised. `finished` does the same for the
commands of launchers. Everything stays on the loopback interface.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

SECONDS = 60.0
"""How long the slowest process may take by default."""

LOOPBACK = {
    "MASTER_ADDR": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TP_SOCKET_IFNAME": "lo",
    "DMLC_INTERFACE": "lo",
    "NO_PROXY": "*",
    "OMP_NUM_THREADS": "1",
}
"""What keeps libraries on the loopback interface, and processes at one thread each."""


def free_port() -> int:
    """Return a port of the loopback interface that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RankError(AssertionError):
    """What went wrong in one of the processes."""


class Ranks:
    """Processes that call functions together.

    Parameters
    ----------
    count : int
        How many processes.
    environment : callable, optional
        ``environment(rank)`` returns variables that a process has before it imports anything.
    setup : callable, optional
        ``setup(rank)`` is called once in each process, before the first function.
    """

    def __init__(
        self,
        count: int,
        environment: Callable[[int], Mapping[str, str]] = lambda rank: {},
        setup: Callable[[int], Any] | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        common = LOOPBACK | {"WORLD_SIZE": str(count), "MASTER_PORT": str(free_port())}
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            variables = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | dict(environment(rank))
            process = context.Process(target=serve, args=(rank, theirs, variables), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        if setup is not None:
            self.run(setup)

    def run(self, function: Callable[..., Any], *arguments: Any, seconds: float = SECONDS) -> list[Any]:
        """Return what ``function(rank, *arguments)`` returns in each process; everything is pickled.

        The function stands at the top of a module; a process loads that by its path.

        Raises
        ------
        RankError
            With the lines of the first process that raised, or that it died, or that time is up. All
            processes are ended then.
        """
        order = sys.modules[function.__module__].__file__, function.__qualname__, arguments
        try:
            for pipe in self.pipes:
                pipe.send(order)
            return self.collected(time.monotonic() + seconds, function.__qualname__)
        except BaseException:
            self.close()
            raise

    def collected(self, end: float, name: str) -> list[Any]:
        """Wait for the answers of all processes until a moment."""
        results: dict[int, Any] = {}
        while len(results) < len(self.pipes):
            waiting = [pipe for rank, pipe in enumerate(self.pipes) if rank not in results]
            ready = wait(waiting, max(0.0, end - time.monotonic()))
            if not ready:
                left = [rank for rank in range(len(self.pipes)) if rank not in results]
                raise RankError(f"{name}: no answer in time of the processes {left}")
            for pipe in ready:
                rank = self.pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    failed, value = pipe.recv()  # type: ignore[union-attr]
                except (EOFError, ConnectionResetError) as error:
                    raise RankError(f"{name}: process {rank} died") from error
                if failed:
                    raise RankError(f"{name}: process {rank} raised\n{value}")
                results[rank] = value
        return [results[rank] for rank in range(len(self.pipes))]

    def close(self) -> None:
        """End all processes, whatever they do."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def kept(make: Callable[[], Ranks]) -> Iterator[Callable[[], Ranks]]:
    """Yield a function that returns what ``make`` made: the same processes until a test ends them."""
    found: list[Ranks] = []

    def ranks() -> Ranks:
        if found and not all(process.is_alive() for process in found[0].processes):
            found.pop().close()
        if not found:
            found.append(make())
        return found[0]

    try:
        yield ranks
    finally:
        for last in found:
            last.close()


def serve(rank: int, pipe: Connection, variables: Mapping[str, str]) -> None:
    """Call what is asked for until the other end is closed; runs in a process of `Ranks`."""
    os.environ.update(variables)
    while True:
        try:
            path, name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            value = loaded(path)
            for part in name.split("."):
                value = getattr(value, part)
            answer = pickle.dumps((False, value(rank, *arguments)))
        except BaseException:  # noqa: BLE001 - the test is told, whatever it is
            answer = pickle.dumps((True, traceback.format_exc()))
        pipe.send_bytes(answer)


def loaded(path: str) -> Any:
    """Return the module of a file, loaded once in a process."""
    name = f"ranks_{Path(path).stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(path)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


# ---- commands ------------------------------------------------------------------------------------


@contextlib.contextmanager
def started(
    commands: Sequence[Sequence[str]],
    environment: Callable[[int], Mapping[str, str]] = lambda rank: {},
    **options: Any,
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start commands, each as the leader of a group of processes; at the end nothing of them is left."""
    running = [
        subprocess.Popen(
            list(command),
            env={**os.environ, **LOOPBACK, **environment(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **options,
        )
        for rank, command in enumerate(commands)
    ]
    try:
        yield running
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def finished(
    commands: Sequence[Sequence[str]],
    environment: Callable[[int], Mapping[str, str]] = lambda rank: {},
    seconds: float = SECONDS,
    **options: Any,
) -> list[str]:
    """Return what commands that run at the same time print.

    Raises
    ------
    RankError
        If one of them ends with another status than 0, or time is up. All of them are ended then.
    """
    end = time.monotonic() + seconds
    with started(commands, environment, **options) as running:
        printed = []
        for process in running:
            try:
                text, _ = process.communicate(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise RankError(f"{process.args}: not done in {seconds} s\n{error.output}") from error
            if process.returncode:
                raise RankError(f"{process.args}: status {process.returncode}\n{text}")
            printed.append(text)
        return printed
