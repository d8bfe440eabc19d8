"""Launches by name in PyTorch's own profiler."""

from __future__ import annotations

import pytest
import torch

import multifold


def ranges(**options: bool) -> list[str]:
    """Return the names that a profiled run of two leaves and a pair records, by their begin."""
    fold = multifold.Fold(backend="torch", **options)
    leaves = [fold.add("leaf", x) for x in (1.0, 2.0, 3.0)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        fold.apply({"leaf": torch.sin, "pair": torch.mul}, fold.add("pair", *leaves[:2]))
    events = sorted(profile.events(), key=lambda event: event.time_range.start)
    return [event.name for event in events]


def test_a_profiled_fold_names_each_launch():
    names = [name for name in ranges(profile=True) if name.startswith("multifold")]
    assert names == ["multifold: leaf (2 rows)", "multifold: pair (1 row)"]


def test_an_op_runs_inside_its_range():
    names = ranges(profile=True)
    for launch, kernel in (("leaf (2 rows)", "aten::sin"), ("pair (1 row)", "aten::mul")):
        assert names[names.index(f"multifold: {launch}") + 1] == kernel


@pytest.mark.parametrize("options", [{}, {"profile": False}])
def test_a_fold_names_no_launch_unless_asked(options):
    assert not any(name.startswith("multifold") for name in ranges(**options))
