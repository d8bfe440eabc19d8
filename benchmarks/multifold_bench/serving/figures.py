"""Latency over load: a panel for each workload, a line for each contender."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multifold_bench.results import Row

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73")
"""Of the best windows and of the servers, after Okabe and Ito."""


def draw_latencies(rows: Sequence[Row]) -> Any:
    """Return a figure of the 99th percentile (solid) and the median (dotted) over requests a second.

    A line ends where the contender no longer keeps the deadline.
    """
    from matplotlib.figure import Figure

    workloads = [*dict.fromkeys(row["workload"] for row in rows if row["part"] == "curve")]
    figure = Figure(figsize=(3.6 * len(workloads), 3.4), layout="constrained")
    grid = figure.subplots(1, len(workloads), sharey=True, squeeze=False)[0]
    for axes, workload in zip(grid, workloads, strict=True):
        curves = [row for row in rows if row["workload"] == workload and row["part"] == "curve"]
        deadline = 1e3 * curves[0]["deadline"]
        for colour, name in zip(COLOURS, dict.fromkeys(row["contender"] for row in curves), strict=False):
            found = sorted((row for row in curves if row["contender"] == name), key=lambda row: row["rate"])
            held = [row for row in found if row["p99_ms"] and row["p99_ms"] <= deadline]
            rates = [row["rate"] for row in held]
            style = {"color": colour, "marker": "o", "markersize": 3.5, "linewidth": 1.4}
            axes.plot(rates, [row["p99_ms"] for row in held], label=name, **style)
            axes.plot(rates, [row["p50_ms"] for row in held], **style | {"linestyle": ":", "marker": ""})
            if len(held) < len(found) and held:
                axes.plot(rates[-1:], [held[-1]["p99_ms"]], marker="x", color=colour, markersize=8)
        axes.axhline(deadline, color="#999999", linewidth=0.8, linestyle="--")
        axes.set_title(workload, fontsize=10)
        axes.set_xlabel("requests a second")
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.08 * deadline)
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, 0.93))
    grid[0].set_ylabel("ms: p99 solid, p50 dotted")
    return figure
