"""`multifold.traces`: a list of traces, each what `trace` makes of the example alone."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import multifold
from multifold import Fold, RecordError, ragged, trace, traces
from multifold._engine.traces import tracer
from multifold.testing import Counting

MODEL = {
    "leaf": lambda x: x + 1,
    "pair": lambda x, y: (x + y, x - y),
    "total": lambda x, rows: x + rows.lengths,
    "scale": lambda x, by: x * by,
    "table": lambda: 3.0,
}


def encode(fold: Any, word: str) -> Any:
    """Record a call for each letter, of every kind of operand; the results depend on the first letter."""
    nodes = [fold.add("leaf", float(len(word)))]
    for letter in word:
        if letter == "p":
            nodes += fold.add("pair", nodes[-1], nodes[0]).split(2)
        elif letter == "r":
            nodes.append(fold.add("total", nodes[-1], ragged([*nodes, 0.5])))
        elif letter == "s":
            nodes.append(fold.add("scale", nodes[-1], by=len(word)))
        elif letter == "a":
            nodes.append(fold.add("leaf", np.float32([len(word)])))
        else:
            fold.add("leaf", 0.0)  # which nothing reads
    if word[:1] == "p":
        return {"last": nodes[-1], "rows": [*nodes, 2.5], "label": [len(word)]}
    return nodes[-1] if word[:1] != "r" else [nodes[-1], 7]


WORDS = ["", "prps", "s", "rr", "ps", "aspr", "x", "rsa", "", "prps", "pp"]


def columns(made: multifold.Trace) -> list[Any]:
    """Return all that a trace holds, as lists."""
    arrays = [x.tolist() for x in (made.integers, made.floats, made.lines, *made.arrays)]
    return [*arrays, made.loose, made.vocabulary, made.vocabulary.files, made.digest]


def test_each_trace_is_that_of_its_example_alone() -> None:
    made = traces(encode, WORDS)
    assert list(map(columns, made)) == [columns(trace(encode, word)) for word in WORDS]
    assert list(map(columns, pickle.loads(pickle.dumps(made)))) == list(map(columns, made))


def test_a_part_of_a_part_is_that_of_its_example_alone() -> None:
    def inner(fold: Any, x: float) -> Any:
        return fold.add("pairs", x)["both"][1]

    made = traces(inner, [1.0, 2.0])
    assert list(map(columns, made)) == [columns(trace(inner, x)) for x in (1.0, 2.0)]
    assert Fold(backend="numpy").run({"pairs": lambda x: {"both": (x, x * 3)}}, made).tolist() == [3, 6]


def test_each_call_has_its_own_line_where_one_op_is_recorded_in_several() -> None:
    def twice(fold: Any, x: float) -> Any:
        first = fold.add("leaf", x)
        second = fold.add("leaf", x)
        return [first, second, fold.add("leaf", x)]

    first = twice.__code__.co_firstlineno
    assert [made.lines.tolist() for made in traces(twice, [1.0, 2.0])] == [
        [first + 1, first + 2, first + 3]
    ] * 2


def test_what_was_recorded_before_changes_no_trace() -> None:
    alone = list(map(columns, traces(encode, WORDS)))
    for examples in (WORDS[::-1], WORDS[3:], WORDS[5:] + WORDS):
        made = dict(zip(examples, map(columns, traces(encode, examples)), strict=True))
        assert [made.get(word, old) for word, old in zip(WORDS, alone, strict=True)] == alone


@pytest.mark.parametrize("calls", [1, 5, 1 << 16])
def test_examples_are_cut_in_turn_and_the_traces_are_the_same(calls, monkeypatch) -> None:
    expected = list(map(columns, traces(encode, WORDS)))
    monkeypatch.setattr(tracer, "MOST_CALLS", calls)
    assert list(map(columns, traces(encode, WORDS))) == expected


def test_no_examples_make_no_traces_and_a_generator_is_read_once() -> None:
    assert traces(encode, []) == []
    assert traces(encode, (word for word in WORDS)) == traces(encode, WORDS)


def words_of_one_structure(fold: Any, word: str) -> Any:
    return {"y": encode(fold, "x" + word)}


def test_traces_run_like_recorded_examples(backend, counting, to_numpy) -> None:
    words = ["s", "ss", "", "spp", "xs", "aps"]
    got = Fold(backend=counting).run(MODEL, traces(words_of_one_structure, words))
    apart = Counting(backend)
    expected = Fold(backend=apart).run(MODEL, [trace(words_of_one_structure, word) for word in words])
    recorded = Fold(backend=backend).run(MODEL, words, words_of_one_structure)
    np.testing.assert_array_equal(to_numpy(got["y"]), to_numpy(expected["y"]))
    np.testing.assert_allclose(to_numpy(got["y"]), to_numpy(recorded["y"]))
    assert counting.counts == apart.counts


def test_an_error_says_which_example_raised_it_and_the_next_traces_are_right() -> None:
    def failing(fold: Any, word: str) -> Any:
        node = encode(fold, word)
        if word == "rr":
            raise KeyError("no")
        return node

    with pytest.raises(KeyError) as caught:
        traces(failing, WORDS)
    assert caught.value.__notes__ == ["Raised by example 3 of multifold.traces."]
    with pytest.raises(KeyError) as caught:
        trace(failing, "rr")
    assert not hasattr(caught.value, "__notes__")
    assert list(map(columns, traces(encode, WORDS))) == [columns(trace(encode, word)) for word in WORDS]


def test_what_an_example_returned_wrongly_is_said_with_its_number() -> None:
    with pytest.raises(RecordError, match="Expected the outputs to be nodes") as caught:
        traces(lambda fold, x: fold.add("f", x) if x else object(), [1, 0])
    assert caught.value.__notes__ == ["Raised by example 1 of multifold.traces."]


@pytest.mark.parametrize("how", ["operand", "ragged", "result", "part"])
def test_a_node_of_another_example_is_refused(how) -> None:
    kept: list[Any] = []

    def record(fold: Any, x: int) -> Any:
        kept.append(fold.add("f", x))
        if x < 2:
            return kept[-1]
        if how == "result":
            return kept[1]
        node = kept[1].split(2)[1] if how == "part" else kept[1]
        return fold.add("g", ragged([node]) if how == "ragged" else node)

    with pytest.raises(
        RecordError, match=r"Example 2 reads <node 1 of f.* example 1 recorded at .*test_traces"
    ):
        traces(record, [0, 1, 2])


def test_a_node_that_is_kept_is_refused_by_the_next_traces() -> None:
    kept: list[Any] = []

    def record(fold: Any, x: int) -> Any:
        kept.append(fold.add("f", x))
        return fold.add("g", kept[0]) if x else kept[-1]

    traces(record, [0])
    with pytest.raises(RecordError, match="belongs to another fold"):
        traces(record, [1])


def test_an_async_function_makes_traces_unless_it_awaits_a_value() -> None:
    async def record(fold: Any, x: int) -> Any:
        return fold.add("f", x)

    async def look(fold: Any, x: int) -> Any:
        return await fold.value(fold.add("f", x))

    assert traces(record, [1]) == [trace(record, 1)] == [trace(lambda fold, x: fold.add("f", x), 1)]
    for make in (lambda: trace(look, 1), lambda: traces(look, [1])):
        with pytest.raises(RecordError, match="Expected no value to be awaited in a trace"):
            make()


def test_a_function_may_make_traces_itself() -> None:
    def record(fold: Any, word: str) -> Any:
        assert trace(encode, word) == traces(encode, [word])[0]
        return encode(fold, word)

    assert [len(x) for x in traces(record, WORDS)] == [len(x) for x in traces(encode, WORDS)]


def test_ragged_rows_of_a_shape_that_only_others_say_stay_open() -> None:
    def record(fold: Any, shape: Any) -> Any:
        nothing = ragged([], row_shape=shape) if shape else ragged([fold.add("leaf", 1.0)])
        return fold.add("total", fold.add("leaf", 0.0), nothing)

    shapes = [None, (2,), (3,), None]
    assert traces(record, shapes) == [trace(record, shape) for shape in shapes]
    assert traces(record, shapes[1:])[-1] == traces(record, shapes)[0]


def both(fold: Any, shape: Any) -> Any:
    """Record two calls, of which one leaves the shape of ragged rows open and one says it."""
    first = fold.add("total", 0.0, ragged([fold.add("leaf", 1.0)]))
    return fold.add("total", first, ragged([], row_shape=shape)), fold.add(
        "total", 1.0, ragged([], row_shape=shape)
    )


def test_signatures_of_which_one_says_more_are_one_in_a_trace() -> None:
    made = traces(both, [(2,), (3,)])
    alone = [trace(both, (2,)), trace(both, (3,))]
    assert list(map(columns, made)) == list(map(columns, alone))
    assert [len(x.vocabulary.signatures) for x in made] == [3, 3]


def test_what_was_learned_keeps_no_model_alive_and_belongs_to_a_thread() -> None:
    class Model:
        def leaf(self, x: Any) -> Any:
            return x

    def made() -> weakref.ref[Model]:
        model = Model()
        traces(lambda fold, x: fold.add(model.leaf, x), [1, 2])
        return weakref.ref(model)

    alive = made()
    gc.collect()
    assert alive() is None
    traces(encode, WORDS)
    kept = tracer.KEPT.learned
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append((tracer.KEPT.learned, traces(encode, WORDS))))
    thread.start()
    thread.join()
    assert kept is not None and found == [(None, traces(encode, WORDS))]


def test_a_second_recording_learns_nothing_anew(monkeypatch) -> None:
    traces(encode, WORDS)
    known = tracer.KEPT.learned
    signatures = len(known.signatures)
    monkeypatch.setattr(tracer.TraceRecorder, "_record", lambda *_: pytest.fail("a form was learned anew"))
    traces(encode, ["", "x", "s"])
    assert tracer.KEPT.learned is known and len(known.signatures) == signatures


def test_pickles_are_small() -> None:
    def record(fold: Any, n: int) -> Any:
        nodes = [fold.add("leaf", i) for i in range(n)]
        while len(nodes) > 1:
            nodes = [*nodes[2:], fold.add("pair", *nodes[:2])[1]]
        return nodes[0]

    for n in (1, 10, 40):
        made = traces(record, [n] * 64)
        most = 20 * sum(map(len, made)) + 4096
        assert len(pickle.dumps(multifold.merge(made))) <= most
        assert len(pickle.dumps(made)) <= most + 200 * len(made)


def test_a_minibatch_keeps_its_launches_in_a_pickle_and_a_damaged_one_is_refused() -> None:
    batch = multifold.merge(traces(encode, ["s", "aps", "x"]), schedule="depth")
    data = pickle.dumps(batch)
    again = pickle.loads(data)
    assert str(again.plan.schedule) == str(batch.plan.schedule)
    assert again.traces == batch.traces
    place = data.index(batch.plan.schedule.calls.astype("u1").tobytes())
    with pytest.raises(RecordError, match="damaged"):
        pickle.loads(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


# ---- the files of a trace ------------------------------------------------------------------------------


def recorded_in(file):
    """Return the trace of a function in a file of that name, as a process of its own makes it."""
    tracer.KEPT.take()
    names = {}
    exec(compile("def record(fold, x):\n    return fold.add('missing', x)", file, "exec"), names)
    return multifold.trace(names["record"], 1)


@pytest.mark.parametrize("pack", [lambda x: x, lambda x: multifold.merge([x])], ids=["trace", "minibatch"])
def test_a_pickle_is_read_beside_an_equal_trace_of_another_file(pack):
    data = pickle.dumps(pack(recorded_in("first.py")))
    second = recorded_in("second.py")
    for made, file in ((pickle.loads(data), "first.py"), (second, "second.py")):
        with pytest.raises(multifold.LaunchError, match=f"recorded at {file}:2"):
            Fold(backend="numpy").run({}, made if isinstance(made, multifold.Minibatch) else [made])
