# cython: language_level=3, infer_types=True, boundscheck=True, wraparound=False, initializedcheck=False
# cython: cdivision=True
"""Plans over columns of integers: from calls to launches and the wiring between them, in one call.

`plan` schedules calls and wires their launches. It returns finished objects, an operand, a reading and the
wiring of a launch. The caller passes the functions that make these objects, and needs no second pass.

Wiring first orders the rows of each launch, from the last launch to the first (`RowOrder`): a call
whose row is read early comes early, so that what is read together mostly lies side by side. Then it
groups what is read into sections (`ReadSections`). A section is what one operand reads of one part of a
result. The parts of all results are numbered ``launch * parts + part``. The number after the last one
stands for the loose values, whose rows are their positions among them.

`multifold._engine.compiled.columns` says how this module is compiled, and how it runs where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from multifold._engine.compiled import columns
from multifold._engine.compiled._calls import ancestors, schedule
from multifold._engine.compiled.arrays import Integers

if TYPE_CHECKING:
    import cython
else:
    from multifold._engine.compiled.columns import cython

Makers = tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]
"""What make an operand, a reading and the wiring of a launch out of tuples
(`multifold._engine.plan.wiring`)."""

Wired = tuple[
    list[Any],
    list[Any],
    dict[int, list[Any]],
    list[tuple[int, int]],
    dict[int, list[int]],
    list[Integers],
]
"""What `wire` returns."""

Planned = tuple[Integers, Integers, int, float, Wired]
"""What `plan` returns: the calls by launch, where each launch begins, the fewest launches that there could
be, the time (`perf_counter`) at which scheduling ended, and the wiring."""

GATHERED, SLICE, WHOLE = range(3)
"""How a section is read: by a gather, as a range of rows that no other one overlaps, as the whole part."""


@cython.final
@cython.cclass
class RowOrder:
    """The rows of each launch in their order, and all that is read, by launch, operand and row."""

    calls: columns.Write  # launch i holds calls[bounds[i] : bounds[i + 1]]
    bounds: columns.Read
    numbers: columns.Write  # of each launch: its signature, and whether it has rows
    batched: columns.Write
    layout: columns.Write  # of each operand of all launches: its position among the references of a call
    layout_starts: columns.Write
    refs: columns.Read
    ref_starts: columns.Read
    members: columns.Read
    member_starts: columns.Read
    ragged_starts: columns.Read
    launch: columns.Write
    row: columns.Write
    heights: columns.Write  # the rows of all launches, those that ran before come first
    sizes: columns.Write  # the rows of each operand, and then of each group of outputs
    by_source: columns.Write  # 1 for operands of launches that are ordered by what they read
    reads: columns.Write  # what is read, by operand and row; what is known begins at `position`
    results: columns.Small  # the part of a result that each of these reads
    first_read: columns.Write  # of each call
    parts_read: columns.Write  # how many parts of each launch are read
    stamp: columns.Write  # the launch that looked at each launch last
    sources: columns.Write  # room for the launches that the operands of one launch are read from
    keys: columns.Write  # room to sort the rows of one launch
    values: columns.Write
    scratch: columns.Write
    seen: columns.Flags  # whether a part is read
    before: columns.Int
    launches: columns.Int
    parts: columns.Int
    position: columns.Int

    @cython.cfunc
    def take_launches(self, calls: columns.Write, bounds: columns.Read, parts: columns.Int) -> columns.Int:
        """Set the calls of the launches, where each launch begins, and how many parts a result may have."""
        self.calls = calls
        self.bounds = bounds
        self.parts = parts
        return 0

    @cython.cfunc
    def take_places(self, launch: columns.Write, row: columns.Write) -> columns.Int:
        """Set the columns for the launch and row of each call.

        Those of earlier launches are filled in already.
        """
        self.launch = launch
        self.row = row
        return 0

    @cython.cfunc
    def take_operands(
        self,
        refs: columns.Read,
        ref_starts: columns.Read,
        members: columns.Read,
        member_starts: columns.Read,
        ragged_starts: columns.Read,
    ) -> columns.Int:
        """Set the columns of what the calls read."""
        self.refs = refs
        self.ref_starts = ref_starts
        self.members = members
        self.member_starts = member_starts
        self.ragged_starts = ragged_starts
        return 0

    @cython.cfunc
    def look_up(
        self,
        signature: columns.Read,
        layouts: columns.Read,
        layout_starts: columns.Read,
        batched: columns.Read,
    ) -> columns.Int:
        """Set for each launch its signature, its operands, and whether it has a row for each call.

        The first call of a launch tells its signature.
        """
        count = len(self.bounds) - 1
        size: columns.Int = 0
        at: columns.Int = 0
        if count < 0 or len(layout_starts) != len(batched) + 1:
            columns.missing()
        room: columns.Write = columns.room(3 * count + 1)
        self.numbers = columns.part(room, 0, count)
        self.batched = columns.part(room, count, 2 * count)
        self.layout_starts = columns.part(room, 2 * count, 3 * count + 1)
        for index in range(count):
            if not 0 <= self.bounds[index] < len(self.calls):
                columns.missing()
            call = self.calls[self.bounds[index]]
            if not 0 <= call < len(signature) or not 0 <= signature[call] < len(batched):
                columns.missing()
            number = signature[call]
            self.numbers[index] = number
            self.batched[index] = batched[number]
            if not 0 <= layout_starts[number] <= layout_starts[number + 1] <= len(layouts):
                columns.missing()
            self.layout_starts[index] = size
            size += layout_starts[number + 1] - layout_starts[number]
        self.layout_starts[count] = size
        self.layout = columns.room(size)
        for index in range(count):
            number = self.numbers[index]
            for i in range(layout_starts[number], layout_starts[number + 1]):
                self.layout[at] = layouts[i]
                at += 1
        return 0

    @cython.cfunc
    def prepare(self, rows: list) -> columns.Int:
        """Check the bounds of all launches, write the launch of each call, and make room for what follows.

        Appends to `rows` how many rows each new launch has.
        """
        count = len(self.bounds) - 1
        longest: columns.Int = 0
        most: columns.Int = 0
        before = len(rows)
        self.before = before
        self.launches = before + count
        if self.parts < 0 or len(self.row) != len(self.launch):
            columns.missing()
        # ``launch * parts + part`` has to fit into the 32 bits of `results`, and so has the number after
        # the last one, for loose values. Both factors are compared first, so that the product can't wrap.
        if self.parts >= columns.MOST_SMALL or self.launches >= columns.MOST_SMALL:
            columns.missing()
        if self.launches * self.parts >= columns.MOST_SMALL - 1:
            columns.missing()
        if self.bounds[0] < 0 or self.bounds[count] > len(self.calls):
            columns.missing()
        heights: columns.Write = columns.room(self.launches)
        calls: columns.Write = self.calls
        launch: columns.Write = self.launch
        recorded = min(len(self.ref_starts) - 1, len(launch))
        for i in range(before):
            heights[i] = rows[i]
        for index in range(count):
            size = self.bounds[index + 1] - self.bounds[index]
            operands = self.layout_starts[index + 1] - self.layout_starts[index]
            if size < 0:
                columns.missing()
            longest = max(longest, size)
            most = max(most, size * operands)
            heights[before + index] = size if self.batched[index] else 1
            for i in range(self.bounds[index], self.bounds[index + 1]):
                call = calls[i]
                if not 0 <= call < recorded:
                    columns.missing()
                launch[call] = before + index
            if not self.batched[index]:  # its calls share a row
                for i in range(self.bounds[index], self.bounds[index + 1]):
                    self.row[calls[i]] = 0
        for index in range(count):
            rows.append(heights[before + index])
        for i in range(len(self.layout)):
            # A layout is added to where a call's references begin, and a sum of such numbers can't wrap.
            if not -columns.MOST_SMALL <= self.layout[i] < columns.MOST_SMALL:
                columns.missing()
        self.heights = heights
        # Few allocations, each cut into parts: NumPy takes as long to make a short array as a long one.
        noted: columns.Write = columns.zeros(count + self.launches)
        self.parts_read = columns.part(noted, 0, count)
        self.stamp = columns.part(noted, count, count + self.launches)
        room: columns.Write = columns.room(most + 4 * longest)
        self.sources = columns.part(room, 0, most)
        self.keys = columns.part(room, most, most + longest)
        self.values = columns.part(room, most + longest, most + 2 * longest)
        self.scratch = columns.part(room, most + 2 * longest, most + 4 * longest)
        self.seen = columns.flags(count * self.parts)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def count_reads(self, index: columns.Int) -> columns.Int:
        """Write how many rows each operand of launch `index` has; return their sum."""
        total: columns.Int = 0
        low = self.bounds[index]
        high = self.bounds[index + 1]
        starts: columns.Read = self.member_starts
        for slot in range(self.layout_starts[index], self.layout_starts[index + 1]):
            size = high - low
            if self.layout[slot] < 0:
                size = 0
                for i in range(low, high):
                    # The layout of ragged operand k is -1 - k.
                    at = self.ragged_starts[self.calls[i]] - 1 - self.layout[slot]
                    if not 0 <= at < len(starts) - 1:
                        columns.missing()
                    if not 0 <= starts[at] <= starts[at + 1] <= len(self.members):
                        columns.missing()
                    size += starts[at + 1] - starts[at]
            self.sizes[slot] = size
            total += size
        return total

    # `prepare` found that all calls are there, and `count_reads` how much they read, which the loops below
    # rely on. Each reference is checked on its own.

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    def note(self, at: columns.Int, ref: columns.Int, launches: columns.Int) -> columns.Int:
        """Note that launch `launches` reads `ref`, at position `at`; it reads earlier launches only.

        Raises IndexError for a later launch, or a call or part that is not there. Positions are noted from
        the last one to the first, so that the first read of a call wins.
        """
        self.reads[at] = ref
        if ref < 0:  # a loose value
            result = self.launches * self.parts
        else:
            call = ref & columns.CALL_MASK
            part = ref >> columns.PART_BITS
            if call >= len(self.launch) or part >= self.parts:
                columns.missing()
            own = self.launch[call]
            if not 0 <= own < launches:
                columns.missing()
            self.first_read[call] = at
            result = own * self.parts + part
            if own < self.before:
                if not 0 <= self.row[call] < self.heights[own]:
                    columns.missing()
            elif not self.seen[result - self.before * self.parts]:
                self.seen[result - self.before * self.parts] = 1
                self.parts_read[own - self.before] += 1
        self.results[at] = result
        return 0

    @cython.cfunc
    @cython.boundscheck(False)
    def write_reads(self, index: columns.Int) -> columns.Int:
        """Note all that launch `index` reads, in the positions before those that are noted already."""
        at = self.position
        low = self.bounds[index]
        high = self.bounds[index + 1]
        limit = self.before + index
        ref_count = len(self.refs)
        refs: columns.Read = self.refs
        ref_starts: columns.Read = self.ref_starts
        calls: columns.Write = self.calls
        # What `note` does is written out here for references, of which there are most: a call of it takes
        # longer than all that it does where this is not compiled.
        mask = columns.CALL_MASK
        bits = columns.PART_BITS
        parts = self.parts
        before = self.before
        first = before * parts
        recorded = len(self.launch)
        launch: columns.Write = self.launch
        reads: columns.Write = self.reads
        results: columns.Small = self.results
        first_read: columns.Write = self.first_read
        seen: columns.Flags = self.seen
        for slot in range(self.layout_starts[index + 1] - 1, self.layout_starts[index] - 1, -1):
            position = self.layout[slot]
            if position < 0:
                for i in range(high - 1, low - 1, -1):
                    j = self.ragged_starts[calls[i]] - 1 - position
                    for k in range(self.member_starts[j + 1] - 1, self.member_starts[j] - 1, -1):
                        at -= 1
                        self.note(at, self.members[k], limit)
                continue
            for i in range(high - 1, low - 1, -1):
                j = ref_starts[calls[i]] + position
                if not 0 <= j < ref_count:
                    columns.missing()
                ref = refs[j]
                at -= 1
                call = ref & mask
                if ref < 0 or call >= recorded:
                    self.note(at, ref, limit)
                    continue
                own = launch[call]
                # The row of an earlier launch comes from outside, and `note` checks it.
                if own < before:
                    self.note(at, ref, limit)
                    continue
                part = ref >> bits
                if own >= limit or part >= parts:
                    columns.missing()
                reads[at] = ref
                first_read[call] = at
                result = own * parts + part
                results[at] = result
                if not seen[result - first]:
                    seen[result - first] = 1
                    self.parts_read[own - self.before] += 1
        self.position = at
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def columns_of_sources(self, index: columns.Int, count: columns.Int) -> columns.Int:
        """Write for each operand the launch that each row is read from; return how many columns that are.

        They go to `sources`, and each has `count` entries, one for each row of launch `index`. Left out is
        an operand that is read from one launch, or that repeats the operand before. 0 with ragged operands,
        or where no more operands are read from several launches than the launch has parts that are read.
        """
        mixed: columns.Int = 0
        kept: columns.Int = 0
        begin = self.bounds[index]
        low = self.layout_starts[index]
        high = self.layout_starts[index + 1]
        refs: columns.Read = self.refs
        ref_starts: columns.Read = self.ref_starts
        sources: columns.Write = self.sources
        launch: columns.Write = self.launch
        calls: columns.Write = self.calls
        mask = columns.CALL_MASK
        # Rows that are ordered by what they read save the permutations of operands that are read from
        # several launches. Rows that are ordered by their readers are read as slices, which saves a gather
        # for each part. So there have to be more such operands than parts.
        if high - low <= self.parts_read[index]:
            return 0
        for slot in range(low, high):
            position = self.layout[slot]
            # A row of a ragged operand has any number of sources, which make no column of a fixed height.
            if position < 0:
                return 0
            at = kept * count
            for i in range(count):
                # What is not there is refused by `write_reads`, or because it is out of bounds.
                sources[at + i] = launch[refs[ref_starts[calls[begin + i]] + position] & mask]
            if columns.varies(sources, at, count):
                mixed += 1
                if not kept or columns.differs(sources, at - count, at, count):
                    kept += 1
        return kept if mixed > self.parts_read[index] else 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def key_by_source(self, index: columns.Int, count: columns.Int) -> columns.Int:
        """Write a key for each of `count` rows of a launch to `keys`: equal for rows of equal sources.

        A source is the launch that an operand reads (`columns_of_sources`). Returns how many distinct
        launches these are; 0 where rows should stay in the order in which they are read, or keys would be
        too large.
        """
        wide = self.columns_of_sources(index, count)
        if not wide:
            return 0
        sources: columns.Write = self.sources
        low = columns.lowest(sources, wide * count)
        high = columns.highest(sources, wide * count)
        distinct = columns.count_distinct(sources, wide * count, self.stamp, index + 1)
        span = high - low + 1
        # A key holds one digit for each column, in base `span`. If all of them do not fit into 62 bits, the
        # order of the readers stays.
        left: columns.Int = columns.MOST_CODES
        for _ in range(wide):
            left //= span
        if not left:
            return 0
        keys: columns.Write = self.keys
        for i in range(count):
            keys[i] = sources[i] - low
        for column in range(1, wide):
            at = column * count
            for i in range(count):
                keys[i] = keys[i] * span + sources[at + i] - low
        return distinct

    @cython.cfunc
    @cython.boundscheck(False)
    def order_launch(self, index: columns.Int) -> columns.Int:
        """Sort the calls of launch `index` into the order of their rows, and write the row of each.

        They are sorted by the first read of each, or by what they read where that saves more.
        """
        begin = self.bounds[index]
        count = self.bounds[index + 1] - begin
        stretches: columns.Int = 1
        keys: columns.Write = self.keys
        values: columns.Write = self.values
        calls: columns.Write = self.calls
        first_read: columns.Write = self.first_read
        row: columns.Write = self.row
        # This sort and the one by source below are stable: among rows of one source, those that are read
        # first stay first.
        columns.sort_by(calls, begin, count, first_read, keys, values, self.scratch)
        distinct = self.key_by_source(index, count)
        if distinct:
            columns.copy(values, 0, calls, begin, count)
            columns.sort(keys, values, self.scratch, count)
            for i in range(1, count):
                if keys[i] != keys[i - 1]:
                    stretches += 1
            # Each stretch becomes a section, which costs a slice and a place in a concatenation. Where rows
            # change their sources more often, one permutation of the operand costs less.
            if stretches <= 4 * distinct:
                columns.copy(calls, begin, values, 0, count)
                for slot in range(self.layout_starts[index], self.layout_starts[index + 1]):
                    self.by_source[slot] = 1
        for i in range(count):
            row[calls[begin + i]] = i
        return 0

    @cython.cfunc
    def run(self, asked: columns.Read, groups: columns.Read, rows: list) -> columns.Int:
        """Order the rows of all launches, from the last to the first, and note all that is read.

        `asked` has the references of the outputs, `groups` how many each output has, and `rows` gets those
        of each new launch.
        """
        operands = len(self.layout)
        total: columns.Int = len(asked)
        of_groups: columns.Int = 0
        of_operands: columns.Write = columns.zeros(2 * (operands + len(groups)))
        self.sizes = columns.part(of_operands, 0, operands + len(groups))
        self.by_source = columns.part(of_operands, operands + len(groups), 2 * (operands + len(groups)))
        for i in range(len(groups)):
            if not 0 <= groups[i] <= len(asked) - of_groups:
                columns.missing()
            self.sizes[operands + i] = groups[i]
            of_groups += groups[i]
        if of_groups != len(asked):
            columns.missing()
        self.prepare(rows)
        for index in range(len(self.bounds) - 1):
            total += self.count_reads(index)
        if total >= columns.MOST_SMALL:
            columns.missing()
        self.reads = columns.room(total)
        self.results = columns.small(total)
        self.first_read = columns.filled(len(self.launch), total)  # what is read by none comes last
        self.position = total - len(asked)
        for i in range(len(asked) - 1, -1, -1):
            self.note(self.position + i, asked[i], self.launches)
        # The order of a launch follows from its readers, which are all in later launches or outputs.
        for index in range(len(self.bounds) - 2, -1, -1):
            if self.batched[index]:
                self.order_launch(index)
            self.write_reads(index)
        return 0


@cython.final
@cython.cclass
class ReadSections:
    """What operands read of results: sections, ordered by (part of a result, first read).

    Three calls of one launch have the rows 0, 1 and 2. An operand reads calls 2 and 0, the next one reads
    call 1. Then the first section is gathered (rows 2 and 0), and the second is a slice that begins at
    row 1.
    """

    count: columns.Int
    result: columns.Write  # what a section is read from, and the operand that it belongs to
    owner: columns.Write
    begin: columns.Write  # the rows of section i are rows[begin[i] : begin[i] + size[i]]
    size: columns.Write
    first: columns.Write  # the first of those rows
    how: columns.Write  # GATHERED, SLICE or WHOLE
    by_operand: columns.Write  # the sections in the order of concatenation, one operand after the other
    rows: columns.Write  # in the parts that they are read from
    position: columns.Write  # where each read of an operand that is permuted is in the concatenation
    moved: columns.Write  # 1 for operands whose rows have to be permuted after their concatenation
    end: columns.Int  # of what is written to the index arrays

    @cython.cfunc
    @cython.boundscheck(False)  # all columns of reads are of one length, and `note` found all calls
    def group(self, it: RowOrder) -> columns.Int:
        """Make the sections from all that `it` has noted, and choose how each is read."""
        count = len(it.reads)
        operands = len(it.sizes)
        mask = columns.CALL_MASK
        end: columns.Int = 0
        small: columns.Small = columns.small(2 * count)
        operand: columns.Small = columns.small_part(small, 0, count)
        order: columns.Small = columns.small_part(small, count, 2 * count)
        for i in range(operands):
            columns.fill(operand, end, end + it.sizes[i], i)
            end += it.sizes[i]
        results: columns.Small = it.results
        columns.order_by(results, order, it.launches * it.parts + 1)
        room: columns.Write = columns.room(9 * count)
        self.result = columns.part(room, 0, count)
        self.owner = columns.part(room, count, 2 * count)
        self.begin = columns.part(room, 2 * count, 3 * count)
        self.size = columns.part(room, 3 * count, 4 * count)
        self.first = columns.part(room, 4 * count, 5 * count)
        self.how = columns.part(room, 5 * count, 6 * count)
        self.by_operand = columns.part(room, 6 * count, 7 * count)
        self.rows = columns.part(room, 7 * count, 8 * count)
        self.position = columns.part(room, 8 * count, 9 * count)
        self.moved = columns.zeros(operands)
        reads: columns.Write = it.reads
        row: columns.Write = it.row
        by_source: columns.Write = it.by_source
        begin: columns.Write = self.begin
        rows: columns.Write = self.rows
        follows: columns.Write = self.how  # at first: whether the rows of a section follow each other
        last: columns.Int = -2
        last_result: columns.Int = -1
        last_operand: columns.Int = -1
        last_row: columns.Int = 0
        found: columns.Int = 0
        place: columns.Int
        read: columns.Int
        for place, read in enumerate(order):
            ref = reads[read]
            at = row[ref & mask] if ref >= 0 else -1 - ref
            rows[place] = at
            if (
                results[read] != last_result
                or operand[read] != last_operand
                # Rows that are ordered by source lie in stretches. A section for each keeps its place in
                # the concatenation, so that nothing has to be permuted.
                or (read != last + 1 and by_source[last_operand])
            ):
                last_result = results[read]
                last_operand = operand[read]
                self.result[found] = last_result
                self.owner[found] = last_operand
                self.first[found] = at
                begin[found] = place
                follows[found] = 1
                found += 1
            elif at != last_row + 1:
                follows[found - 1] = 0
            last = read
            last_row = at
        self.count = found
        for i in range(found - 1):
            self.size[i] = begin[i + 1] - begin[i]
        if found:
            self.size[found - 1] = count - begin[found - 1]
        # Sections of an operand are concatenated by their first reads: rows in stretches stay in place.
        by_operand: columns.Write = self.by_operand
        more: columns.Write = columns.room(3 * found)
        firsts: columns.Write = columns.part(more, 0, found)
        scratch: columns.Write = columns.part(more, found, 3 * found)
        for i in range(found):
            by_operand[i] = i
            firsts[i] = order[begin[i]]
        columns.sort(firsts, by_operand, scratch, found)
        end = 0
        for i in range(found):
            s = by_operand[i]
            # The reads of a section ascend. So if the first and the last one stay, then all of them do.
            if firsts[i] != end or order[begin[s] + self.size[s] - 1] != end + self.size[s] - 1:
                self.moved[self.owner[s]] = 1
            end += self.size[s]
        self.sort_sections(order)
        self.choose(it)
        self.copy(it)
        return 0

    @cython.cfunc
    @cython.boundscheck(False)
    def sort_sections(self, order: columns.Small) -> columns.Int:
        """Sort the rows of each section whose operand is permuted anyway, and write where its reads go.

        Rows that follow each other when they are sorted are a slice, which needs no gather.
        """
        rows: columns.Write = self.rows
        position: columns.Write = self.position
        place: columns.Int = 0
        longest: columns.Int = 0
        for i in range(self.count):
            if self.moved[self.owner[i]] and self.size[i] > longest:
                longest = self.size[i]
        if not longest:
            return 0
        room: columns.Write = columns.room(4 * longest)
        keys: columns.Write = columns.part(room, 0, longest)
        values: columns.Write = columns.part(room, longest, 2 * longest)
        scratch: columns.Write = columns.part(room, 2 * longest, 4 * longest)
        for i in range(self.count):
            s = self.by_operand[i]
            size = self.size[s]
            if self.moved[self.owner[s]]:
                begin = self.begin[s]
                for j in range(size):
                    keys[j] = rows[begin + j]
                    values[j] = order[begin + j]
                columns.sort(keys, values, scratch, size)
                for j in range(size):
                    rows[begin + j] = keys[j]
                    position[values[j]] = place + j
                self.first[s] = keys[0]
                self.how[s] = 1
                for j in range(1, size):
                    if keys[j] != keys[j - 1] + 1:
                        self.how[s] = 0
            place += size
        return 0

    @cython.cfunc
    def choose(self, it: RowOrder) -> columns.Int:
        """Write for each section whether it is read whole, as a slice, or by a gather.

        A result is split once, and each row goes into one piece. So of ranges that overlap, the first one
        is a slice, and the others are gathered.
        """
        gathered: columns.Int = GATHERED
        of_slice: columns.Int = SLICE
        whole: columns.Int = WHOLE
        parts = it.parts
        heights: columns.Write = it.heights
        longest: columns.Int = 0
        for i in range(len(heights)):
            longest = max(longest, heights[i])
        taken: columns.Write = columns.zeros(longest)  # 1 + the result that was sliced at a row last
        for s in range(self.count):
            own = self.result[s]
            solid = self.how[s]
            self.how[s] = gathered
            if not solid or own == len(heights) * parts:
                continue
            low = self.first[s]
            high = low + self.size[s]
            if self.size[s] == heights[own // parts]:
                self.how[s] = whole
            elif not columns.has(taken, low, high, own + 1):
                self.how[s] = of_slice
                columns.fill(taken, low, high, own + 1)
        return 0

    @cython.cfunc
    def copy(self, it: RowOrder) -> columns.Int:
        """Let a gather, which copies, replace the whole reading of a part where readers must not share it.

        Where one row stands for several calls, as the zeros do that a recurrent net begins with, each
        reader but the first gets a copy of its own: an op may write to its operand. So does each output but
        the first, since the caller may write to it.
        """
        met: columns.Int = -1
        for s in range(self.count):
            if self.how[s] != WHOLE:
                continue
            own = self.result[s] // it.parts
            solo = it.heights[own] == 1 and (own < it.before or not it.batched[own - it.before])
            if not solo and self.owner[s] < len(it.layout):
                continue
            # Sections are ordered by what they read, and then by their first read: so the first reader of a
            # part comes first, and keeps the array.
            if self.result[s] == met:
                self.how[s] = GATHERED
            met = self.result[s]
        return 0

    @cython.cfunc
    def size_of_indices(self, it: RowOrder) -> columns.Int:
        """Return how many integers all index arrays, of permutations and of gathers, have together."""
        size: columns.Int = 0
        for i in range(len(self.moved)):
            if self.moved[i]:
                size += it.sizes[i]
        for i in range(self.count):
            if self.how[i] == GATHERED and self.result[i] < len(it.heights) * it.parts:
                size += self.size[i]
        return size

    @cython.cfunc
    def operands(self, it: RowOrder, make: Any, made: Any, write: columns.Write, indices: list) -> list:
        """Make all operands by `make((size, sections, permute))`, in order, and write the permutations.

        `permute` is a position in `indices`, None for an operand that needs none. Arrays, parts of `made`,
        are appended to `indices`.
        """
        at: columns.Int = 0
        begin: columns.Int = 0
        end: columns.Int = 0
        found = []
        for own in range(len(self.moved)):
            size = it.sizes[own]
            sections = []
            permute = None
            while at < self.count and self.owner[self.by_operand[at]] == own:
                sections.append(self.by_operand[at])
                at += 1
            if self.moved[own]:  # rows lie so that few operands are left to permute
                permute = len(indices)
                indices.append(made[end : end + size])
                for i in range(begin, begin + size):
                    write[end] = self.position[i] - begin
                    end += 1
            begin += size
            found.append(make((size, tuple(sections), permute)))
        self.end = end
        return found

    @cython.cfunc
    def readings(self, it: RowOrder, make: Any, made: Any, write: columns.Write, indices: list) -> tuple:
        """Return the source of each section, how results are read, and the loose values; write the gathers.

        A source is (launch, part). The second maps a launch to what `make` has made for each part of it
        that is read, and the third a section to its loose values. Arrays are appended to `indices`.
        """
        low: columns.Int = 0
        parts = it.parts
        sources = []
        found: dict = {}
        loose: dict = {}
        while low < self.count and self.result[low] < len(it.heights) * parts:
            own = self.result[low]
            high = low
            end = self.end
            source = (own // parts, own % parts)
            while high < self.count and self.result[high] == own:
                if self.how[high] == GATHERED:
                    for i in range(self.begin[high], self.begin[high] + self.size[high]):
                        write[self.end] = self.rows[i]
                        self.end += 1
                sources.append(source)
                high += 1
            gather = None
            if self.end > end:
                gather = len(indices)
                indices.append(made[end : self.end])
            read = self.reading(low, high, it.heights[own // parts])
            found.setdefault(source[0], []).append(make((source[1], *read, gather)))
            low = high
        for s in range(low, self.count):  # of loose values, which are in no result
            sources.append((-1, 0))
            loose[s] = [self.rows[i] for i in range(self.begin[s], self.begin[s] + self.size[s])]
        return sources, found, loose

    @cython.cfunc
    def reading(self, low: columns.Int, high: columns.Int, height: columns.Int) -> tuple:
        """Return how the sections ``low`` to ``high - 1``, of one part of a result, are read.

        That is: those that are the whole part, the sizes of its pieces, the section that each piece is
        (None for one that is not read so), the sizes of the gathered sections, and these sections.
        """
        of_slice: columns.Int = SLICE
        all_of: columns.Int = WHOLE
        slices = []
        whole = []
        sizes = []
        numbers: list = []
        gathered_sizes = []
        gathered = []
        for s in range(low, high):
            if self.how[s] == all_of:
                whole.append(s)
            elif self.how[s] == of_slice:
                slices.append((self.first[s], s))
            else:
                gathered_sizes.append(self.size[s])
                gathered.append(s)
        end: columns.Int = 0
        slices.sort()
        begin: columns.Int
        number: columns.Int
        for begin, number in slices:
            if begin > end:  # rows that are read otherwise
                sizes.append(begin - end)
                numbers.append(None)
            sizes.append(self.size[number])
            numbers.append(number)
            end = begin + self.size[number]
        if slices and end < height:
            sizes.append(height - end)
            numbers.append(None)
        return tuple(whole), tuple(sizes), tuple(numbers), tuple(gathered_sizes), tuple(gathered)

    @cython.cfunc
    def last_reads(self, it: RowOrder) -> list:
        """Return for each result the new launch, from 0, that reads it last; -1 for none.

        The number of launches stands for outputs, which are read after all of them.
        """
        index: columns.Int = 0
        count = len(it.bounds) - 1
        last = [-1] * len(it.heights)
        for i in range(self.count):  # by operand, and these by launch
            s = self.by_operand[i]
            # Operands are numbered launch after launch. Those of outputs come last, with `index` at
            # `count`, so that no launch is the last one to read their results.
            while index < count and self.owner[s] >= it.layout_starts[index + 1]:
                index += 1
            if self.result[s] < len(it.heights) * it.parts:
                last[self.result[s] // it.parts] = index
        return last


@cython.cfunc
def calls_of(asked: columns.Read) -> Any:
    """Return the call of each reference, in order; loose values, which have none, are left out."""
    count: columns.Int = 0
    found = columns.array(len(asked))
    write: columns.Write = columns.fresh(found)
    for i in range(len(asked)):
        if asked[i] >= 0:  # no loose value
            write[count] = asked[i] & columns.CALL_MASK
            count += 1
    columns.closed(found, write)
    return found[:count]


def plan(
    pending: Integers | None,
    refs: Integers,
    ref_starts: Integers,
    members: Integers,
    member_starts: Integers,
    ragged_starts: Integers,
    asked: Integers,
    groups: Integers,
    signature: Integers,
    *wiring: Any,
) -> Planned | tuple[Integers, ...]:
    """Schedule calls and wire their launches; the type of a call is its signature.

    Parameters
    ----------
    pending : int64 array or None
        The calls to be run; None for those that ``asked`` needs.
    refs, ref_starts, members, member_starts, ragged_starts, asked, groups, signature, *wiring
        What `wire` takes after its launches.

    Returns
    -------
    `Planned`. Where types read each other in a circle, a policy has to choose the launches: then a tuple of
    the pending calls and the six values that `schedule` returns.
    """
    # Three functions read these columns, so as Python they become lists only once.
    refs = columns.kept(refs)
    ref_starts = columns.kept(ref_starts)
    signature = columns.kept(signature)
    reads = refs, ref_starts, members, member_starts, ragged_starts
    if pending is None:
        pending = ancestors(calls_of(columns.opened(asked)), *reads)
    found = schedule(signature, pending, *reads)
    # `schedule` returns three values, or six where it found types in a circle.
    if len(found) != 3:
        return pending, *found
    scheduled = perf_counter()
    calls, bounds, least = found
    return calls, bounds, least, scheduled, wire(calls, bounds, *reads, asked, groups, signature, *wiring)


def wire(
    calls: columns.Read,
    bounds: columns.Read,
    refs: columns.Read,
    ref_starts: columns.Read,
    members: columns.Read,
    member_starts: columns.Read,
    ragged_starts: columns.Read,
    asked: columns.Read,
    groups: columns.Read,
    signature: columns.Read,
    layouts: columns.Read,
    layout_starts: columns.Read,
    batched: columns.Read,
    others: columns.Read,
    launch: columns.Write,
    row: columns.Write,
    rows: list,
    parts: columns.Int,
    keeps: columns.Bool,
    makers: tuple,
    slots_of: Any,
) -> tuple:
    """Order the rows of each launch, and find how results become operands: by which splits and gathers.

    Parameters
    ----------
    calls, bounds : int64 arrays
        Launch ``i`` holds ``calls[bounds[i] : bounds[i + 1]]``.
    refs, ref_starts, members, member_starts, ragged_starts : int64 arrays
        Call ``i`` has the references ``refs[ref_starts[i] : ref_starts[i + 1]]`` and the ragged operands
        ``ragged_starts[i]`` to ``ragged_starts[i + 1] - 1``, and ragged operand ``j`` the rows
        ``members[member_starts[j] : member_starts[j + 1]]``. A reference is ``part << 40 | call``.
    asked, groups : int64 arrays
        What the outputs read, one group after the other, and how many rows each group has.
    signature : int64 array
        The signature's number of each call.
    layouts, layout_starts, batched, others : int64 arrays
        A launch of signature ``i`` has the operands ``layouts[layout_starts[i] : layout_starts[i + 1]]``.
        Each is a position among the references of a call, or -1 - the position among its ragged operands.
        The launch has a row for each call if ``batched[i]`` is not 0, else one row. If ``others[i]`` is not
        0, the op receives more than these operands.
    launch, row : int64 arrays
        The launch and the row of each call; filled in here.
    rows : list of int
        How many rows each launch has that ran before; `wire` appends how many each new launch has.
    parts : int
        How many parts a result may have.
    keeps : bool
        Whether all results stay, so that no launch is the last one that reads a result.
    makers : Makers
        What is called for each operand, reading and launch.
    slots_of : callable
        Returns all that the op of a launch with ``others`` receives, from the number of its signature, its
        calls in the order of their rows, its operands and ``launch``; and the launches whose results it
        reads whole.

    Returns
    -------
    launches : list
        The wiring of each launch.
    outputs : list
        The operand that each group of the outputs is.
    given : dict of int to list
        How the results of launches that ran before are read.
    sources : list of (int, int)
        What each section is read from, (launch, part); launch -1 stands for loose values.
    loose : dict of int to list of int
        Sections that are made of loose values, and which values these are.
    indices : list of int64 array
        The index arrays, which compiled code lays out in one piece of memory.
    """
    it = RowOrder()
    ordered = columns.array(len(calls))
    it.take_launches(columns.copied(ordered, calls), columns.opened(bounds), parts)
    it.take_places(columns.writable(launch), columns.writable(row))
    it.take_operands(
        columns.opened(refs),
        columns.opened(ref_starts),
        columns.opened(members),
        columns.opened(member_starts),
        columns.opened(ragged_starts),
    )
    sections = ReadSections()
    try:
        it.look_up(
            columns.opened(signature),
            columns.opened(layouts),
            columns.opened(layout_starts),
            columns.opened(batched),
        )
        it.run(columns.opened(asked), columns.opened(groups), rows)
        sections.group(it)
    except IndexError:  # of Python or C, about some index; callers are told that the columns are damaged
        columns.missing()
    columns.closed(ordered, it.calls)
    columns.closed(launch, it.launch)
    columns.closed(row, it.row)
    own_others: columns.Read = columns.opened(others)
    return wired(it, sections, own_others, keeps, makers, slots_of, ordered, np.asarray(launch))


@cython.cfunc
def wired(
    it: RowOrder,
    sections: ReadSections,
    others: columns.Read,
    keeps: columns.Bool,
    makers: tuple,
    slots_of: Any,
    calls: Any,
    launch: Any,
) -> tuple:
    """Make all that `wire` returns, from the rows in their order and the sections that were found."""
    count = len(it.bounds) - 1
    indices: list = []
    made = columns.array(sections.size_of_indices(it))
    write: columns.Write = columns.fresh(made)
    operands = sections.operands(it, makers[0], made, write, indices)
    sources, readings, loose = sections.readings(it, makers[1], made, write, indices)
    columns.closed(made, write)
    last = sections.last_reads(it)
    known = []
    for index in range(count):
        number = it.numbers[index]
        mine = calls[it.bounds[index] : it.bounds[index + 1]]
        own = operands[it.layout_starts[index] : it.layout_starts[index + 1]]
        slots = own
        if others[number]:
            slots, whole = slots_of(number, mine, own, launch)
            one: columns.Int
            for one in whole:
                if not 0 <= one < it.before + index:
                    columns.missing()
                # What an op reads whole is in no section, so `last_reads` does not know of it.
                last[one] = max(last[one], index)
        known.append((number, mine, slots, own))
    ended: dict = {}
    if not keeps:
        for number, index in enumerate(last):
            ended.setdefault(index, []).append(number)
    launches = []
    for index in range(count):
        number = it.before + index
        launches.append(makers[2]((number, *known[index], readings.pop(number, ()), ended.get(index, ()))))
    return launches, operands[len(it.layout) :], readings, sources, loose, indices
