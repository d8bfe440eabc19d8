"""Ops that write to their operands: refused, however the calls are batched, and by the eager twin too."""

from __future__ import annotations

import numpy as np
import pytest

import multifold.program
from multifold import Fold, LaunchError, Unfold, merge, ragged, shared, trace


def fill(x):
    x[...] = 7


WRITE = {"torch": lambda x: x.fill_(7)}
"""Backend -> how an op writes to an array; assignment is tried where arrays take none, too."""

HIDDEN = {"torch": lambda x: x.data.fill_(7), "mxnet": fill}
"""Backend -> a way to write that the framework does not see."""


def needs_debug(seam):
    """Return whether a framework sees no write at all, as MXNet."""
    return seam.writeable and not (seam.protects or seam.counts_changes)


def model_of(write):
    """Return ops that make rows, hand them on, and write to them."""

    def written(x, *others):
        write(others[0] if others else x)
        return x * 1

    def write_values(rows):
        write(rows.values)
        return rows.values * 1

    return {
        "leaf": lambda x: x * 1,
        "same": lambda x: x,
        "both": lambda x: (x, x),
        "pair": lambda x: (x * 1, x * 2),
        "written": written,
        "write values": write_values,
    }


CASES = {
    "a result that is asked for": lambda fold, leaf: [leaf, fold.add("written", leaf)],
    "a result that is read later": lambda fold, leaf: [
        written := fold.add("written", leaf),
        fold.add("written", written, leaf),
    ],
    "one row of a result": lambda fold, leaf: [leaf, fold.add("leaf", leaf), fold.add("written", leaf)],
    "what an op handed on": lambda fold, leaf: [leaf, fold.add("written", fold.add("same", leaf))],
    "a result that is read whole": lambda fold, leaf: [leaf, fold.add("written", leaf, leaf.no_batch())],
    "a part that is another part": lambda fold, leaf: [
        fold.add("written", (parts := fold.add("both", leaf).split(2))[0]),
        parts[1],
    ],
    "an operand that is two": lambda fold, leaf: [fold.add("written", leaf, leaf)],
    "rows of a ragged operand": lambda fold, leaf: [leaf, fold.add("write values", ragged([leaf]))],
}


@pytest.fixture(params=CASES)
def case(request):
    """What an op writes to: a function that records it, and returns the outputs."""
    return CASES[request.param]


def applied(recorder, backend, model, case, **options):
    """Record a case on a fold or its eager twin, and compute it."""
    if recorder is Unfold:
        fold = Unfold(model, backend=backend, **options)
        return fold.apply(None, [[x] for x in case(fold, fold.add("leaf", np.ones((1, 2), np.float32)))])
    fold = Fold(backend=backend, **options)
    return fold.apply(model, [[x] for x in case(fold, fold.add("leaf", np.ones((1, 2), np.float32)))])


@pytest.mark.parametrize("recorder", [Fold, Unfold])
def test_an_op_that_writes_to_its_operand_is_refused(recorder, backend, seam, case):
    model = model_of(WRITE.get(backend, fill))
    with pytest.raises(LaunchError, match="'writ") as refused:
        applied(recorder, backend, model, case, debug=needs_debug(seam))
    assert not seam.writeable or "must not change them in place" in str(refused.value)


@pytest.mark.parametrize("recorder", [Fold, Unfold])
def test_debug_finds_what_the_framework_does_not_see(recorder, backend, case):
    if backend in HIDDEN:
        with pytest.raises(LaunchError, match="must not change them in place"):
            applied(recorder, backend, model_of(HIDDEN[backend]), case, debug=True)


def test_check_finds_what_the_framework_does_not_see(backend, case):
    if backend in HIDDEN:
        fold = Fold(backend=backend)
        outputs = case(fold, fold.add("leaf", np.ones((1, 2), np.float32)))
        with pytest.raises(LaunchError, match="must not change them in place"):
            fold.check(model_of(HIDDEN[backend]), outputs)


def test_debug_changes_no_value_of_ops_that_only_read(backend, equal):
    fold = Fold(backend=backend, debug=True)
    nan = fold.add("leaf", np.array([[np.nan, 2]], np.float32))
    rows = fold.add("total", ragged([nan, 1 * np.ones((1, 2), np.float32)]), [shared(np.ones(3)), "text"])
    model = {"leaf": lambda x: x * 1, "total": lambda rows, more: rows.values[:1] * 1}
    equal(fold.apply(model, rows), [[np.nan, 2]])


def test_an_awaited_result_cannot_be_written_to_in_a_later_round(backend, seam):
    async def example(fold, x):
        leaf = fold.add("leaf", x)
        await fold.value(leaf)
        return {"leaf": leaf, "written": fold.add("written", leaf)}

    fold = Fold(backend=backend, debug=needs_debug(seam))
    with pytest.raises(LaunchError, match="'written'"):
        fold.run(model_of(WRITE.get(backend, fill)), [np.ones((1, 2), np.float32)] * 2, example)


def test_the_copy_of_a_shared_array_stays_as_it_is(backend, seam, to_numpy):
    fold = Fold(backend=backend, debug=needs_debug(seam))
    table = np.ones(2, np.float32)
    node = fold.add("written", np.ones((1, 2), np.float32), shared(table))
    model = model_of(WRITE.get(backend, fill)) | {"read": lambda x, table: x * table}
    if seam.counts_changes:  # then the next run gets another copy
        fold.apply(model, node)
    else:
        with pytest.raises(LaunchError, match="'written'"):
            fold.apply(model, node)
    read = fold.add("read", np.ones((1, 2), np.float32), shared(table))
    assert to_numpy(fold.apply(model, read)).tolist() == [[1, 1]] and table.tolist() == [1, 1]


@pytest.mark.parametrize("part", ["lengths", "segment_ids"])
def test_what_says_how_long_ragged_operands_are_cannot_be_written_to(part, backend, seam):
    def write(rows):
        WRITE.get(backend, fill)(getattr(rows, part))
        return rows.values * 1

    fold = Fold(backend=backend, debug=needs_debug(seam))
    with pytest.raises(LaunchError, match="'write'"):
        fold.apply({"write": write}, fold.add("write", ragged([np.ones((1, 2), np.float32)])))


@pytest.mark.parametrize("op", ["leaf", "same"])
def test_the_twin_keeps_its_values_when_the_user_writes_to_a_result(backend, seam, to_numpy, op):
    twin = Unfold(model_of(fill), backend=backend)
    node = twin.add(op, np.ones((1, 2), np.float32))
    if seam.writeable:
        WRITE.get(backend, fill)(twin.apply(None, [[node]])[0])
    assert to_numpy(twin.apply(None, [[node]])[0]).tolist() == [[1, 1]]


# ---- what may be written to, in NumPy -----------------------------------------------------------------


def test_numbers_and_arrays_come_as_fresh_copies():
    batch = merge([trace(lambda fold, x: fold.add(x, 1.0, np.ones((1, 2))), add_to_both)] * 2)
    for _ in range(2):
        assert Fold(backend="numpy").run(None, batch).tolist() == [[3, 3], [3, 3]]


def add_to_both(number, row):
    number += 1
    row += number[:, None] - 1
    return row + number[:, None] - 1


def test_results_can_be_written_to_and_are_not_copied_for_that():
    made = []
    model = {"make": lambda x: made.append(x * 2) or made[-1], "same": lambda x: x}
    fold = Fold(backend="numpy")
    (got,) = fold.apply(model, [[fold.add("same", fold.add("make", 1.0))]])
    got += 1
    assert got.tolist() == [3] and got is made[0]


def test_a_view_of_an_operand_becomes_a_copy_that_can_be_written_to():
    fold = Fold(backend="numpy")
    model = {"make": lambda x: np.ones((1, 4)), "half": lambda x: x[:, :2]}
    row = fold.add("make", 1.0)
    whole, half = fold.apply(model, [[row], [fold.add("half", row)]])
    half += 1
    assert (whole.tolist(), half.tolist()) == ([[1, 1, 1, 1]], [[2, 2]])


def test_an_op_cannot_write_into_a_program():
    fold = Fold(backend="numpy")
    program = fold.program([[fold.add("written", x) for x in (1.0, 2.0)]])
    with pytest.raises(LaunchError, match="read-only"):
        multifold.program.run(model_of(fill), program)
    assert multifold.program.run({"written": lambda x: x * 1}, program)[0].tolist() == [1, 2]


def test_an_op_cannot_write_to_what_it_gets_in_a_container():
    def spoil(both):
        both["a"] += 1
        return both["a"]

    fold = Fold(backend="numpy")
    both = fold.add(lambda x: {"a": x + 1, "b": x}, np.ones((1, 2)))
    with pytest.raises(LaunchError, match="read-only"):
        fold.apply(None, [fold.add(spoil, both), both["a"]])
