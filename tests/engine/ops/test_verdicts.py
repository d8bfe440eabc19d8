"""How long a verdict holds, and by what an op is known again."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from trials import Seen, column, normal, one_group, refuse_in, scaled

import multifold
from multifold import Fold, LaunchError, Unfold, ragged
from multifold._engine.ops.reach import FEW, makers
from multifold._engine.ops.verdicts import MOST, VERDICTS, Verdicts, key_of
from multifold._engine.run.trial_book import TrialBook
from multifold._numpy.backend import NumpyBackend

NUMPY = multifold.load_backend("numpy")


def test_a_verdict_is_remembered_beyond_the_fold(backend, rows, counted):
    op = counted(lambda x, s: x * column(s))
    for calls in (7, 8, 9):
        fold = Fold(backend=backend)
        fold(scaled(fold, op, rows(16, 3), [*map(float, range(16))]))
        assert op.rows == [16] * calls


def test_other_shapes_and_other_models_are_verified_by_themselves(backend, rows, counted, refused):
    class Model:
        def __init__(self, right):
            self.right = right

        def scale(self, x, s, power=1):
            return x * (column(s) if self.right else s) ** power

    for model, wrong in ((Model(True), False), (Model(False), True)):
        fold = Fold(backend=backend)
        outputs = scaled(fold, "scale", rows(3, 3), [1.0, 2.0, 3.0])
        refused(lambda: fold.apply(model, outputs)) if wrong else fold.apply(model, outputs)  # noqa: B023


def test_a_static_value_is_part_of_the_verdict(backend, rows, refused):
    def scale(x, s, axis):
        return x * column(s) if axis == -1 else x * s

    fold = Fold(backend=backend)
    xs = rows(3, 3)
    numbers = [1.0, 2.0, 3.0]
    fold([[fold.add(scale, x, s, axis=-1) for x, s in zip(xs, numbers, strict=True)]])
    outputs = [[fold.add(scale, x, s, axis=-2) for x, s in zip(xs, numbers, strict=True)]]
    refused(lambda: fold(outputs))


def test_numbers_in_ragged_rows_that_meet_as_many_columns_are_verified(backend, rows, refused):
    fold = Fold(backend=backend)
    numbers = [ragged([1.0, 2.0, 3.0]), ragged([4.0, 5.0, 6.0, 7.0])]
    refused(lambda: fold(scaled(fold, lambda x, r: x * r.values, rows(2, 7), numbers)))


def test_nodes_with_as_many_members_tell_nothing_of_others():
    def first(nodes):
        return nodes.values[np.arange(len(nodes.lengths)) * nodes.lengths[0]]

    def firsts(lengths):
        members = np.split(normal(sum(lengths)), np.cumsum(lengths)[:-1])
        return [[fold.add(first, ragged([*own])) for own in members]]

    fold = Fold()
    for lengths in ([1] * 16, [2] * 16):
        fold(firsts(lengths))
    refuse_in(fold, None, firsts([*range(1, 17)]))


def test_no_count_changes(counting, rows):
    fold = Fold(backend=counting)
    fold(scaled(fold, lambda x, s: x * column(s), rows(3, 3), [1.0, 2.0, 3.0]))
    assert (counting.counts["call"], counting.counts["gather"], counting.counts["to_numpy"]) == (1, 0, 0)
    assert len(fold.explain().launches) == 1


def test_a_verdict_keeps_no_model_alive(backend, rows):
    class Model:
        def scale(self, x, s):
            return x * column(s)

    gc.collect()  # ops of other tests
    fold = Fold(backend=backend)
    model = Model()
    before = len(VERDICTS)
    fold.apply(model, scaled(fold, "scale", rows(3, 3), [1.0, 2.0, 3.0]))
    assert len(VERDICTS) == before + 1
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert len(VERDICTS) == before


def test_gradients_are_those_of_one_row_at_a_time(backend, rows, gradients):
    def loss(parameters, make):
        fold = make(parameters)
        model = None if isinstance(fold, Unfold) else ops_of(parameters)
        return fold.apply(model, scaled(fold, "scale", rows(3, 3), [1.0, 2.0, 3.0]))

    def ops_of(parameters):
        return {"scale": lambda x, s: x * parameters["w"] * column(s)}

    got = gradients(lambda w: loss(w, lambda _: Fold(backend=backend)), {"w": [2.0]})
    expected = gradients(lambda w: loss(w, lambda w: Unfold(ops_of(w), backend=backend)), {"w": [2.0]})
    np.testing.assert_allclose(got["w"], expected["w"], rtol=1e-4)


def test_threads_agree(backend, rows):
    xs = rows(3, 3)
    found = []

    def op(x, s):
        return x * column(s)

    def work():
        for _ in range(5):
            fold = Fold(backend=backend)
            found.append(fold(scaled(fold, op, xs, [1.0, 2.0, 3.0]))[0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20


def test_a_verdict_is_one_of_static_values_and_not_of_shared_ones():
    fold = Fold(backend="numpy")
    for word, weight in [("a", 1.0), ("b", 1.0), ("a", 2.0)]:
        fold.add("op", np.ones((1, 2)), multifold.static(word), multifold.shared(np.full(2, weight)))
    one, other, again = map(key_of, fold._graph.signatures)
    assert one == again and one != other


def test_a_partial_function_consists_of_its_function_and_all_its_arguments():
    class Layer:
        def run(self):
            pass

    layer = Layer()
    inner = functools.partial(max, 1)
    op = functools.partial(layer.run, inner, by=functools.partial(min, 2))
    assert list(makers(op)) == [Layer.run, layer, max, 1, "by", min, 2]


def test_many_verdicts_of_one_op_are_forgotten_together():
    verdicts = Verdicts()

    def op():
        pass

    for key in range(MOST):
        verdicts.add(NUMPY, op, key)
    assert verdicts.has(NUMPY, op, 0) and verdicts.has(NUMPY, op, MOST - 1)
    verdicts.add(NUMPY, op, MOST)
    assert verdicts.has(NUMPY, op, MOST) and not verdicts.has(NUMPY, op, 0)


@pytest.mark.parametrize("bound", ["keyword", "variable", "partial"])
def test_a_float_that_is_another_one_in_each_step_is_tried_once(bound):
    def op(x, by=1.0):
        runs.append(by)
        return x * by

    runs = Seen()
    for by in (1.0, 1.5, 2.0):
        fold = Fold(backend="numpy")
        partial = functools.partial(op, by=by)
        made = {"keyword": op, "variable": lambda x, by=by: op(x, by), "partial": partial}[bound]
        static = {"by": by} if bound == "keyword" else {}
        fold.apply(None, [[fold.add(made, x, **static) for x in normal(16)]])
    assert runs == [1.0] * 7 + [1.5, 2.0]


def test_an_op_is_believed_after_as_many_trials_as_are_asked_for():
    verdicts = Verdicts()
    for _ in range(2):
        verdicts.add(NUMPY, len, "a", 2)
    verdicts.add(NUMPY, len, "b")
    assert [verdicts.has(NUMPY, len, "a", enough) for enough in (4, 5)] == [True, False]
    assert [verdicts.has(NUMPY, len, "b", enough) for enough in (1, 2)] == [True, False]


def test_an_op_that_no_weak_reference_knows_has_no_verdict():
    op = functools.partial(lambda x: x, object())
    verdicts = Verdicts()
    verdicts.add(NUMPY, op, "a")
    assert not verdicts.has(NUMPY, op, "a") and len(verdicts) == 0


def test_to_ask_for_a_verdict_makes_none():
    verdicts = Verdicts()
    assert not verdicts.has(NUMPY, len, "a") and len(verdicts) == 0


def test_the_modules_of_a_function_are_asked_for_their_mode():
    class Layer:
        training = False

        def __call__(self, x):
            return x - x.mean(0) if self.training else 2 * x

    class Moded(NumpyBackend):
        def hosts(self, model):
            return isinstance(model, Layer)

        def modes(self, owners):
            return tuple([x.training for x in owners if isinstance(x, Layer)])

    def op(x):
        return layer(x)

    layer = Layer()
    fold = Fold(backend=Moded())
    fold.apply(None, one_group(fold, op, normal(16)))
    layer.training = True
    fold = Fold(backend=Moded())
    refuse_in(fold, None, one_group(fold, op, normal(16)))


WEIGHT = np.ones(3)
MADE = {
    "a lambda": lambda: lambda x: x * 2,
    "one that binds an array": lambda: (lambda w: lambda x: x * w)(WEIGHT),
    "one that binds another": lambda: (lambda f: lambda x: f(x) * 2)(lambda x: x + 1),
    "one of NumPy": lambda: np.tanh,
    "a partial": lambda: functools.partial(np.multiply, 2.0),
    "one that binds a tuple": lambda: (lambda some: lambda x: x * some[0])((2.0, WEIGHT)),
    "one that binds a dictionary": lambda: (lambda table: lambda x: x * table["by"])({"by": 2.0}),
    "one that binds as many as are looked at": lambda: (lambda some: lambda x: x * some[0])([2.0] * FEW),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_an_op_that_is_made_anew_for_each_step_is_known_again(made, monkeypatch):
    trials = []
    judge = TrialBook.judge
    monkeypatch.setattr(TrialBook, "judge", lambda *given: trials.append(1) or judge(*given))
    xs = np.random.default_rng(0).normal(size=(16, 1, 3))
    for _ in range(3):
        fold = Fold(backend="numpy")
        fold.apply(None, one_group(fold, made(), xs))
    assert len(trials) == 1


CENTERED = {
    "a variable": lambda axis: lambda x: x - x.mean(axis, keepdims=True),
    "a default": lambda axis: lambda x, axis=axis: x - x.mean(axis, keepdims=True),
    "a default of a keyword": lambda axis: lambda x, *, axis=axis: x - x.mean(axis, keepdims=True),
}


@pytest.mark.parametrize("centered", CENTERED.values(), ids=CENTERED)
def test_one_code_with_other_values_around_it_is_tried_by_itself(centered):
    xs = np.random.default_rng(0).normal(size=(4, 1, 3))
    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, centered(1), xs))
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.apply(None, one_group(fold, centered(0), xs))


def test_an_op_is_known_by_which_of_its_functions_it_binds_twice():
    def calling(functions):
        return lambda x: abs(functions[2](x))

    def apart(x):
        return x * 2

    def centered(x):
        return x - x.mean(0)

    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, calling((apart, centered, apart)), normal(4)))
    refuse_in(fold, None, one_group(fold, calling((apart, centered, centered)), normal(4)))


def test_partial_functions_of_other_arguments_have_verdicts_of_their_own():
    def op(*operands, **named):
        pass

    partial = functools.partial
    pairs = [
        (partial(op, 2), partial(max, 2)),
        (partial(np.add, 2), partial(np.multiply, 2)),
        (partial(op, "by", 2), partial(op, by=2)),
        (partial(op, (partial(op, op), 2)), partial(op, (op, partial(op, 2)))),
    ]
    for one, other in pairs:
        verdicts = Verdicts()
        verdicts.add(NUMPY, one, "a")
        assert verdicts.has(NUMPY, one, "a") and not verdicts.has(NUMPY, other, "a")


@pytest.mark.parametrize("other", [((1,), 2), [1, (2,)], {1: (2,)}, (1, 2), (1, (2.0,))], ids=str)
def test_an_op_is_known_by_the_containers_that_it_binds(other):
    verdicts = Verdicts()
    verdicts.add(NUMPY, binding((1, (2,))), "a")
    assert verdicts.has(NUMPY, binding((1, (2,))), "a") and not verdicts.has(NUMPY, binding(other), "a")


def binding(x):
    """Return an op that binds an object."""
    return lambda rows: rows * x


def test_what_binds_another_object_has_a_verdict_of_its_own():
    """Of an iterator nobody knows what it will yield, and of a long list how much it is to compare."""
    for make in (lambda: iter(()), lambda: [0] * (FEW + 1), lambda: np.ones(2)):
        one, other = binding(make()), binding(make())
        verdicts = Verdicts()
        verdicts.add(NUMPY, one, "a")
        assert verdicts.has(NUMPY, one, "a") and not verdicts.has(NUMPY, other, "a") and len(verdicts) == 1
        del one
        gc.collect()
        assert len(verdicts) == 0


def test_methods_of_one_object_have_verdicts_of_their_own():
    class Model:
        def first(self):
            pass

        def second(self):
            pass

    model = Model()
    verdicts = Verdicts()
    verdicts.add(NUMPY, model.first, "a")
    assert verdicts.has(NUMPY, model.first, "a")
    assert not verdicts.has(NUMPY, model.second, "a") and not verdicts.has(NUMPY, Model().first, "a")


def test_an_op_may_bind_a_list_that_holds_itself():
    def op(x):
        return op(x) if loop else x

    loop = [1.0]
    loop.append(loop)
    verdicts = Verdicts()
    verdicts.add(NUMPY, op, "a")
    assert verdicts.has(NUMPY, op, "a")


def test_arrays_that_an_op_binds_count_by_their_form_where_the_backend_has_one():
    with_forms = SimpleNamespace(bound_form=lambda x: x.shape if isinstance(x, np.ndarray) else None)
    verdicts = Verdicts()
    verdicts.add(with_forms, binding(np.ones(2)), "a")
    assert verdicts.has(with_forms, binding(np.zeros(2)), "a")
    assert not verdicts.has(with_forms, binding(np.ones(3)), "a")
    assert not verdicts.has(NUMPY, binding(np.ones(2)), "a")


def test_an_op_of_rows_of_another_dtype_is_tried_by_itself():
    def op(x):
        return x if x.dtype.kind == "i" else x - x.mean(0)

    whole = [np.full((1, 2), i) for i in (1, 2, 4)]
    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, op, whole))
    refuse_in(fold, None, one_group(fold, op, [x + 0.5 for x in whole]))


def test_an_op_is_tried_for_each_of_its_operands_that_has_rows():
    def op(x, y):
        return x + y - y.mean(0)

    fold = Fold(backend="numpy")
    table = multifold.shared(np.arange(3.0)[None])
    fold.apply(None, [[fold.add(op, x, table) for x in normal(3)]])
    refuse_in(fold, None, [[fold.add(op, table, x) for x in normal(3)]])


def test_an_op_is_tried_for_each_nesting_of_its_operands():
    def op(x, y):
        return x[0] + x[1] + y if isinstance(x, list) else x - x.mean(0) + y[0] + y[1]

    fold = Fold(backend="numpy")
    fold.apply(None, [[fold.add(op, [x, x], x) for x in normal(3)]])
    refuse_in(fold, None, [[fold.add(op, x, [x, x]) for x in normal(3)]])


@pytest.mark.parametrize(
    ("width", "weight"), [(5, np.ones((5, 3))), (3, np.ones((3, 1)))], ids=["made", "given"]
)
def test_a_later_launch_of_as_many_rows_as_columns_of_operand_or_result_is_tried(width, weight):
    def op(x, s):
        y = x * s if x.shape == (3, 3) else x * s[:, None]
        return (y - y.mean(0) if len(x) == 3 else y) @ weight

    fold = Fold(backend="numpy")
    fold.apply(None, scaled(fold, op, normal(2, width), [1.0, 2.0]))
    refuse_in(fold, None, scaled(fold, op, normal(3, width), [1.0, 2.0, 3.0]))


def test_a_shared_table_of_as_many_rows_has_none_of_the_launch():
    def op(x, table):
        return x + table[1]

    fold = Fold(backend="numpy")
    table = multifold.shared(np.arange(9.0).reshape(3, 3))
    xs = normal(3)
    found = fold.apply(None, [[fold.add(op, x, table) for x in xs]])[0]
    np.testing.assert_allclose(found, xs[:, 0] + [3.0, 4.0, 5.0])


def test_the_classes_of_rows_are_forgotten_with_the_verdicts():
    def op():
        pass

    verdicts = Verdicts()
    known = verdicts.of(NUMPY, op, new=True)
    known.alike.add("rows of width 3")
    for key in range(MOST + 1):
        known.add(key, 1)
    assert not known.alike
