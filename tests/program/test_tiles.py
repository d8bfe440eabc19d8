"""Tiled programs: known answers for packings, sizes, and the rows and members that pad."""

from __future__ import annotations

import numpy as np
import pytest

import multifold
from multifold import Fold, ragged, trace
from multifold.program import Tiler, run
from multifold.program.layout import RaggedColumn, stretches
from multifold.program.make import difference, sizes_of
from multifold.program.packing import LoopCalls, rows_of
from multifold.program.shelf import Shelf, cost, larger
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


def tiler_for(record, fold=None):
    """Return the tiler of what a function records."""
    fold = Fold(backend="numpy") if fold is None else fold
    return Tiler(fold.program(record(fold)))


def letters(fold, words):
    """Record for each word a chain with a call for each of its letters."""
    ends = [fold.add("start", 1.0) for _ in words]
    for i, word in enumerate(words):
        for letter in word:
            ends[i] = fold.add(letter, ends[i])
    return [ends]


def interrupted(fold):
    """Record a loop of ``f``, of one and two members, a result read whole, and a loop of 3, 5 and 1."""
    a = fold.add("f", ragged([fold.add("start", 1.0)]))
    b = fold.add("f", ragged([a, a]))
    joined = fold.add("join", fold.add("total", b).no_batch(), 1.0)
    c = fold.add("f", ragged([joined, a, b]))
    return [[fold.add("f", ragged([fold.add("f", ragged([c] * 5))]))]]


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


def test_two_loops_of_one_op_have_rows_members_and_reads_of_their_own():
    tiler = tiler_for(interrupted)
    assert [[own.tolist() for own in tiler.lengths(phase, 0)] for phase in (1, 3)] == [
        [[1, 2]],
        [[3, 5, 1]],
    ]
    first = LoopCalls(tiler.owners, 1, tiler.launches[1], 4, ((9,),))
    assert (first.sources.tolist(), first.readers.tolist()) == ([0, 0], [1, 1])
    assert [[own.tolist() for own in lengths] for lengths in first.lengths] == [[[1, 2]]]
    second = LoopCalls(tiler.owners, 3, tiler.launches[3], 4, ((9,), ()))
    assert [[own.tolist() for own in lengths] for lengths in second.lengths] == [[[3, 5, 1]], []]
    tiles = [(1, [0]), (0, [2]), (0, [3]), (0, [4])]
    for order in (second.divided(), second.longest_first()):
        assert [(entry, rows.tolist()) for entry, rows in order] == tiles


def test_a_call_that_reads_two_loops_is_of_the_second_one_only():
    def record(fold):
        x = fold.add("start", 1.0)
        for _ in range(3):
            x = fold.add("f", x, x)
        total = fold.add("total", x).no_batch()
        return [[fold.add("f", fold.add("join", total, 1.0), x)]]

    tiler = tiler_for(record)
    loop = LoopCalls(tiler.owners, 1, tiler.launches[1], 2, ((),))
    assert (
        sorted(zip(loop.sources.tolist(), loop.readers.tolist(), strict=True))
        == [(0, 1)] * 2 + [(1, 2)] * 2
    )


@pytest.mark.parametrize("words", [("fgfg", "gf"), ("gfgf", "fg")])
def test_of_two_ops_the_one_with_the_longest_path_ahead_is_first(words):
    tiler = tiler_for(lambda fold: letters(fold, words))
    names = [tiler.form.kernels[kernel].name for kernel in tiler.form.phases[1].kernels]
    loop = LoopCalls(tiler.owners, 1, tiler.launches[1], 2, ((),) * 2)
    assert [names[entry] for entry, _ in loop.longest_first()] == list(words[0])


def test_heights_count_calls_to_the_end_of_the_loop_whichever_op_is_launched_first():
    tiler = tiler_for(lambda fold: letters(fold, ["gff", "gffgf", "f"]))
    loop = LoopCalls(tiler.owners, 1, tiler.launches[1], 2, ((),) * 2)
    longest = [1] * len(loop.heights())
    for _ in longest:
        for source, reader in zip(loop.sources.tolist(), loop.readers.tolist(), strict=True):
            longest[source] = max(longest[source], longest[reader] + 1)
    assert loop.heights().tolist() == longest and max(longest) == 5


def test_operands_that_read_no_rows_may_stand_before_those_that_do():
    owners = tiler_for(lambda fold: [[fold.add("plus", 2.0, fold.add("start", 1.0))]]).owners
    assert [column.tolist() for column in owners.reads(0)] == [[0], [1], [0]]


@pytest.mark.parametrize("edges", range(7, 20))
def test_a_tile_takes_calls_while_their_members_fit_beside_one_for_each_row_that_pads(edges):
    def record(fold):
        x = fold.add("leaf", 1.0)
        first = [fold.add("f", ragged([x] * n)) for n in (3, 1, 4, 2)]
        return [[fold.add("f", ragged(first))]]

    tiler = tiler_for(record)
    loop = LoopCalls(tiler.owners, 1, tiler.launches[1], 6, ((edges,),))
    most = max(k for k in range(5) if sum((3, 1, 4, 2)[:k]) + 6 - k <= edges)
    assert loop.fitting(0, np.arange(4)) == most


def test_the_second_ragged_op_of_a_loop_has_its_own_members():
    def record(fold):
        x = fold.add("leaf", 1.0)
        fs = [fold.add("f", ragged([x])) for _ in range(3)]
        return [[fold.add("f", ragged([fold.add("g", ragged(fs * n)) for n in (1, 2)]))]]

    tiler = tiler_for(record)
    loop = LoopCalls(tiler.owners, 1, tiler.launches[1], 4, ((9,), (10,)))
    assert [(entry, rows.tolist()) for entry, rows in loop.longest_first()] == [
        (0, [0, 1, 2]),
        (1, [0]),
        (1, [1]),
        (0, [3]),
    ]


# ---- turns ---------------------------------------------------------------------------------------


def turning(words, fold=None):
    """Return the tiler of chains with a call for each letter, whose ops take turns."""
    tiler = tiler_for(lambda fold: letters(fold, words), fold)
    return Tiler(tiler.program, cycles=True)


def test_in_turns_a_tile_stays_empty_where_its_kernel_has_no_call_whose_operands_are_done():
    packing = turning(["gf", "gfg"]).packed(1, 2, ((), ()), (0, 1))
    assert packing.kernel.tolist() == [0, 1, 0, 1] and packing.counts == [2, 2]
    assert packing.rows[0].tolist() == [-1, -1, 1, 0]
    assert packing.rows[1].tolist() == [1, 0, 2, -1]


def test_turns_are_those_that_need_the_fewest_tiles():
    tiler = turning(["fgggfggg"] * 12)
    own = tiler.own().phases[1]
    assert (own.tile, own.turn, own.launches, own.kernels) == (16, (0, 1, 1, 1), 8, (2, 6))
    assert tiler.freed(tiler.own()).phases[1].launches == 8
    assert turning(["fgfg"] * 12).own().phases[1].turn == (0, 1)
    assert turning(["ffff"] * 12).own().phases[1].turn == (0,)


def test_turns_stay_unless_others_are_far_better():
    tiler = turning(["fgggfggg"] * 12)
    assert tiler.loop_size(1, 16, (0, 1, 1)).turn == (0, 1, 1, 1)
    assert tiler.loop_size(1, 16, (0, 1, 1, 1, 1)).turn == (0, 1, 1, 1, 1)
    assert tiler.loop_size(1, 16, (0,)).turn == (0, 1, 1, 1)


def test_a_program_fits_into_turns_of_all_its_kernels():
    fold = Fold(backend="numpy")
    tiler = turning(["fgggfggg", "f"], fold)
    sizes = tiler.own()
    assert tiler.fits(sizes) and turning(["fgfg", "f"], fold).fits(sizes)
    assert not turning(["fgfgfgfgfgfg", "f"], fold).fits(sizes)
    only_f = sizes.phases[1]._replace(turn=(0,), launches=9, kernels=(9, 0))
    assert not tiler.fits(sizes._replace(phases=(sizes.phases[0], only_f)))


def test_the_launches_of_a_program_in_turns_name_each_kernel_in_its_turn():
    tiler = turning(["gf", "gfg"])
    program = tiler.tiled(tiler.own())
    low, high = program.bounds[1:3]
    turn = program.form.phases[1].turn
    assert program.launches[low:high, 0].tolist() == [*turn] * ((high - low) // len(turn))
    spans = list(program.form.tiles())
    assert [span.number for span in spans] == list(range(len(program.launches)))
    for span, (_, first, rows) in zip(spans, program.launches.tolist(), strict=True):
        assert first == span.first and rows in (0, span.rows) and span.real == span.number


def test_of_a_loop_with_one_kernel_the_first_tile_tells_what_is_real():
    tiler = Tiler(tiler_of(4, 1, 1).program, cycles=True)
    spans = list(tiler.tiled(tiler.own()).form.tiles())
    assert [(span.kernel, span.first, span.real) for span in spans] == [
        (1, 0, 0), (0, 0, 1), (0, 8, 1), (0, 16, 1), (0, 24, 1),
    ]  # fmt: skip


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
    small = tiler_of(2, 2, 1)
    large = tiler_of(*[9] * 3)
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
    begin, slabs = stretches([], np.zeros(0, np.int64))
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
    first = loop_sizes(8, 4, (5,))
    second = loop_sizes(8, 6, (3,))
    assert larger(first, second, pad=False) == loop_sizes(8, 6, (5,))
    assert larger(first, loop_sizes(16, 4), pad=False) is None
    turned = first._replace(phases=(first.phases[0]._replace(turn=(0,)),))
    assert larger(first, turned, pad=False) is None and larger(turned, turned, pad=False) == turned
    assert larger(first, loop_sizes(8, 4, groups=(3,)), pad=False) is None
    assert larger(first, loop_sizes(8, 4, groups=(3,)), pad=True) == loop_sizes(8, 4, groups=(3,))


def test_a_shelf_hands_out_sizes_that_were_compiled_unless_they_waste_much():
    shelf = Shelf()
    large = tiler_of(*[9] * 3)
    small = tiler_of(2, 2, 1)
    huge = tiler_of(*[200] * 30)
    first = shelf.choose(large)
    assert first == large.own() and shelf.choose(small) == first
    assert shelf.choose(huge) == huge.own(first) != first
    assert shelf.choose(small) == first


@pytest.mark.parametrize(
    ("tile", "lengths", "members"),
    [(8, [2, 0, 0, 0], 10), (8, [2, 1, 1, 1, 1, 1, 1, 1], 10), (16, [0], 16), (64, [1], 80)],
)
def test_a_tile_has_members_for_the_longest_call_and_one_more_than_the_mean_call_needs(
    tile, lengths, members
):
    assert members_of(tile, np.array(lengths)) == members


def test_a_loop_that_a_whole_result_interrupts_has_narrow_tiles_and_a_launch_of_one_row():
    tiler = tiler_for(interrupted)
    own = tiler.own()
    assert [size.tile for size in own.phases] == [8, 16, 1, 16]
    assert own.phases[2] == PhaseSize(False, 1, 1, (1,), ((),)) and tiler.fits(own)
    wide = own.phases[2]._replace(tile=8)
    assert not tiler.fits(own._replace(phases=(*own.phases[:2], wide, own.phases[3])))


def test_a_ragged_launch_outside_of_loops_has_a_row_and_members_that_pad():
    def record(fold):
        x = fold.add("leaf", 1.0)
        return [[fold.add("total", ragged([x])) for _ in range(8)]]

    tiler = tiler_for(record)
    own = tiler.own()
    assert own.phases[1] == PhaseSize(False, 10, 1, (1,), ((10,),))
    for tile in (7, 8, 9, 10, 12):
        for members in range(7, 14):
            size = own.phases[1]._replace(tile=tile, edges=((members,),))
            # Eight rows with a member each, and as much for each row that pads: there is at least one.
            fits = tile >= 9 and members >= tile
            assert tiler.fits(own._replace(phases=(own.phases[0], size))) is fits


def test_a_loop_fits_where_its_calls_have_no_member_and_where_one_of_its_ops_is_not_called():
    fold = Fold(backend="numpy")

    def record(lengths, ops="fg"):
        x = fold.add("leaf", 1.0)
        for op in ops:
            for length in lengths:
                x = fold.add(op, ragged([x] * length, row_shape=()))
        return [[x]]

    tiler_for(lambda fold: record([1, 1]) + record([1], "gf"), fold)
    tiler = tiler_for(lambda fold: record([1, 1], "f"), fold)
    assert tiler.form.phases[1].kernels == (0, 1) and tiler.fits(tiler.own())
    tiler = tiler_for(lambda fold: record([0], "f"), fold)
    own = tiler.own()
    least = own.phases[1]._replace(edges=((own.phases[1].tile - 1,), own.phases[1].edges[1]))
    assert tiler.fits(own._replace(phases=(own.phases[0], least)))


def test_a_result_that_is_asked_for_whole_has_no_rows_of_its_own():
    assert tiler_for(lambda fold: fold.add("table").no_batch()).groups == (0,)


def test_larger_sizes_hold_launches_outside_of_loops_whatever_their_rows():
    def sizes(once, tile):
        loop = PhaseSize(True, tile, 4, (4,), ((),))
        return Sizes((PhaseSize(False, once, 1, (1,), ((),)), loop), (), (2,))

    assert larger(sizes(8, 16), sizes(10, 16), pad=False) == sizes(10, 16)
    assert larger(sizes(10, 16), sizes(8, 16), pad=False) == sizes(10, 16)
    assert larger(sizes(8, 16), sizes(8, 32), pad=False) is None


class Sized:
    """A tiler whose own sizes cost so many rows, and which fits into those that cost at least as much."""

    form = "form"
    pad = True

    def __init__(self, rows):
        self.rows = rows

    def own(self, like):
        return given_rows(self.rows)

    def fits(self, sizes):
        return cost(sizes) >= self.rows


def given_rows(rows):
    return Sizes((), (rows,), (5000 - rows,))


def chosen(rows, *known):
    """Return what a program of that cost is given where sizes of other costs are known."""
    shelf = Shelf()
    shelf.known["form", True] = [given_rows(other) for other in known]
    return cost(shelf.choose(Sized(rows)))


@pytest.mark.parametrize("rows", [100, 1000])
def test_known_sizes_may_cost_twice_the_rows_of_a_program_and_512_more(rows):
    most = 2 * rows + 512
    assert [chosen(rows, known) for known in (most - 1, most, most + 1)] == [most - 1, most, rows]
    assert chosen(rows, most, most + 1) == most


def test_the_cheapest_of_the_known_sizes_that_fit_is_chosen():
    assert chosen(100, 300, 200, 50, 400) == 200 and chosen(100, 50, 90) == 100
    shelf = Shelf()
    shelf.known["form", True] = [Sizes((), given, (9,)) for given in ((1, 299), (150, 50))]
    assert shelf.choose(Sized(100)).given == (150, 50)


def test_grown_sizes_may_cost_as_much_as_known_ones():
    def grown(rows, other):
        shelf = Shelf()
        tiler = Sized(rows)
        shelf.known["form", True] = [Sizes((), (other,), (1,))]
        tiler.fits = lambda sizes: sizes.groups[0] > 1
        return cost(shelf.choose(tiler))

    assert [grown(100, other) for other in (711, 712, 713)] == [711, 712, 100]


# ---- what pads -----------------------------------------------------------------------------------


def test_padding_repeats_the_first_row_of_its_tile():
    column = np.array([5, 6, 7])
    rows = np.array([0, 1, 2, -1])
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


@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool])
def test_rows_that_only_pad_have_the_dtype_of_their_column(dtype):
    assert repeated(np.zeros(0, dtype), np.full(2, -1), 2).dtype == dtype


def test_a_row_that_does_not_pad_stays_whatever_its_number():
    assert repeated(np.array([5, 6, 7]), np.array([1, 0]), 2).tolist() == [6, 5]


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
    column = ragged_column([4, 5], [6])
    moved = np.arange(10, 20)
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


def test_members_that_pad_read_the_first_row_of_the_slab_where_no_call_has_a_member():
    assert tiled(ragged_column([], []), [0, 1, -1], 3, 4) == ([0] * 4, [2] * 4, [0, 0, 0, 4])


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


def test_a_tiled_program_has_the_rows_that_its_form_says():
    def record(fold):
        x = fold.add("f", ragged([fold.add("leaf", 1.0), 0.5]))
        return [[fold.add("f", ragged([x, 0.25]))]]

    tiler = tiler_for(record)
    made = tiler.tiled(tiler.own())
    assert [rows.tolist() for rows in made.given] == [[0.5, 0.25] + [0.5] * 6]
    assert [kernel.rows for kernel in made.form.kernels] == [32, 8]
    assert [len(columns[0].splits) - 1 for columns in made.columns[:1]] == [32]
    assert [source.rows for source in made.form.sources] == [8, 32, 8]


def test_a_ragged_operand_that_never_had_a_row_has_none_in_tiles():
    tiler = tiler_for(lambda fold: [[fold.add("total", ragged([], row_shape=(2,)))]])
    ((operand,),) = [kernel.operands for kernel in tiler.tiled(tiler.own()).form.kernels]
    assert (operand.reads, operand.edges) == (False, 0)


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
    small = tiler_of(1)
    large = tiler_of(*[1] * 9)
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


def test_a_tiled_program_is_listed_with_its_members():
    def record(fold):
        x = fold.add("leaf", 1.0)
        for op in "fgfg":
            x = fold.add(op, ragged([x]), ragged([x, x]))
        return [[x]]

    ragged_one = tiler_for(record)
    made = ragged_one.tiled(ragged_one.own())
    assert sizes_of(made.form)[:2] == [
        ("once leaf", "8 rows"),
        ("loop f, g", "4 tiles of 8 rows and 10 + 20 + 10 + 20 members"),
    ]
    assert str(made).splitlines() == [
        "tiled program of 2 phases",
        "  once  leaf: 1 launch, 8 rows",
        "  loop  f, g: 4 of 4 tiles of 8 rows",
    ]


def test_a_program_says_how_many_of_its_tiles_are_used():
    tiler = tiler_of(2, 1)
    made = tiler.tiled(tiler.own())
    assert str(made).splitlines()[2] == "  loop  f: 2 of 4 tiles of 8 rows"
    assert str(tiler.program).splitlines()[::2] == [
        "ragged program of 2 phases",
        "  loop  f: 2 launches, 3 rows",
    ]


def test_a_form_that_lacks_the_ops_of_the_one_before_has_other_ops():
    def form(names):
        return tiler_for(lambda fold: [[fold.add(name, 1.0) for name in names]]).form

    assert difference(form("a"), form("ab")) == "other ops"
