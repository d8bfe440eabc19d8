"""Rows of the experiments as one page of Markdown: for each a sentence and a figure, for the first a table.

The page is made from the rows alone, so whoever has the file can make it again. Its tables show the sizes
at which a loop was measured, too; the figures show all of them, and the rows have the quartiles.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from multifold_bench.contenders import ABOUT
from multifold_bench.experiments import EXPERIMENTS, Experiment
from multifold_bench.results import ORDER, Row, backends_of
from multifold_bench.results import write as write_rows

INTRODUCTION = """
A time is the median of rounds, in which the contenders take turns on new minibatches. It holds all that a
user pays in a step: recording, planning, forward, and in training the gradients of all parameters. Every
result was compared with that of the loop before its time counted. The tables have the largest minibatch at
which the loop was measured, the figures all of them. An empty cell was not measured; the rows say why.
*Bound* is a lower bound on the launches.

JAX compiles `hand` and `fold-program` for each new size, and TensorFlow `fold-program` for each new kind
of call: where there were few rounds, that is inside their times. The sentences above the figures leave JAX
out.
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
    about = in_use(rows)
    measured = [row for row in rows if "experiment" in row]
    parts = ["# Results", header(about), INTRODUCTION.strip(), contenders(), gains(measured)]
    for name, experiment in EXPERIMENTS.items():
        mine = [row for row in measured if row["experiment"] == name]
        if mine:
            parts.append(section(experiment, mine, figures.get(name)))
    return "\n\n".join([*parts, environments(about)]) + "\n"


def contenders() -> str:
    """Return the table of contenders."""
    lines = {**ABOUT, "...-jit": "the same, with each op compiled by the framework"}
    return table(
        ("contender", "what it does in a step"),
        [(f"`{x}`", said) for x, said in lines.items()],
        texts=(0, 1),
    )


def in_use(rows: Sequence[Row]) -> list[Row]:
    """Return what is known about the environments in which something was timed."""
    timed = {(row["environment"], row["date"]) for row in rows if "median_ms" in row}
    return [row for row in rows if "about" in row and (row["environment"], row["date"]) in timed]


COMMANDS = "commands.sh"
"""The file with the commands, beside the page."""

ROWS = "experiments.jsonl"
"""The file with all rows, beside the page."""


def header(about: Sequence[Row]) -> str:
    """Return when the rows were measured, what was remarked, and where the commands are."""
    dates = sorted({row["date"] for row in about})
    when = f"on {dates[0]}" if len(dates) == 1 else f"from {dates[0]} to {dates[-1]}"
    said = (
        f"Measured {when} by [these commands]({COMMANDS}), each in the environment of its framework. "
        f"[All rows]({ROWS}) have more sizes, and quartiles."
    )
    remarks = dict.fromkeys(row["remark"] for row in about if row.get("remark"))
    return " ".join([said, *remarks])


def commands(rows: Sequence[Row]) -> str:
    """Return the commands that have measured the rows, as a file for a shell."""
    return "\n".join(map(wrapped, dict.fromkeys(row["command"] for row in in_use(rows)))) + "\n"


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

How many times as fast as `loop` the fastest of `fold`, `fold-traced` and `fold-program` is; behind the
semicolon, how many times as fast as `hand` (in e as `stacked`) with as many examples.
"""


def gains(rows: Sequence[Row]) -> str:
    """Return the table of what folding gains over the loop and over hand, by workload and backend.

    Examples
    --------
    A minibatch of 4, in which the loop takes 6 ms, hand 3.3 and the fold 3, and one of 64 without a loop:

    >>> row = {"experiment": "a", "workload": "sst", "mode": "infer", "backend": "numpy", "width": 8}
    >>> rows = [
    ...     {**row, "batch": 4, "contender": "loop", "median_ms": 6.0},
    ...     {**row, "batch": 4, "contender": "hand", "median_ms": 3.3},
    ...     {**row, "batch": 4, "contender": "fold", "median_ms": 3.0},
    ...     {**row, "batch": 64, "contender": "fold", "median_ms": 9.0},
    ... ]
    >>> print(gains(rows).partition("| exp")[2])
    eriment | mode | numpy |
    |---|---|---:|
    | a. Sentiment by minibatch size, at 4 | infer | 2.0; 1.1 |
    """
    measured = [row for row in rows if "median_ms" in row and row["experiment"] in COMPARED]
    names = backends_of(rows)
    lines = []
    for one in (EXPERIMENTS[name] for name in COMPARED):
        for mode in one.modes:
            mine = [row for row in measured if (row["workload"], row["mode"]) == (one.workload, mode)]
            of = {name: beside("loop", [row for row in mine if row["backend"] == name]) for name in names}
            sizes = {found[0] for found in of.values() if found}
            cells = []
            for name, loop in of.items():
                equal = [row for row in mine if row["backend"] == name and loop and row["batch"] == loop[0]]
                parts = [faster(x[1]) for x in (loop, beside(one.against, equal)) if x]
                at = f" at {loop[0]}" if loop and len(sizes) > 1 else ""
                cells.append("; ".join(parts) + at)
            at = f", at {sizes.pop()}" if len(sizes) == 1 else ""
            lines.append([f"{one.name}. {one.title}{at}", mode, *cells])
    kept = [line for line in lines if any(line[2:])]
    return f"{GAINS.strip()}\n\n" + table(["experiment", "mode", *names], kept, texts=(0, 1))


COMPARED = tuple(name for name in EXPERIMENTS if name != "b")
"""Experiments in the table of gains: b has the model and the data of a."""


def beside(against: str, rows: Sequence[Row]) -> tuple[int, float] | None:
    """Return the largest minibatch with both, and the time of the fastest fold / that of the contender."""
    sizes: dict[tuple[int, int], dict[str, float]] = {}
    for row in rows:
        sizes.setdefault((row["batch"], row["width"]), {})[row["contender"]] = row["median_ms"]
    for (batch, _), times in sorted(sizes.items(), reverse=True):
        folded = [ms for name, ms in times.items() if name.startswith("fold")]
        if folded and against in times:
            return batch, min(folded) / times[against]
    return None


def faster(part: float) -> str:
    """Return how many times as fast a fold is, for the part of the time that it takes.

    Examples
    --------
    >>> faster(0.5), faster(1.25), faster(0.02)
    ('2.0', '0.80', '50')
    """
    gain = 1 / part
    return f"{gain:.{0 if gain > 9.95 else 1 if gain > 0.995 else 2}f}"


def environments(about: Sequence[Row]) -> str:
    """Return the table of environments, below what is the same in all of them."""
    lines = []
    for name in backends_of(about):
        for row in (row for row in about if row["backend"] == name):
            facts = row["about"]
            versions = f"{name} {facts[name]}" + (f", NumPy {facts['numpy']}" if name != "numpy" else "")
            versions += "".join(f", {x} {facts[x]}" for x in ("dynet",) if x in facts)
            variables = " ".join(f"`{k}={v}`" for k, v in facts["variables"].items())
            python, cores = f"Python {facts['python']}", f"{facts['cores']} cores"
            lines.append([versions, python, facts["device"], cores, facts["processor"], variables])
    titles = ("versions", "Python", "device", "cores", "processor", "threads")
    columns = dict(zip(titles, zip(*dict.fromkeys(map(tuple, lines)), strict=True), strict=False))
    alike = [columns.pop(title)[0] for title in titles[1:] if len({*columns.get(title, ())}) == 1]
    rows = zip(*columns.values(), strict=True)
    parts = [f"All of them: {', '.join(alike)}."] if alike else []
    return "\n\n".join(["## Environments", *parts, table([*columns], rows, texts=range(len(columns)))])


def section(experiment: Experiment, rows: Sequence[Row], figure: str | None) -> str:
    """Return the section of an experiment."""
    parts = [
        f"## {experiment.name}. {experiment.title}",
        f"{experiment.about} {says(experiment, rows)}".strip(),
    ]
    if experiment.workload != DIGITS and any(row["data"] == "drawn" for row in rows):
        parts.append("Examples are drawn, of sizes distributed like those of the data set.")
    if figure:
        parts.append(f"![{experiment.title}]({figure})")
    if experiment.name in TABLED:
        parts.append(summary(experiment, rows))
    return "\n\n".join(parts)


TABLED = ("a",)
"""Experiments with a table of all contenders: of the others the figures, and the rows, have their times."""


DIGITS = "mnist"
"""The workload whose examples are never drawn: without a path they are scikit-learn's."""

MODES = {"infer": "in inference", "train": "in training"}


def says(experiment: Experiment, rows: Sequence[Row]) -> str:
    """Return how the fastest way to fold compares with another contender, from backend to backend.

    Examples
    --------
    >>> row = {"mode": "infer", "backend": "numpy", "width": 8, "batch": 4}
    >>> times = {"hand": 2.0, "fold": 3.0, "fold-traced": 2.6}
    >>> rows = [{**row, "contender": name, "median_ms": ms} for name, ms in times.items()]
    >>> print(says(EXPERIMENTS["a"], rows).split(", ")[1])
    the fastest way to fold takes 1.3 of the time of `hand` in inference
    """
    said: list[str] = []
    for mode, words in MODES.items():
        mine = [row for row in rows if row["mode"] == mode and "median_ms" in row]
        found = (
            beside(experiment.against, [row for row in mine if row["backend"] == x]) for x in UNCOMPILED
        )
        parts = sorted(part for _, part in filter(None, found))
        if parts:
            ends = dict.fromkeys(f"{part:.2g}" for part in (parts[0], parts[-1]))
            of = "" if said else f" of the time of `{experiment.against}`"
            said.append(f"{' to '.join(ends)}{of} {words}")
    if not said:
        return ""
    takes = f"the fastest way to fold takes {' and '.join(said)}"
    return f"At the largest minibatch of both, {takes}, depending on the framework."


UNCOMPILED = tuple(name for name in ORDER if name != "jax")
"""Backends in the sentences: times of JAX may hold compilations."""


def sort_key(row: Row) -> tuple[Any, ...]:
    """Return the order of rows."""
    backend = ORDER.index(row["backend"]) if row["backend"] in ORDER else len(ORDER)
    return (row["mode"], row["width"], backend, row["backend"], row["batch"])


def summary(experiment: Experiment, rows: Sequence[Row]) -> str:
    """Return a table with a column for each contender; the fastest is bold."""
    timed = sorted(decisive([row for row in rows if "median_ms" in row]), key=sort_key)
    present = {row["contender"] for row in timed}
    names = [name for name in experiment.contenders if name in present]
    columns: dict[str, list[Any]] = {x: [] for x in ("mode", "backend", *HEAD, *names, *TAIL)}
    for key, group in itertools.groupby(timed, key=sort_key):
        found = {row["contender"]: row for row in group}
        any_row = next(iter(found.values()))
        best = min(row["median_ms"] for row in found.values())
        mode, width, _, backend, batch = key
        for title, value in zip(("mode", "backend", *HEAD), (mode, backend, width, batch), strict=True):
            columns[title].append(value)
        for name in names:
            shown = number(found[name]["median_ms"]) if name in found else ""
            bold = shown and found[name]["median_ms"] == best and len(found) > 1
            columns[name].append(f"**{shown}**" if bold else shown)
        launches = next(
            (row["launches"] for row in found.values() if row["contender"].startswith("fold")), None
        )
        bound = f"{launches or 0:,.0f} / {any_row['lower_bound']:,.0f}" if launches else ""
        for title, value in zip(TAIL, (f"{any_row['nodes']:,.0f}", bound), strict=True):
            columns[title].append(value)
    alike = {x: columns.pop(x)[0] for x in (*HEAD, *TAIL) if len({*columns[x]}) == 1}
    said = ", ".join(["In milliseconds a step", *(f"{title} {value}" for title, value in alike.items())])
    return f"{said}:\n\n" + table([*columns], zip(*columns.values(), strict=True), texts=(0, 1))


HEAD, TAIL = ("width", "batch"), ("calls", "launches / bound")
"""Columns that stand above the table where all rows are alike in them."""


def decisive(rows: Sequence[Row]) -> list[Row]:
    """Return, for each mode and backend, the largest width with the largest minibatch that has a loop.

    Examples
    --------
    >>> row = {"mode": "infer", "backend": "numpy", "width": 8, "contender": "fold"}
    >>> rows = [{**row, "batch": batch} for batch in (1, 4, 16, 64)]
    >>> [row["batch"] for row in decisive([*rows, {**row, "batch": 4, "contender": "loop"}])]
    [4, 4]

    Without a loop it is the largest of all:

    >>> [row["batch"] for row in decisive(rows)]
    [64]
    """
    found = []
    for mode, backend in dict.fromkeys((row["mode"], row["backend"]) for row in rows):
        mine = [row for row in rows if (row["mode"], row["backend"]) == (mode, backend)]
        mine = [row for row in mine if row["width"] == max(row["width"] for row in mine)]
        loops = [row["batch"] for row in mine if row["contender"] == "loop"]
        size = max(loops or [row["batch"] for row in mine])
        found += [row for row in mine if row["batch"] == size]
    return found


def number(x: float | None) -> str:
    """Return a time with three digits.

    Examples
    --------
    >>> number(1234.5), number(12.345), number(9.998), number(0.1234)
    ('1,234', '12.3', '10.0', '0.123')
    """
    if x is None:
        return ""
    if x >= 99.95:
        return f"{x:,.0f}"
    return f"{x:.1f}" if x >= 9.995 else f"{x:.2f}" if x >= 0.9995 else f"{x:.3f}"


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
    """Write the page, its figures, the commands and the rows into a folder; return the page's path."""
    from multifold_bench import plots

    folder.mkdir(parents=True, exist_ok=True)
    figures = plots.draw(folder, rows)
    path = folder / "README.md"
    path.write_text(page(rows, figures), encoding="utf-8")
    (folder / COMMANDS).write_text(commands(rows), encoding="utf-8")
    write_rows(folder / ROWS, rows)
    return path
