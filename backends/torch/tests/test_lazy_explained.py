"""What is explained of plain programs: functions to make cells of, and launches that cost too much."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch_cells import XS, branching, doubled

import multifold
from multifold import LaunchError, RecordError
from multifold.lazy import changes

torch.manual_seed(0)


class Steps(nn.Module):
    """Records twenty calls in one method, and two in another."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def many(self, x):
        for _ in range(10):
            x = torch.tanh(x) * 2
        return x

    def forward(self, x):
        return self.many(self.lin(x)) + 1


def test_explain_names_the_functions_to_make_cells_of():
    run = multifold.batched(Steps(), cells=())
    run(XS * 4)
    (glue,) = run.explain().glue
    assert glue.name == "Steps.many" and glue.share > 0.9 and f"{__file__}:" in glue.place
    assert "cells=[Steps.many]" in str(run.explain()) and "cells=[...]" in str(run.explain(all=True))
    cells = multifold.batched(Steps(), cells=[Steps.many])
    cells(XS * 4)
    assert cells.explain().glue == []


class Driver(nn.Module):
    """Calls functions that record many calls, and of which few can be cells."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def glue(self, x):
        return [torch.tanh(x) * 2 for _ in range(10)][-1]

    def outer(self, x):
        return self.glue(torch.relu(x + 1) * 2)

    def recursive(self, x, depth):
        x = torch.relu(x * 2 + 1)
        return self.recursive(x, depth - 1) if depth else x

    def first(self, x, depth):
        return self.second(torch.relu(x * 2 + 1), depth)

    def second(self, x, depth):
        return self.first(x, depth - 1) if depth else x

    def reading(self, x):
        for _ in range(9):
            x = torch.relu(x * 2 + 1)
        return self.read(x)

    def read(self, x):
        return x if x.sum() > 0 else -x


class Whole(Driver):
    """Is the program itself, and calls itself as a module."""

    def forward(self, x, depth=9):
        x = torch.relu(self.lin(x) * 2 + 1)
        return self(x, depth - 1) if depth else x

    def glued(self, x):
        return [torch.tanh(self.lin(x)) * 2 for _ in range(10)][-1]


class Part(nn.Module):
    """Calls a module that calls itself."""

    def __init__(self):
        super().__init__()
        self.whole = Whole()

    def forward(self, x):
        return self.whole(x)


DRIVER = Driver()

HINTS = {
    "a comprehension": (lambda x: DRIVER.glue(DRIVER.lin(x)), ["Driver.glue"]),
    "what calls another one": (lambda x: DRIVER.outer(DRIVER.outer(DRIVER.lin(x))), ["Driver.glue"]),
    "what calls itself": (lambda x: DRIVER.recursive(DRIVER.lin(x), 9), []),
    "what calls itself by another one": (lambda x: DRIVER.first(DRIVER.lin(x), 9), []),
    "what reads": (lambda x: DRIVER.reading(DRIVER.lin(x)), []),
    "the program": (Whole().glued, []),
    "a module": (Whole(), []),
    "a module that calls itself": (Part(), []),
    "a lambda": (lambda x: (lambda y: torch.tanh(y * 2) * 3 + 1)(DRIVER.lin(x)), []),
}


@pytest.mark.parametrize("case", HINTS)
def test_explain_names_no_function_that_makes_no_good_cell(case):
    program, wanted = HINTS[case]
    run = multifold.batched(program, backend="torch", cells=())
    run(XS * 8)
    assert len(run.explain().ops if "reads" not in case else run.explain().rounds) > 1
    assert [glue.name for glue in run.explain().glue] == wanted


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.tree = nn.ModuleDict({"fx": nn.Linear(4, 4), "fh": nn.Linear(4, 4)})

    def forward(self, xs):
        h = torch.zeros(1, 4)
        for x in xs:
            h = torch.tanh(self.tree["fx"](x) + self.tree["fh"](h).sum(0, keepdim=True))
        return torch.cat([h, h]).sum() if len(xs) > 2 else h.sum()


def of_width(x, width):
    return torch.tanh(DRIVER.lin(x))[:width] * 2


def test_a_cell_whose_launches_have_one_row_is_a_warning_in_the_first_run():
    run = multifold.batched(lambda x, i: of_width(x, i).sum(), cells=[of_width], backend="torch")
    widths = [*range(1, 10)]
    with pytest.warns(UserWarning, match="of_width gains nothing: 9 launches of one row"):
        run([XS[0]] * 9, widths)
    assert "of_width gains nothing" in str(run.explain(all=True))
    with warnings.catch_warnings(action="error"):
        run([XS[0]] * 9, widths)
        multifold.batched(lambda x, i: of_width(x, 2), cells=[of_width], backend="torch")(
            [XS[0]] * 9, widths
        )


def test_a_cell_that_runs_row_by_row_is_a_warning_in_the_first_run():
    run = multifold.batched(lambda x: branching(DRIVER.lin(x)), cells=[branching])
    with pytest.warns(UserWarning, match=r"branching \(reads a value, row by row\) gains little"):
        run(XS)


def test_explain_names_layers_by_their_paths_and_calls_by_their_arguments():
    run = multifold.batched(Deep())
    run([[torch.randn(1, 4)] * n for n in (1, 2, 3, 4)])
    text = str(run.explain(all=True))
    assert {"tree.fx", "tree.fh"} <= {op.name for op in run.explain().ops}
    assert "sum" in text and "is called with (1, 4)" in text and "multifold.trusted" not in text
    assert "different functions" not in text and "operands of one kind" not in text


def lines_of(explained):
    return str(explained).splitlines()


def test_the_text_has_at_most_25_lines_and_the_rest_is_asked_for():
    run = multifold.batched(Deep())
    run([[torch.randn(1, 4)] * n for n in range(1, 12)])
    brief, full = lines_of(run.explain()), lines_of(run.explain(all=True))
    assert len(brief) <= 25 < len(full) and brief[-1] == "explain(all=True) tells the rest."
    assert (
        brief[0]
        == f"11 examples: {len(run.run.fold)} calls in {len(run.explain())} launches, 4.7 rows each"
    )


MANY = [torch.tanh, torch.sin, torch.cos, torch.exp, torch.sigmoid, torch.relu, torch.abs, torch.neg]


def test_of_many_ops_those_that_take_longest_are_listed():
    run = multifold.batched(lambda x: sum(fn(DRIVER.lin(x)) for fn in MANY), backend="torch")
    run(XS)
    lines = lines_of(run.explain())
    assert len(run.explain().ops) > 8 and f"and {len(run.explain().ops) - 4} more" in lines
    assert len(lines) <= 25


def test_a_program_that_reads_is_told_to_await_by_its_own_line(monkeypatch):
    monkeypatch.setattr(changes, "WAIT", 1.0)  # whatever else takes time on a busy machine

    def settle(x):
        x = DRIVER.lin(x)
        while x.sum() > 0.1:
            x = x * 0.5
        return x

    run = multifold.batched(settle)
    with torch.no_grad():
        run(XS * 8)
    own = "while x.sum() > 0.1:  # test_lazy_explained.py:"
    told = [change.after for change in run.explain().changes if change.before.startswith(own)]
    assert told == ['value = await fold.value(fold.add("gt", ...))']
    assert "while x.sum() > 0.1" in str(run.explain())


def test_changes_that_gain_most_come_first():
    run = multifold.batched(Steps(), cells=())
    run(XS * 20)
    found = run.explain().changes
    assert [change.gain for change in found] == sorted([change.gain for change in found], reverse=True)
    assert "run = multifold.batched(model, keep=True)" in [change.after for change in found]
    kept = multifold.batched(Steps(), cells=(), keep=True)
    kept(XS * 20)
    assert all("keep=True" not in change.after for change in kept.explain().changes)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return 2 * x * slope


def squared(x):
    return Squared.apply(DRIVER.lin(x)) * 2


@pytest.mark.parametrize(
    ("cells", "name"), [((), "Squared (row by row)"), ([squared], "squared (Squared row by row)")]
)
def test_an_autograd_function_that_runs_row_by_row_is_named_and_says_what_to_add(cells, name):
    run = multifold.batched(lambda x: squared(x) + 1, cells=cells)
    with warnings.catch_warnings(action="ignore"):
        for _ in range(3):
            run(XS * 20)
    assert name in {op.name for op in run.explain().ops}
    (change,) = [change for change in run.explain().changes if "row by row" in change.text]
    assert change.after.startswith("write generate_vmap_rule = True into the class Squared")
    assert all("cells=[squared]" not in change.after for change in run.explain().changes)


def test_explain_says_why_the_loop_is_expected_to_be_faster():
    layer = nn.Linear(4, 4)

    def many(x):
        for _ in range(30):
            x = torch.relu(x + 1) * 2
        return x

    def reading(x):
        x = layer(x)
        while x.sum() > -9:
            x = x - 1
        return x

    run = multifold.batched(lambda x: many(layer(x)))
    run(XS * 4)
    assert run.explain().slow == []  # backward passes are batched
    with torch.no_grad():
        run(XS * 4)
        assert ["no faster than the loop" in text for text in run.explain().slow] == [True]
        run(XS)
        assert "5.0 rows a launch" in run.explain().slow[0] and "5.0 rows" in str(run.explain())
        run = multifold.batched(reading)
        run(XS[:2])
    assert "rounds for 2 examples" in run.explain().slow[0]


def test_explain_says_that_waiting_takes_longer_than_small_cells():
    def settle(x):
        x = doubled(DRIVER.lin(x))
        for _ in range(20):
            x = doubled(x)
            if x.sum() > 1e9:
                break
        return x

    run = multifold.batched(settle, cells=[doubled])
    with torch.no_grad():
        run(XS * 8)
    assert ["wait 800 times, after 3.1 calls" in text for text in run.explain().slow] == [True]


def choosing(x):
    y = torch.tanh(DRIVER.lin(x))
    return y * 2 if y.sum().item() > 0 else y


def test_a_cell_that_reads_says_so_where_it_runs_row_by_row():
    run = multifold.batched(lambda x: choosing(x) + 1, cells=[choosing])
    with pytest.warns(
        UserWarning, match=r"choosing \(reads a value, row by row\) gains little.*(?s:.*)torch.where"
    ):
        run(XS * 8)


def test_keeping_examples_is_proposed_in_training_alone():
    run = multifold.batched(Steps(), cells=())
    with torch.no_grad():
        run(XS * 20)
        assert all("keep=True" not in change.after for change in run.explain().changes)


def test_keeping_examples_is_not_proposed_where_a_replay_would_be_refused():
    """A tensor that was computed from a parameter cannot be an operand of a trace."""
    computed = [DRIVER.lin.bias * i for i in range(40)]
    run = multifold.batched(lambda x: torch.tanh(DRIVER.lin(x)) * 2, cells=())
    run(computed)
    with pytest.raises(RecordError, match="needs a gradient"):
        run.traces(computed)
    assert all("keep=True" not in change.after for change in run.explain().changes)


def test_a_program_that_records_nothing_is_told_to_name_functions():
    run = multifold.batched(lambda x: x * 2, backend="torch")
    with pytest.warns(UserWarning, match="ran as a loop"):
        run(XS)
    assert "cells=[join]" in str(run.explain()) and "tells the rest" not in str(run.explain())


def test_an_op_of_rows_that_loses_the_axis_of_rows_is_told_so():
    summed = multifold.op(lambda x: x.sum(0, keepdim=True))
    run = multifold.batched(lambda x: summed(DRIVER.lin(x)[None]), backend="torch")
    with pytest.raises(LaunchError, match=r"Hint: axis 0 has a row for each example"):
        run(XS * 8)
