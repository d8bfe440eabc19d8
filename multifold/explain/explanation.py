"""The public `Explanation`: the facts, and every way to show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from multifold._engine.compiled.arrays import CALL_MASK, Integers
from multifold._engine.plan.schedule import Schedule
from multifold._engine.record.node import Node
from multifold._engine.run.report import Report
from multifold.backend import Backend
from multifold.errors import RecordError
from multifold.explain.facts import Facts
from multifold.explain.operands import listed
from multifold.explain.picture import Picture, picture
from multifold.explain.svg import svg
from multifold.explain.text import headline, lines, page
from multifold.explain.why import Difference, difference
from multifold.explain.writers import dot, mermaid, trace_events


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Facts):
    """Why calls did not share a launch; made by `Fold.explain`.

    Its text is a table of the ops, what keeps the calls of each apart, the launches of one row, and
    after a run where the time went.

    Attributes
    ----------
    schedule : Schedule
        The schedule as it was planned, or in a round of awaited values as it ran.
    alone : int64 array
        The calls of which the whole result is read.
    site : callable
        Call -> where it was recorded.
    backend : str or None
        The name of the backend, where it is known.
    pads : bool
        Whether that backend compiles an op for each number of rows; see `multifold.backend.Backend.pads`.
    run : Report or None
        What the run that is explained has left, if it was run.

    Examples
    --------
    >>> import multifold
    >>> fold = multifold.Fold(backend="numpy")
    >>> one, two = fold.add("scale", 3, by=1), fold.add("scale", 4, by=2)
    >>> explanation = fold.explain()
    >>> print(explanation.why(one, two))
    Calls 0 and 1 of 'scale' differ in keyword 'by': 1 and 2.
    >>> print(explanation)
    2 launches of 2 calls, lower bound 2: optimal (auto), 1.0 rows a launch
    <BLANKLINE>
    op     calls  launches  bound  rows  mean  shapes
    scale      2         2      2     1   1.0       2
    <BLANKLINE>
    What keeps calls of one op apart, and the launches that it costs
    scale  1  keyword 'by' is 1 (1 call), 2 (1 call)
              hint: pass a number that varies as an operand, not as static
    <BLANKLINE>
    2 launches of one row: 0, 1 of scale
    """

    @classmethod
    def ran(cls, run: Report, schedule: Schedule) -> Explanation:
        """Return the explanation of a run, or of one round; ``schedule`` has the launches as they ran."""
        return cls(schedule, run.alone, run.site, run.backend.name, run.backend.pads, run)

    @cached_property
    def rounds(self) -> tuple[Explanation, ...]:
        """A tuple of this explanation alone; a `RoundsExplanation` has one entry for each round."""
        return (self,)

    @classmethod
    def planned(
        cls, schedule: Schedule, alone: Integers, site: Callable[[int], str], backend: Backend | None
    ) -> Explanation:
        """Return the explanation of a schedule that was not run; ``backend`` may be None."""
        known = (None, False) if backend is None else (backend.name, backend.pads)
        return cls(schedule, alone, site, *known)

    def why(self, first: Node | int, second: Node | int) -> Difference:
        """Return why two calls did not share a launch; its text is one sentence.

        Parameters
        ----------
        first, second : Node or int
            Two nodes of the fold, or the numbers of two calls as `listing` has them (calls of traces
            count on from one trace to the next).

        Raises
        ------
        RecordError
            For a node of another fold, or a call that is not run.

        Examples
        --------
        >>> import multifold
        >>> fold = multifold.Fold(backend="numpy")
        >>> low, high = fold.add("double", 1), fold.add("double", 1.5)
        >>> print(fold.explain().why(high, low))
        Calls 0 and 1 of 'double' differ in the kind of operand 0: an int and a float.
        """
        # `difference` takes the call that was recorded first: a call can only need earlier ones.
        return difference(self, *sorted((self._call(first), self._call(second))))

    def listing(self) -> str:
        """Return a line for each call, with its number, as ``print(fold)`` has them.

        Examples
        --------
        >>> import multifold
        >>> fold = multifold.Fold(backend="numpy")
        >>> _ = fold.add("half", fold.add("double", 1))
        >>> print(fold.explain().listing())
        0  double(1)
        1  half(0)
        """
        return "\n".join(listed(self.columns, self.calls.tolist()))

    def _call(self, node: Node | int) -> int:
        """Return the number of the call of a node, or ``node`` itself if it is a number.

        Raises `RecordError` for a node of another fold, or a call that is not run.
        """
        if isinstance(node, Node) and node._graph is not self.schedule.graph:
            raise RecordError(
                f"The node {node!r} belongs to another fold, or to other traces.",
                "ask the explanation of the fold that recorded it, or pass the number of a call.",
            )
        call = node._ref & CALL_MASK if isinstance(node, Node) else int(node)
        if call not in self.calls:
            raise RecordError(
                f"Expected calls that the explained outputs need. Received call {call}.",
                "listing() has their numbers; fold.explain() without outputs explains all recorded calls, "
                "until a run was made.",
            )
        return call

    def __repr__(self) -> str:
        return f"<Explanation: {headline(self)}>"

    def __str__(self) -> str:
        return "\n".join(lines(self))

    @cached_property
    def picture(self) -> Picture:
        """The schedule as a `Picture`, with a box for each call, or for each launch if calls are many."""
        return picture(self)

    def to_dot(self) -> str:
        """Return `picture` as the text of a Graphviz file."""
        return "\n".join(dot(self.picture)) + "\n"

    def to_mermaid(self) -> str:
        """Return `picture` as the text of a Mermaid flowchart."""
        return "\n".join(mermaid(self.picture)) + "\n"

    def to_svg(self, *, animated: bool = False) -> str:
        """Return `picture` as the text of an SVG drawing: a column and a colour for each launch.

        Parameters
        ----------
        animated : bool
            Whether the launches appear one after the other, as in a run.

        Examples
        --------
        >>> import multifold
        >>> fold = multifold.Fold(backend="numpy")
        >>> _ = fold.add("join", fold.add("leaf", 1), fold.add("leaf", 2))
        >>> fold.explain().to_svg()[:4]
        '<svg'
        """
        return svg(self.picture, animated)

    def to_html(self) -> str:
        """Return the text of an HTML page with the drawing and the tables; it needs no other file."""
        return "\n".join(page(self, self.to_svg())) + "\n"

    def timeline_json(self) -> str:
        """Return the times of the run as the text of a Chrome trace, for https://ui.perfetto.dev.

        Raises
        ------
        RecordError
            If nothing was run.
        """
        return trace_events(self)

    def write_timeline(self, path: str | Path) -> None:
        """Write what `timeline_json` returns to the file at ``path``, replacing it.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        Path(path).write_text(self.timeline_json(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        """Return what `to_svg` does; notebooks call this to show the drawing."""
        return self.to_svg()
