"""What the core does for plain programs; `backends/torch/tests/test_lazy.py` runs them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import multifold
from multifold import BackendError, RecordError
from multifold.lazy.cells import CELLS, checked_cells
from multifold.lazy.current import CELL, CURRENT


def test_every_framework_of_ours_records_programs_and_others_say_what_works(backend):
    found = multifold.load_backend(backend)
    array = found.constant(np.ones(3, np.float32), None)
    assert tuple(multifold.batched(lambda x: x + 1, backend=found)([array]).shape) == (1, 3)
    with pytest.raises(BackendError, match=r"(?s)records no programs of .* Fold\.run"):
        multifold.Backend.lazy_recorder(found, len)


def test_a_join_that_is_unknown_is_refused():
    with pytest.raises(RecordError, match="stack, cat, list"):
        multifold.batched(lambda x: x, join="sum")


def test_without_a_run_there_is_nothing_to_explain():
    with pytest.raises(RecordError, match="none yet"):
        multifold.batched(lambda x: x).explain()


def test_an_example_without_arrays_needs_the_name_of_the_framework():
    with pytest.raises(RecordError, match="name the framework"):
        multifold.batched(lambda x: x)([1])


def test_a_batched_function_has_its_name():
    def score(x):
        """Return a score."""

    run = multifold.batched(score)
    assert run.__name__ == "score" and run.__doc__ == "Return a score."


# ---- cells -------------------------------------------------------------------------------------------


@multifold.cell
def decorated(x):
    return x + 1


@multifold.op
def of_rows(x):
    return x + 2


def plain(x):
    return x + 3


class Holder:
    @staticmethod
    def static(x):
        return x + 4

    def method(self, x):
        return x + 5


def test_a_cell_is_the_function_that_it_was():
    assert (decorated(1), of_rows(1)) == (2, 3)
    assert (getattr(decorated, CELL), getattr(of_rows, CELL)) == (False, True)
    assert decorated.__name__ == "decorated" and CURRENT.recording is None


def test_functions_are_cells_while_a_program_runs():
    held = Holder()
    cells = checked_cells([plain, Holder.static, Holder.method, held.method, Holder, decorated])
    assert len(cells) == 5
    with CELLS.applied(cells):
        assert all(hasattr(x, CELL) for x in (plain, Holder.static, held.method, Holder))
        assert (plain(1), Holder.static(1), held.static(1), held.method(1)) == (4, 5, 5, 6)
    with CELLS.applied(cells):
        with CELLS.applied(cells):
            pass
        assert all(hasattr(x, CELL) for x in (plain, Holder.static, held.method, Holder))
    assert not any(hasattr(x, CELL) for x in (plain, Holder.static, held.method, Holder))
    assert hasattr(decorated, CELL)


@pytest.mark.parametrize("op", [lambda x: x, len, 3, np.tanh])
def test_what_is_not_found_by_its_name_is_no_cell(op):
    with pytest.raises(RecordError, match=r"decorate it with multifold\.cell"):
        multifold.batched(lambda x: x, cells=[op])


@pytest.mark.parametrize("cells", ["compose", len, 3], ids=["a string", "a function", "a number"])
def test_cells_are_a_list(cells):
    with pytest.raises(RecordError, match=r"Expected a list of functions.*(?s:.*)cells=\["):
        multifold.batched(lambda x: x, cells=cells, backend="numpy")


@pytest.mark.parametrize(
    ("join", "first", "other", "where"),
    [
        ("stack", np.ones(2), np.ones(3), r"\(2,\) from example 0 and \(3,\) from example 1\."),
        ("stack", {"y": np.ones(2)}, {"y": np.ones((1, 2))}, r"example 1, at \['y'\]"),
        ("cat", np.ones((1, 2)), np.ones((1, 3)), r"\(1, 3\) from example 1"),
    ],
)
def test_results_that_cannot_be_joined_are_told_by_example_and_place(join, first, other, where):
    run = multifold.batched(lambda i: other if i else first, join=join, backend="numpy")
    with pytest.raises(RecordError, match=where), warnings.catch_warnings(action="ignore"):
        run([0, 1])


def test_an_error_says_that_the_examples_are_rows_of_an_array():
    run = multifold.batched(lambda x: x @ np.ones((2, 2)), backend="numpy")
    with pytest.raises(ValueError, match="matmul") as error, warnings.catch_warnings(action="ignore"):
        run(np.ones((5, 3)))
    (note,) = error.value.__notes__
    assert note.endswith("the examples are the rows of an array of shape (5, 3).")
