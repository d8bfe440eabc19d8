"""Tensors that a program fills part by part hold what the loop's hold, and cost no launch for a part."""

from __future__ import annotations

import contextlib
from collections import Counter

import optree
import pytest
import torch
from torch import nn

import multifold
from multifold.errors import RecordError

torch.manual_seed(0)
WIDTH = 4
LIN = nn.Linear(WIDTH, WIDTH)
XS = [torch.randn(WIDTH) for _ in range(3)]


def cell(x, total):
    return torch.tanh(LIN(x) + total)


def rows_by_lists(x, n):
    states = torch.zeros(n, WIDTH)
    for i in range(n):
        states[i] = cell(x * i, states[[*range(0, i, 2)]].sum(0))
    return states[n - 1], states.mean(0)


def rows_by_tensors(x, n):
    states = x.new_zeros(n, 1, WIDTH)
    for i in range(n):
        states[torch.tensor(i), :] = cell(x, states[torch.arange(i)].sum((0, 1)))
    return states[-1]


def several_rows(x, n):
    states = torch.zeros(n + 1, WIDTH)
    for i in range(n):
        rows = torch.tensor([i + 1, 0])
        states[rows] = cell(x, torch.index_select(states, 0, rows))
        states[[i]] = states[[i]] * 0.5
    return states[-1], states.sum(0)


def columns(x, n):
    states = torch.zeros(WIDTH, n)
    for i in range(n):
        states[:, i] = cell(x, states[:, i - 1])
    return states.sum(1)


def a_table(x, n):
    scores = torch.full((n, n + 1), 0.5)
    for i in range(n):
        for j in range(n - i):
            scores[i, j] = cell(x, scores[i - 1, j])[0]
    return scores.logsumexp(1)


def sums(x, n):
    totals = torch.zeros(2, WIDTH)
    for i in range(n):
        totals[i % 2] += cell(x * i, totals[0])
    return totals.flatten()


def views_in_place(x, n):
    states = torch.zeros(n, WIDTH)
    states[0].add_(cell(x, x))
    first = states[0]
    first.mul_(2)
    return first.sum() + states[0].sum(), states


def written_twice(x, n):
    states = torch.zeros(2, WIDTH)
    for i in range(n + 2):
        states[i % 2] = cell(x, states[(i + 1) % 2].clone())
    return states.sum(0)


def one_view_across_the_whole(x, n):
    states = torch.ones(n, WIDTH)
    states[0] = cell(x, states[0].clone())
    view = states[0]
    total = states.sum(0)
    view += 1
    return total, view, states.mean(0)


def whole_without_gradients(x, n):
    states = torch.zeros(n, WIDTH)
    states[0] = cell(x, x)
    with torch.no_grad():
        norm = states.norm()
    return states.sum(0), norm


def asked_for_its_shape(x, n):
    states = torch.zeros(n, WIDTH)
    states[0] = cell(x, x)
    for i in range(1, len(states)):
        states[i] = cell(states.new_zeros(states.shape[1]), states[i - 1])
    return states.size(0), states.dim(), states[n - 1]


def by_a_part_that_is_one_row(x, n):
    states = torch.zeros(n, WIDTH)
    for i in range(n):
        states[i] = cell(x, x).reshape(1, WIDTH)
    return states.sum(0)


def counts(x, n):
    found = torch.zeros(2)
    for i in range(n):
        best = cell(x, x * i).max()
        found[int(best > 0.5)] += best
    return found


def a_part_of_a_part(x, n):
    states = torch.zeros(n, WIDTH)
    states[0] = cell(x, x)
    return states[0, 1] + states[0][2:].sum()


PROGRAMS = [
    *(rows_by_lists, rows_by_tensors, columns, a_table, sums, written_twice, one_view_across_the_whole),
    *(views_in_place, several_rows, counts),
    *(whole_without_gradients, asked_for_its_shape, by_a_part_that_is_one_row, a_part_of_a_part),
]


def leaves_and_gradients(run, lengths=(2, 4, 3)):
    """Return the leaves of all results, and the gradients of their sum."""
    LIN.zero_grad()
    leaves = [x for x in optree.tree_leaves(run(XS, lengths)) if isinstance(x, torch.Tensor)]
    sum(x.sum() for x in leaves if x.requires_grad).backward()
    return [*[x.detach() for x in leaves], *[x.grad.clone() for x in LIN.parameters()]]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_a_tensor_that_is_filled_holds_what_that_of_the_loop_holds(fn):
    run = multifold.batched(fn, join="list", backend="torch")
    torch.testing.assert_close(leaves_and_gradients(run), leaves_and_gradients(run.loop))


@pytest.mark.parametrize("fn", [rows_by_lists, several_rows, columns, a_table, sums, views_in_place])
def test_parts_are_written_and_read_without_a_launch(fn):
    run = multifold.batched(fn, join="list", cells=[cell])
    run(XS, [4, 4, 4])
    ops = Counter(launch.op for launch in run.explain().launches)
    assert not {"with_item", "__getitem__"} & ops.keys()
    assert ops["with_parts"] <= 1


def test_what_is_put_together_once_is_a_call_of_all_parts():
    run = multifold.batched(by_a_part_that_is_one_row, cells=[cell])
    run(XS, [3, 3, 3])
    assert [launch.op for launch in run.explain().launches].count("stack") == 1


def test_a_view_of_a_part_that_was_written_anew_is_refused():
    def program(x):
        states = torch.zeros(2, WIDTH)
        states[0] = cell(x, x)
        view = states[0]
        states[0] = cell(x, view)
        return view

    with pytest.raises(RecordError, match="shares its memory"):
        multifold.batched(program, backend="torch")(XS)


def test_a_view_from_before_all_was_put_together_is_refused_once_its_part_changes():
    def program(x):
        states = torch.zeros(2, WIDTH)
        states[0] = cell(x, x)
        view = states[0]
        total = states.sum()
        states[0] = 1.0
        return total + view

    with pytest.raises(RecordError, match="shares its memory"):
        multifold.batched(program, backend="torch")(XS)


def test_a_view_by_a_tensor_of_one_number_is_refused_once_its_tensor_changes():
    def program(x):
        pair = LIN(x).reshape(2, 2).clone()
        view = pair[torch.tensor(0)]
        pair[0, 0] = 5.0
        return view

    with pytest.raises(RecordError, match="shares its memory"):
        multifold.batched(program, backend="torch")(XS)


def test_a_tensor_that_the_program_keeps_has_its_value_after_the_run():
    kept = []

    def program(x):
        states = torch.zeros(2, WIDTH)
        states[1] = cell(x, x)
        kept.append(states)
        return states[1]

    rows = multifold.batched(program, backend="torch")(XS)
    torch.testing.assert_close(torch.stack(kept).sum(1), rows)


def test_what_an_example_that_raises_has_filled_and_kept_is_computed():
    kept = []

    def program(x, n):
        states = torch.zeros(2, WIDTH)
        states[0] = cell(x, x)
        kept.append(states)
        if n == 1:
            raise ValueError("one")
        return states[0]

    run = multifold.batched(program, backend="torch", on_error="collect", may_loop=False)
    run(XS, [0, 1, 0])
    torch.testing.assert_close(torch.stack(kept)[:, 0], torch.stack([cell(x, x) for x in XS]))


def test_what_a_block_that_raises_has_filled_is_computed():
    states = torch.zeros(2, WIDTH)
    with contextlib.suppress(ValueError), multifold.pending():
        states[0] = LIN(XS[0])
        raise ValueError("in the block")
    torch.testing.assert_close(states[0], LIN(XS[0]))


def test_the_text_of_a_tensor_that_is_filled_has_its_numbers():
    def program(x):
        states = torch.zeros(1, WIDTH)
        states[0] = LIN(x).detach().round()
        return str(states)

    run = multifold.batched(program, join="list", backend="torch", may_loop=False)
    assert run(XS) == run.loop(XS)


def test_a_block_fills_tensors_too():
    states = torch.zeros(2, WIDTH)
    with multifold.pending():
        states[0] = LIN(XS[0])
        states[1] = LIN(states[0])
    torch.testing.assert_close(states[1], LIN(LIN(XS[0])))


def test_a_found_cell_may_return_a_tensor_that_a_named_one_has_filled():
    @multifold.cell
    def both(x):
        states = torch.zeros(2, WIDTH)
        states[0] = LIN(x)
        states[1] = LIN(states[0])
        return states

    run = multifold.batched(lambda x: both(x).sum(0))
    torch.testing.assert_close(run(XS), run.loop(XS))


def test_an_index_out_of_range_is_the_error_of_the_loop():
    def program(x):
        states = torch.zeros(2, WIDTH)
        states[0] = LIN(x)
        states[2] = LIN(x)

    with pytest.raises(IndexError):
        multifold.batched(program, backend="torch")(XS)


def test_dropout_in_place_changes_nothing_in_evaluation():
    drop = nn.Dropout(0.5, inplace=True).eval()

    def program(x):
        y = LIN(x)
        return drop(y.unsqueeze(0)).sum() + y.sum()

    run = multifold.batched(program, backend="torch")
    torch.testing.assert_close(run(XS), run.loop(XS))


def test_a_condition_as_an_index_is_read():
    def program(x):
        states, y = torch.zeros(2, WIDTH), LIN(x)
        states[y[0] > 0] = 1.0
        return states.sum(0) + y

    run = multifold.batched(program, backend="torch")
    torch.testing.assert_close(run(XS), run.loop(XS))


def parts_without_gradients(x, n):
    y = LIN(x)
    states = torch.zeros(2, WIDTH)
    states[0] = cell(x, x)
    with torch.no_grad():
        first, (second, *_), third = y[0], y.unbind(), states[0].clone()
    return y.sum() + first * second * third * y[3]


def filled_without_gradients(x, n):
    states, h = torch.zeros(n, WIDTH), LIN(x)
    with torch.no_grad():
        states[0] = h
        first = states[0]
    return h * first, LIN(x) * states[[0]], states


@pytest.mark.parametrize("fn", [parts_without_gradients, filled_without_gradients])
def test_no_gradient_flows_through_parts_that_are_taken_or_written_without_gradients(fn):
    run = multifold.batched(fn, join="list", backend="torch")
    torch.testing.assert_close(leaves_and_gradients(run), leaves_and_gradients(run.loop))
