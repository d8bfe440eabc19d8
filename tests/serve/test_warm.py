"""What `Server.warm` settles: no request after it waits for a trial, however many rows a launch has."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import multifold
from multifold import LaunchError, Server
from multifold._engine.ops.trial import Trial
from multifold._engine.ops.verdicts import VERDICTS
from multifold._engine.run.settling import Settling
from multifold._numpy.backend import NumpyBackend

MODEL = {
    "begin": lambda x: (x[:, None, None] + np.zeros((1, 3, 20), "float32"), x[:, None] * 1.0),
    "read": lambda h, s, x: (h + x[:, None, None], s + 1.0),
    "say": lambda h, s: h[:, :, 0] + s,
    "sums": lambda rows: np.add.reduceat(rows.values, np.cumsum(rows.lengths) - rows.lengths),
}


async def speak(fold, example):
    """Read some numbers one by one, say something, and add up what was read; look at values meanwhile."""
    first, *numbers = example
    h, s = fold.add("begin", first).split(2)
    read = []
    for x in numbers:
        h, s = fold.add("read", h, s, x).split(2)
        read.append(s)
        await fold.value(s)
    return fold.add("say", h, s), fold.add("sums", multifold.ragged(read))


def speak_at_once(fold, example):
    first, *numbers = example
    h, s = fold.add("begin", first).split(2)
    read = []
    for x in numbers:
        h, s = fold.add("read", h, s, x).split(2)
        read.append(s)
    return fold.add("say", h, s), fold.add("sums", multifold.ragged(read))


@pytest.fixture
def trials(monkeypatch):
    """Return a list of the number of rows of each trial, which is appended to; no op is known at first."""
    monkeypatch.setattr(VERDICTS, "known", {})
    found = []
    deviation = Trial.deviation
    monkeypatch.setattr(
        Trial, "deviation", lambda self, result: found.append(self.rows) or deviation(self, result)
    )
    return found


def served(server, warmed, groups, trials):
    """Warm a server up; return the trials of requests that come after it, in groups at the same time."""

    async def main():
        async with server:
            await server.warm(warmed)
            trials.clear()
            for group in groups:
                await asyncio.gather(*map(server, group))
            return [*trials]

    return asyncio.run(main())


EXAMPLES = [(float(x), *map(float, range(1, 2 + x % 4))) for x in range(1, 41)]


@pytest.mark.parametrize("fn", [speak, speak_at_once])
@pytest.mark.parametrize("count", [1, 2, 40], ids="warmed by {}".format)
def test_no_request_after_it_waits_for_a_trial(fn, count, trials):
    groups = [EXAMPLES[:size] for size in (1, 2, 3, 20, 40)]  # rows are 3 and 20 wide
    server = Server(MODEL, fn, backend="numpy", wait=0.05)
    assert served(server, EXAMPLES[-count:], groups, trials) == []


def test_without_it_they_do(trials):
    assert served(Server(MODEL, speak, backend="numpy", wait=0.05), [], [EXAMPLES[:3]], trials)


def double(fold, x):
    return fold.add("add", fold.add("double", x), x)


def test_each_framework_settles(backend, seam, array, trials):
    model = {"double": lambda x: x * 2, "add": lambda x, y: x + y}
    rows = [array(np.full((1, 4), x, "float32")) for x in range(1, 21)]
    server = Server(model, double, backend=backend, wait=0.05)
    groups = [rows[:size] for size in (1, 2, 4, 8, 20)]
    # MXNet shows a write to an operand in a launch that is tried, and in no other.
    warmed = rows[: 2 if backend == "mxnet" else 1]
    assert served(server, warmed, groups, trials) == []


def test_an_op_that_mixes_rows_in_launches_of_other_sizes_is_told_of(recwarn):
    model = {"pair": lambda x: np.stack([x, x], axis=1), "scale": lambda x, s: x * s}

    def fn(fold, x):
        return fold.add("scale", fold.add("pair", x), x)

    async def main():
        async with Server(model, fn, backend="numpy", wait=0.05) as server:
            for x in (5.0, 6.0):
                await server.warm([x])
            return await asyncio.gather(server(2.0), server(3.0))

    assert [x.tolist() for x in asyncio.run(main())] == [[[4, 4]], [[9, 9]]]
    (told,) = [str(one.message) for one in recwarn]
    assert "op 'scale'" in told and "mixes its rows" in told and "other sizes" in told


def test_trials_leave_the_state_of_the_model():
    class Counting:
        def __init__(self):
            self.launches = 0
            self.mean = np.zeros(3)

        def count(self, x):
            self.launches += 1
            self.mean = self.mean + 1
            return x * 2

    async def main():
        async with Server(model, lambda fold, x: fold.add("count", x), backend="numpy") as server:
            await server.warm([1.0])
            return server.stats().launches

    model = Counting()
    assert asyncio.run(main()) == model.launches == model.mean[0] == 1


def noisy(fold, x):
    return fold.add("noisy", x)


def test_random_numbers_are_those_without_trials(trials):
    def draws(warms):
        async def main():
            async with Server(model, noisy, backend="numpy", wait=0.05) as server:
                await (server.warm([2.0]) if warms else server(2.0))
            return np.random.random()

        np.random.seed(0)
        return asyncio.run(main())

    model = {"noisy": lambda x: x + np.random.standard_normal(len(x))}
    assert draws(warms=True) == draws(warms=False) and trials


def test_an_op_that_draws_is_settled_by_rows_enough(trials):
    model = {"noisy": lambda x: x * np.random.random((len(x), 1))}
    rows = [np.full((1, 4), x, "float32") for x in range(1, 41)]
    groups = [rows[:size] for size in (1, 2, 4, 40)]
    assert served(Server(model, noisy, backend="numpy", wait=0.05), rows, groups, trials) == []


def test_it_is_over_when_examples_fail(trials):
    def fn(fold, x):
        return fold.add("half", x)

    async def main():
        async with Server({"half": lambda x: 1 // 0}, fn, backend="numpy") as server:
            with pytest.raises(LaunchError):
                await server.warm([1.0])
            return server._worker.settling.on

    assert asyncio.run(main()) is False


# ---- which rows --------------------------------------------------------------------------------------


def rows_for(most, width, square):
    """Return with how many rows an op of rows of this width is tried."""
    found = []

    class Noted(Settling):
        def rows_for(self, values, launch, result, sizes, square):
            found.append(super().rows_for(values, launch, result, sizes, square))
            return 0

    x = np.ones((1, width), "float32")
    noted = Noted(most)
    noted.switch(on=True)
    with Server({"f": lambda x: x * 1}, lambda fold, x: fold.add("f", x), backend="numpy") as server:
        server._worker.settling = noted
        server.submit(x).result(30)
    return found[square]


@pytest.mark.parametrize(
    ("most", "width", "expected"),
    [
        (100, 5, [16, 5]),
        (100, 16, [17, 16]),
        (100, 200, [16, 0]),  # no launch has 200 rows
        (8, 5, [8, 5]),
        (8, 8, [7, 8]),
        (10**9, 10_000, [16, 0]),  # a square one would have 200 million entries
    ],
)
def test_trials_have_rows_enough_and_no_more_than_launches(most, width, expected):
    assert [rows_for(most, width, square) for square in (False, True)] == expected


def test_where_launches_are_padded_trials_have_such_sizes(trials):
    class Padding(NumpyBackend):
        pads = True

        def padded_rows(self, rows):
            return 1 << (rows - 1).bit_length()

    async def main():
        model = {"f": lambda x: x * 1}
        async with Server(model, lambda fold, x: fold.add("f", x), backend=Padding()) as server:
            await server.warm([np.ones((1, 16, 24), "float32")])

    asyncio.run(main())
    assert trials == [32, 16]
