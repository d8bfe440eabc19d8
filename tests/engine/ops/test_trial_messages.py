"""What an error of a trial says: which rows were replaced, which changed, and what to do."""

from __future__ import annotations

import re

import numpy as np
import pytest
from trials import MIXING_OPS, normal, one_group, refuse_in

from multifold import Fold, LaunchError
from multifold._engine.ops.trial import is_memory
from multifold._numpy.backend import NumpyBackend
from multifold.program import run


@pytest.mark.parametrize(
    ("operand", "op", "says_column"),
    [
        (2.0, lambda x, y: x + y, True),
        (2, lambda x, y: x + y, True),
        (True, lambda x, y: x + y, True),
        (np.ones((1, 2)), lambda x, y: x + y, False),
        (2.0, lambda x, y: int("no number"), False),
    ],
    ids=["a float", "an int", "a bool", "two widths", "another error"],
)
def test_a_program_speaks_of_columns_only_where_an_op_reads_numbers(operand, op, says_column):
    fold = Fold(backend="numpy")
    program = fold.program([[fold.add("add", np.ones((1, 3)), operand) for _ in range(4)]])
    with pytest.raises(LaunchError, match="raised ValueError") as error:
        run({"add": op}, program)
    assert ("s[:, None]" in str(error.value)) is says_column


def test_the_hint_speaks_of_columns_only_where_numbers_meet_rows():
    fold = Fold(backend="numpy")
    for op, says_column in ((lambda x, s: s - s.mean(0), False), (lambda x, s: x + s.sum(), True)):
        outputs = [
            [
                fold.add(op, x if says_column else 1.0, s)
                for x, s in zip(normal(3), (1.0, 2.0, 4.0), strict=True)
            ]
        ]
        with pytest.raises(LaunchError, match="mixes its rows") as caught:
            fold.apply(None, outputs)
        assert ("s[:, None]" in caught.value.hint) is says_column


SAID = {
    2: "when row 1 was replaced, row 0 changed.",
    3: "when row 1 was replaced, row 0 and one other changed.",
    6: "when rows 1, 3, 5 were replaced, row 0 and 2 others changed.",
    9: "when rows 1, 3, 5, ... were replaced, row 0 and 4 others changed.",
}


@pytest.mark.parametrize(("count", "said"), SAID.items(), ids=map(str, SAID))
def test_an_error_names_the_rows_that_were_replaced_and_those_that_changed(count, said):
    fold = Fold(backend="numpy")
    refuse_in(fold, None, one_group(fold, MIXING_OPS["mean"], normal(count)), re.escape(said))


def test_an_error_names_the_place_that_a_result_depends_on():
    fold = Fold(backend="numpy")
    said = "in the place of row 1, row 0 came to another result than in its own."
    refuse_in(fold, None, one_group(fold, MIXING_OPS["place"], normal(3)), re.escape(said))


def test_the_advice_of_a_backend_comes_first():
    class Advising(NumpyBackend):
        def advice(self, owners, mixes=True):
            return "Do without."

    fold = Fold(backend=Advising())
    refuse_in(fold, None, one_group(fold, MIXING_OPS["mean"], normal(3)), r"Do without\. Else axis 0 has")


def test_a_framework_says_in_its_own_words_that_it_has_no_memory():
    own = type("OutOfMemoryError", (RuntimeError,), {})
    errors = [
        MemoryError(),
        own(),
        RuntimeError("CUDA out of memory"),
        RuntimeError("RESOURCE_EXHAUSTED: 1 GB"),
    ]
    assert all(map(is_memory, errors)) and not is_memory(ValueError("shapes differ"))


def test_what_an_op_raises_for_other_rows_is_the_cause():
    def op(x):
        if x[0] != 1:
            raise KeyError("the first row")
        return x + 0

    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match=r"(was|were) replaced, it raised") as caught:
        fold.apply(None, one_group(fold, op, [np.full((1, 1), i) for i in (1, 2, 4)]))
    assert isinstance(caught.value.__cause__, KeyError)
