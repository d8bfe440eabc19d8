"""Several processes that train one model: each takes a share of every minibatch, and gradients are summed.

A launcher such as ``torchrun`` starts the processes and tells each which one it is; where a framework has
none, `start_ranks` starts those of one machine and ends all of them as soon as one fails. The order of the
examples is NumPy's in all of them, so they agree on each minibatch without a message; its examples are
shared out by their calls. What travels is one sum a step, of the gradients and the loss. So the losses are
those of one process with the same minibatches, up to the order in which float32 numbers are added.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Protocol, final

from multifold.backend import Backend
from multifold.errors import MultifoldError
from multifold.sampling.budget import share_out
from multifold_bench.train.on import training_of
from multifold_bench.train.settings import SettingsError

GRACE = 10.0
"""How many seconds a process has to end itself once another one has failed."""


class Ranks(Protocol):
    """The processes that train together, as one of them sees them.

    Attributes
    ----------
    count, rank : int
        How many there are, and which of them this one is. The first one, 0, writes the files.
    """

    count: int
    rank: int

    def exchange(self, said: bytes) -> list[bytes]:
        """Return what each process says, by rank; all of them call it at the same time."""


@final
class OneRank:
    """One process."""

    count = 1
    rank = 0

    def exchange(self, said: bytes) -> list[bytes]:
        """Return what the only process says."""
        return [said]


def gather(ranks: Ranks, value: Any) -> list[Any]:
    """Return what each process gives, by rank.

    Examples
    --------
    >>> gather(OneRank(), {"dev": 1.0})
    [{'dev': 1.0}]
    """
    return [pickle.loads(said) for said in ranks.exchange(pickle.dumps(value))]


def first(ranks: Ranks, value: Any) -> Any:
    """Return what the first process gives; the others send nothing.

    Examples
    --------
    >>> first(OneRank(), 3)
    3
    """
    return pickle.loads(ranks.exchange(b"" if ranks.rank else pickle.dumps(value))[0])


def join_ranks(backend: Backend, shards: int | None = None) -> Ranks:
    """Return the processes that a launcher has started, as its environment says; one where there is none.

    Parameters
    ----------
    backend : Backend
        What trains. The module ``training`` of its adapter may have a function ``ranks``.
    shards : int, optional
        How many processes are expected.

    Raises
    ------
    SettingsError
        If there are others, or if the framework trains in one process only.
    """
    join: Callable[[], Ranks | None] | None = getattr(training_of(backend), "ranks", None)
    found: Ranks = (join and join()) or OneRank()
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if join is None and max(started, shards or 1) > 1:
        raise SettingsError(
            f"Expected one process to train with backend '{backend.name}'. Received {shards or started}.",
            "train with torch, tensorflow, mxnet or jax on several ones.",
        )
    if shards is not None and found.count not in (1, shards):
        raise SettingsError(
            f"Expected {shards} processes, as --shards says. Received {found.count} from the launcher.",
            "leave --shards out: the launcher says how many there are.",
        )
    return found


Command = tuple[Sequence[str], Mapping[str, str]]
"""What starts a process, which arguments for Python follow, and variables of its environment."""


class RankError(MultifoldError, RuntimeError):
    """A process that ended before it was done."""


def start_ranks(backend: Backend, shards: int, arguments: Sequence[str]) -> None:
    """Run Python with some arguments in several processes here, until all are done.

    Raises
    ------
    RankError
        If one fails, with its name. All others, which would wait for it, are ended then.
    """
    commands: dict[str, Command] = training_of(backend).commands(shards, free_port)
    # The processes end first, and with them the threads that wait for each.
    with ThreadPoolExecutor(len(commands)) as waiting, started(commands, arguments) as running:
        ended = {waiting.submit(process.wait): name for name, process in running.items()}
        for future in as_completed(ended):
            if future.result():
                raise RankError(
                    f"Expected {shards} processes to train until they are done. "
                    f"Received the end of {ended[future]}, {reason(future.result())}.",
                    "once its cause is mended, the same command goes on from the last checkpoint.",
                )


@contextlib.contextmanager
def started(
    commands: Mapping[str, Command], arguments: Sequence[str]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start commands; at the end of the block none of them is left."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, (command, variables) in commands.items():
            running[name] = subprocess.Popen([*command, *arguments], env={**os.environ, **variables})
        yield running
    finally:
        for process in running.values():
            process.terminate()  # a launcher ends its own processes then
        for process in running.values():
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    """Return a port of the loopback interface that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def reason(status: int) -> str:
    """Return what a status says.

    Examples
    --------
    >>> reason(-9), reason(1)
    ('killed by SIGKILL', 'with status 1')
    """
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"


def share(examples: list[int], costs: Sequence[int], ranks: Ranks) -> list[int]:
    """Return which examples of a minibatch are those of this process.

    The first process has an example in each minibatch; with fewer of them than processes the last ones have
    none.

    Examples
    --------
    >>> share([2, 0, 1], [9, 4, 5], OneRank())
    [2, 0, 1]
    """
    if ranks.count == 1:
        return examples
    shares = share_out(costs, examples, ranks.count, math.inf) or []
    return shares[ranks.rank]
