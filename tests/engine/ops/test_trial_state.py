"""State that rows leave on a model is refused, and a trial leaves everything as one launch would."""

from __future__ import annotations

import collections
import warnings

import numpy as np
import pytest
from trials import normal, one_group, refuse_in

import multifold
from multifold import Fold, LaunchError
from multifold._engine.ops.state import MOST as LONGEST
from multifold._engine.ops.state import KeptState
from multifold._numpy.backend import NumpyBackend


def test_a_trial_leaves_no_trace_on_the_model_and_around_the_op():
    seen = []

    class Model:
        def __init__(self):
            self.calls, self.log, self.mean = 0, [], np.zeros(3)
            self.rng = np.random.default_rng(0)

        def op(self, x):
            self.calls += 1
            self.log.append(len(x))
            self.mean += x.sum()
            seen.append(len(x))
            return x + self.rng.random(x.shape)

    xs = np.random.default_rng(0).normal(size=(4, 1, 3))
    tried, plain = Model(), Model()
    for model, trials in ((tried, True), (plain, False)):
        fold = Fold(backend="numpy", trials=trials)
        found = fold.apply(model, one_group(fold, "op", xs))[0]
        if trials:
            expected = found
    np.testing.assert_array_equal(found, expected)
    assert (tried.calls, tried.log) == (plain.calls, plain.log) == (1, [4])
    np.testing.assert_array_equal(tried.mean, plain.mean)
    assert tried.rng.bit_generator.state == plain.rng.bit_generator.state
    assert seen == [4, 4]  # once for each model


def test_state_that_rows_leave_on_the_model_is_refused():
    class Model:
        last = 0.0

        def op(self, x):
            x = x + self.last
            self.last = float(x.sum())
            return x

    fold = Fold(backend="numpy")
    xs = np.random.default_rng(0).normal(size=(4, 1, 3))
    with pytest.raises(LaunchError, match="keeps state on the model") as caught:
        fold.apply(Model(), one_group(fold, "op", xs))
    assert "second result" in caught.value.hint


def test_a_count_of_launches_beside_a_log_of_rows_is_no_state_of_rows():
    class Model:
        calls, log = 0, ()

        def op(self, x):
            self.calls += 1
            self.log = (*self.log, float(x.sum()))
            return x * self.calls

    fold = Fold(backend="numpy")
    xs = np.arange(6.0).reshape(3, 1, 2)
    assert fold.apply(Model(), one_group(fold, "op", xs))[0].tolist() == xs[:, 0].tolist()


def test_an_op_that_makes_as_many_columns_as_rows_leaves_its_model_as_after_one_launch():
    class Model:
        calls = 0

        def op(self, x):
            self.calls += 1
            return x @ np.ones((5, 3))

    model = Model()
    fold = Fold(backend="numpy")
    fold.apply(model, one_group(fold, "op", normal(3, 5)))
    assert model.calls == 1


KINDS = {"list": list, "tuple": tuple, "set": set, "dict": dict.fromkeys, "str": "".join, "array": np.array}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_state_of_any_kind_that_rows_leave_on_the_model_is_refused(kind):
    class Model:
        last = kind([])

        def op(self, x):
            x = x + len(self.last)
            self.last = kind([str(i) for i in range(int(x[1::2].sum()))])
            return x

    fold = Fold(backend="numpy")
    outputs = one_group(fold, "op", [np.full((1, 1), float(i)) for i in (1, 2, 4, 8)])
    refuse_in(fold, Model(), outputs, "keeps state on the model")


def test_state_that_no_later_result_depends_on_is_left_alone():
    class Model:
        last = 0.0

        def op(self, x):
            self.last = float(x.sum())
            return x * 2

    model = Model()
    fold = Fold(backend="numpy")
    xs = np.arange(4.0).reshape(4, 1, 1)
    assert fold.apply(model, one_group(fold, "op", xs))[0].ravel().tolist() == [0.0, 2.0, 4.0, 6.0]
    assert model.last == 6.0


def test_state_that_decides_the_form_of_later_results_is_refused():
    class Model:
        width = 2

        def op(self, x):
            found = x[:, : self.width]
            self.width = int(x[:, 0].max())
            return found

    fold = Fold(backend="numpy")
    xs = [np.full((1, 3), i) for i in (1, 2, 3)]
    refuse_in(fold, Model(), one_group(fold, "op", xs), "keeps state on the model")


def test_state_that_changes_by_itself_can_not_be_tried():
    class Model:
        last = 0

        def op(self, x):
            x = x + self.last
            self.last = next(ticks)
            return x

    ticks = iter(range(1, 100))
    fold = Fold(backend="numpy")
    with pytest.warns(UserWarning, match="could not be tried"):
        found = fold.apply(Model(), one_group(fold, "op", normal(3)))
    np.testing.assert_array_equal(found[0], normal(3)[:, 0])


CONTAINERS = {
    "an attribute": lambda: None,
    "a list": list,
    "a dictionary": dict,
    "a deque": collections.deque,
    "a list in a list": lambda: [[]],
    "a dictionary in a list": lambda: [{}],
    "a list in a dictionary": lambda: {0: []},
}


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_statistics_that_a_model_takes_from_its_first_launch_are_refused(make):
    """A trial begins with the state of before the launch, so it takes them anew."""

    class Model:
        def __init__(self):
            if make() is not None:
                self.kept = make()

        def op(self, x):
            if make() is None:
                self.center = getattr(self, "center", x.mean(0))
                return x - self.center
            kept = self.kept[0] if make() else self.kept
            if not kept:
                kept.update({0: x.mean(0)}) if isinstance(kept, dict) else kept.append(x.mean(0))
            return x - kept[0]

    fold = Fold(backend="numpy")
    refuse_in(fold, Model(), one_group(fold, "op", normal(4)))


def test_a_variable_that_an_op_sets_in_its_first_launch_is_unset_in_a_trial():
    def made():
        def op(x):
            nonlocal center
            try:
                center  # noqa: B018
            except NameError:
                center = x.mean(0)
            return x - center

        center = None
        del center
        return op

    fold = Fold(backend="numpy")
    refuse_in(fold, None, one_group(fold, made(), normal(4)))


def test_a_variable_that_is_unset_stays_unset():
    def op(x):
        return x * 2 if len(x) else gone  # noqa: F821 - deleted below

    gone = 1
    del gone
    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, op, normal(4)))
    with pytest.raises(NameError):
        op([])


def test_an_array_that_each_run_of_an_op_adds_to_is_put_back_before_each():
    class Model:
        def __init__(self):
            self.count = np.zeros(1)

        def op(self, x):
            self.count += 1
            return x + self.count

    model = Model()
    fold = Fold(backend="numpy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fold.apply(model, one_group(fold, "op", np.arange(3.0).reshape(3, 1, 1)))
    assert (found[0].ravel().tolist(), model.count.tolist()) == ([1.0, 2.0, 3.0], [1.0])


def test_statistics_that_a_model_writes_into_an_array_in_its_first_launch_are_refused():
    class Model:
        def __init__(self):
            self.center = np.zeros(3)

        def op(self, x):
            if not self.center.any():
                self.center += x.mean(0)
            return x - self.center

    fold = Fold(backend="numpy")
    refuse_in(fold, Model(), one_group(fold, "op", normal(4)))


def test_a_long_list_of_the_model_is_none_of_its_state():
    class Model:
        pass

    model = Model()
    model.short, model.long = [0] * LONGEST, [0] * (LONGEST + 1)
    with KeptState(NumpyBackend(), [model]).again():
        model.short.append(1)
        model.long.append(1)
    assert (len(model.short), len(model.long)) == (LONGEST, LONGEST + 2)


def test_an_op_that_changes_its_static_value_and_its_keyword_is_tried_with_what_was_recorded():
    def op(x, sizes, *, powers):
        return x * sizes.pop() ** powers.pop()

    fold = Fold(backend="numpy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nodes = [fold.add(op, np.full((1, 1), i), multifold.static([3]), powers=[2]) for i in (1, 2, 4)]
        assert fold.apply(None, [nodes])[0].tolist() == [[9], [18], [36]]


@pytest.mark.parametrize("row", [0, 2])
def test_state_that_one_row_of_the_next_launch_follows_is_refused(row):
    class Model:
        last = 0.0

        def op(self, x):
            found = x * 2
            found[row] += self.last
            self.last = float(x.sum())
            return found

    fold = Fold(backend="numpy")
    refuse_in(fold, Model(), one_group(fold, "op", normal(3)), "keeps state on the model")


COUNT = np.zeros(1)


def counting(x):
    COUNT[0] += 1
    return 2 * x


def test_an_array_of_the_module_that_an_op_writes_to_is_put_back_after_each_trial():
    before = COUNT[0]
    fold = Fold(backend="numpy")
    fold.apply(None, [[fold.add(counting, np.full((1, 1), i)) for i in (1.0, 2.0, 3.0)]])
    assert COUNT[0] == before + 1  # one launch
