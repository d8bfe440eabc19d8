# cython: language_level=3, infer_types=True, boundscheck=True, wraparound=False, initializedcheck=False
"""Tasks: they run until they wait for values; these become integers; and whose calls are whose.

`multifold._engine.compiled.columns` says how this module is compiled, and how it runs where it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from multifold._engine.compiled import columns
from multifold._engine.compiled._table import distinct
from multifold._engine.compiled.arrays import Integers

if TYPE_CHECKING:
    import cython
else:
    from multifold._engine.compiled.columns import cython


@cython.cclass
class Owners:
    """Which example has recorded each call, and how many calls each example under way has.

    Parameters
    ----------
    graph : Graph
        Where calls are recorded.
    share : int
        As how many calls an example counts at most.

    Attributes
    ----------
    total : int
        How many calls the examples under way have.
    load : int
        The same, but each example counts for `share` calls at most.

    Examples
    --------
    Example 0 records two calls, and example 1 one. Then example 0 goes on with another two.

    >>> from multifold import Fold
    >>> fold = Fold(backend="numpy")
    >>> owners = Owners(fold._graph, 3)
    >>> for example, calls in ((0, 2), (1, 1), (0, 2)):
    ...     for _ in range(calls):
    ...         leaf = fold.add("leaf", 3)
    ...     owners.note(example)
    >>> owners.of_calls.tolist(), owners.total, owners.load
    ([0, 0, 1, 0, 0], 5, 4)
    >>> owners.end(0), owners.total, owners.load
    (4, 1, 1)
    """

    graph: Any
    share = cython.declare(columns.Int, visibility="readonly")
    total = cython.declare(columns.Int, visibility="readonly")
    load = cython.declare(columns.Int, visibility="readonly")
    size: columns.Int
    made: Any  # the owner of each call, an array and its column
    owner: columns.Write
    counts: columns.Write  # how many calls each example has, -1 for one that has ended

    def __init__(self, graph: Any, share: columns.Int) -> None:
        self.graph = graph
        self.share = share
        self.total = 0
        self.load = 0
        self.size = 0
        self.made = columns.array_of_zeros(64)
        self.owner = columns.fresh(self.made)
        self.counts = columns.zeros(64)

    @property
    def of_calls(self) -> Integers:
        """The example that has recorded each call, as an int64 array in the order of recording."""
        columns.closed(self.made, self.owner)
        return self.made[: self.size]

    @cython.ccall
    def note(self, example: columns.Int) -> object:
        """Note that ``example`` has recorded all calls of the graph that were not noted before."""
        begin = self.size
        size: columns.Int = len(self.graph.signature)
        if size == begin:
            return None
        self.reach(example)
        if size > len(self.owner):
            # Twice the room that is needed: with less to spare, all calls would be copied again and again.
            made = columns.array_of_zeros(2 * size)
            owner: columns.Write = columns.fresh(made)
            columns.copy(owner, 0, self.owner, 0, begin)
            self.made = made
            self.owner = owner
        columns.fill(self.owner, begin, size, example)
        self.size = size
        before = self.counts[example]
        # Calls of an example that has ended belong to it, and count no more.
        if before >= 0:
            now = before + size - begin
            self.counts[example] = now
            self.total += size - begin
            self.load += min(now, self.share) - min(before, self.share)
        return None

    def end(self, example: columns.Int) -> int:
        """Stop counting an example in ``total`` and ``load``; return how many calls were counted for it.

        What it records from then on belongs to it, and is not counted.
        """
        self.reach(example)
        count = max(self.counts[example], 0)
        self.counts[example] = -1
        self.total -= count
        self.load -= min(count, self.share)
        return count

    @cython.cfunc
    def reach(self, example: columns.Int) -> columns.Int:
        """Make room for an entry of an example; raise IndexError for a negative number."""
        if example < 0:
            columns.missing()
        if example >= len(self.counts):
            counts: columns.Write = columns.zeros(2 * example + 64)
            columns.copy(counts, 0, self.counts, 0, len(self.counts))
            self.counts = counts
        return 0


@cython.cclass
class RequestBase:
    """What a coroutine awaits: the values of some nodes.

    Attributes
    ----------
    recorder : Fold or Unfold
        Whose values they are.
    graph : Graph
        What it records in.
    nodes : list of Node
        The nodes.
    structure : object
        How the values nest in what ``await`` gives: None for the value of one node, ``tuple`` or ``list``,
        or a structure of optree.
    """

    recorder = cython.declare(object, visibility="readonly")
    graph = cython.declare(object, visibility="readonly")
    nodes = cython.declare(list, visibility="readonly")
    structure = cython.declare(object, visibility="readonly")

    def __init__(self, recorder: Any, nodes: list, structure: Any) -> None:
        self.recorder = recorder
        self.graph = recorder._graph
        self.nodes = nodes
        self.structure = structure

    def __await__(self) -> Any:
        if not self.recorder._in_progress:
            self.recorder._refuse_outside()
        return (yield self)


def are_nodes(items: Any, graph: Any) -> bool:
    """Return whether all items of a list or tuple are nodes of a graph, and none is a view of one."""
    kind: Any = graph.node_type
    return all(type(x) is kind and x._graph is graph for x in items)


def run_ready(
    ready: Any,
    waits: dict,
    results: dict,
    graph: Any,
    context: Any,
    outside: Any,
    owners: Owners | None,
) -> tuple[Any, Any, Exception | None] | None:
    """Run tasks that are ready, until one does anything else than to wait for values or return a node.

    Parameters
    ----------
    ready : deque of (task, callable, object)
        Tasks, and what is called in the context of each, with which argument; taken from the front.
    waits : dict
        Open task -> the request that it waits for, which is set here. Other tasks do not run.
    results : dict
        Number of an example -> what it has returned, which is set here where that is a node.
    graph : Graph
        A task waits for values if its request is for nodes of this graph.
    context, outside : callable, Hashable
        ``context()`` returns what the framework's ``with`` statements have changed now, and ``outside`` is
        what it was before; false if nothing can change.
    owners : Owners or None
        What notes after each step of a task the calls that its example has recorded.

    Returns
    -------
    task, request, error
        The task that does something else, what it awaits, and what it has raised, None if it has not. None
        in place of the three if all tasks wait.
    """
    while ready:
        task, method, argument = ready.popleft()
        # A task that was closed stays in the queue, as where another one of its example has failed.
        if task not in waits:
            continue
        request: Any = None
        error: Any = None
        try:
            request = task.context.run(method, argument)
        except BaseException as raised:  # noqa: BLE001 - whatever the user's coroutine raises
            error = raised
        if owners is not None:
            owners.note(task.example)
        leaves_open = outside and context() != outside
        has_ended = type(error) is StopIteration and not leaves_open and task.parent is None
        if has_ended and type(error.value) is graph.node_type:
            del waits[task]
            results[task.example] = error.value
            error = None
            continue
        if error is not None or leaves_open:
            try:
                return task, request, error
            finally:
                error = None  # its traceback holds this frame: a circle, which would keep the task alive
        # Anything else is left to `Tasks`, and stops this loop: a gather, a mistake, or a wait for no
        # nodes.
        if not isinstance(request, RequestBase) or request.graph is not graph or not request.nodes:
            return task, request, None
        waits[task] = request
    return None


def answer(tasks: Any, waits: dict, ready: Any, values: Any) -> None:
    """Let tasks go on with the values that they wait for.

    Parameters
    ----------
    tasks : iterable of task
        The tasks.
    waits : dict
        Open task -> the request that it waits for, which becomes None.
    ready : deque of (task, callable, object)
        Gets the tasks, with what goes on with each, and its value.
    values : iterator
        Has a value for each node that a task waits for, task after task.
    """
    for task in tasks:
        request: Any = waits[task]
        waits[task] = None
        value = next(values) if request.structure is None else request.answer(values)
        ready.append((task, task.send, value))


def awaited(waiting: list, shared: type) -> tuple[Integers, Integers, list[int], list[int]]:
    """Return what the tasks wait for, as integers, task after task and node after node.

    Parameters
    ----------
    waiting : list of (task, sequence of Node)
        The tasks, and the nodes whose values each of them waits for.
    shared : type
        The class of nodes whose whole result is wanted.

    Returns
    -------
    refs, examples : int64 arrays
        The reference of each node, and the example that waits for it.
    sizes : list of int
        How many nodes each task waits for.
    whole : list of int
        The positions in ``refs`` of those whose whole result is wanted.
    """
    at: columns.Int = 0
    count: columns.Int = 0
    example: columns.Int
    sizes = []
    whole = []
    for _, nodes in waiting:
        count += len(nodes)
    made_refs = columns.array(count)
    made_examples = columns.array(count)
    refs: columns.Write = columns.fresh(made_refs)
    examples: columns.Write = columns.fresh(made_examples)
    for task, nodes in waiting:
        example = task.example
        sizes.append(len(nodes))
        for node in nodes:
            refs[at] = node._ref
            examples[at] = example
            if isinstance(node, shared):
                whole.append(at)
            at += 1
    columns.closed(made_refs, refs)
    columns.closed(made_examples, examples)
    return made_refs, made_examples, sizes, whole


def located(
    refs: columns.Read, launch: columns.Read, row: columns.Read, rows: list
) -> tuple[list[tuple[int, int, int]], Integers, Integers, bool]:
    """Return which parts of results hold the rows that some references read, and which row each reads.

    Parameters
    ----------
    refs : int64 array
        What is read, ``part << 40 | call``; none is negative.
    launch, row : int64 arrays
        The launch and the row of each call.
    rows : list of int
        The rows of each launch.

    Returns
    -------
    sources : list of (int, int, int)
        For each part that is read: its launch, its number, and how many of the references read it.
    source, at : int64 arrays
        For each reference which of these sources it reads, from 0, and which row of it.
    straight : bool
        Whether the references are all rows of one part, in their order: then nothing has to be moved.

    Examples
    --------
    Calls 0 and 1 are the rows of launch 0, and call 2 is that of launch 1.

    >>> import numpy as np
    >>> launch, row, rows = np.array([0, 0, 1]), np.array([0, 1, 0]), [2, 1]
    >>> sources, source, at, straight = located(np.array([1, 2, 0]), launch, row, rows)
    >>> sources, source.tolist(), at.tolist(), straight
    ([(0, 0, 2), (1, 0, 1)], [0, 1, 0], [1, 0, 0], False)
    >>> located(np.array([0, 1]), launch, row, rows)[-1]
    True
    """
    own: columns.Read = columns.opened(refs)
    own_launch: columns.Read = columns.opened(launch)
    own_row: columns.Read = columns.opened(row)
    mask = columns.CALL_MASK
    launches: columns.Int = len(rows)
    count = len(own)
    straight = True
    source = columns.array(count)
    made_rows = columns.array(count)
    keys: columns.Write = columns.fresh(source)
    at: columns.Write = columns.fresh(made_rows)
    for i in range(count):
        call = own[i] & mask
        if own[i] < 0 or call >= len(own_launch) or call >= len(own_row):
            columns.missing()
        if not 0 <= own_launch[call] < launches:
            columns.missing()
        # One integer for the part and the launch, so that `distinct` compares both at once.
        keys[i] = (own[i] >> columns.PART_BITS) * launches + own_launch[call]
        at[i] = own_row[call]
        if keys[i] != keys[0] or at[i] != i:
            straight = False
    columns.closed(made_rows, at)
    # All rows of a result in their order, as of scores that each example waits for: no table is made.
    if straight and count and rows[keys[0] % launches] == count:
        read = keys[0] % launches, keys[0] // launches, count
        source[:] = 0
        return [read], source, made_rows, True
    columns.closed(source, keys)
    parts, which, counts = distinct(source)
    pairs = zip(parts.tolist(), counts.tolist(), strict=True)
    return [(key % launches, key // launches, often) for key, often in pairs], which, made_rows, False
