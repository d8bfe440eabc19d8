"""Requests whose first value is many launches away: for how long they wait, and what they share."""

from __future__ import annotations

import pytest

from multifold import LaunchError, Server
from multifold._serve.worker import ROUNDS


class Readers:
    """A server that is turned by hand: its requests read words, and then write and look at each piece."""

    def __init__(self, backend="numpy", calls=8192):
        self.reads, self.writes = [], []  # the rows of each launch
        self.during = lambda: None  # called in each launch of `read`
        model = {"begin": lambda x: x * 1.0, "read": self.read, "write": self.write}
        self.server = Server(model, self.converse, backend=backend, wait=0, calls=calls)
        self.server._admission.open()
        self.to_numpy = self.server._worker.backend.to_numpy

    def read(self, h, x):
        self.reads.append(len(h))
        self.during()
        if (self.to_numpy(h) < 0).any():
            raise ValueError("below zero")
        return h * 2.0 + x

    def write(self, h):
        self.writes.append(len(h))
        return h * 0.5

    @staticmethod
    async def converse(fold, example):
        words, pieces = example
        h = fold.add("begin", 0.0)
        for x in words:
            h = fold.add("read", h, x)
        for _ in range(pieces):
            h = fold.add("write", h)
            await fold.value(h)
        return h

    def submit(self, *words, pieces=1):
        return self.server.submit((words, pieces))

    def turn(self, count=1):
        for _ in range(count):
            self.server._worker.turn()

    def finish(self, *futures):
        """Turn until all are done; return how often."""
        for count in range(10_000):
            if all(future.done() for future in futures):
                return count
            self.turn()
        raise AssertionError("not done")


def result(*words, pieces=1):
    h = 0.0
    for x in words:
        h = h * 2.0 + x
    return h * 0.5**pieces


def test_newcomers_share_the_launches_of_their_chains(backend):
    served = Readers(backend)
    writers = [served.submit(1.0, pieces=60) for _ in range(3)]
    served.turn(2)
    served.reads.clear()
    examples = [[*map(float, range(n))] for n in (20, 18, 20, 16)]
    futures = []
    for words in examples:
        futures.append(served.submit(*words, pieces=3))
        served.turn()
    assert not served.reads  # they wait for each other
    served.finish(*futures, *writers)
    assert [future.result().item() for future in futures] == [result(*x, pieces=3) for x in examples]
    assert served.reads == [4] * 16 + [3] * 2 + [2] * 2 or served.server._worker.backend.pads


def test_a_newcomer_that_waits_for_two_values_counts_once():
    served = Readers()

    async def two(fold, example):
        words, pieces = example
        await fold.gather(*[served.converse(fold, (words[:count], pieces)) for count in (10, 3)])
        return fold.add("begin", 0.0)

    served.server._worker.fn = two
    writers = [served.submit(1.0, pieces=60) for _ in range(2)]
    served.turn(2)
    served.reads.clear()
    futures = [served.submit(*[1.0] * 10) for _ in range(4)]
    served.turn(5)
    assert not served.reads  # in 5 rounds 4 newcomers lose as much as 2 writers in 10 launches
    served.turn()
    assert served.reads == [8] * 3 + [4] * 7  # the longer of the two says when
    served.finish(*futures, *writers)


def test_newcomers_without_others_run_at_once():
    served = Readers()
    futures = [served.submit(*[1.0] * 10) for _ in range(2)]
    served.turn()
    assert served.reads == [2] * 10
    assert served.finish(*futures) <= 1


def test_a_newcomer_waits_no_longer_than_its_own_chain_takes():
    served = Readers()
    writers = [served.submit(1.0, pieces=500) for _ in range(64)]
    served.turn(2)
    alone = served.submit(*[1.0] * 10)
    assert served.finish(alone) <= ROUNDS + 12  # it waits for company before it begins, and for its chain
    assert alone.result().item() == result(*[1.0] * 10)
    assert not any(future.done() for future in writers)


def test_requests_that_wait_for_each_other_begin_without_waiting_before():
    served = Readers()
    writers = [served.submit(1.0, pieces=100) for _ in range(16)]
    served.turn()
    readers = [served.submit(*[1.0] * 10) for _ in range(4)]  # a quarter of those under way: they begin
    served.turn()
    last = served.submit(*[1.0] * 10)  # one alone begins, too, since it is held back with the four
    served.turn()
    assert len(served.server._worker.under_way) == 21
    served.finish(*readers, last, *writers)


def test_a_stream_of_newcomers_leaves_nobody_behind():
    served = Readers()
    writers = [served.submit(1.0, pieces=200) for _ in range(8)]
    served.turn(2)
    futures = []
    for _ in range(150):
        futures.append(served.submit(*[1.0] * 10, pieces=2))
        served.turn()
    assert all(future.done() for future in futures[: -14 - ROUNDS])
    assert max(served.writes) <= 8 + 14 + ROUNDS  # so many are under way at a time
    served.finish(*futures, *writers)


def test_newcomers_that_call_what_others_call_later_are_not_held_back():
    served = Readers()

    async def both(fold, example):
        words, pieces = example
        h = await Readers.converse(fold, (words, 0))
        for _ in range(pieces):
            h = fold.add("read", h, 1.0)
            await fold.value(fold.add("write", h))
        return h

    served.server._worker.fn = both
    served.finish(served.submit(1.0, pieces=5))
    writers = [served.submit(pieces=30) for _ in range(4)]
    served.turn(2)
    served.reads.clear()
    served.submit(*[2.0] * 6, pieces=1)
    served.turn(6)
    assert served.reads == [5] * 6
    served.finish(*writers)


def test_a_newcomer_that_is_cancelled_while_it_waits_runs_nothing():
    served = Readers()
    writer = served.submit(1.0, pieces=30)
    served.turn(2)
    served.reads.clear()
    gone, kept = served.submit(*[1.0] * 9), served.submit(*[1.0] * 9)
    served.turn()
    gone.cancel()
    served.finish(writer, kept)
    assert served.reads == [1] * 9 and gone.cancelled()


def test_a_newcomer_that_is_cancelled_in_its_chain_leaves_it_between_two_launches():
    served = Readers()
    futures = [served.submit(*[1.0] * 9) for _ in range(3)]
    served.during = lambda: len(served.reads) == 4 and futures[1].cancel()
    served.finish(futures[0], futures[2])
    assert served.reads == [3] * 4 + [2] * 5
    assert futures[0].result().item() == result(*[1.0] * 9)


def test_a_newcomer_that_fails_in_its_chain_fails_alone(backend):
    served = Readers(backend)
    for words in ([1.0] * 4, [-9.0] * 4):  # the second time without a plan
        futures = [served.submit(*[1.0] * 4), served.submit(*words), served.submit(*[2.0] * 4)]
        served.finish(*futures)
        assert futures[2].result().item() == result(*[2.0] * 4)
    with pytest.raises(LaunchError, match="below zero"):
        futures[1].result()


def test_newcomers_that_a_round_has_no_room_for_come_later():
    served = Readers(calls=16)
    futures = [served.submit(*[1.0] * 12) for _ in range(3)]
    served.finish(*futures)
    assert served.reads == [1] * 36
    assert {future.result().item() for future in futures} == {result(*[1.0] * 12)}


def test_a_server_that_rests_knows_what_requests_go_on_to_call():
    served = Readers()
    served.finish(served.submit(1.0, 2.0, pieces=5))
    served.turn()  # lets go of its engine
    _, (_, usual) = served.server._worker.learned
    assert len(usual) == 1
