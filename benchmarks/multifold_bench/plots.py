"""Figures of the experiments: milliseconds an example by minibatch size, or side by side.

Axes are logarithmic, and say so; bars are quartiles. A contender has the same colour and mark in all
figures, and the fastest is always lowest or leftmost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from multifold_bench.experiments import EXPERIMENTS, Experiment
from multifold_bench.results import Row, backends_of, per_example

STYLES: dict[str, dict[str, Any]] = {
    "loop": {"color": "#777777", "marker": "s"},
    "loop-jit": {"color": "#777777", "marker": "s", "linestyle": ":", "markerfacecolor": "white"},
    "hand": {"color": "#000000", "marker": "D"},
    "hand-frontier": {"color": "#000000", "marker": "d", "linestyle": ":", "markerfacecolor": "white"},
    "stacked": {"color": "#000000", "marker": "x", "linestyle": "--"},
    "fold": {"color": "#0072B2", "marker": "o"},
    "fold-jit": {"color": "#0072B2", "marker": "o", "linestyle": ":", "markerfacecolor": "white"},
    "fold-traced": {"color": "#009E73", "marker": "^"},
    "fold-program": {"color": "#D55E00", "marker": "v"},
    "dynet": {"color": "#CC79A7", "marker": "P"},
}
"""Contender -> how it is drawn (colours after Okabe and Ito)."""

PANEL = 1.75
"""Inches of a panel: five of them are as wide as the column of a page, where 9 points then stay 9."""

DPI = 150

MODES = {"infer": "inference", "train": "training"}
BY_BATCH = "a"
"""The experiment that is lines over the minibatch size; the others are rows of marks."""


def draw(folder: Path, rows: Sequence[Row]) -> dict[str, str]:
    """Draw a figure for each experiment in the rows; return their file names by experiment."""
    import matplotlib as mpl

    mpl.use("Agg")
    names = {}
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        for name, experiment in EXPERIMENTS.items():
            mine = [row for row in rows if row.get("experiment") == name and "median_ms" in row]
            if mine:
                figure = draw_lines(experiment, mine) if name == BY_BATCH else draw_marks(experiment, mine)
                names[name] = f"experiment-{name}.png"
                figure.savefig(
                    folder / names[name], dpi=DPI, bbox_inches="tight", metadata={"Software": None}
                )
    return names


def panels(
    experiment: Experiment,
    rows: Sequence[Row],
    size: tuple[float, float],
    paint: Callable[[Any, Sequence[Row]], None],
) -> Any:
    """Return a figure with a column for each backend, and a row for each mode."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    backends = backends_of(rows)
    modes = [mode for mode in MODES if any(row["mode"] == mode for row in rows)]
    width, height = size
    figure = Figure(
        figsize=(max(width * len(backends), 6.5), height * len(modes) + 0.9), layout="constrained"
    )
    grid = figure.subplots(len(modes), len(backends), sharex=True, sharey=True, squeeze=False)
    for across, mode in zip(grid, modes, strict=True):
        for axes, backend in zip(across, backends, strict=True):
            found = [row for row in rows if row["backend"] == backend and row["mode"] == mode]
            axes.set_title(f"{backend}, {MODES[mode]}", fontsize=9)
            axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
            axes.set_axisbelow(True)
            if found:
                paint(axes, found)
            else:
                why = "no gradients" if backend == "numpy" and mode == "train" else "not measured"
                axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", color="#777777")
    present = {row["contender"] for row in rows}
    shown = [name for name in STYLES if name in present]
    handles = [Line2D([], [], label=name, **STYLES[name]) for name in shown]
    figure.suptitle(f"{experiment.title} (width {widths(rows)})", fontsize=11)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(shown), frameon=False)
    return figure


def widths(rows: Sequence[Row]) -> str:
    """Return the widths in rows, and of which backends they are where these differ.

    Examples
    --------
    >>> widths([{"backend": "torch", "width": 150}, {"backend": "jax", "width": 64}])
    '150: torch; 64: jax'
    """
    found: dict[str, list[str]] = {}
    for backend in backends_of(rows):
        of = sorted({row["width"] for row in rows if row["backend"] == backend})
        found.setdefault(", ".join(map(str, of)), []).append(backend)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{name}: {', '.join(backends)}" for name, backends in found.items())


def draw_lines(experiment: Experiment, rows: Sequence[Row]) -> Any:
    """Draw time an example over the minibatch size."""
    sizes = sorted({row["batch"] for row in rows})

    def paint(axes: Any, rows: Sequence[Row]) -> None:
        for name, style in STYLES.items():
            found = sorted((row for row in rows if row["contender"] == name), key=lambda row: row["batch"])
            if not found:
                continue
            middle = [per_example(row, row["median_ms"]) for row in found]
            axes.errorbar(
                [row["batch"] for row in found],
                middle,
                yerr=bars(found),
                capsize=2,
                markersize=5,
                linewidth=1.3,
                **style,
            )
        axes.set_xscale("log", base=2)
        named = sizes if len(sizes) < 5 else sizes[::2]  # six names are wider than a panel
        axes.set_xticks(sizes, [f"{size:,}" if size in named else "" for size in sizes])
        axes.set_yscale("log")
        by_decades(axes.yaxis)

    figure = panels(experiment, rows, (PANEL, 2.1), paint)
    label(figure, "examples in a minibatch (log scale)")
    figure.supylabel("milliseconds an example (log scale)", fontsize=9)
    return figure


def draw_marks(experiment: Experiment, rows: Sequence[Row]) -> Any:
    """Draw time an example: a line for each size, a mark for each contender."""
    several = len({row["width"] for row in rows}) > 1
    labels = list(
        dict.fromkeys(
            label_of(experiment, row, several)
            for row in sorted(rows, key=lambda row: order(experiment, row))
        )
    )

    present = [name for name in STYLES if any(row["contender"] == name for row in rows)]
    times = [per_example(row, row["median_ms"]) for row in rows]
    spread = (
        0.0 if experiment.name == "b" else 0.8
    )  # of the height of a line, so that no mark hides another

    def paint(axes: Any, rows: Sequence[Row]) -> None:
        for row in rows:
            style = {**STYLES[row["contender"]], "linestyle": "none"}
            height = len(labels) - 1.0 - labels.index(label_of(experiment, row, several))
            height += spread * (0.5 - present.index(row["contender"]) / max(1, len(present) - 1))
            axes.errorbar(
                [per_example(row, row["median_ms"])],
                [height],
                xerr=bars([row]),
                capsize=2,
                markersize=5,
                **style,
            )
        axes.set_xscale("log")
        axes.margins(x=0.1)  # no mark lies on the frame
        by_decades(axes.xaxis, 2 if max(times) > 1e3 * min(times) else 1)  # as many names as fit
        axes.set_ylim(-0.6, len(labels) - 0.4)
        axes.set_yticks(range(len(labels)), labels[::-1])

    lines = max(1, len(present) - 1) if spread else 1
    figure = panels(experiment, rows, (PANEL, 0.6 + (0.2 + 0.08 * lines) * len(labels)), paint)
    label(figure, "milliseconds an example (log scale)")
    return figure


def by_decades(axis: Any, each: int = 1) -> None:
    """Give a logarithmic axis a line at each power of ten, and name one in so many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: "" if round(math.log10(x)) % each else f"{x:g}"))


def label(figure: Any, text: str) -> None:
    """Say below the last row of panels what their axes are, once: a panel is too narrow for it."""
    last = [axes for axes in figure.axes if axes.get_subplotspec().is_last_row()]
    last[len(last) // 2].set_xlabel(text, fontsize=9)


def order(experiment: Experiment, row: Row) -> tuple[int, ...]:
    """Return what the lines of rows are sorted by."""
    if experiment.name == "b":
        return (experiment.contenders.index(row["contender"]),)
    return row["width"], row["batch"]


def label_of(experiment: Experiment, row: Row, several: bool) -> str:
    """Return the name of a row's line, with its width if there are several."""
    if experiment.name == "b":
        return str(row["contender"])
    return f"batch {row['batch']}" + (f", width {row['width']}" if several else "")


def bars(rows: Sequence[Row]) -> list[list[float]]:
    """Return how far the quartiles are below and above the medians."""
    below = [per_example(row, max(0.0, row["median_ms"] - row["quartiles_ms"][0])) for row in rows]
    above = [per_example(row, max(0.0, row["quartiles_ms"][1] - row["median_ms"])) for row in rows]
    return [below, above]
