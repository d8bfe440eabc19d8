"""Why calls did not share a launch, and what a schedule looks like: what `Fold.explain` returns.

It reads a schedule, and the timeline of a run where there is one; nothing that runs reads it. One
idea a module: `attributes` takes signatures apart, `reasons` and `why` say what keeps calls apart,
`explanation` puts all together; `text`, `picture` with `layout`, `svg` and `writers`, `page` and
`events` show it. `rounds` shows a run whose examples awaited values; `recorded` lists the calls, without
any schedule.
"""

from __future__ import annotations

from multifold.explain.explanation import ExplainedLaunch, ExplainedOp, Explanation
from multifold.explain.reasons import Difference, Reason, Value
from multifold.explain.recorded import listing
from multifold.explain.rounds import RoundsExplanation

__all__ = [
    "Difference",
    "ExplainedLaunch",
    "ExplainedOp",
    "Explanation",
    "Reason",
    "RoundsExplanation",
    "Value",
    "listing",
]
