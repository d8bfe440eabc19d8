"""Why calls did not share a launch: what `Fold.explain` returns."""

from __future__ import annotations

from multifold.explain.explanation import Explanation

__all__ = ["Explanation"]
