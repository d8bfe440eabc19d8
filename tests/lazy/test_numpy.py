"""Plain programs of NumPy: values, types and errors are those of the loop."""

from __future__ import annotations

import copy
import operator
import pickle
from dataclasses import dataclass

import numpy as np
import optree
import pytest

import multifold
from multifold import LaunchError, RecordError
from multifold._engine.record.recorder import Recorder
from multifold._numpy.lazy.rules import RULES, on_rows

RNG = np.random.default_rng(0)
W, U, B = RNG.normal(size=(8, 4)), RNG.normal(size=(4, 4)), RNG.normal(size=4)
WORDS = RNG.normal(size=(10, 4))
XS = [RNG.normal(size=4) for _ in range(5)]
TREES = [(1, 2), ((3, 4), 5), 6, ((1, (2, 3)), (4, 5)), (7, (8, 9))]


@multifold.cell
def layer(x):
    """Begin to record: what follows meets pending arrays."""
    return np.tanh(x @ U + B)


@multifold.cell
def combine(left, right):
    return np.tanh(np.concatenate([left, right]) @ W)


def node(tree):
    return WORDS[tree] if isinstance(tree, int) else combine(node(tree[0]), node(tree[1]))


def same(x, y):
    """Assert that two results are equal: structures, types, dtypes and values."""
    pairs = [optree.tree_flatten(z, none_is_leaf=True) for z in (x, y)]
    assert pairs[0][1] == pairs[1][1]
    for one, other in zip(pairs[0][0], pairs[1][0], strict=True):
        assert type(one) is type(other)
        if isinstance(one, (np.ndarray, np.generic)):
            assert one.dtype == other.dtype and one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
        else:
            assert one == (pytest.approx(other) if isinstance(one, float) else other)


def as_loop(fn, xs, **options):
    """Compare a batched program with the loop; return it."""
    run = multifold.batched(fn, join="list", backend="numpy", **options)
    same(run(copy.deepcopy(xs)), [fn(x) for x in copy.deepcopy(xs)])
    return run


def in_place(x):
    h = layer(x)
    h += 1
    h[0] = 5.0
    h[1:3] *= h[3]
    np.exp(h, out=h)
    total = np.zeros(4)
    total += h
    return h, total


def added(total, x):
    total += x
    return total


def settled(x):
    h, steps = layer(x), 0
    while np.abs(h).sum() > 0.3 and steps < 20:
        h = layer(h) * 0.7
        steps += 1
    return h, steps


def looked_at(x):
    h = layer(x)
    return (
        f"{h[0]:.3f}",
        float(h[1]),
        int(h.argmax()),
        h.tolist(),
        bool(h.sum() > 0),
        h[h > 0].sum(),
        0.5 in h,
    )


PROGRAMS = {
    "a sum": lambda x: layer(x).sum(),
    "reductions": lambda x: (lambda h: (h.mean(), np.max(h), h.std(), np.prod(h, axis=0), h.argmin()))(
        layer(x)
    ),
    "an axis": lambda x: (lambda h: (h.sum(1), h.mean(axis=0, keepdims=True), h.max(-1)))(
        layer(x).reshape(2, 2)
    ),
    "arithmetic": lambda x: 2 * layer(x) - x / (layer(x) ** 2 + 1) + np.maximum(layer(x), 0),
    "numbers": lambda x: layer(x) * layer(x).sum() + np.float32(2) * layer(x)[0],
    "dtypes": lambda x: (layer(x).astype(np.float32) * 2, layer(x).astype(int) + 1, layer(x) > 0),
    "matrices": lambda x: (
        layer(x) @ U,
        U @ layer(x),
        np.outer(layer(x), x),
        layer(x) @ layer(x),
        np.dot(layer(x), W.T),
    ),
    "products of matrices": lambda x: (lambda h: (h @ h, h @ h[0], U[:2, :2] @ h, h.dot(h.T)))(
        layer(x).reshape(2, 2)
    ),
    "parts": lambda x: (
        layer(x)[1],
        layer(x)[-2:],
        layer(x)[None],
        layer(x).reshape(2, 2)[:, 1],
        [*layer(x)],
    ),
    "joined": lambda x: (
        np.concatenate([layer(x), x]),
        np.stack([layer(x), x], 1),
        np.vstack([x, layer(x)]),
    ),
    "turned": lambda x: (
        layer(x).reshape(2, 2).T,
        np.transpose(layer(x).reshape(2, 2)),
        layer(x).reshape(4, 1).ravel(),
    ),
    "chosen": lambda x: (np.where(layer(x) > 0, layer(x), x), np.clip(layer(x), 0, 0.5), np.sort(layer(x))),
    "without a rule": lambda x: (np.linalg.norm(layer(x)), np.cumsum(layer(x)), np.flip(layer(x))),
    "attributes": lambda x: (layer(x).shape, layer(x).dtype, layer(x).ndim, len(layer(x)), layer(x).size),
    "made alike": lambda x: (np.zeros_like(layer(x)), np.ones_like(layer(x)) + layer(x)),
    "real arrays": lambda x: layer(x) + np.arange(4) * x,
    "in place": in_place,
    "a loop on values": settled,
    "reads": looked_at,
    "a tuple": lambda x: {"a": layer(x), "b": [layer(x).sum(), 3, None, "word"]},
    "isinstance": lambda x: (isinstance(layer(x), np.ndarray), isinstance(layer(x).sum(), float)),
    "no arrays": lambda x: (1, "word"),
    "sorted": lambda x: sorted(layer(x))[0],
    "a solution": lambda x: np.linalg.solve(layer(x).reshape(2, 2) + 9 * np.eye(2), layer(x)[:2]),
    "a number that becomes one of another dtype": lambda x: added(layer(x)[0].astype(np.float32), x[1]),
    "an empty part in place": lambda x: (lambda h: (h[:0].__imul__(2), h))(layer(x)),
    "a copy": lambda x: copy.deepcopy(layer(x)) + copy.copy(layer(x)),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_returns_what_the_loop_returns(program):
    run = as_loop(PROGRAMS[program], XS)
    same(run(XS[::-1]), [PROGRAMS[program](x) for x in XS[::-1]])


def test_a_recursive_network_takes_a_launch_for_each_level_and_kind():
    run = as_loop(node, TREES)
    assert sum(launch.op == "combine" for launch in run.explain().launches) == len(run.explain())


def test_results_are_stacked_or_concatenated():
    assert multifold.batched(layer)(XS).shape == (5, 4)
    assert multifold.batched(layer, join="cat")(XS).shape == (20,)


@dataclass(frozen=True)
class Options:
    """Options of a cell, equal where it does not see so."""

    scale: float


@multifold.cell
def with_options(x, options):
    return x * 2 if str(options.scale).startswith("-") else x * 3


@multifold.cell
def of_seconds(x, time):
    return x * time.astype("timedelta64[s]").astype(int)


def test_constants_that_are_equal_and_not_the_same_are_told_apart():
    options = [Options(0.0), Options(-0.0)]
    as_loop(lambda pair: with_options(layer(pair[0]), pair[1]), [*zip(XS, options * 2, strict=False)])
    times = [np.timedelta64(1, "s"), np.timedelta64(1, "m")]
    as_loop(lambda pair: of_seconds(layer(pair[0]), pair[1]), [*zip(XS, times * 2, strict=False)])


def test_an_array_that_examples_share_and_change_in_place_is_as_in_the_loop():
    counts = np.zeros(1)

    def program(x):
        counts[0] += 1
        layer(x).tolist()
        return layer(x) * counts[0]

    wanted = [program(x) for x in XS]
    counts[0] = 0
    np.testing.assert_allclose(multifold.batched(program, backend="numpy")(XS), wanted)


@multifold.cell
def several(x, y):
    h = np.concatenate([x, y]) @ W
    return h[:2], h.sum(), 7 * np.ones(2)


def test_a_cell_runs_once_for_all_rows():
    run = as_loop(lambda x: several(x, layer(x)), XS)
    assert len(run.explain()) == 2 and "row by row" not in str(run.explain())


@multifold.cell
def of_weights(weights):
    return weights.sum(0)


def test_a_cell_of_what_is_the_same_for_all_examples_runs_at_once():
    run = as_loop(lambda x: layer(x) + of_weights(U), XS)
    assert "of_weights" not in str(run.explain())


@multifold.cell
def branching(x):
    return x * 2 if x.sum() > 0 else x - 1


def test_a_cell_that_looks_at_values_runs_row_by_row_and_says_so():
    run = as_loop(branching, XS)
    assert "row by row" in str(run.explain())


@multifold.cell
def writing(x):
    h = x @ U
    part = h[1:]
    h += 1
    h[0] = h[1]
    total = h.sum()
    total += 1
    h[-1] = 2.0
    return part * total


def test_a_cell_may_write_to_its_own_arrays():
    run = as_loop(writing, XS)
    assert len(run.explain()) == 1 and "row by row" not in str(run.explain())


@pytest.mark.parametrize("fn", [lambda x: one_more(layer(x), x), lambda x: one_more(x.copy(), layer(x))])
def test_a_cell_that_writes_to_its_argument_is_refused(fn):
    with pytest.raises(RecordError, match="one_more changes an array in place that is an argument of it"):
        multifold.batched(fn, backend="numpy")(XS)


@multifold.cell
def one_more(x, y):
    x += 1
    return x * y


@multifold.op
def of_rows(x):
    return x @ U


def test_a_cell_that_is_written_for_rows_gets_all_of_them():
    run = as_loop(lambda x: of_rows(x[None]), XS)
    assert len(run.explain()) == 1


def test_a_cell_of_rows_that_mixes_them_is_refused():
    mixing = multifold.op(lambda x: x - x.mean(0))
    with pytest.raises(LaunchError, match="mixes its rows"):
        multifold.batched(lambda x: mixing(x[None]), backend="numpy")(XS)


class Network:
    """A network whose method is named as a cell from outside."""

    def __init__(self):
        self.w = RNG.normal(size=(4, 4))

    def step(self, x):
        return np.tanh(x @ self.w)

    def run(self, x):
        return self.step(self.step(x)).sum()


class Switch:
    """What a cell looks at, and a run may find changed."""

    on = True


@multifold.cell
def switched(x):
    return {"a": x, "b": None} if Switch.on else {"a": None, "b": x[:2]}


def test_results_of_a_cell_have_the_structure_of_their_run(monkeypatch):
    run = multifold.batched(lambda x: switched(layer(x)), join="list", backend="numpy", may_loop=False)
    for on in (True, False, True):
        monkeypatch.setattr(Switch, "on", on)
        same(run(XS), [switched(layer(x)) for x in XS])


def test_a_method_is_a_cell_and_sees_new_weights_in_the_next_run():
    network = Network()
    run = as_loop(network.run, XS, cells=[Network.step])
    network.w += 1
    same(run(XS), [network.run(x) for x in XS])
    network.w = network.w * 2
    same(run(XS), [network.run(x) for x in XS])


@pytest.mark.parametrize("how", ["in place", "another array"])
def test_weights_that_are_changed_during_a_run_are_refused(how):
    network = Network()

    def program(x):
        h = network.step(x)
        if how == "in place":
            network.w += 0.1
        else:
            network.w = network.w + 0.1
        return network.step(h)

    with pytest.raises((RecordError, LaunchError), match=r"changed during the run|was changed"):
        multifold.batched(program, cells=[Network.step])(XS)


TURN = 0


@multifold.cell
def turned(x):
    return x * (TURN + 1)


class Settings:
    """A class whose attribute programs change."""

    factor = 1.0


def scaled(x):
    return np.tanh(x) * Settings.factor


@pytest.mark.parametrize("reads", [False, True])
def test_an_attribute_that_a_function_called_by_a_cell_finds_must_stay_as_it_is(reads, monkeypatch):
    cell = multifold.cell(lambda x: scaled(x) + 1)
    monkeypatch.setattr(Settings, "factor", 1.0)

    def program(x):
        y = cell(x)
        Settings.factor = 3.0
        z = float(np.tanh(layer(x))[0]) if reads else cell(x)  # to read launches the cell
        Settings.factor = 1.0
        return y + z

    with pytest.raises(RecordError, match="attribute 'factor' of Settings"):
        multifold.batched(program, backend="numpy")(XS)


class Entries(dict):
    """Entries that are attributes, too."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


def test_entries_of_a_container_of_the_user_that_a_cell_finds_must_stay_as_they_are():
    options = Entries(scale=1.0)
    scaled = multifold.cell(lambda x: x * options.scale)

    def program(x, scale):
        options.scale = scale
        return scaled(x * 2)

    with pytest.raises(RecordError, match="was changed during the run: a Entries"):
        multifold.batched(program, backend="numpy")(np.ones((3, 2)), [1.0, 2.0, 3.0])


def test_a_variable_that_a_cell_uses_and_that_changes_between_its_calls_is_refused():
    def program(x):
        for turn in (0, 1, 0):
            globals()["TURN"] = turn
            x = turned(x)
        return x

    with pytest.raises(RecordError, match="changed during the run"):
        multifold.batched(program, backend="numpy")(XS)


def test_a_part_of_a_small_array_that_was_read_is_written_with_it():
    def program(x):
        h = layer(x)
        h.tolist()
        part = h[1:]
        part += 1
        return layer(h)

    as_loop(program, XS)


def test_an_array_of_the_program_that_glue_uses_and_changes_is_that_of_the_loop_or_refused():
    weights = RNG.normal(size=(4, 4))

    def program(x):
        h = layer(x) @ weights
        weights[:] += 1
        return h

    kept = weights.copy()
    wanted = [program(x) for x in XS]
    weights[:] = kept
    same(multifold.batched(program, join="list")(XS), wanted)


REFUSED = {
    "a stale view": (lambda h: (lambda v: (h.__iadd__(1), v)[1])(h[1:]), "shares its memory"),
    "a pickle": (pickle.dumps, "pickled"),
    "memory": (lambda h: h.data, "asked for 'data'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_recorded_is_refused(case):
    call, why = REFUSED[case]
    with pytest.raises(RecordError, match=why):
        multifold.batched(lambda x: call(layer(x)), join="list", backend="numpy")(XS)


def masked(x):
    h = layer(x)
    h[h > 0.1] *= 2
    return h[h > 0].sum(), h.reshape(2, 2)[:, h[:2] > 0], h[np.array([True, False, True, False])]


def test_a_mask_takes_as_many_numbers_as_in_the_loop():
    as_loop(masked, XS)


class Place:
    """Any object."""


def test_an_example_may_keep_pending_arrays_on_its_own_objects_and_read():
    places = [Place() for _ in XS]

    def program(x, place):
        place.state = layer(x)
        return np.array(place.state) if place.state.sum() > 0 else place.state

    wanted = [program(x, Place()) for x in XS]
    same(multifold.batched(program, join="list", backend="numpy")(XS, places), wanted)
    same([place.state + 0 for place in places], wanted)


def test_errors_of_the_program_are_those_of_the_loop():
    with pytest.raises(IndexError, match="out of bounds"):
        multifold.batched(lambda x: layer(x)[4])(XS)
    with pytest.raises(ValueError, match="reshape"):
        multifold.batched(lambda x: layer(x).reshape(3, 3))(XS)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        multifold.batched(lambda x: layer(x).nothing)(XS)


def test_errors_that_a_program_lets_numpy_raise_are_raised_at_the_line():
    def program(x):
        y = layer(x)
        try:
            with np.errstate(divide="raise"):
                y += 1
                return y / (layer(x) * 0)
        except FloatingPointError:
            return y

    same(multifold.batched(program, join="list")(XS), [program(x) for x in XS])


def test_handling_of_errors_is_that_of_the_run():
    with np.errstate(divide="raise"), pytest.raises(LaunchError, match="divide by zero"):
        multifold.batched(lambda x: layer(x) / (layer(x) * 0))(XS)


def test_numbers_that_runs_before_have_left_can_be_added_to():
    stats = {"loss": 0.0}

    def program(x):
        stats["loss"] += layer(x)[1]
        return stats["loss"]

    wanted = [program(x) for x in (*XS, *XS)]
    stats["loss"] = 0.0
    run = multifold.batched(program, join="list")
    same([*run(XS), *run(XS)], wanted)


def test_each_call_gets_what_a_shared_array_holds_then():
    def program(x, shared):
        y = layer(x)
        shared += x
        found = shared * y
        shared[0] = 0.5
        return found + shared * y

    one, other = np.zeros(4), np.zeros(4)
    run = multifold.batched(program, join="list")
    same(run(XS, shared=one), [program(x, other) for x in XS])
    same(one, other)


@pytest.mark.parametrize("by_keyword", [False, True])
def test_examples_change_a_shared_array_in_the_order_of_the_loop(by_keyword):
    def program(x, shared):
        y = layer(x)
        if y[0] < 2:
            shared += y
        return shared * y

    run = multifold.batched(program, join="list")
    one, other = np.zeros(4), np.zeros(4)
    found = run(XS, shared=one) if by_keyword else run(XS, [one] * len(XS))
    np.testing.assert_allclose(found, [program(x, other) for x in XS])
    np.testing.assert_allclose(one, other)


def test_a_large_shared_array_that_changes_after_a_call_has_got_it_is_refused():
    table = np.zeros((200, 4))

    def program(x):
        found = layer(x) * table
        table[0] += 1
        return found

    with pytest.raises(RecordError, match="that the examples share was changed"):
        multifold.batched(program)(XS)


def test_an_error_that_a_program_makes_of_a_refusal_is_the_refusal():
    def program(x):
        try:
            np.add.at(layer(x), 0, 1.0)
        except RecordError as error:
            raise ValueError("masked") from error

    with pytest.raises(RecordError, match="has caught an error of multifold"):
        multifold.batched(program)(XS)


def test_an_example_may_raise_stop_iteration():
    with pytest.raises(StopIteration, match="at the end"):
        multifold.batched(lambda x: layer(x) if x[0] > 9 else next(ends()), may_loop=False)(XS)


def ends():
    raise StopIteration("at the end")


def test_what_an_example_keeps_stands_for_its_value_afterwards():
    kept = []

    def program(x):
        kept.append(layer(x))
        return 0

    multifold.batched(program, backend="numpy")(XS)
    for h, x in zip(kept, XS, strict=True):
        np.testing.assert_allclose(h + 1, layer(x) + 1)
        np.testing.assert_allclose(pickle.loads(pickle.dumps(h)), layer(x))
        assert isinstance(h, np.ndarray) and h.shape == (4,) and float(h[0]) == layer(x)[0]


@pytest.mark.parametrize("func", RULES, ids=lambda func: str(getattr(func, "__name__", func)))
def test_each_rule_gives_way_where_it_does_not_hold(func):
    one = np.ones((2, 2))
    args = (one, one) if func is operator.getitem else (one, one, one, one)
    assert on_rows(func, args, {"where": one}, lambda x: True) is None


def test_a_program_that_begins_with_no_cell_says_that_it_ran_as_a_loop():
    run = multifold.batched(np.tanh, backend="numpy")
    with pytest.warns(UserWarning, match=r"ran as a loop: none of its calls.*(?s:.*)cells="):
        found = run(XS)
    np.testing.assert_array_equal(found, np.tanh(XS))


def summed(box, x):
    y = layer(x).sum()
    box["total"] += y
    return y


def summed_and_returned(box, x):
    box["total"] += layer(x)
    return box["total"]


def changed_by_the_next_one(box, x):
    before, box["last"] = box.get("last"), layer(x) * 1
    if before is not None:
        before *= 0.5
        before[1:3] = box["last"][:2]
    return box["last"]


@pytest.mark.parametrize("program", [summed, summed_and_returned, changed_by_the_next_one])
def test_what_examples_leave_for_later_ones_is_that_of_the_loop(program):
    boxes = [{"total": 0.0} for _ in range(3)]
    wanted = [program(boxes[0], x) for x in XS]
    found = multifold.batched(lambda x: program(boxes[1], x), join="list", backend="numpy")(XS)
    with multifold.pending(backend="numpy"):
        others = [program(boxes[2], x) for x in XS]
    for results, box in ((found, boxes[1]), (others, boxes[2])):
        np.testing.assert_allclose(np.stack(results), np.stack(wanted))
        np.testing.assert_allclose(box["total"] + 0, boxes[0]["total"])


def test_a_fold_that_has_a_result_already_refuses_its_change():
    box = {"total": 0.0}
    program = multifold.plain(lambda x: summed_and_returned(box, x), backend="numpy")
    with pytest.raises(RecordError, match="what another one has returned"):
        multifold.Fold(backend="numpy").run(None, XS, program)


def test_traces_of_examples_that_add_into_a_shared_place_are_refused():
    box = {"total": 0.0}
    run = multifold.batched(lambda x: summed(box, x), backend="numpy")
    with pytest.raises(RecordError, match="read its own nodes"):
        run.traces(XS)


def written(z, func, *args):
    func(z, *args)
    return z


WRITTEN = {
    "copied": lambda y: written(np.zeros(4), np.copyto, y),
    "copied into a pending one": lambda y: written(y * 1, np.copyto, y * 2) + y,
    "put": lambda y: written(np.zeros(4), np.put, [0, 2], y[:2]),
    "put into a pending one": lambda y: written(y * 1, np.put, [0], 9.0) + y,
    "a diagonal": lambda y: written(np.outer(y, y), np.fill_diagonal, y[0]),
    "a sum": lambda y: np.sum(y, out=np.zeros(())),
    "two": lambda y: np.concatenate([y, y], out=np.zeros(8)),
    "sums": lambda y: np.cumsum(y, out=np.zeros(4)),
    "sums in a pending one": lambda y: (z := y * 1, np.cumsum(y, out=z), z + 1)[2],
}
SIZES = {
    "repeat": lambda y, n: np.repeat(y, n).sum(),
    "a method": lambda y, n: y.repeat(n).sum(),
    "tile": lambda y, n: np.tile(y, n).sum(),
    "pad": lambda y, n: np.pad(y, (0, n)).sum(),
    "reshape": lambda y, n: y.reshape(n * 0 + 2, 2),
    "split": lambda y, n: np.split(y, n * 0 + 2)[0],
    "arange": lambda y, n: np.arange(n).sum(),
    "zeros": lambda y, n: np.zeros((n, 2)).sum(),
    "where": lambda y, n: np.where(y > 0)[0].sum(),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_what_a_function_writes_to_is_that_of_the_loop(case):
    as_loop(lambda x: WRITTEN[case](layer(x)), XS)


@pytest.mark.parametrize("case", SIZES)
def test_sizes_that_are_computed_are_read(case):
    as_loop(lambda x: SIZES[case](layer(x), layer(x).argmax() + 1), XS)


class Keeping:
    """Has cells that draw, count, keep or cache."""

    def __init__(self):
        self.n, self.mask, self.kept = 0, None, None
        self.generator = np.random.default_rng(0)

    def draws(self, x):
        return x + self.generator.random()

    def counts(self, x):
        self.n += 1
        return x * self.n

    def keeps(self, x):
        self.kept = np.exp(x)
        return x * self.kept

    def caches(self, x):
        if self.mask is None:
            self.mask = np.cumsum(np.ones_like(x))
        return x * self.mask


@pytest.mark.parametrize(("name", "what"), [("counts", "'n'"), ("keeps", "'kept'")])
def test_a_cell_that_counts_or_keeps_is_refused(name, what):
    model = Keeping()
    cell = multifold.cell(getattr(model, name))
    with pytest.raises(RecordError, match=f"changes attribute {what} of Keeping"):
        multifold.batched(lambda x: cell(x * 2.0), backend="numpy")(np.ones((4, 3)))


def test_a_cell_may_cache():
    model = Keeping()
    cell = multifold.cell(model.caches)
    found = multifold.batched(lambda x: cell(x * 2.0), backend="numpy")(np.ones((4, 3)))
    np.testing.assert_array_equal(found, [[2.0, 4.0, 6.0]] * 4)
    assert type(model.mask) is np.ndarray


def test_a_cell_that_draws_draws_for_each_example():
    cell = multifold.cell(Keeping().draws)
    run = multifold.batched(lambda x: cell(x * 2.0), backend="numpy")
    with pytest.warns(UserWarning, match="draws draws random numbers"):
        found = run(np.ones((4, 3)))
    assert len(np.unique(found)) == 4 and "row by row, as it draws" in str(run.explain())
    with pytest.raises(RecordError, match="draws draws random numbers"):
        multifold.batched(lambda x: cell(x * 2.0), backend="numpy", seed=0)(np.ones((4, 3)))


@multifold.cell
def scaled_scores(x):
    return x * 2.0


KEYS = {
    "text": lambda x: str(np.argmax(scaled_scores(x))),
    "a key": lambda x: {i: str(i) for i in range(4)}.get(np.argmax(scaled_scores(x)), "none"),
    "an entry of a set": lambda x: np.argmax(scaled_scores(x)) in {0, 1},
}


@pytest.mark.parametrize("case", KEYS)
def test_numbers_are_keys_and_text_by_their_values(case):
    xs = [np.roll(np.arange(4.0), i) for i in range(4)]
    run = multifold.batched(KEYS[case], join="list", backend="numpy", may_loop=False)
    assert run(xs) == [KEYS[case](x) for x in xs]


def test_rows_of_several_dtypes_are_refused():
    xs = [np.array(x) for x in ([1.0, -3.0, 2.0], [1.0, 1.0, 1.0])]  # real roots, and complex ones
    run = multifold.batched(lambda x: np.roots(scaled_scores(x)), backend="numpy", may_loop=False)
    with pytest.raises(LaunchError, match="other forms than for ones"):
        run(xs)


def test_a_run_goes_on_from_the_one_before(monkeypatch):
    understood = []
    understand = Recorder._understand
    monkeypatch.setattr(
        Recorder, "_understand", lambda self, *args: understood.append(args[0]) or understand(self, *args)
    )
    run = multifold.batched(lambda x: np.tanh(layer(x) * 2) + layer(x), backend="numpy")
    for _ in range(5):
        before = len(understood)
        run(XS)
    assert before == len(understood) > 0
    assert run.fold._plans.hits > 0
