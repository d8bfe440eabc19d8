"""Calls taken out of columns of integers and put together: traces in a minibatch, the calls of a round."""

from __future__ import annotations

import numpy as np

from multifold._compiled.arrays import CALL_MASK, PART_BITS, Integers, ranges, starts

COLUMNS = ("signature", "refs", "ints", "lengths", "members", "needed", "levels", "pairs", "highest")
"""The columns of integers of a trace, in their order."""

KEPT = ("floats", "arrays", "loose")
"""What a trace keeps outside of its integers; these say how much it is."""

REFS, INTS, RAGGED = 0, 1, 4
"""Positions in `multifold._record.kinds.COLUMNS`."""


def merge(
    integers: Integers,
    signatures: Integers,
    signature_starts: Integers,
    parts: Integers,
    part_starts: Integers,
    signature_count: int,
    result_count: int,
) -> tuple[Integers, Integers, list[Integers]]:
    """Shift and rename the integers of traces, so that they are those of one graph.

    Parameters
    ----------
    integers : int64 array
        Of one trace after the other: the sizes of `COLUMNS`, of `KEPT` and of the results, and then
        the columns and the results.
    signatures, signature_starts : int64 arrays
        Signature ``n`` of trace ``t`` becomes ``signatures[signature_starts[t] + n]``.
    parts, part_starts : int64 arrays
        Likewise for parts of results.
    signature_count, result_count : int
        How many signatures there are in the end, and how many results each trace has.

    Returns
    -------
    calls : int64 array of shape ``(traces + 1,)``
        Where the calls of each trace begin, and where the last ones end.
    sizes : int64 array
        The sizes of all traces together.
    columns : list of int64 array
        `COLUMNS` and the results: ``highest`` has an entry for each signature in the end, all others
        have the entries of all traces, one after the other.
    """
    width = len(COLUMNS) + len(KEPT) + result_count
    stored = [n for n in range(width) if not len(COLUMNS) <= n < len(COLUMNS) + len(KEPT)]
    begins, at = [], 0
    for _ in signature_starts:  # the sizes of a trace say where the next trace begins
        begins.append(at)
        at += width + int(integers[at + np.array(stored)].sum())
    if at != len(integers):
        raise IndexError("A column of calls refers to what is not there.")
    sizes = integers[np.array(begins)[:, None] + np.arange(width)]
    held = np.zeros_like(sizes)
    held[:, stored] = sizes[:, stored]
    begin = np.array(begins)[:, None] + width + np.cumsum(held, axis=1) - held
    number = {name: n for n, name in enumerate((*COLUMNS, *KEPT))}
    calls, loose = starts(sizes[:, number["signature"]]), starts(sizes[:, number["loose"]])

    def named(local: Integers, counts: Integers) -> Integers:
        return signatures[local + np.repeat(signature_starts, counts)]

    def shifted(refs: Integers, counts: Integers) -> Integers:
        known = np.maximum(refs, 0)
        part = parts[(known >> PART_BITS) + np.repeat(part_starts, counts)]
        call = (known & CALL_MASK) + np.repeat(calls[:-1], counts)
        return np.where(refs < 0, refs - np.repeat(loose[:-1], counts), part << PART_BITS | call)

    columns = []
    for n in stored:
        column, counts = integers[ranges(begin[:, n], sizes[:, n])], sizes[:, n]
        if n == number["signature"]:
            column = named(column, counts)
        elif n == number["needed"]:
            column = column + np.repeat(calls[:-1], counts)
        elif n == number["pairs"]:  # the signature and the level of a source, then of a reader
            column[::2] = named(column[::2], counts // 2)
        elif n == number["highest"]:
            own = named(ranges(np.zeros(len(counts), np.int64), counts), counts)
            highest = np.zeros(signature_count, np.int64)
            np.maximum.at(highest, own, column)
            column = highest
        elif n in (number["refs"], number["members"]) or n >= len(number):
            column = shifted(column, counts)
        columns.append(column)
    totals = sizes.sum(axis=0)
    totals[number["highest"]] = signature_count
    return calls, totals, columns


def window(
    awaited: Integers,
    stamp: int,
    starts: Integers,
    refs: Integers,
    ints: Integers,
    lengths: Integers,
    members: Integers,
    member_starts: Integers,
    result: Integers,
    seen: Integers,
    number: Integers,
) -> tuple[Integers, ...]:
    """Cut the calls of one round out of all that were recorded, and number them from 0.

    Parameters
    ----------
    awaited : int64 array
        The calls whose values are wanted.
    stamp : int
        A number that no earlier round had.
    starts : int64 array of shape ``(calls + 1, 5)``
        Where the entries of each call begin in the columns of `multifold._record.kinds.COLUMNS`.
    refs, ints, lengths, members, member_starts : int64 arrays
        The operands of all calls.
    result : int64 array
        1 + the result of each call, 0 for calls that were not run.
    seen : int64 array
        The stamp of the last round that met each call; filled in.
    number : int64 array
        The number of each call in the last round that had it; filled in.

    Returns
    -------
    calls : int64 array
        The calls that are run, in the order of recording. Their numbers follow the ones of ``given``.
    given : int64 array
        The calls that these read, or that are awaited, and that earlier rounds computed.
    refs, ints, lengths, members : int64 arrays
        The operands of ``calls``; references have the numbers of the round.
    """

    def at(column: int, calls: Integers) -> Integers:
        return ranges(starts[calls, column], starts[calls + 1, column] - starts[calls, column])

    def rows_of(calls: Integers) -> Integers:
        own = at(RAGGED, calls)
        return members[ranges(member_starts[own], member_starts[own + 1] - member_starts[own])]

    def sources_of(calls: Integers) -> Integers:
        rows = rows_of(calls)
        return np.concatenate([refs[at(REFS, calls)], rows[rows >= 0]]) & CALL_MASK

    def renumbered(refs: Integers) -> Integers:
        return np.where(refs < 0, refs, refs & ~CALL_MASK | number[np.maximum(refs, 0) & CALL_MASK])

    waves = [np.zeros(0, np.int64)]
    wave = np.unique(awaited)
    wave = wave[result[wave] == 0]
    while len(wave):
        seen[wave] = stamp
        waves.append(wave)
        sources = sources_of(wave)
        wave = np.unique(sources[(result[sources] == 0) & (seen[sources] != stamp)])
    calls = np.sort(np.concatenate(waves))
    reads = np.concatenate([sources_of(calls), awaited])
    given = np.unique(reads[result[reads] > 0])
    seen[given] = stamp
    number[given] = np.arange(len(given))
    number[calls] = len(given) + np.arange(len(calls))
    columns = renumbered(refs[at(REFS, calls)]), ints[at(INTS, calls)], lengths[at(RAGGED, calls)]
    return calls, given, *columns, renumbered(rows_of(calls))


def distinct(values: Integers) -> tuple[Integers, Integers, Integers]:
    """Return the distinct ones of some integers, which of them each is, and how often each of them occurs.

    Examples
    --------
    >>> [column.tolist() for column in distinct(np.array([7, 2, 7]))]
    [[2, 7], [1, 0, 1], [1, 2]]
    """
    found, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    return found, number.reshape(-1), counts
