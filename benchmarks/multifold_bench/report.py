"""Rows of the experiments as one page of Markdown: what ran where, a figure and a table for each.

The page is made from the rows alone, so whoever has the file can make it again. Times are medians, and the
rows have the quartiles.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from multifold_bench.experiments import EXPERIMENTS, Experiment
from multifold_bench.results import ORDER, Row, backends_of

INTRODUCTION = """
Every result was compared with that of the loop before its time counted (`reference` in the rows says with
what else, where a loop over all examples would take too long). The contenders of a cell take turns, each
round on a new minibatch; a time is the median of the rounds, and holds all that a user pays in a step:
recording, scheduling, indices, forward, and in training the gradients of all parameters. A ratio inside a
row is a result; a time on a machine that others use is not. Where a cell is empty, time was up before it.

| contender | what it does in a step |
|---|---|
| `loop` | one example at a time |
| `hand` | batched by hand, as a careful engineer writes it for that framework |
| `hand-frontier` | the same, carrying on only the states that are still to be read: for trees |
| `stacked` | the plain program once on all examples, where they have one structure |
| `fold` | records, schedules and runs, anew each time |
| `fold-traced` | merges traces, which were made once, and runs |
| `fold-program` | the schedule as data inside one compiled function (JAX, TensorFlow) |
| `...-jit` | the same with each op compiled by the framework |
| `dynet` | DyNet with automatic batching, in a process of its own |
"""


def page(rows: Sequence[Row], figures: Mapping[str, str]) -> str:
    """Return the page.

    Parameters
    ----------
    rows : sequence of Row
        What `experiments.Runner` has written, environments included.
    figures : mapping
        Experiment -> the file name of its figure.
    """
    about = [row for row in rows if "about" in row]
    measured = [row for row in rows if "experiment" in row]
    parts = ["# Results", header(about), INTRODUCTION.strip(), gains(measured), environments(about)]
    for name, experiment in EXPERIMENTS.items():
        mine = [row for row in measured if row["experiment"] == name]
        if mine:
            parts.append(section(experiment, mine, figures.get(name)))
    return "\n\n".join(parts) + "\n"


def header(about: Sequence[Row]) -> str:
    """Return when, and by which commands, the rows were measured."""
    dates = sorted({row["date"] for row in about})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    commands = "\n".join(map(wrapped, dict.fromkeys(row["command"] for row in about)))
    said = f"Measured {when} by these commands, each in the environment of its framework."
    remarks = dict.fromkeys(row["remark"] for row in about if row.get("remark"))
    return "\n\n".join([f"{said}\n\n```sh\n{commands}\n```", *remarks])


def wrapped(command: str) -> str:
    r"""Return a command in lines that fit on a page, each option beside its value.

    Examples
    --------
    >>> print(wrapped("multifold bench experiments --backend torch " + "--data sst=PATH " * 5))
    multifold bench experiments --backend torch --data sst=PATH --data sst=PATH --data sst=PATH \
        --data sst=PATH --data sst=PATH
    """
    together = re.sub(r"(--[\w-]+) (?!--)", "\\1\N{NO-BREAK SPACE}", command)
    lines = textwrap.wrap(together, 98, break_on_hyphens=False, break_long_words=False)
    return " \\\n    ".join(lines).replace("\N{NO-BREAK SPACE}", " ")


GAINS = """
## How much faster than one example at a time

The time of `loop` / that of the fastest of `fold`, `fold-traced` and `fold-program`, "at" the largest
minibatch where both were measured: a loop is measured on small ones only. Where it is below 1, a program
compiled something new in each of the few rounds.
"""


def gains(rows: Sequence[Row]) -> str:
    """Return the table of what folding gains over the loop, by workload and backend.

    Examples
    --------
    A minibatch of 4, in which the loop takes 6 ms and the fold 3, and one of 64 without a loop:

    >>> row = {"experiment": "a", "workload": "sst", "mode": "infer", "backend": "numpy", "width": 8}
    >>> rows = [
    ...     {**row, "batch": 4, "contender": "loop", "median_ms": 6.0},
    ...     {**row, "batch": 4, "contender": "fold", "median_ms": 3.0},
    ...     {**row, "batch": 64, "contender": "fold", "median_ms": 9.0},
    ... ]
    >>> print(gains(rows).partition("| work")[2])
    load | mode | numpy |
    |---|---|---:|
    | sst | infer | 2.0 at 4 |
    """
    sizes: dict[tuple[str, str, str], dict[tuple[int, int], dict[str, float]]] = {}
    for row in rows:
        if "median_ms" in row and row["experiment"] in COMPARED:
            of = sizes.setdefault((row["workload"], row["mode"], row["backend"]), {})
            of.setdefault((row["batch"], row["width"]), {})[row["contender"]] = row["median_ms"]
    names = backends_of(rows)
    wanted = [EXPERIMENTS[name] for name in COMPARED]
    keys = [(one.workload, mode) for one in wanted for mode in one.modes]
    lines = [[*key, *(gain(sizes.get((*key, name), {})) for name in names)] for key in keys]
    found = [line for line in lines if any(line[2:])]
    return f"{GAINS.strip()}\n\n" + table(["workload", "mode", *names], found, texts=(0, 1))


COMPARED = tuple(name for name in EXPERIMENTS if name != "b")
"""Experiments in the table of gains: b has the model and the data of a."""


def gain(sizes: Mapping[tuple[int, int], Mapping[str, float]]) -> str:
    """Return loop / fastest fold at the largest (batch, width) where both were timed, or nothing."""
    for (batch, _), times in sorted(sizes.items(), reverse=True):
        folded = [ms for name, ms in times.items() if name.startswith("fold")]
        if folded and "loop" in times:
            ratio = times["loop"] / min(folded)
            return f"{ratio:.{0 if ratio > 9.95 else 1}f} at {batch}"
    return ""


def environments(about: Sequence[Row]) -> str:
    """Return the table of environments."""
    lines = []
    for name in backends_of(about):
        for row in (row for row in about if row["backend"] == name):
            facts = row["about"]
            versions = f"{name} {facts[name]}" + (f", NumPy {facts['numpy']}" if name != "numpy" else "")
            versions += "".join(f", {x} {facts[x]}" for x in ("dynet",) if x in facts)
            variables = " ".join(f"`{k}={v}`" for k, v in facts["variables"].items())
            device = facts["device"]
            lines.append([versions, facts["python"], device, facts["cores"], facts["processor"], variables])
    rows = list(dict.fromkeys(map(tuple, lines)))
    return "## Environments\n\n" + table(
        ("versions", "Python", "device", "cores", "processor", "threads"), rows, texts=(0, 1, 2, 4, 5)
    )


def section(experiment: Experiment, rows: Sequence[Row], figure: str | None) -> str:
    """Return the section of an experiment."""
    parts = [f"## {experiment.name}. {experiment.title}", experiment.about]
    if experiment.workload != DIGITS and any(row["data"] == "drawn" for row in rows):
        parts.append(
            f"No files were given for {experiment.workload}: examples are drawn, of sizes distributed like "
            "those of the data set."
        )
    parts.append(dates(rows))
    if figure:
        parts.append(f"![{experiment.title}]({figure})")
    parts += [summary(experiment, rows), notes(rows)]
    return "\n\n".join(part for part in parts if part)


def dates(rows: Sequence[Row]) -> str:
    """Return when the rows were measured, of which backends if not all at once, and at which sizes."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if "median_ms" in row:
            sizes = "the small sizes of `--quick`" if row["quick"] else "full sizes"
            how = f"on {row['date']} at {sizes}"
            if row["backend"] not in found.setdefault(how, []):
                found[how].append(row["backend"])
    if len(found) < 2:
        return "".join(f"Measured {how}." for how in found)
    said = [f"{', '.join(names)} {how}" for how, names in sorted(found.items(), reverse=True)]
    return f"Measured: {'; '.join(said)}. Ratios between rows of one day and size mean something."


DIGITS = "mnist"
"""The workload whose examples are never drawn: without a path they are scikit-learn's."""


BUCKETS = (
    "On JAX, `hand` and `fold-program` compile for each new bucket of sizes, on TensorFlow `fold-program` "
    "for each new type of call, and where there are few rounds that is inside their times: `quartiles_ms` "
    "of the rows shows it, and `first_ms` says what a compilation takes."
)


def sort_key(row: Row) -> tuple[Any, ...]:
    """Return the order of rows."""
    backend = ORDER.index(row["backend"]) if row["backend"] in ORDER else len(ORDER)
    return (row["mode"], row["width"], backend, row["backend"], row["batch"])


def summary(experiment: Experiment, rows: Sequence[Row]) -> str:
    """Return a table with a column for each contender; the fastest is bold."""
    timed = sorted((row for row in rows if "median_ms" in row), key=sort_key)
    present = {row["contender"] for row in timed}
    names = [name for name in experiment.contenders if name in present]
    lines = []
    for key, group in itertools.groupby(timed, key=sort_key):
        found = {row["contender"]: row for row in group}
        any_row = next(iter(found.values()))
        best = min(row["median_ms"] for row in found.values())
        mode, width, _, backend, batch = key
        head = [mode, backend, width, batch]
        cells = []
        for name in names:
            row = found.get(name)
            if row is None:
                cells.append("")
                continue
            shown = number(row["median_ms"])
            if experiment.name == "c":
                shown = f"{1e3 * batch / row['median_ms']:,.0f}"
            cells.append(f"**{shown}**" if row["median_ms"] == best and len(found) > 1 else shown)
        launches = next(
            (row["launches"] for row in found.values() if row["contender"].startswith("fold")), None
        )
        bound = f"{launches or 0:,.0f} / {any_row['lower_bound']:,.0f}" if launches else ""
        lines.append([*head, *cells, f"{any_row['nodes']:,.0f}", bound])
    first = ["mode", "backend", "width", "batch"]
    unit = "examples a second" if experiment.name == "c" else "milliseconds a step"
    return f"In {unit}:\n\n" + table([*first, *names, "calls", "launches / bound"], lines, texts=(0, 1))


def notes(rows: Sequence[Row]) -> str:
    """Return why contenders did not take part."""
    why: dict[str, list[str]] = {}
    for row in rows:
        if "note" in row:
            who = f"{row['backend']} `{row['contender']}`" if "contender" in row else row["backend"]
            why.setdefault(row["note"], []).append(who)
    lines = []
    for note, who in why.items():
        names = ", ".join(dict.fromkeys(who))
        lines.append(f"- {names}: {note}")
    parts = ["Left out:\n\n" + "\n".join(lines)] if lines else []
    if any(row["backend"] == "jax" and row.get("contender") in ("hand", "fold-program") for row in rows):
        parts.insert(0, BUCKETS)
    return "\n\n".join(parts)


def number(x: float | None) -> str:
    """Return a time with three digits.

    Examples
    --------
    >>> number(1234.5), number(12.345), number(0.1234)
    ('1,234', '12.3', '0.123')
    """
    if x is None:
        return ""
    if x >= 100:
        return f"{x:,.0f}"
    return f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 1 else f"{x:.3f}"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], texts: Iterable[int] = ()) -> str:
    """Return a table of Markdown; columns other than ``texts`` are numbers.

    Examples
    --------
    >>> print(table(["backend", "ms"], [["numpy", 1.5]], texts=[0]))
    | backend | ms |
    |---|---:|
    | numpy | 1.5 |
    """
    left = set(texts)
    rule = "|".join("---" if place in left else "---:" for place in range(len(columns)))
    lines = [f"| {' | '.join(columns)} |", f"|{rule}|"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)


def write(folder: Path, rows: Sequence[Row]) -> Path:
    """Write the page and its figures into a folder; return the page's path."""
    from multifold_bench import plots

    folder.mkdir(parents=True, exist_ok=True)
    figures = plots.draw(folder, rows)
    path = folder / "README.md"
    path.write_text(page(rows, figures), encoding="utf-8")
    return path
