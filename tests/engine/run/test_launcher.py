"""Launches that are like those before them: what is known of their results saves checks, and hides nothing.

Signatures note what the result of a launch was, by classes of rows. Each test here changes
what an op does in a later run, and expects what a new fold makes of it.
"""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

import multifold
from multifold import Fold, LaunchError, trace
from multifold._engine.ops import trial
from multifold._engine.ops.trial import Trial
from multifold._engine.ops.verdicts import VERDICTS
from multifold._engine.record import graph
from multifold._engine.run import launcher, trial_book
from multifold._engine.run.launcher import Launcher
from multifold._engine.run.trial_book import TrialBook
from multifold._numpy.backend import NumpyBackend

RUNS = 2
"""How often a minibatch runs before an op changes."""

X = np.arange(6, dtype="float32").reshape(3, 1, 2)


def nets(fold, x):
    """Record a diamond of two widths, one of whose results has two parts."""
    h = fold.add("leaf", x)
    left, right = fold.add("pair", h).split(2)
    return fold.add("join", fold.add("join", left, right), h)


MODEL = {"leaf": lambda x: x * 2.0, "pair": lambda x: (x + 1.0, x - 3.0), "join": lambda a, b: a * b}


@pytest.fixture
def again(seam):
    """Return a function that runs the nets with another op, after runs with the usual ones."""
    fold = Fold(backend=seam)
    traces = [trace(nets, x) for x in X]
    for _ in range(RUNS):
        fold.run(MODEL, traces)
    return lambda **ops: fold.run({**MODEL, **ops}, traces)


@pytest.fixture
def new(seam):
    """Return a function that runs the nets with another op in a fold that has run nothing."""
    return lambda **ops: Fold(backend=seam).run({**MODEL, **ops}, [trace(nets, x) for x in X])


def equal(seam, one, other):
    """Return whether two results are equal in values, shapes and dtypes."""
    one = seam.to_numpy(one)
    other = seam.to_numpy(other)
    return one.dtype == other.dtype and one.shape == other.shape and (one == other).all()


def counted(monkeypatch, name):
    """Return a list that grows with each call of a method of the launcher, or of its book of trials."""
    calls = []
    owner = Launcher if hasattr(Launcher, name) else TrialBook
    inner = getattr(owner, name)

    def counting(self, *operands):
        calls.append(name)
        return inner(self, *operands)

    monkeypatch.setattr(owner, name, counting)
    return calls


def test_a_run_checks_nothing_that_the_run_before_it_has_checked(again, monkeypatch):
    checks = counted(monkeypatch, "check")
    again()
    assert checks == []


def test_the_first_run_checks_each_kind_of_launch(seam, monkeypatch):
    checks = counted(monkeypatch, "check")
    traces = [trace(nets, x) for x in X]
    fold = Fold(backend=seam)
    for signature in fold._batch(traces, runs=True).plan.columns.signatures:
        signature.outcomes.clear()  # of the tests before
    found = [len(checks) for _ in range(RUNS) if fold.run(MODEL, traces) is not None]
    assert found == [3] * RUNS  # the two launches of `join` read rows of the same classes


def chain(fold, x, length=6):
    """Record calls of one op, each of the result of the one before."""
    for _ in range(length):
        x = fold.add("step", x)
    return x


@pytest.mark.parametrize("length", [3, 20])
def test_the_first_launch_of_a_kind_is_checked_and_no_other(seam, monkeypatch, length):
    checks = counted(monkeypatch, "check")
    monkeypatch.setattr(graph, "NAMED", {})
    fold = Fold(backend=seam)
    fold.apply({"step": lambda x: x + 1.0}, [[chain(fold, x, length) for x in X]])
    assert len(checks) == 2  # the one that reads the user's arrays, and the first that reads a result


def test_a_later_launch_that_loses_a_row_is_refused(seam):
    fold = Fold(backend=seam, trials=False)  # the op counts its launches
    first = iter([0, 0, 0, 0, 1])
    nodes = [chain(fold, x, 5) for x in X]
    with pytest.raises(LaunchError, match="returned 2 rows for 3 rows"):
        fold.apply({"step": lambda x: x[next(first) :]}, [nodes])


def test_a_later_launch_may_return_another_width(seam):
    fold = Fold(backend=seam, trials=False)
    width = iter([2, 2, 2, 2, 1, 1])
    (found,) = fold.apply({"step": lambda x: x[:, : next(width)] + 1.0}, [[chain(fold, x, 6) for x in X]])
    assert np.array_equal(seam.to_numpy(found), X[:, 0, :1] + 6.0)


def test_another_op_of_the_same_form_gives_its_own_values(seam, again, new):
    other = {"leaf": lambda x: x * 5.0}
    assert equal(seam, again(**other), new(**other))


NARROW = {
    "leaf": lambda x: x[:, :1],
    "pair": lambda x: (x + 1.0, x[:, :1]),
    "join": lambda a, b: (a * b)[:, :1],
}


@pytest.mark.parametrize("op", NARROW)
def test_an_op_of_another_width_gives_its_own_values(seam, again, new, op):
    other = {op: NARROW[op]}
    for _ in range(RUNS):
        assert equal(seam, again(**other), new(**other))
    assert equal(seam, again(), new())


def meeting(fold, x):
    """Record results, and parts of results, whose rows meet in one launch."""
    tuples, lists = (fold.add(op, x).split(2)[1] for op in ("tuple", "list"))
    return [fold.add("sum", y) for y in (fold.add("array", x), tuples, lists)]


MEETING = {
    "array": lambda x: x * 2.0,
    "tuple": lambda x: (x, x * 3.0),
    "list": lambda x: [x, x * 4.0],
    "sum": lambda x: x[:, :1] + x[:, -1:],
}
OTHERS = {
    "array": lambda x: x[:, :1] * 2.0,
    "tuple": lambda x: (x, x[:, :1]),
    "list": lambda x: [x, x[:, :1]],
}


@pytest.mark.parametrize("op", OTHERS)
def test_a_launch_whose_rows_differ_since_is_divided(seam, counting, op):
    other = {**MEETING, op: OTHERS[op]}
    traces = [trace(meeting, x) for x in X]
    fold = Fold(backend=counting)
    expected = Fold(backend=seam).run(other, traces)
    for _ in range(RUNS):
        fold.run(MEETING, traces)
    for _ in range(RUNS):
        counting.counts.clear()
        assert equal(seam, fold.run(other, traces), expected)
        assert counting.counts["call"] == 5
    assert equal(seam, fold.run(MEETING, traces), Fold(backend=seam).run(MEETING, traces))


def in_a_group(fold, x):
    """Record two results whose rows meet in a group of the outputs only."""
    return [fold.add("array", x), fold.add("tuple", x).split(2)[1], fold.add("list", x).split(2)[1]]


@pytest.mark.parametrize("op", OTHERS)
def test_a_group_whose_rows_differ_since_is_refused(seam, op):
    fold = Fold(backend=seam)
    traces = [trace(in_a_group, x) for x in X]
    for _ in range(RUNS):
        fold.run(MEETING, traces)
    with pytest.raises(LaunchError, match="Expected the rows of a group to agree"):
        fold.run({**MEETING, op: OTHERS[op]}, traces)


def test_a_result_of_another_kind_is_known_from_the_next_run_on(again, monkeypatch):
    other = {"pair": lambda x: [x + 1.0, x - 3.0]}
    again(**other)
    checks = counted(monkeypatch, "check")
    again(**other)
    assert len(checks) == 1  # lists are looked at in each run


def test_a_result_of_too_few_rows_is_refused(again, monkeypatch):
    with pytest.raises(LaunchError, match=r"'leaf' for 3 nodes.* returned 2 rows for 3 rows"):
        again(leaf=lambda x: x[:2])


def test_a_result_that_is_no_array_is_refused(again):
    with pytest.raises(LaunchError, match="returned a str, which is no array"):
        again(join=lambda a, b: "rows")


def test_a_part_that_is_missing_is_refused(again):
    with pytest.raises(LaunchError, match=r"has 3 parts, where \.split\(2\) expects 2"):
        again(pair=lambda x: (x, x, x))


def test_an_op_that_fails_is_named(again):
    def broken(a, b):
        raise ArithmeticError("no product")

    with pytest.raises(LaunchError, match=r"'join' for 3 nodes, .* raised ArithmeticError: no product"):
        again(join=broken)


def test_a_failure_leaves_what_was_known(seam, again, new):
    with pytest.raises(LaunchError):
        again(leaf=lambda x: x[:2])
    assert equal(seam, again(), new())


def scaled(fold, x):
    """Record rows of width 3 beside a number each: three of them can be mixed without an error."""
    return fold.add("scale", fold.add("leaf", x), float(x[0, 0]) + 1.0)


def test_each_op_is_put_to_its_own_trial(seam, column):
    """An op that mixes rows returns what one that does not returns, but for the values."""
    rows = np.arange(9, dtype="float32").reshape(3, 1, 3)
    fold = Fold(backend=seam)
    traces = [trace(scaled, x) for x in rows]
    model = {"leaf": lambda x: x * 2.0, "scale": lambda x, s: x * column(s)}
    for _ in range(RUNS):
        fold.run(model, traces)
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.run({**model, "scale": lambda x, s: x * s}, traces)


def test_rows_of_another_width_are_put_to_a_trial_although_their_results_are_alike(seam):
    """One row of width 3, which ran before, can not be mixed; two of width 2 can, and return numbers."""
    fold = Fold(backend=seam)
    model = {"leaf": lambda x: x * 2.0, "scale": lambda x, s: (x * s)[:, 0]}
    fold.run(model, [trace(scaled, np.ones((1, 3), "float32"))])
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.run(model, [trace(scaled, x) for x in np.arange(4, dtype="float32").reshape(2, 1, 2)])


def test_an_op_that_writes_is_refused(seam, again):
    if not (seam.counts_changes or seam.protects):
        pytest.skip("the framework does not say when an array was changed")

    def writing(a, b):
        b += 1.0
        return a * b

    with pytest.raises(LaunchError, match=r"'join' for 3 nodes"):
        again(join=writing)


def test_calls_that_are_recorded_anew_are_not_checked_again(seam, monkeypatch):
    fold = Fold(backend=seam)
    checks = counted(monkeypatch, "check")

    def recorded():
        fold.reset()
        return fold.apply(MODEL, [nets(fold, x) for x in X])

    expected = recorded()
    for _ in range(RUNS):
        before = len(checks)
        assert all(equal(seam, *pair) for pair in zip(recorded(), expected, strict=True))
    assert len(checks) == before


def test_a_later_run_is_told_as_the_first_is(seam):
    fold = Fold(backend=seam)
    traces = [trace(nets, x) for x in X]
    fold.run(MODEL, traces)
    told = [line.split()[:3] for line in str(fold.explain()).splitlines()[:6]]
    for _ in range(RUNS):
        fold.run(MODEL, traces)
    assert [line.split()[:3] for line in str(fold.explain()).splitlines()[:6]] == told
    assert len(fold.explain().launches) == 4


def test_a_later_run_calls_each_op_once(again, monkeypatch):
    calls = counted(monkeypatch, "call")
    again()
    assert len(calls) == 4


# ---- when an op is put to a trial ----------------------------------------------------------------------


@pytest.fixture
def nothing_known():
    """Forget what other tests have found: an op is known again by its code."""
    VERDICTS.known.clear()


@pytest.fixture
def few_are_enough(nothing_known, monkeypatch):
    """Let an op be believed after two rows."""
    for room in (trial_book, trial):
        monkeypatch.setattr(room, "ENOUGH", 2)


@pytest.fixture
def trials(few_are_enough, monkeypatch):
    """Return a list that grows with each trial that is made, by its number of rows."""
    made = []

    def make(*given):
        made.append(given[3])
        return Trial(*given)

    monkeypatch.setattr(trial_book, "Trial", make)
    return made


def apply(op, rows, model=None, fold=None):
    """Return one group: an op of each row."""
    fold = Fold(backend="numpy") if fold is None else fold
    return fold.apply(model, [[fold.add(op, x) for x in rows]])[0]


def chained(op, times, fold=None):
    """Run an op on its own results, in launches of three rows of width 2."""
    fold = Fold(backend="numpy") if fold is None else fold
    nodes = [fold.add("leaf", x) for x in X]
    for _ in range(times):
        nodes = [fold.add("op", x) for x in nodes]
    return fold.apply({"leaf": multifold.trusted(lambda x: x), "op": op}, [nodes])[0]


SQUARE = np.arange(9.0).reshape(3, 1, 3)


def double(x):
    return x * 2


def center(x):
    return x - x.mean(0)


def unsure(x):
    return x + next(DRAWS)


DRAWS = itertools.count()


@pytest.mark.parametrize("op", [double, unsure], ids=["passes", "can not be tried"])
@pytest.mark.filterwarnings("ignore:The launch of op")
def test_moments_of_a_launch_are_as_if_its_trial_had_come_before_it(op, few_are_enough, monkeypatch):
    found = []
    launch = Launcher.launch
    monkeypatch.setattr(Launcher, "launch", lambda *given: found.append(launch(*given)) or found[-1])
    clock = itertools.count().__next__
    for room in (launcher, trial_book):
        monkeypatch.setattr(room, "perf_counter", clock)
    for _ in range(2):
        apply(op, X)
    (first, second) = found
    assert (first.called, first.returned, first.trial) == (3, 4, 2)  # two for each of its halves
    assert (second.returned - second.called, second.trial) == (1, 0)


def test_no_trial_is_made_of_a_square_launch_that_has_passed(trials):
    fold = Fold(backend="numpy")
    for _ in range(3):
        apply(double, SQUARE, fold=fold)
        apply(double, SQUARE)
    assert trials == [3]
    apply(double, SQUARE[:2])
    assert trials == [3, 2]


def test_a_launch_of_two_rows_that_comes_to_two_columns_is_a_square_one(nothing_known):
    def op(x):
        return (x if len(x) == 2 else center(x)) @ np.ones((3, 2))

    apply(op, SQUARE[:2])
    with pytest.raises(LaunchError, match="mixes its rows"):
        apply(op, [*SQUARE, *SQUARE[:2]])


@pytest.mark.parametrize(("before", "now"), [(3, 2), (2, 3)])
def test_a_launch_that_comes_to_other_columns_than_before_is_tried(before, now, nothing_known):
    """Three rows of width 1 come to as many columns in one of two runs."""

    class Widening:
        width = before

        def op(self, x):
            return (x if self.width == before else center(x)) @ np.ones((1, self.width))

    fold = Fold(backend="numpy")
    model = Widening()
    for _ in range(2):
        apply("op", SQUARE[:, :, :1], model, fold)
    model.width = now
    with pytest.raises(LaunchError, match="mixes its rows"):
        apply("op", SQUARE[:, :, :1], model, fold)


def test_a_verdict_is_asked_for_once_in_a_run(trials, monkeypatch):
    asked, ranks = counted(monkeypatch, "is_known"), counted(monkeypatch, "ranks")
    chained(double, 3)
    assert (trials, len(asked), len(ranks)) == (
        [3],
        2,
        3,
    )  # as a launch that is square, and as one that is not
    asked.clear(), ranks.clear()
    chained(double, 3)
    assert (trials, len(asked), len(ranks)) == ([3], 1, 1)
    chained(double, 3)
    assert (trials, len(asked), len(ranks)) == ([3], 2, 1)  # known by the classes of its rows


def test_a_marked_op_is_looked_at_once_in_a_run(trials, monkeypatch):
    asked = counted(monkeypatch, "has_passed")
    chained(multifold.trusted(lambda x: x * 2), 3)
    assert (trials, len(asked)) == ([], 2)  # once as `leaf`


def test_an_op_that_is_never_known_again_is_tried_once_in_a_run(trials):
    class Op:
        __slots__ = ()

        def __call__(self, x):
            return x * 2

    for _ in range(2):
        chained(Op(), 3)
    assert trials == [3, 3]


def test_an_op_that_is_never_known_again_is_tried_once_in_a_run_of_few_rows(nothing_known):
    class Op:
        __slots__ = ()

        def __call__(self, x):
            ran.append(len(x))
            return x * 2

    ran = []
    chained(Op(), 3)
    assert ran == [3] * (7 + 2)


def test_without_values_an_op_is_looked_at_once_in_a_run(trials):
    class Traced(NumpyBackend):
        def to_numpy(self, x):
            raise TypeError("no values")

    for _ in range(2):
        chained(double, 3, Fold(backend=Traced()))
    assert trials == [3, 3]


class Layer:
    """A layer that centers its rows in training."""

    training = False

    def __call__(self, x):
        return center(x) if self.training else x

    def op(self, x):
        return self(x)


class Layers(NumpyBackend):
    """A backend that knows of layers."""

    def modes(self, owners):
        return tuple([x.training for x in owners if isinstance(x, Layer)])


@pytest.mark.parametrize("kind", ["model", "op", "op beside a model", "method beside a model"])
def test_an_op_is_tried_in_each_mode_of_its_modules(kind, nothing_known):
    layer = Layer()
    op = {"model": "op", "method beside a model": layer.op}.get(kind, layer)
    model = {"model": layer, "op": None}.get(kind, object())
    apply(op, X, model, Fold(backend=Layers()))
    layer.training = True
    with pytest.raises(LaunchError, match="mixes its rows"):
        apply(op, X, model, Fold(backend=Layers()))


class Model:
    """A model that makes its weight in its first launch."""

    weight = None

    def op(self, x):
        if self.weight is None:
            self.weight = next(DRAWS)
        return x + self.weight


class Building(NumpyBackend):
    """A backend whose modules may lack their weight."""

    def is_built(self, owners):
        return owners[0].weight is not None


def test_a_model_that_makes_its_weight_in_its_first_launch_is_tried_after_it(trials):
    model = Model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = apply("op", X, model, Fold(backend=Building()))
    assert trials == [3] and found.tolist() == (X[:, 0] + model.weight).tolist()


def test_a_model_whose_op_needs_no_weight_is_tried_without_it(trials):
    class Unneeded(Model):
        def op(self, x):
            return center(x)

    with pytest.raises(LaunchError, match="mixes its rows"):
        apply("op", X, Unneeded(), Fold(backend=Building()))
    assert trials == [3]


def test_an_op_that_writes_is_refused_where_nothing_else_tells():
    class Bare(NumpyBackend):
        protects = False

    def writes(pair, x):
        pair[1][:] = 0
        return x * 2

    fold = Fold(backend=Bare())
    pairs = [fold.add("pair", x) for x in X]
    model = {"pair": lambda x: (x + 1, x + 2), "op": writes}
    with pytest.raises(
        LaunchError, match=r"(?s)operand 0 was changed by an inplace operation.*Hint: operands may be views"
    ):
        fold.apply(model, [[fold.add("op", pair, x) for pair, x in zip(pairs, X, strict=True)]])
    np.testing.assert_array_equal(apply(double, X, fold=Fold(backend=Bare())), 2 * X[:, 0])
