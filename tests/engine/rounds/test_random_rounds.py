"""Random programs with awaits equal the loop, in values and in gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multifold import Fold, Unfold
from multifold.testing import Counting

small = st.integers(0, 30)


steps = st.lists(st.tuples(st.integers(0, 5), small, small), min_size=1, max_size=12)


async def wander(fold, program, p, turn):
    """Play a program whose steps are skipped, repeated or forked as values say."""
    rows = [fold.add("weigh", p[f"v{k}"], turn + k) for k in range(2)]
    limit = 30
    pending = list(reversed(program))
    while pending and limit:
        limit -= 1
        kind, a, b = pending.pop()
        x, y = rows[(a + turn) % len(rows)], rows[b % len(rows)]
        if kind == 0:
            rows.append(fold.add("squash", x))
        elif kind == 1:
            rows.append(fold.add("mix", x, y))
        elif kind == 2:
            rows += fold.add("pair", x).split(2)
        elif kind == 3 and (await fold.value(x)).sum() > 0.0173:
            rows.append(fold.add("mix", y, x))
        elif kind == 4:
            first, second = await fold.values((x, y))
            if first.sum() > second.sum() + 0.0173:
                pending.append((1, a, b))
        elif kind == 5:
            some = [follow(fold, row, k) for k, row in enumerate((x, y))]
            rows += await fold.gather(*some)
    return {"last": rows[-1], "all": rows[-3:]}


async def follow(fold, row, k):
    for _ in range(3):
        if abs((await fold.value(row)).mean()) < 0.3 + 0.0173 * k:
            break
        row = fold.add("squash", fold.add("mix", row, row))
    return row


relaxed = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def wandering(ops, column):
    def model(p):
        return {
            "weigh": lambda x, k: x * (column(k) * 0.3 - 0.5),
            "squash": lambda x: ops.tanh(x * 1.3),
            "mix": lambda x, y: ops.tanh(x) * y - x * 0.8 + p["s"],
            "pair": lambda x: (x * 0.7, ops.tanh(x)),
        }

    return model


@pytest.fixture
def parameters():
    rng = np.random.default_rng(0)
    return {name: rng.uniform(-1, 1, (1, 2)) for name in ("v0", "v1", "s")}


@settings(relaxed, max_examples=40)
@given(
    program=steps, turns=st.lists(st.integers(0, 9), min_size=1, max_size=5), unit=st.sampled_from([1, 4])
)
def test_random_programs_equal_the_loop(
    seam, backend, array, wandering, equal, to_numpy, parameters, program, turns, unit
):
    counting = Counting(seam)
    counting.pads, counting.padded_rows = True, lambda rows: -(-rows // unit) * unit
    p = {name: array(values) for name, values in parameters.items()}

    def fn(fold, turn):
        return wander(fold, program, p, turn)

    got = Fold(backend=counting).run(wandering(p), turns, fn)
    expected = Unfold(wandering(p), backend=backend).run(None, turns, fn)
    equal(got["last"], to_numpy(expected["last"]))
    equal(got["all"], to_numpy(expected["all"]))


@settings(relaxed, max_examples=15)
@given(program=steps, turns=st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_random_programs_have_the_gradients_of_the_loop(
    backend, wandering, gradients, parameters, program, turns
):
    def results(run):
        def of(p):
            found = run(wandering(p), turns, lambda fold, turn: wander(fold, program, p, turn))
            return [found["last"], found["all"]]

        return of

    got = gradients(results(Fold(backend=backend).run), parameters)
    loop = results(lambda model, *rest: Unfold(model, backend=backend).run(None, *rest))
    expected = gradients(loop, parameters)
    for name, gradient in expected.items():
        np.testing.assert_allclose(got[name], gradient, rtol=1e-3, atol=1e-4)
