"""Shapes: a dry run of one example, which tells what each op receives and returns before any batch runs.

`report` is what a dry run tells, `dry_run` records an example with zeros in the place of values: its
`shapes` is what users call.
"""

from __future__ import annotations

from multifold._twin.shapes.dry_run import shapes
from multifold._twin.shapes.report import CallShapes, RowShape, Shapes

__all__ = ["CallShapes", "RowShape", "Shapes", "shapes"]
