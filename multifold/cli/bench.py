"""``multifold bench``: what recording, planning and a step cost."""

from __future__ import annotations

import click


@click.group()
def bench() -> None:
    """Measure what things cost: recording, planning, and a step against other ways."""
