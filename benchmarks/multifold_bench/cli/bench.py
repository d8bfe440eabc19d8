"""``multifold bench``: what recording, planning and running cost, where the time goes, and experiments."""

from __future__ import annotations

import click

from multifold_bench.cli.advise import advise
from multifold_bench.cli.device import device
from multifold_bench.cli.experiments import experiments
from multifold_bench.cli.gates import gates
from multifold_bench.cli.plan import plan
from multifold_bench.cli.profile import profile
from multifold_bench.cli.serve import serve
from multifold_bench.cli.step import step


@click.group()
def bench() -> None:
    """Measure what things cost: recording, planning, and a step against other ways.

    How many threads a framework uses is for its own variables to say, OMP_NUM_THREADS for most.
    """


for command in (plan, step, profile, experiments, gates, device, serve, advise):
    bench.add_command(command)
