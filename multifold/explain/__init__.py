"""Why calls did not share a launch, and what a schedule looks like: what `Fold.explain` returns.

This room reads a schedule, and where there was a run the report that it has left
(`multifold._engine.run.report`). Nothing that runs reads this room. `operands` writes operands and numbers,
and lists calls without any schedule. `reasons` holds what keeps calls apart as data, `attributes` takes
signatures apart, `facts` puts launches, bounds, times and reasons together. The tables (`text`), drawings
(`picture` with `layout`, `svg`), other programs' files (`writers`) and the sentence about two calls (`why`)
read the facts alone. On top, `explanation` is what users hold, and `rounds` explains a run whose examples
awaited values.

Examples
--------
Three calls of one op. Recording compares everything but the rows: calls 0 and 1 agree and share launch 0,
call 2 has another keyword and runs in a launch of its own.

>>> import multifold
>>> fold = multifold.Fold(backend="numpy")
>>> calls = [fold.add("scale", x, by=by) for x, by in [(3, 1), (5, 1), (4, 2)]]
>>> explanation = fold.explain()
>>> [(launch.number, launch.calls.tolist()) for launch in explanation.launches]
[(0, [0, 1]), (1, [2])]
>>> print(explanation.why(calls[0], calls[2]))
Calls 0 and 2 of 'scale' differ in keyword 'by': 1 and 2.
>>> print(explanation.reasons[0], "- costs", explanation.reasons[0].cost, "launch")
keyword 'by' is 1 (2 calls), 2 (1 call) - costs 1 launch
"""

from __future__ import annotations

from multifold.explain.explanation import Explanation
from multifold.explain.facts import ExplainedLaunch, ExplainedOp
from multifold.explain.operands import listing
from multifold.explain.reasons import Reason, Value
from multifold.explain.rounds import RoundsExplanation, explained
from multifold.explain.why import Difference

__all__ = [
    "Difference",
    "ExplainedLaunch",
    "ExplainedOp",
    "Explanation",
    "Reason",
    "RoundsExplanation",
    "Value",
    "explained",
    "listing",
]
