# cython: language_level=3, infer_types=True, boundscheck=True, wraparound=False, initializedcheck=False
"""Tasks: they run until they wait for values; these become integers; and whose calls are whose.

`multifold._engine.compiled.columns` says how this module is compiled, and how it runs where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from multifold._engine.compiled import columns, coroutines
from multifold._engine.compiled._table import distinct
from multifold._engine.compiled.arrays import Integers

if TYPE_CHECKING:
    import cython
else:
    from multifold._engine.compiled.columns import cython


running = cython.declare(object, None)
"""The graph of the tasks that run, while `TasksBase.run_ready` does."""


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
        self.fill(recorder, recorder._graph, nodes, structure)

    def __await__(self) -> Any:
        if self.graph is not running and not self.recorder._in_progress:
            self.recorder._refuse_outside()
        return coroutines.once(self)

    @cython.cfunc
    def fill(self, recorder: object, graph: object, nodes: list, structure: object) -> object:
        """Set all attributes."""
        self.recorder = recorder
        self.graph = graph
        self.nodes = nodes
        self.structure = structure
        return None


request_type = cython.declare(object, RequestBase)
"""The class of requests that `AwaitingBase` makes."""


def requests_are(kind: type) -> type:
    """Let all recorders make requests of a class, which inherits from `RequestBase`; return the class."""
    global request_type  # noqa: PLW0603 - set once, by the module that defines the class
    request_type = kind
    coroutines.await_as(kind, RequestBase)
    return kind


class AwaitingBase:
    """What the methods of a recorder that return requests do first, and often only."""

    __slots__ = ()

    _graph: Any

    _refuse_node: Callable[[Any], None]
    """Raises the error for anything but a node of this recorder."""

    def value(self, node: Any) -> Any:
        """Wait for the value of a node, inside an ``async`` function that `run` was given.

        Parameters
        ----------
        node : Node
            Of this fold. Its row is computed together with what other examples wait for.

        Returns
        -------
        awaitable
            ``await`` gives a NumPy array of the shape of one row, ``s`` where the op returns
            ``(n, *s)``; a Python number where a row is a single number; for a `Node.no_batch` the
            whole result; for a tuple, list or dictionary the same of those. It is a copy on the
            host, outside of any gradient.

        Raises
        ------
        RecordError
            If ``node`` is no node of this fold.

        Examples
        --------
        >>> import multifold
        >>> async def halve(fold, x):
        ...     steps = 0
        ...     while await fold.value(x := fold.add("halve", x)) >= 1:
        ...         steps += 1
        ...     return x
        >>> fold = multifold.Fold(backend="numpy")
        >>> fold.run({"halve": lambda x: x / 2}, [3.0, 20.0, 1.0], halve)
        array([0.75 , 0.625, 0.5  ])
        """
        graph: Any = self._graph
        if not coroutines.is_node(node, graph):
            self._refuse_node(node)
        request: RequestBase = coroutines.new(request_type)
        request.fill(self, graph, [node], None)
        return request


def are_nodes(items: Any, graph: Any) -> bool:
    """Return whether all items of a list or tuple are nodes of a graph."""
    return all(coroutines.is_node(x, graph) for x in items)


def rows_of(items: Any, graph: Any) -> Integers | None:
    """Return the references of items that are all nodes of a graph, read by rows; None if they are not."""
    count = len(items)
    found = columns.array(count)
    refs: columns.Write = columns.fresh(found)
    kind: Any = graph.node_type
    for i in range(count):
        node = items[i]
        if type(node) is not kind or not coroutines.is_node(node, graph):
            return None
        refs[i] = coroutines.ref_of(node)
    columns.closed(found, refs)
    return found


class HasReturned(StopIteration):
    """That a coroutine has returned, and its ``value``; not raised, which takes longer."""


@cython.cclass
class TaskBase:
    """A coroutine of an example, and what it goes on with.

    Attributes
    ----------
    example : int
        The number of the example.
    coroutine : coroutine
        What runs.
    context : Context
        Its own `contextvars`, as a task of asyncio has.
    parent : TaskBase or None
        The task that joins it.
    request : RequestBase or None
        What it waits for; None if it is ready to go on, or waits for tasks that it joins.
    children : dict of TaskBase to object, or ()
        The tasks that it joins, and what each of them returned.
    """

    example = cython.declare(columns.Int, visibility="readonly")
    coroutine = cython.declare(object, visibility="readonly")
    context = cython.declare(object, visibility="readonly")
    parent = cython.declare(object, visibility="readonly")
    request = cython.declare(object, visibility="readonly")
    children = cython.declare(object, visibility="public")
    argument: Any  # what the coroutine gets next
    plain: columns.Bool  # whether that is sent; not at the first step, and not if it is raised

    def __init__(self, example: columns.Int, coroutine: Any, context: Any, parent: Any = None) -> None:
        self.example = example
        self.coroutine = coroutine
        self.context = context
        self.parent = parent
        self.request = None
        self.children = ()
        self.argument = None
        self.plain = False

    def wait(self, request: Any) -> None:
        """Keep what the task waits for, or None."""
        self.keep(request)

    @cython.cfunc
    def keep(self, request: object) -> object:
        """Do what `wait` does."""
        self.request = request
        return None

    @cython.cfunc
    def take(self, argument: object, raises: columns.Bool) -> object:
        """Let the coroutine get ``argument`` where it waits, which is raised there if ``raises`` is set."""
        self.request = None
        self.argument = argument
        self.plain = not raises
        return None

    @cython.cfunc
    def step(self) -> object:
        """Run the coroutine until it waits; return what it awaits, or `HasReturned`, or raise its error."""
        argument = self.argument
        self.argument = None
        if self.plain:
            return coroutines.sent(self.context, self.coroutine, argument, HasReturned)
        self.plain = True
        if argument is not None:
            return self.context.run(self.coroutine.throw, argument)
        coroutine = self.coroutine
        if coroutine.cr_running or coroutine.cr_suspended or coroutine.cr_frame is None:
            self.refuse_begun()  # type: ignore[attr-defined]  # of `ExampleTask`
        return coroutines.sent(self.context, coroutine, None, HasReturned)


@cython.cclass
class TasksBase:
    """Tasks that have not finished, and those among them that are ready to go on.

    Attributes
    ----------
    graph : Graph
        A task waits for values if its request is for nodes of this graph.
    results : dict of int to object
        What each finished example returned.
    owners : Owners or None
        What notes after each step of a task the calls that its example has recorded.
    """

    graph = cython.declare(object, visibility="readonly")
    results = cython.declare(dict, visibility="public")
    owners = cython.declare(Owners, visibility="public")
    _open = cython.declare(dict, visibility="readonly")  # a key for each task, in the order of making
    ready: list  # tasks that are ready, from position `at` on
    at: columns.Int
    context: Any  # tells which of the framework's `with` statements are open: see `Backend.context`
    outside: Any  # what `context` returned before the examples ran; it is not asked again if that is false

    def __init__(self, graph: Any, context: Any) -> None:
        self.graph = graph
        self.context = context
        self.look()
        self.results = {}
        self.owners = None
        self._open = {}
        self.ready = []
        self.at = 0

    def look(self) -> None:
        """Take the ``with`` statements that are open for those outside."""
        self.outside = self.context()

    def leaves_open(self) -> bool:
        """Return whether other ``with`` statements of the framework are open than outside."""
        return self.differs()

    @cython.cfunc
    def differs(self) -> columns.Bool:
        """Return whether the context is another one than outside."""
        if not self.outside:
            return False
        found = self.context()
        return found is not self.outside and found != self.outside

    def open_task(self, task: TaskBase) -> None:
        """Take a new task, which is ready to begin."""
        self._open[task] = None
        self.ready.append(task)

    def go_on(self, task: TaskBase, argument: Any, raises: columns.Bool = False) -> None:
        """Let a task go on with what it has awaited; with ``raises`` that is raised at the ``await``."""
        task.take(argument, raises)
        self.ready.append(task)

    def answer(self, tasks: Any, values: list) -> None:
        """Let tasks go on with the values that they wait for.

        ``values`` has one for each node that a task waits for, task after task.
        """
        at: columns.Int = 0
        task: TaskBase
        request: RequestBase
        for task in tasks:
            request = task.request
            structure = request.structure
            if structure is None:
                task.take(values[at], False)
                at += 1
            else:
                end: columns.Int = at + len(request.nodes)
                own = values[at:end]
                if structure is not list:
                    own = request.nested(own)  # type: ignore[attr-defined]  # of `ValuesRequest`
                task.take(own, False)
                at = end
            self.ready.append(task)

    def waiting(self) -> list:
        """Return a pair for each task that waits for values: the task, and the nodes it waits for.

        They come in the order in which the tasks were made.
        """
        task: TaskBase
        request: RequestBase
        found = []
        for task in self._open:
            if task.request is not None:
                request = task.request
                found.append((task, request.nodes))
        return found

    def run_ready(self) -> tuple[Any, Any, BaseException | None] | None:
        """Run tasks that are ready, until one does anything else than to wait for values or return a node.

        Returns
        -------
        task, request, error
            The task that does something else, what it awaits, and what it has raised, None if it has not,
            and `HasReturned` if it has returned. None in place of the three if all tasks wait.
        """
        global running  # noqa: PLW0603 - a request that is awaited meanwhile needs no look at its recorder
        running = self.graph
        try:
            while self.at < len(self.ready):
                task: TaskBase = self.ready[self.at]
                self.ready[self.at] = None
                self.at += 1
                # A task that was closed stays in the list, as where another one of its example has failed.
                if task in self._open:
                    found = self.ran(task)
                    if found is not None:
                        return found
        finally:
            running = None
        self.ready.clear()
        self.at = 0
        return None

    @cython.cfunc
    def ran(self, task: TaskBase) -> object:
        """Run one task; return what `run_ready` does, and None if it may run the next one."""
        request: Any = None
        error: Any = None
        try:
            request = task.step()
        except BaseException as raised:  # noqa: BLE001 - whatever the user's coroutine raises
            error = raised
        if self.owners is not None:
            self.owners.note(task.example)
        if error is None and not self.differs():
            if type(request) is HasReturned:
                if type(request.value) is self.graph.node_type and task.parent is None:
                    del self._open[task]
                    self.results[task.example] = request.value
                    return None
            elif isinstance(request, RequestBase):
                asked: RequestBase = request
                if asked.graph is self.graph and asked.nodes:
                    task.keep(request)
                    return None
        # Anything else is left to `Tasks`, and stops the loop: a gather, a mistake, or a wait for no nodes.
        if type(request) is HasReturned:
            return task, None, request
        try:
            return task, request, error
        finally:
            error = None  # its traceback holds this frame: a circle that would keep the task alive


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
        # As a field a task's number is there at once; an `Answer` of a server is looked up.
        example = cython.cast(TaskBase, task).example if isinstance(task, TaskBase) else task.example
        sizes.append(len(nodes))
        for node in nodes:
            refs[at] = coroutines.ref_of(node)
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
