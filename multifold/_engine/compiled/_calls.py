# cython: language_level=3, infer_types=True, boundscheck=True, wraparound=False, initializedcheck=False
"""Scheduling over columns of integers: which calls are needed, what they read, and the launch of each.

Columns hold the operands of all calls, one call after the other. Call ``i`` has the references
``refs[ref_starts[i] : ref_starts[i + 1]]``; its ragged operands are numbered ``ragged_starts[i]`` to
``ragged_starts[i + 1]``, and ragged operand ``j`` has the rows ``members[member_starts[j] :
member_starts[j + 1]]``. A row below 0 is a loose value, which no call computes. Where there are no
members, the last three columns are not looked at.

`multifold._engine.compiled.columns` says how this module is compiled, and how it runs where it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from multifold._engine.compiled import columns
from multifold._engine.compiled.arrays import strong_components, unique_pairs

if TYPE_CHECKING:
    import cython
else:
    from multifold._engine.compiled.columns import cython

COUNTERS = 64
"""Types on one cycle beyond which calls are counted by depth along the cycle, not type by type.

Type by type gives the better bound, and takes a pass over the edges of the cycle for each type.
"""


def ancestors(
    outputs: columns.Read,
    refs: columns.Read,
    ref_starts: columns.Read,
    members: columns.Read,
    member_starts: columns.Read,
    ragged_starts: columns.Read,
) -> Any:
    """Return the calls that the outputs need, themselves included, in the order of recording.

    Parameters
    ----------
    outputs : int64 array
        Calls whose values are wanted.
    refs, ref_starts, members, member_starts, ragged_starts : int64 arrays
        Call ``i`` has the references ``refs[ref_starts[i] : ref_starts[i + 1]]`` and the ragged operands
        ``ragged_starts[i]`` to ``ragged_starts[i + 1] - 1``, and ragged operand ``j`` the rows
        ``members[member_starts[j] : member_starts[j + 1]]``. A reference is ``part << 40 | call``.

    Examples
    --------
    Call 2 reads call 0, and no call reads call 1.

    >>> none = np.zeros(0, np.int64)
    >>> ancestors(np.array([2]), np.array([0]), np.array([0, 0, 0, 1]), none, none, none)
    array([0, 2])
    """
    found = np.zeros(max(len(ref_starts) - 1, 0), np.bool_)
    wanted: columns.Flags = columns.marks(found)
    own_refs: columns.Read = columns.opened(refs)
    own_members: columns.Read = columns.opened(members)
    mark_all(wanted, columns.opened(outputs), own_refs, own_members)
    if columns.all_marked(wanted):  # each call has a reader or is an output, so each path ends at an output
        return np.arange(len(wanted))
    mark_ancestors(
        wanted,
        columns.opened(outputs),
        own_refs,
        columns.opened(ref_starts),
        own_members,
        columns.opened(member_starts),
        columns.opened(ragged_starts),
    )
    columns.marked(found, wanted)
    return found.nonzero()[0]  # `np.flatnonzero` calls this method through several functions


@cython.cfunc
def mark_all(
    wanted: columns.Flags, outputs: columns.Read, refs: columns.Read, members: columns.Read
) -> columns.Int:
    """Set the flags of all outputs and of all calls that others read, whether these are needed or not.

    Raises IndexError for an output or a reference to a call that is not there.
    """
    mask = columns.CALL_MASK
    calls = len(wanted)
    ref: columns.Int
    for ref in refs:
        # The mask leaves nothing negative, so one comparison refuses any damaged reference.
        source = ref & mask
        if source >= calls:
            columns.missing()
        wanted[source] = 1
    for ref in members:
        source = ref & mask
        if ref < 0:  # a loose value
            continue
        if source >= calls:
            columns.missing()
        wanted[source] = 1
    for ref in outputs:
        if not 0 <= ref < calls:
            columns.missing()
        wanted[ref] = 1
    return 0


# Here and in `write_edges` each index is compared with its array by hand, once: a call's entries of a
# column are looked up by where they begin and end, and each source of a call must come before it.


@cython.cfunc
@cython.boundscheck(False)
def mark_ancestors(
    wanted: columns.Flags,
    outputs: columns.Read,
    refs: columns.Read,
    ref_starts: columns.Read,
    members: columns.Read,
    member_starts: columns.Read,
    ragged_starts: columns.Read,
) -> columns.Int:
    """Set the flags of the calls that `outputs` need, themselves included, and clear all others."""
    calls = len(wanted)
    ref_count = len(refs)
    mask = columns.CALL_MASK
    ragged = len(members) > 0
    # `mark_all` has marked too many calls, but has refused outputs that are not there.
    for call in range(calls):
        wanted[call] = 0
    for i in range(len(outputs)):
        wanted[outputs[i]] = 1
    for call in range(calls - 1, -1, -1):  # all readers of a call come before it
        if not wanted[call]:
            continue
        low = ref_starts[call]
        high = ref_starts[call + 1]
        if low < 0 or high > ref_count:
            columns.missing()
        for i in range(low, high):
            source = refs[i] & mask
            if source >= call:
                columns.missing()
            wanted[source] = 1
        if not ragged:
            continue
        low = rows_begin(call, member_starts, ragged_starts)
        high = rows_begin(call + 1, member_starts, ragged_starts)
        if low < 0 or high > len(members):
            columns.missing()
        for i in range(low, high):
            source = -1 if members[i] < 0 else members[i] & mask
            if source >= call:
                columns.missing()
            if source >= 0:  # no loose value
                wanted[source] = 1
    return 0


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(-1, check=True)
def rows_begin(call: columns.Int, member_starts: columns.Read, ragged_starts: columns.Read) -> columns.Int:
    """Return where the rows of a call's ragged operands begin in ``members``."""
    if call >= len(ragged_starts) or not 0 <= ragged_starts[call] < len(member_starts):
        columns.missing()
    return member_starts[ragged_starts[call]]


def edges(
    pending: columns.Read,
    refs: columns.Read,
    ref_starts: columns.Read,
    members: columns.Read,
    member_starts: columns.Read,
    ragged_starts: columns.Read,
) -> Any:
    """Return which of the pending calls read each other, as two int64 arrays: sources and readers.

    Both are positions in ``pending``. The edges come ordered by reader, and the edges of one reader in the
    order of its operands: first its references, then the rows of its ragged operands. Raises IndexError for
    columns that refer to what is not there.

    Parameters
    ----------
    pending : int64 array
        The calls to look at; the others count as run.
    refs, ref_starts, members, member_starts, ragged_starts : int64 arrays
        Call ``i`` has the references ``refs[ref_starts[i] : ref_starts[i + 1]]`` and the ragged operands
        ``ragged_starts[i]`` to ``ragged_starts[i + 1] - 1``, and ragged operand ``j`` the rows
        ``members[member_starts[j] : member_starts[j + 1]]``. A reference is ``part << 40 | call``.

    Examples
    --------
    Call 2 reads calls 0 and 1, of which call 0 was run before.

    >>> none = np.zeros(0, np.int64)
    >>> edges(np.array([1, 2]), np.array([0, 1]), np.array([0, 0, 0, 2]), none, none, none)
    (array([0]), array([1]))
    """
    most = len(refs) + len(members)
    made_sources = columns.array(most)
    made_readers = columns.array(most)
    sources: columns.Write = columns.fresh(made_sources)
    readers: columns.Write = columns.fresh(made_readers)
    count = write_edges(
        columns.opened(pending),
        columns.opened(refs),
        columns.opened(ref_starts),
        columns.opened(members),
        columns.opened(member_starts),
        columns.opened(ragged_starts),
        columns.room(max(len(ref_starts) - 1, 0)),
        sources,
        readers,
    )
    columns.closed(made_sources, sources)
    columns.closed(made_readers, readers)
    return made_sources[:count], made_readers[:count]


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
# -1 is an answer, so the C function says by -2 that it has raised.
@cython.exceptval(-2, check=False)
def position_of(ref: columns.Int, number: columns.Write, reader: columns.Int) -> columns.Int:
    """Look up the position among the pending calls of the call that `ref` reads; -1 if it is not pending.

    `number` has the position of each call. Raises IndexError if the call does not come before its `reader`.
    """
    call = ref & columns.CALL_MASK
    # A call reads only calls before it. All later loops over edges rely on that.
    if call >= len(number) or number[call] >= reader:
        columns.missing()
    return number[call]


@cython.cfunc
@cython.boundscheck(False)
def write_edges(
    pending: columns.Read,
    refs: columns.Read,
    ref_starts: columns.Read,
    members: columns.Read,
    member_starts: columns.Read,
    ragged_starts: columns.Read,
    number: columns.Write,
    sources: columns.Write,
    readers: columns.Write,
) -> columns.Int:
    """Write which pending calls read each other, as positions in `pending`; return the number of edges.

    `number` is room for the position of each call, and `sources` and `readers` are filled from 0 on.
    """
    count = 0
    calls = len(number)
    for i in range(calls):
        number[i] = -1
    for i in range(len(pending)):
        if not 0 <= pending[i] < calls:
            columns.missing()
        number[pending[i]] = i
    for i in range(len(pending)):
        call = pending[i]
        low = ref_starts[call]
        high = ref_starts[call + 1]
        # Damaged starts may let the entries of calls overlap. Then there are more edges than `sources` has
        # room for.
        if low < 0 or high > len(refs) or high - low > len(sources) - count:
            columns.missing()
        for j in range(low, high):
            source = position_of(refs[j], number, i)
            if source >= 0:
                sources[count] = source
                readers[count] = i
                count += 1
        if not len(members):
            continue
        low = rows_begin(call, member_starts, ragged_starts)
        high = rows_begin(call + 1, member_starts, ragged_starts)
        if low < 0 or high > len(members) or high - low > len(sources) - count:
            columns.missing()
        for j in range(low, high):
            if members[j] < 0:  # a loose value is no call
                continue
            source = position_of(members[j], number, i)
            if source >= 0:
                sources[count] = source
                readers[count] = i
                count += 1
    return count


@cython.cfunc
def count_types(types: columns.Read, sources: columns.Read, readers: columns.Read) -> columns.Int:
    """Return one more than the highest type; raise IndexError if an edge has a call that is not there."""
    calls = len(types)
    if len(sources) != len(readers):
        columns.missing()
    for i in range(len(sources)):
        if not 0 <= sources[i] < calls or not 0 <= readers[i] < calls:
            columns.missing()
    return columns.width(types, columns.MOST_SMALL)


@cython.cfunc
@cython.boundscheck(False)
@cython.exceptval(-1, check=True)
def find_components(edge: columns.Flags, component: columns.Write) -> columns.Int:
    """Number the strongly connected components of types as Tarjan (1972) finds them; return their number.

    ``edge[a * count + b]`` tells whether type ``b`` reads type ``a``. `component` has -1 for each type at
    first, and gets the number of its component.
    """
    count = len(component)
    counter = 0
    height = 0
    found = 0
    room: columns.Write = columns.zeros(5 * count)
    index: columns.Write = columns.part(room, 0, count)
    low: columns.Write = columns.part(room, count, 2 * count)
    stack: columns.Write = columns.part(room, 2 * count, 3 * count)
    # From a root to the type that is looked at; and, of each type, which one to look at next.
    path: columns.Write = columns.part(room, 3 * count, 4 * count)
    following: columns.Write = columns.part(room, 4 * count, 5 * count)
    for root in range(count):
        if index[root]:
            continue
        path[0] = root
        depth = 1
        while depth:
            own = path[depth - 1]
            if not index[own]:
                counter += 1
                # The counter begins at 1: an index of 0 says that a type was not met yet.
                index[own] = counter
                low[own] = counter
                stack[height] = own
                height += 1
            other = following[own]
            while other < count:
                if edge[own * count + other]:
                    if not index[other]:
                        break
                    # Without a component yet, a type is still on the stack, so there is a way back from it.
                    if component[other] < 0 and index[other] < low[own]:
                        low[own] = index[other]
                other += 1
            following[own] = other
            if other < count:
                path[depth] = other
                depth += 1
                continue
            depth -= 1
            if depth and low[own] < low[path[depth - 1]]:
                low[path[depth - 1]] = low[own]
            if low[own] == index[own]:
                while component[own] < 0:
                    height -= 1
                    component[stack[height]] = found
                found += 1
    return found


def typed_levels(types: columns.Read, sources: columns.Read, readers: columns.Read) -> tuple[Any, Any, Any]:
    """Return how many calls of its own type lie on the longest path to each call, and the cycles of types.

    Parameters
    ----------
    types : int64 array of shape ``(calls,)``
        The type of each call, from 0.
    sources, readers : int64 arrays of shape ``(edges,)``
        Ordered by reader, and a source has a smaller number than its reader.

    Returns
    -------
    levels : int64 array of shape ``(calls,)``
        The typed level of each call, from 1.
    cycles : int64 array of shape ``(types,)``
        How many types lie on one cycle with each type, itself included; 0 without a cycle.
    highest : int64 array of shape ``(types,)``
        The highest level of each type.

    Examples
    --------
    Calls 0 and 1 are leaves; 2 is a cell that reads both, and 3 a cell that reads 2.

    >>> typed_levels(np.array([0, 0, 1, 1]), np.array([0, 1, 2]), np.array([2, 2, 3]))
    (array([1, 1, 1, 2]), array([0, 1]), array([1, 2]))
    """
    own_types: columns.Read = columns.opened(types)
    own_sources: columns.Read = columns.opened(sources)
    own_readers: columns.Read = columns.opened(readers)
    count = count_types(own_types, own_sources, own_readers)
    made = columns.array(len(types))
    found = np.empty((2, count), np.int64)
    levels: columns.Write = columns.fresh(made)
    cycle: columns.Write = columns.fresh(found[0])
    highest: columns.Write = columns.fresh(found[1])
    count_levels(own_types, own_sources, own_readers, levels, cycle, highest)
    columns.closed(made, levels)
    columns.closed(found[0], cycle)
    columns.closed(found[1], highest)
    return made, found[0], found[1]


@cython.cfunc
def count_levels(
    types: columns.Read,
    sources: columns.Read,
    readers: columns.Read,
    levels: columns.Write,
    cycle: columns.Write,
    highest: columns.Write,
) -> columns.Int:
    """Write the typed level of each call, and the cycle and the highest level of each type.

    See `typed_levels`.
    """
    counters: columns.Int = COUNTERS
    count = len(cycle)
    component: columns.Write = columns.filled(count, -1)
    loop: columns.Flags = columns.flags(count)  # whether calls of a type read calls of this type
    mark_loops(types, sources, readers, loop)
    # A table of all pairs of types is the quickest, but it grows with their square: 1,024 types take 1 MB.
    if count <= columns.MOST_TYPES:
        edge: columns.Flags = columns.flags(count * count)
        mark_types(types, sources, readers, edge, count)
        find_components(edge, component)
    else:
        own = np.asarray(types, np.int64)
        read = own[np.asarray(sources, np.int64)]
        pairs = unique_pairs(read, own[np.asarray(readers, np.int64)], count)
        component = columns.writable(strong_components(count, *pairs))
    size: columns.Write = columns.zeros(count)
    for i in range(count):
        size[component[i]] += 1
    alone = False
    joint = False
    for i in range(count):
        cycle[i] = size[component[i]]
        highest[i] = 0
        # A type that is alone in its component lies on a cycle only if it reads itself.
        if cycle[i] == 1:
            cycle[i] = loop[i]
        if cycle[i] > 0:
            alone = True
        if 1 < cycle[i] <= counters:
            joint = True
    for i in range(len(types)):
        levels[i] = 1
    if alone:
        count_alone(types, sources, readers, component, cycle, levels)
    if joint:
        count_jointly(types, sources, readers, component, cycle, levels)
    raise_highest(types, levels, highest)
    return 0


# Each loop over edges below is inside its arrays: `count_types` refused other calls and other types.


@cython.cfunc
@cython.boundscheck(False)
def mark_loops(
    types: columns.Read, sources: columns.Read, readers: columns.Read, loop: columns.Flags
) -> columns.Int:
    """Set the flag of each type of which a call reads a call of the same type."""
    for i in range(len(sources)):
        if types[sources[i]] == types[readers[i]]:
            loop[types[readers[i]]] = 1
    return 0


@cython.cfunc
@cython.boundscheck(False)
def mark_types(
    types: columns.Read,
    sources: columns.Read,
    readers: columns.Read,
    edge: columns.Flags,
    count: columns.Int,
) -> columns.Int:
    """Set flag ``a * count + b`` where a call of type ``b`` reads a call of type ``a``."""
    for i in range(len(sources)):
        edge[types[sources[i]] * count + types[readers[i]]] = 1
    return 0


@cython.cfunc
@cython.boundscheck(False)
def raise_highest(types: columns.Read, levels: columns.Read, highest: columns.Write) -> columns.Int:
    """Raise `highest` of each type to the highest level among its calls."""
    for i in range(len(types)):
        if levels[i] > highest[types[i]]:
            highest[types[i]] = levels[i]
    return 0


@cython.cfunc
@cython.boundscheck(False)
def count_alone(
    types: columns.Read,
    sources: columns.Read,
    readers: columns.Read,
    component: columns.Read,
    cycle: columns.Read,
    levels: columns.Write,
) -> columns.Int:
    """Write the levels of calls by their depth: the number of calls on the longest path within one cycle.

    That is done for types that read themselves and no others in a circle, and for cycles of very many
    types.
    """
    counters: columns.Int = COUNTERS
    for i in range(len(sources)):
        source = sources[i]
        reader = readers[i]
        own = types[reader]
        if component[types[source]] != component[own] or 1 < cycle[own] <= counters:
            continue
        # Edges come ordered by reader, so the level of a source is final before any reader of it looks.
        if levels[source] >= levels[reader]:
            levels[reader] = levels[source] + 1
    return 0


@cython.cfunc
def count_jointly(
    types: columns.Read,
    sources: columns.Read,
    readers: columns.Read,
    component: columns.Read,
    cycle: columns.Read,
    levels: columns.Write,
) -> columns.Int:
    """Write the levels of calls on cycles of several types, type by type; see `count_type`."""
    counters: columns.Int = COUNTERS
    count = 0
    within: columns.Write = columns.room(len(sources))  # the edges inside of such cycles
    counts: columns.Write = columns.zeros(len(types))
    for i in range(len(sources)):
        own = types[readers[i]]
        if component[types[sources[i]]] == component[own] and 1 < cycle[own] <= counters:
            within[count] = i
            count += 1
    for kind in range(len(cycle)):
        if 1 < cycle[kind] <= counters:
            count_type(types, sources, readers, component, within, count, kind, counts, levels)
    return 0


@cython.cfunc
@cython.boundscheck(False)
def count_type(
    types: columns.Read,
    sources: columns.Read,
    readers: columns.Read,
    component: columns.Read,
    within: columns.Read,
    size: columns.Int,
    own: columns.Int,
    counts: columns.Write,
    levels: columns.Write,
) -> columns.Int:
    """Write the levels of the calls of type `own`: how many of them lie on the longest path to each.

    Only paths within the cycle count. `within` has the `size` edges of such cycles, and `counts` is room
    for a number of each call. An edge comes after all edges to its source, so `counts` of the source is
    final then. A call that no edge has reached counts 1 if it is of the type, else 0.
    """
    for i in range(size):
        source = sources[within[i]]
        reader = readers[within[i]]
        counts[source] = 1 if types[source] == own else 0
        counts[reader] = 1 if types[reader] == own else 0
    for i in range(size):
        source = sources[within[i]]
        reader = readers[within[i]]
        if component[types[reader]] != component[own]:  # on another cycle
            continue
        reached = counts[source]
        if types[reader] == own:
            reached += 1
        if reached > counts[reader]:
            counts[reader] = reached
        if types[reader] == own:
            levels[reader] = counts[reader]
    return 0


def bucket(codes: columns.Read, sources: columns.Read, readers: columns.Read) -> tuple[Any, Any] | None:
    """Make one launch of all calls of one code, in an order that respects the edges.

    Parameters
    ----------
    codes : int64 array of shape ``(calls,)``
        What the calls of one launch have in common, such as a type and a level, as a number from 0.
    sources, readers : int64 arrays of shape ``(edges,)``
        The codes that are read, and the codes that read them.

    Returns
    -------
    order, bounds : int64 arrays
        Launch ``i`` holds the calls ``order[bounds[i] : bounds[i + 1]]``; None where the codes read each
        other in a cycle.

    Examples
    --------
    Calls 1 and 2 read call 0, whose code is the highest one.

    >>> bucket(np.array([9, 4, 4]), np.array([9, 9]), np.array([4, 4]))
    (array([0, 1, 2]), array([0, 1, 3]))
    """
    own: columns.Read = columns.opened(codes)
    width = columns.width(own, columns.MOST_CODES)
    if width > 8 * len(own) + 65536:  # a table of all codes would be larger than what is read
        distinct, numbers = np.unique(np.asarray(codes), return_inverse=True)
        read = place_in(distinct, np.asarray(sources))
        return bucket(numbers.ravel(), read, place_in(distinct, np.asarray(readers)))
    return launches_of(own, width, columns.opened(sources), columns.opened(readers))


@cython.cfunc
def place_in(distinct: Any, codes: Any) -> Any:
    """Return the position of each code in `distinct`, which is in ascending order.

    Raises IndexError for a code that is not there.
    """
    places = np.searchsorted(distinct, codes)
    if (places >= len(distinct)).any() or (distinct[places] != codes).any():
        columns.missing()
    return places


def schedule(
    types: columns.Read,
    pending: columns.Read,
    refs: columns.Read,
    ref_starts: columns.Read,
    members: columns.Read,
    member_starts: columns.Read,
    ragged_starts: columns.Read,
) -> tuple[Any, ...]:
    """Make one launch of all pending calls of one type and typed level: the policy "auto" in one step.

    The typed level of a call is how many calls of its type lie on the longest path to it. Where these
    launches read each other in a cycle, six values come back, which other policies need: the type of each
    pending call, from 0, the two arrays of `edges`, and the three of `typed_levels`.

    Parameters
    ----------
    types : int64 array
        The type of each call.
    pending : int64 array
        The calls to run, in ascending order.
    refs, ref_starts, members, member_starts, ragged_starts : int64 arrays
        Call ``i`` has the references ``refs[ref_starts[i] : ref_starts[i + 1]]`` and the ragged operands
        ``ragged_starts[i]`` to ``ragged_starts[i + 1] - 1``, and ragged operand ``j`` the rows
        ``members[member_starts[j] : member_starts[j + 1]]``. A reference is ``part << 40 | call``.

    Returns
    -------
    calls, bounds : int64 arrays
        Launch ``i`` holds ``calls[bounds[i] : bounds[i + 1]]``.
    lower_bound : int
        The launches that no schedule can go below.
    """
    kinds: columns.Read = columns.opened(types)
    todo: columns.Read = columns.opened(pending)
    width = columns.width(kinds, columns.MOST_SMALL)
    # `PlainSchedule` looks up the type of each source without a check of its own.
    if len(types) < len(ref_starts) - 1:
        columns.missing()
    if width <= columns.MOST_TYPES:
        # In most models no types read each other in a circle, and there are few levels. Then one pass over
        # the calls is enough; else the general way begins again, with the edges.
        plain = PlainSchedule()
        plain.find_levels(
            kinds,
            todo,
            columns.opened(refs),
            columns.opened(ref_starts),
            columns.opened(members),
            columns.opened(member_starts),
            columns.opened(ragged_starts),
            width,
        )
        if plain.number_buckets(todo):
            return plain.launches(todo)
    sources, readers = edges(pending, refs, ref_starts, members, member_starts, ragged_starts)
    return in_circles(np.asarray(types, np.int64), np.asarray(pending, np.int64), sources, readers)


@cython.cfunc
def in_circles(types: Any, pending: Any, sources: Any, readers: Any) -> tuple[Any, ...]:
    """Return what `schedule` returns, for calls whose types may read each other in a circle.

    ``sources`` and ``readers`` are what `edges` returns for them. Where each type and level can be one
    launch, that is the calls, the bounds and the lower bound; else the six values that other policies need.
    """
    own = numbered(types[pending])
    levels, cycles, highest = typed_levels(own, sources, readers)
    first = highest.cumsum() - highest  # a bucket for each pair of a type and a level
    codes = first[own] + levels - 1
    launches = bucket(codes, codes[sources], codes[readers])
    if launches is None:
        return own, sources, readers, levels, cycles, highest
    # On a cycle of very many types, levels count the calls of all its types together. They bound no single
    # type, which takes one launch at least.
    return pending[launches[0]], launches[1], int(np.where(cycles > COUNTERS, 1, highest).sum())


@cython.cfunc
def numbered(types: Any) -> Any:
    """Renumber types 0, 1, 2 and so on in ascending order, without those that no call has."""
    if (
        types.max(initial=0) > 8 * len(types) + 65536
    ):  # a table of all types would be larger than what is read
        return np.unique(types, return_inverse=True)[1].ravel()
    present = np.bincount(types) > 0  # quicker than a sort
    return (present.cumsum() - 1)[types]


@cython.final
@cython.cclass
class PlainSchedule:
    """Launches of calls whose types read each other in no circle, but for those that read themselves.

    Then the level of a call is one more than the highest level among its sources of its own type. So one
    pass over the calls finds their levels, and which types read each other.
    """

    types: columns.Read
    levels: columns.Write  # of each recorded call, 0 if it is not pending
    highest: columns.Write  # level of each type
    sources: columns.Write
    readers: columns.Write
    reads: columns.Flags  # for each pair of types: whether a call of the one reads a call of the other
    goes: columns.Write  # how many calls each bucket has, and then where the next one of them goes
    edges: columns.Int
    buckets: columns.Int

    @cython.cfunc
    @cython.boundscheck(False)
    def find_levels(
        self,
        types: columns.Read,
        pending: columns.Read,
        refs: columns.Read,
        ref_starts: columns.Read,
        members: columns.Read,
        member_starts: columns.Read,
        ragged_starts: columns.Read,
        width: columns.Int,
    ) -> columns.Int:
        """Set the level of each pending call, the highest level of each type, and the edges between calls.

        `pending` has to ascend. All types are below `width`.
        """
        mask = columns.CALL_MASK
        last: columns.Int = -1
        count: columns.Int = 0
        recorded = max(len(ref_starts) - 1, 0)
        ref_count = len(refs)
        most = ref_count + len(members)
        room: columns.Write = columns.zeros(recorded + width + 2 * most)
        levels: columns.Write = columns.part(room, 0, recorded)
        highest: columns.Write = columns.part(room, recorded, recorded + width)
        sources: columns.Write = columns.part(room, recorded + width, recorded + width + most)
        readers: columns.Write = columns.part(room, recorded + width + most, recorded + width + 2 * most)
        reads: columns.Flags = columns.flags(width * width)
        ragged = len(members) > 0
        call: columns.Int
        for call in pending:
            # Calls ascend, so the level of each source is known when its reader comes.
            if call <= last or call >= recorded:
                columns.missing()
            last = call
            own = types[call]
            line = own * width
            deepest: columns.Int = 0
            low = ref_starts[call]
            high = ref_starts[call + 1]
            if low < high:
                if low < 0 or high > ref_count or high - low > most - count:
                    columns.missing()
                for j in range(low, high):
                    source = refs[j] & mask
                    if source >= call:
                        columns.missing()
                    level = levels[source]
                    if level:
                        sources[count] = source
                        readers[count] = call
                        count += 1
                        kind = types[source]
                        # The line of the reader has a flag for each source: `find_components` expects the
                        # opposite, but both directions have the same components.
                        reads[line + kind] = 1
                        if level > deepest and kind == own:
                            deepest = level
            if ragged:
                low = rows_begin(call, member_starts, ragged_starts)
                high = rows_begin(call + 1, member_starts, ragged_starts)
                if low < 0 or high > len(members) or high - low > most - count:
                    columns.missing()
                for j in range(low, high):
                    if members[j] < 0:  # a loose value
                        continue
                    source = members[j] & mask
                    if source >= call:
                        columns.missing()
                    level = levels[source]
                    if level:
                        sources[count] = source
                        readers[count] = call
                        count += 1
                        reads[line + types[source]] = 1
                        if level > deepest and types[source] == own:
                            deepest = level
            deepest += 1
            levels[call] = deepest
            if deepest > highest[own]:
                highest[own] = deepest
        self.types = types
        self.levels = levels
        self.highest = highest
        self.sources = sources
        self.readers = readers
        self.reads = reads
        self.edges = count
        return 0

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(-1, check=True)
    def number_buckets(self, pending: columns.Read) -> columns.Bool:
        """Number a bucket for each pair of type and level, and write it over the level of each call.

        Returns False if there are too many buckets, or if types read each other in a circle.
        """
        types: columns.Read = self.types
        levels: columns.Write = self.levels
        width = len(self.highest)
        first: columns.Write = columns.room(width)
        buckets: columns.Int = 0
        for own in range(width):
            # Levels begin at 1, and the buckets of a type at the number that comes next.
            first[own] = buckets - 1
            buckets += self.highest[own]
        self.buckets = buckets
        # `launches` keeps a table of all pairs of buckets, which it walks twice.
        if buckets * buckets > columns.MOST_PAIRS:
            return False
        # Fewer components than types: some types read each other in a circle. A path from a call to the
        # next one of its type may then lead through other types, and the levels that were found are too
        # low.
        if find_components(self.reads, columns.filled(width, -1)) < width:
            return False
        goes: columns.Write = columns.zeros(buckets)
        call: columns.Int
        for call in pending:
            own = levels[call] + first[types[call]]
            levels[call] = own
            goes[own] += 1
        self.goes = goes
        return True

    @cython.cfunc
    @cython.boundscheck(False)
    def launches(self, pending: columns.Read) -> Any:
        """Make a launch of each bucket.

        Return the calls by launch, where launches begin, and their number.
        """
        count: columns.Int = 0
        done: columns.Int = 0
        buckets = self.buckets
        reads: columns.Flags = columns.flags(buckets * buckets)
        bucket: columns.Read = self.levels
        sources: columns.Read = self.sources
        readers: columns.Read = self.readers
        room: columns.Write = columns.zeros(2 * buckets)
        waiting: columns.Write = columns.part(room, 0, buckets)
        ready: columns.Write = columns.part(room, buckets, 2 * buckets)
        goes: columns.Write = self.goes
        for i in range(self.edges):
            reads[bucket[sources[i]] * buckets + bucket[readers[i]]] = 1
        for start in range(buckets):
            for end in range(buckets):
                waiting[end] += reads[start * buckets + end]
        for start in range(buckets):
            if not waiting[start]:
                ready[count] = start
                count += 1
        while done < count:  # a bucket comes after those that it reads (Kahn 1962)
            line = ready[done] * buckets
            done += 1
            for end in range(buckets):
                if reads[line + end]:
                    waiting[end] -= 1
                    if not waiting[end]:
                        ready[count] = end
                        count += 1
        order = columns.array(len(pending))
        bounds = columns.array_of_zeros(buckets + 1)
        ordered: columns.Write = columns.fresh(order)
        begin: columns.Write = columns.fresh(bounds)
        # `goes` had the number of calls of each bucket; from here on it says where the next one goes.
        for i in range(buckets):
            begin[i + 1] = begin[i] + goes[ready[i]]
            goes[ready[i]] = begin[i]
        call: columns.Int
        for call in pending:
            own = bucket[call]
            ordered[goes[own]] = call
            goes[own] += 1
        columns.closed(order, ordered)
        columns.closed(bounds, begin)
        return order, bounds, buckets


@cython.cfunc
@cython.boundscheck(False)
def launches_of(
    codes: columns.Read,
    width: columns.Int,
    sources: columns.Read,
    readers: columns.Read,
) -> Any:
    """Return the calls by launch and where launches begin; None if codes read each other in a cycle.

    Callers keep codes below `width`. Those of edges are checked here: a damaged edge may name a code that
    no call has.
    """
    calls = len(codes)
    edges = len(sources)
    buckets: columns.Int = 0
    if len(readers) != edges:
        columns.missing()
    number: columns.Write = columns.filled(width, -1)
    for i in range(calls):
        number[codes[i]] = 0
    for code in range(width):
        if number[code] == 0:
            number[code] = buckets
            buckets += 1
    for i in range(edges):
        if not 0 <= sources[i] < width or not 0 <= readers[i] < width:
            columns.missing()
        if number[sources[i]] < 0 or number[readers[i]] < 0:
            columns.missing()
    rank: columns.Write = columns.room(buckets)
    if rank_buckets(number, sources, readers, rank) < buckets:
        return None
    order = columns.array(calls)
    bounds = columns.array_of_zeros(buckets + 1)
    ordered: columns.Write = columns.fresh(order)
    begin: columns.Write = columns.fresh(bounds)
    # A counting sort: first `goes[i + 1]` counts the calls of launch i, then their sums say where it
    # begins.
    goes: columns.Write = columns.zeros(buckets + 1)  # where the next call of each launch goes
    for i in range(calls):
        goes[rank[number[codes[i]]] + 1] += 1
    for i in range(buckets):
        goes[i + 1] += goes[i]
        begin[i + 1] = goes[i + 1]
    for i in range(calls):
        own = rank[number[codes[i]]]
        ordered[goes[own]] = i
        goes[own] += 1
    columns.closed(order, ordered)
    columns.closed(bounds, begin)
    return order, bounds


@cython.cfunc
@cython.boundscheck(False)
@cython.exceptval(-1, check=True)
def rank_buckets(
    number: columns.Read,
    sources: columns.Read,
    readers: columns.Read,
    rank: columns.Write,
) -> columns.Int:
    """Rank buckets so that each comes after those that it reads (Kahn 1962); return how many have a rank.

    `number` is the bucket of each code, and `sources` and `readers` are codes. Most edges repeat one
    before. So the edges to each bucket are chained, and then, from the last bucket to the first, what
    leaves each bucket: each of these chains is in ascending order, and an edge that repeats another one
    finds it at the head.
    """
    buckets = len(rank)
    edges = len(sources)
    count: columns.Int = 0
    done: columns.Int = 0
    into: columns.Write = columns.filled(buckets, -1)  # heads of the chains
    leaving: columns.Write = columns.filled(buckets, -1)
    waiting: columns.Write = columns.zeros(buckets)
    ready: columns.Write = columns.room(buckets)
    chain: columns.Write = columns.room(edges)
    target: columns.Write = columns.room(edges)
    following: columns.Write = columns.room(edges)
    for i in range(edges):
        end = number[readers[i]]
        chain[i] = into[end]
        into[end] = i
    for end in range(buckets - 1, -1, -1):
        at = into[end]
        while at >= 0:
            start = number[sources[at]]
            edge = leaving[start]
            # All edges into one bucket come in a row here, so the edge that a repeat repeats is at the head
            # of the chain of its source.
            if edge < 0 or target[edge] != end:
                target[count] = end
                following[count] = edge
                leaving[start] = count
                waiting[end] += 1
                count += 1
            at = chain[at]
    count = 0
    for i in range(buckets):
        if not waiting[i]:
            ready[count] = i
            count += 1
    while done < count:
        rank[ready[done]] = done
        edge = leaving[ready[done]]
        while edge >= 0:
            end = target[edge]
            waiting[end] -= 1
            if not waiting[end]:
                ready[count] = end
                count += 1
            edge = following[edge]
        done += 1
    return done
