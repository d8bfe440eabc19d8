"""One fold in several threads: right or refused, and never wrong. Each thread is to have its own."""

from __future__ import annotations

import sys
import threading

import pytest

from multifold import Fold, RecordError
from multifold._engine import compiled
from multifold._engine.compiled import GraphBase
from multifold._engine.plan.columns import Columns
from multifold._engine.record.graph import Graph


def ten_times(fold, x):
    return fold.add("join", fold.add("double", float(x)), fold.add("double", float(x)))


@pytest.mark.skipif(bool(compiled.missing), reason="Python takes several steps for a call")
@pytest.mark.parametrize("how", ["apply", "run", "async"])
def test_a_fold_of_several_threads_is_right_or_refuses(how):
    async def awaits(fold, x):
        await fold.value(node := ten_times(fold, x))
        return node

    model = {"double": lambda x: 2 * x, "join": lambda x, y: 4 * x + y}
    wrong, refused = [], []

    def use(fold, gate, number):
        xs = [10 * number, 10 * number + 3]
        gate.wait()
        try:
            if how == "apply":
                (got,) = fold.apply(model, [[ten_times(fold, x) for x in xs]])
            else:
                got = fold.run(model, xs, ten_times if how == "run" else awaits)
        except RecordError as error:
            refused.append(error)
        except Exception as error:  # noqa: BLE001 - whatever else comes of it
            wrong.append(error)
        else:
            wrong.extend([] if got.tolist() == [10 * x for x in xs] else [got])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            operands = Fold(backend="numpy"), threading.Barrier(4)
            threads = [threading.Thread(target=use, args=(*operands, i)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    assert all("each thread" in error.hint for error in refused)


def test_calls_that_two_threads_record_at_once_are_refused_until_a_reset():
    fold = Fold(backend="numpy")
    node = fold.add(abs, 1)
    fold._graph.enter(1)  # as a thread of this number does that stops here
    for use in (lambda: fold.add(abs, 1.0), lambda: fold.apply(None, node)):
        with pytest.raises(RecordError, match=r"(?s)one thread .* at a time.*one fold for each thread"):
            use()
    fold.reset()
    assert fold.apply(None, fold.add(abs, -1)).tolist() == [1]


def test_calls_that_are_recorded_while_columns_are_read_are_refused(monkeypatch):
    fold = Fold(backend="numpy")
    node, own = fold.add(abs, 1), Columns.of

    def read(graph):
        found = own(graph)
        fold.add(abs, 2)
        return found

    monkeypatch.setattr(Columns, "of", read)
    with pytest.raises(RecordError, match="one thread"):
        fold.apply(None, node)


def test_a_thread_may_record_a_call_while_it_records_another_one():
    graph = Fold(backend="numpy")._graph
    assert (graph.enter(1), graph.enter(1)) == (0, 1)


@pytest.mark.parametrize("torn", ["another call in between", "columns that are read"])
def test_what_comes_in_between_is_refused(torn, monkeypatch):
    def put(self, *call):
        if torn == "columns that are read":
            raise BufferError
        for _ in range(2):
            GraphBase.put(self, *call)

    monkeypatch.setattr(Graph, "put", put, raising=False)
    with pytest.raises(RecordError, match="one thread"):
        Fold(backend="numpy").add(abs, 1)
