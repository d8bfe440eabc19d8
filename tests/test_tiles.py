"""Tiled programs: known answers for packings, sizes, and the rows and members that pad."""

from __future__ import annotations

import numpy as np
import pytest

import multifold
from multifold import Fold, ragged, trace
from multifold.program import Tiler, run
from multifold.program.layout import RaggedColumn, stretches
from multifold.program.make import Shelf, cost, difference, larger, sizes_of
from multifold.program.packing import LoopCalls, rows_of
from multifold.program.sizes import PhaseSize, Sizes, bucket, covers, members_of, most_of
from multifold.program.tiles import KernelTiles, ragged_tiles, repeated, resized


def chains(fold, lengths):
    """Record chains of calls of one op, each so many calls long."""
    ends = []
    for length in lengths:
        x = fold.add("start", 1.0)
        for _ in range(length):
            x = fold.add("f", x)
        ends.append(x)
    return ends


def tiler_of(*lengths):
    return Tiler(Fold(backend="numpy").program([trace(chains, lengths)]))


def loop_of(tiler, tile):
    return LoopCalls(tiler.owners, 1, tiler.launches[1], tile, ((),))


# ---- packing -------------------------------------------------------------------------------------


def test_a_chain_beside_single_calls_is_packed_by_the_longest_path():
    loop = loop_of(tiler_of(4, 1, 1, 1, 1), 2)
    assert loop.heights().tolist() == [4, 1, 1, 1, 1, 3, 2, 1]
    assert [calls.tolist() for _, calls in loop.divided()] == [[0, 1], [2, 3], [4], [5], [6], [7]]
    assert [calls.tolist() for _, calls in loop.longest_first()] == [[0, 1], [5, 2], [6, 3], [4, 7]]
    assert loop.bound == 4
    packing = loop.packed()
    assert packing.kernel.tolist() == [0] * 4 and packing.counts == [4]
    assert packing.rows[0].tolist() == [0, 1, 5, 2, 6, 3, 4, 7]


def test_a_tile_that_is_not_full_is_padded():
    packing = loop_of(tiler_of(2, 2, 1), 2).packed()
    assert packing.rows[0].tolist() == [0, 1, 2, -1, 3, 4] and packing.counts == [3]


def test_the_calls_of_a_loop_know_which_of_them_read_each_other():
    loop = loop_of(tiler_of(3, 1), 2)
    assert loop.first == [0] and loop.begin.tolist() == [0, 4]
    assert (loop.sources.tolist(), loop.readers.tolist()) == ([0, 2], [2, 3])


def test_a_loop_counts_its_own_calls_where_an_earlier_one_has_the_same_op():
    fold = Fold(backend="numpy")
    x = chains(fold, [3])[0]
    total = fold.add("total", x).no_batch()
    ends = [fold.add("f", fold.add("f", fold.add("f", fold.add("join", total, i)))) for i in (1, 2)]
    tiler = Tiler(fold.program([ends]))
    phase = max(i for i, phase in enumerate(tiler.form.phases) if phase.loop)
    loop = LoopCalls(tiler.owners, phase, tiler.launches[phase], 2, ((),) * 2)
    names = [tiler.form.kernels[kernel].name for kernel in loop.kernels]
    assert (names, loop.first, loop.begin.tolist()) == (["f", "join"], [3, 0], [0, 6, 8])
    assert loop.heights().tolist() == [3, 3, 2, 2, 1, 1, 4, 4]


def test_owners_of_rows_are_the_kernels_that_wrote_them():
    owners = tiler_of(2, 1).owners
    assert [kernel.tolist() for kernel in owners.kernel] == [[0, 0, 0, 1, 1]]
    assert [row.tolist() for row in owners.row] == [[0, 1, 2, 0, 1]]
    assert [column.tolist() for column in owners.reads(0)] == [[0, 1, 2], [1, 1, 0], [0, 1, 0]]


def test_a_phase_of_one_launch_is_one_tile():
    packing = tiler_of(1, 1, 1).packed(0, 4, ((),))
    assert packing.kernel.tolist() == [0] and packing.counts == [1]
    assert packing.rows[0].tolist() == [0, 1, 2, -1]


def test_the_rows_of_a_kernel_follow_each_other_in_the_launches_of_a_phase():
    launches = np.array([[0, 4, 2], [1, 0, 7], [0, 6, 3]])
    assert (
        rows_of(launches, 0) == (4, 9) and rows_of(launches, 1) == (0, 7) and rows_of(launches, 2) == (0, 0)
    )


# ---- sizes ---------------------------------------------------------------------------------------


def test_sizes_are_rounded_up_to_four_for_each_power_of_two():
    assert [bucket(n) for n in (0, 8, 9, 16, 17, 32, 33, 64, 65)] == [8, 8, 10, 16, 20, 32, 40, 64, 80]
    assert [bucket(n, 4) for n in (1, 4, 5)] == [4, 4, 5]


def test_members_hold_the_longest_call_and_a_full_tile_of_the_mean():
    assert members_of(4, np.array([1, 5])) == bucket(4 * 3 + 1) == 14
    assert members_of(4, np.array([1, 1, 20])) == bucket(4 * 22 // 3 + 1) == 32
    assert members_of(64, np.array([1, 1, 30])) == bucket(64 * 32 // 3 + 2) == 768
    assert members_of(16, np.array([9])) == bucket(16 * 9 + 1) == 160
    assert members_of(4, np.zeros(0, np.int64)) == 8


def test_sizes_cover_needs_that_are_not_larger():
    assert covers((2, 3), (2, 3)) and covers((3, 3), (2, 3)) and not covers((3, 3), (2, 4))
    assert most_of((1, 5), (4, 2)) == (4, 5)


def test_a_program_has_sizes_of_its_own():
    once = PhaseSize(False, 8, 1, (1,), ((),))
    assert tiler_of(4, 1, 1, 1, 1).own() == Sizes((once, PhaseSize(True, 8, 4, (4,), ((),))), (), (5,))
    wide = tiler_of(*[2] * 100).own()
    assert wide.phases[0] == PhaseSize(False, 112, 1, (1,), ((),))
    assert wide.phases[1] == PhaseSize(True, 128, 4, (4,), ((),))


def test_a_loop_keeps_the_tiles_of_another_program_unless_others_are_much_cheaper():
    tiler = tiler_of(*[2] * 30)
    assert [tiler.loop_size(1, before).tile for before in (None, 8, 16, 32, 64)] == [32, 32, 16, 32, 32]


def test_a_program_fits_into_sizes_that_hold_it():
    small, large = tiler_of(2, 2, 1), tiler_of(*[9] * 3)
    own = large.own()
    assert large.fits(own) and small.fits(own) and not large.fits(small.own())
    exact = len(large.packed(1, own.phases[1].tile, own.phases[1].edges).kernel)
    assert large.fits(own._replace(phases=(own.phases[0], own.phases[1]._replace(launches=exact))))
    fewer = own.phases[1]._replace(launches=8)
    assert not large.fits(own._replace(phases=(own.phases[0], fewer)))
    assert not large.fits(own._replace(phases=(own.phases[0], own.phases[1]._replace(kernels=(8,)))))
    assert not large.fits(own._replace(phases=(own.phases[0]._replace(tile=2), own.phases[1])))


def test_a_tile_has_room_for_the_longest_call_beside_rows_that_pad():
    def totals(fold, length):
        x = fold.add("leaf", 1.0)
        for _ in range(2):
            x = fold.add("total", ragged([x] * length))
        return x

    tiler = Tiler(Fold(backend="numpy").program([trace(totals, 5)]))
    own = tiler.own()
    for room, fits in ((own.phases[1].tile + 4, True), (own.phases[1].tile + 3, False)):
        loop = own.phases[1]._replace(edges=((room,),))
        assert tiler.fits(own._replace(phases=(own.phases[0], loop))) is fits


def test_slabs_without_sources_have_no_rows():
    begin, slabs = stretches([], np.zeros(0, np.int64), 0)
    assert begin.tolist() == slabs.tolist() == []


def test_results_of_another_length_fit_only_where_results_are_padded():
    program = Fold(backend="numpy").program([trace(chains, [1, 1])])
    own = Tiler(program).own()
    longer = own._replace(groups=(9,))
    assert own.groups == (2,) and not Tiler(program).fits(longer) and Tiler(program, pad=True).fits(longer)
    assert Tiler(program, pad=True).own().groups == (8,)
    assert not Tiler(program, pad=True).fits(own._replace(groups=(1,)))


def loop_sizes(tile, launches, given=(5,), groups=(2,)):
    return Sizes((PhaseSize(True, tile, launches, (launches,), ((9,),)),), given, groups)


def test_a_tile_costs_its_rows_and_those_of_its_overhead():
    assert cost(loop_sizes(8, 4)) == 4 * (8 + 24) + 5
    assert cost(Sizes((PhaseSize(False, 8, 1, (1,), ()),), (), ())) == 8


def test_larger_sizes_hold_both_programs():
    first, second = loop_sizes(8, 4, (5,)), loop_sizes(8, 6, (3,))
    assert larger(first, second, pad=False) == loop_sizes(8, 6, (5,))
    assert larger(first, loop_sizes(16, 4), pad=False) is None
    assert larger(first, loop_sizes(8, 4, groups=(3,)), pad=False) is None
    assert larger(first, loop_sizes(8, 4, groups=(3,)), pad=True) == loop_sizes(8, 4, groups=(3,))


def test_a_shelf_hands_out_sizes_that_were_compiled_unless_they_waste_much():
    shelf = Shelf()
    large, small, huge = tiler_of(*[9] * 3), tiler_of(2, 2, 1), tiler_of(*[200] * 30)
    first = shelf.choose(large)
    assert first == large.own() and shelf.choose(small) == first
    assert shelf.choose(huge) == huge.own(first) != first
    assert shelf.choose(small) == first


# ---- what pads -----------------------------------------------------------------------------------


def test_padding_repeats_the_first_row_of_its_tile():
    column, rows = np.array([5, 6, 7]), np.array([0, 1, 2, -1])
    assert repeated(column, rows, 2).tolist() == [5, 6, 7, 7]
    assert repeated(column, np.array([2, -1, -1, 1, -1, -1]), 3).tolist() == [7, 7, 7, 6, 6, 6]


@pytest.mark.parametrize(("dtype", "value"), [(float, 0.5), (int, 0)])
def test_rows_that_only_pad_are_a_half_or_the_number_zero(dtype, value):
    empty = np.zeros((0, 2), dtype)
    assert repeated(empty, np.full(3, -1), 3).tolist() == [[value] * 2] * 3


def test_an_array_is_resized_by_its_first_row():
    assert resized(np.array([4, 5]), 4).tolist() == [4, 5, 4, 4]
    assert (
        resized(np.array([4, 5]), 2).tolist() == [4, 5] and resized("of a framework", 4) == "of a framework"
    )


def ragged_column(*calls):
    """Return the column of a ragged operand from the addresses of each call's members."""
    lengths = [len(call) for call in calls]
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    segments = np.repeat(np.arange(len(calls), dtype=np.int32), lengths)
    return RaggedColumn(np.array([m for call in calls for m in call], np.int32), splits, segments)


def tiled(column, rows, tile, edges, moved=None):
    made = ragged_tiles(column, KernelTiles(np.array(rows), tile, (edges,)), moved)
    return made.addresses.tolist(), made.segments.tolist(), made.splits.tolist()


def test_members_that_pad_belong_to_rows_that_pad_in_equal_shares():
    addresses, segments, splits = tiled(ragged_column([4, 5], [6]), [0, 1, -1, -1], 4, 8)
    assert addresses == [4, 5, 6, 4, 4, 4, 4, 4]
    assert segments == [0, 0, 1, 2, 2, 2, 3, 3]
    assert splits == [0, 2, 3, 6, 8]


def test_members_move_with_the_rows_that_they_read_into_their_own_tile():
    column, moved = ragged_column([4, 5], [6]), np.arange(10, 20)
    addresses, segments, splits = tiled(column, [1, -1, 0, -1], 2, 4, moved)
    assert addresses == [16, 16, 16, 16, 14, 15, 14, 14]
    assert segments == [0, 1, 1, 1, 0, 0, 1, 1]
    assert splits == [0, 1, 4, 6, 8]


def test_a_tile_of_padding_alone_repeats_the_first_member_of_all():
    assert tiled(ragged_column([7]), [0, -1, -1, -1], 2, 3) == (
        [7, 7, 7, 7, 7, 7],
        [0, 1, 1, 0, 0, 1],
        [0, 1, 3, 5, 6],
    )


def test_a_ragged_operand_without_members_has_none_in_tiles():
    assert tiled(ragged_column([]), [0, -1], 2, 0) == ([], [], [0, 0, 0])


def test_a_tiled_program_has_tiles_of_equal_width_and_idle_launches():
    def totals(fold, lengths):
        x = fold.add("leaf", 1.0)
        for length in lengths:
            x = fold.add("total", ragged([x] * length))
        return x

    tiler = Tiler(Fold(backend="numpy").program([trace(totals, (1, 3)), trace(totals, (2,))]))
    made = tiler.tiled(tiler.own())
    assert made.launches.tolist() == [[0, 0, 8], [0, 0, 8], [0, 8, 8], [1, 0, 0], [1, 0, 0]]
    assert made.bounds.tolist() == [0, 1, 5]
    assert (made.starts.tolist(), made.sizes.tolist()) == ([0, 8], [40])
    assert [rows.tolist() for rows in made.groups] == [[16, 9]]
    assert made.form.phases[1].launches == 4 and made.form.phases[1].tile == 8
    assert made.form.phases[0].tile is None and made.form.phases[1].rows == (32,)


# ---- what a form says ------------------------------------------------------------------------------


def test_the_sizes_of_a_form_are_listed_by_phase_and_result():
    program = Fold(backend="numpy").program([trace(chains, [2, 2, 2])])
    tiler = Tiler(program, pad=True)
    assert sizes_of(program.form) == [("once start", ""), ("loop f", "")]
    assert sizes_of(tiler.tiled(tiler.own()).form) == [
        ("once start", "8 rows"),
        ("loop f", "4 tiles of 8 rows"),
        ("result 0", "8 rows"),
    ]


def test_the_difference_of_two_forms_names_new_ops_or_sizes():
    def forms(*programs):
        fold = Fold(backend="numpy")
        return [fold.program([[fold.add(name, 1.0) for name in names]]).form for names in programs]

    one, two, four = forms("a", "ab", "abcd")
    assert difference(two, one) == "the op 'b'" and difference(four, two) == "the ops 'c', 'd'"
    assert difference(one, one) == "which ops read each other, or what is asked for"
    small, large = tiler_of(1), tiler_of(*[1] * 9)
    changed = difference(large.tiled(large.own()).form, small.tiled(small.own()).form)
    assert (
        "once start: 10 rows (before 8 rows)" in changed and "result 0: 9 rows (before 1 rows)" in changed
    )


def test_given_rows_have_sizes_of_their_own():
    fold = Fold(backend="numpy")
    tiler = Tiler(fold.program([[fold.add("total", ragged([fold.add("leaf", 1.0), 0.5]))]]))
    assert ("given rows 0", "8 rows") in sizes_of(tiler.tiled(tiler.own()).form)


def test_a_kernel_of_two_phases_keeps_the_rows_of_both():
    fold = Fold(backend="numpy")
    model = {"double": lambda x: 2 * x, "total": lambda x: x.sum(), "plus": lambda t, x: t + x}
    first = [fold.add("double", fold.add("plus", multifold.shared(0.0), float(i))) for i in range(3)]
    total = fold.add("total", first[1]).no_batch()
    program = fold.program([[fold.add("double", fold.add("plus", total, x)) for x in first], first])
    tiler = Tiler(program)
    for made in (program, tiler.tiled(tiler.own())):
        assert [x.tolist() for x in run(model, made)] == [[4.0, 8.0, 12.0], [0.0, 2.0, 4.0]]


def test_programs_are_listed_with_all_their_phases():
    fold = Fold(backend="numpy")
    fold.program([trace(chains, [2])])
    assert str(fold.programs).splitlines()[1] == "     1  once start; loop f"
