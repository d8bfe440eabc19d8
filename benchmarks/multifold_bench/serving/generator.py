"""The process that sends requests: run as a file, it imports nothing but Python's own library.

It writes the number of each request to its standard output when it is due, and reads the numbers of those
that were answered from its standard input: four bytes each. It begins when it has read ``END`` there. After
the last one it writes ``END`` and then the latency of each request in seconds, NaN where no answer came.
"""

from __future__ import annotations

import json
import os
import random
import select
import struct
import sys
from array import array
from collections.abc import Iterable
from time import monotonic

END = -1
"""Written after the last request."""

NUMBER = 4
"""Bytes of a number."""

LATE = 0.01
"""With more late requests than this part of all, the 99th percentile is beyond the deadline."""


class Requests:
    """When requests are due, and how long they took.

    Parameters
    ----------
    rate : float
        Requests a second.
    seconds : float
        For how long they arrive; there is at least one.
    seed : int
        Of their times.
    deadline : float
        After how many seconds a request is late.
    """

    def __init__(self, rate: float, seconds: float, seed: int, deadline: float) -> None:
        rng = random.Random(seed)
        self.times: list[float] = []
        time = rng.expovariate(rate)
        while time < seconds or not self.times:
            self.times.append(time)
            time += rng.expovariate(rate)
        self.deadline = deadline
        self.latencies = array("d", [float("nan")] * len(self.times))
        self.sent = self.judged = self.late = self.done = 0

    def due(self, now: float) -> range:
        """Return the numbers of the requests that are due and were not sent yet."""
        first = self.sent
        while self.sent < len(self.times) and self.times[self.sent] <= now:
            self.sent += 1
        return range(first, self.sent)

    def answered(self, numbers: Iterable[int], now: float) -> None:
        """Note that requests were answered."""
        for number in numbers:
            self.latencies[number] = now - self.times[number]
            self.done += 1

    def hopeless(self, now: float) -> bool:
        """Return whether so many are late that the 99th percentile must be beyond the deadline."""
        while self.judged < self.sent and self.times[self.judged] + self.deadline < now:
            latency = self.latencies[self.judged]
            self.late += not latency <= self.deadline
            self.judged += 1
        return self.late > LATE * len(self.times) + 1

    def next_time(self) -> float:
        """Return when the next one is due; infinity after the last."""
        return self.times[self.sent] if self.sent < len(self.times) else float("inf")


def send(requests: Requests, patience: float, stubborn: bool) -> None:
    """Send all requests and wait for their answers.

    Parameters
    ----------
    requests : Requests
        What to send.
    patience : float
        How many seconds to wait for answers after the last request.
    stubborn : bool
        Whether to go on when the 99th percentile is beyond the deadline for sure.
    """
    answers = sys.stdin.fileno()
    out = sys.stdout.fileno()
    rest = b""
    end = (requests.times[-1] if requests.times else 0.0) + patience
    os.read(answers, NUMBER)  # the other side is ready
    start = monotonic()
    while requests.done < len(requests.times):
        now = monotonic() - start
        if numbers := requests.due(now):
            os.write(out, struct.pack(f"<{len(numbers)}i", *numbers))
        if now > end or (not stubborn and requests.hopeless(now)):
            break
        # Look up now and then, so that a server that answers nothing is given up, too.
        pause = min(requests.next_time(), now + 0.05) - (monotonic() - start)
        if select.select([answers], [], [], max(0.0, pause))[0]:
            received = rest + os.read(answers, 1 << 16)
            now = monotonic() - start
            whole = len(received) // NUMBER
            rest = received[whole * NUMBER :]
            requests.answered(struct.unpack_from(f"<{whole}i", received), now)
    os.write(out, struct.pack("<i", END))


def main() -> None:
    """Send what the first argument says, a JSON object."""
    given = json.loads(sys.argv[1])
    if (core := given.pop("core")) is not None:
        os.sched_setaffinity(0, {core})
    patience = given.pop("patience")
    stubborn = given.pop("stubborn")
    requests = Requests(**given)
    send(requests, patience, stubborn)
    sys.stdout.buffer.write(requests.latencies.tobytes())


if __name__ == "__main__":
    main()
