"""The page of a pass over a GPU: tables, two figures, and what they say; and four lines of the README.

Everything on it is made of the rows. Those of a CPU make no page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from multifold._measure.results import Row
from multifold.errors import MultifoldError
from multifold_bench.plots import DPI, STYLES

COMMAND = "benchmarks/gpu.sh WHEELS OUT && multifold bench device --page OUT/device.jsonl docs"
"""What makes the rows on a GPU, and the page of them anywhere."""

BUSY = 0.8
"""The share of a traced step of training in which the GPU is to be busy, at least."""

TO_HAND = 1.0
"""What such a step is to take at most, by what batching by hand takes."""

TO_FLOOR = 1.15
"""What a step as graphs is to take at most, by what one graph of the same minibatch takes."""

Columns = Mapping[str, tuple[str, str]]
"""Title of a column -> the name in a row, and how its value is written."""

STEP: Columns = {
    "mode": ("mode", ""),
    "contender": ("contender", ""),
    "ms": ("ms", ".2f"),
    "/ hand": ("ratio", ".2f"),
    "launches": ("launches", ",.0f"),
    "kernels": ("kernels", ",.0f"),
    "host µs a launch": ("host_us_a_launch", ".1f"),
    "busy": ("busy", ".0%"),
    "products": ("share_products", ".0%"),
    "gathers": ("share_gathers", ".0%"),
    "rest": ("share_rest", ".0%"),
    "peak MB": ("peak_mb", ",.0f"),
}

SECTIONS: Sequence[tuple[str, str, str, Columns]] = (
    (
        "A step",
        "steps",
        "Loss and gradients, or logits, of new trees in each round. `busy` is the share of the time in "
        "which a kernel ran; `products`, `gathers` and `rest` are shares of the kernels' time. "
        "`hand-ready` has its index arrays on the GPU before its time begins.",
        STEP,
    ),
    (
        "The floor",
        "floor",
        "One minibatch again and again: as it is launched, and replayed as one CUDA graph. `ops alone` "
        "calls the ops on operands that lie there, with nothing between them.",
        {
            "mode": ("mode", ""),
            "what": ("contender", ""),
            "graph": ("graph", ""),
            "ms": ("ms", ".2f"),
            "kernels": ("kernels", ",.0f"),
            "busy": ("busy", ".0%"),
            "note": ("note", ""),
        },
    ),
    (
        "Rivals",
        "rivals",
        "Training on fresh minibatches, by turns with batching by hand. `first s` has what is compiled in "
        "it; `slow steps` took more than three medians, the first one included.",
        {
            "contender": ("contender", ""),
            "first s": ("first_s", ".1f"),
            "ms": ("ms", ".2f"),
            "/ hand": ("ratio", ".2f"),
            "slow steps": ("slow_steps", ".0f"),
            "all steps s": ("all_steps_s", ".1f"),
            "note": ("note", ""),
        },
    ),
    (
        "Steps in a pipeline",
        "pipelined",
        "Training by traces. `waits` waits for the GPU after each step, as who prints each loss does; "
        "`pipelined` merges and plans the next minibatch meanwhile.",
        {
            "batch": ("batch", ",.0f"),
            "way": ("contender", ""),
            "ms": ("ms", ".2f"),
            "nodes a second": ("nodes_per_second", ",.0f"),
            "busy": ("busy", ".0%"),
        },
    ),
    (
        "What the host is asked for",
        "host",
        "Beyond the framework's own calls: a call is merged, planned and wired; a launch gets its operands "
        "and has its result looked at. `nothing` is a backend that computes nothing.",
        {
            "workload": ("workload", ""),
            "backend": ("backend", ""),
            "calls": ("calls", ",.0f"),
            "launches": ("launches", ",.0f"),
            "µs a call": ("a_call_us", ".2f"),
            "µs a launch": ("a_launch_us", ".1f"),
            "ms": ("own_ms", ".2f"),
            "allowed ms": ("allowed_ms", ".2f"),
        },
    ),
    (
        "By width",
        "widths",
        "Inference, microseconds an example.",
        {
            "dtype": ("dtype", ""),
            "width": ("width", ",.0f"),
            "contender": ("contender", ""),
            "µs an example": ("us_an_example", ",.1f"),
        },
    ),
    (
        "Many types",
        "types",
        "Training, beside the loop.",
        {
            "workload": ("workload", ""),
            "contender": ("contender", ""),
            "nodes": ("nodes", ",.0f"),
            "launches": ("launches", ",.0f"),
            "ms": ("ms", ".1f"),
            "/ loop": ("ratio", ".3f"),
        },
    ),
    (
        "Values that are awaited",
        "await",
        "Inference; each round waits for values.",
        {
            "workload": ("workload", ""),
            "examples": ("batch", ",.0f"),
            "rounds": ("rounds", ",.0f"),
            "rounds a second": ("rounds_per_second", ",.0f"),
            "copies to the host a round": ("copies_down_a_round", ".2f"),
        },
    ),
    (
        "JAX",
        "jax",
        "Training; `hand` is a jitted scan over tiles.",
        {
            "contender": ("contender", ""),
            "device": ("jax_device", ""),
            "first s": ("first_s", ".1f"),
            "ms": ("ms", ".2f"),
            "/ hand": ("ratio", ".2f"),
            "note": ("note", ""),
        },
    ),
    (
        "Copies, waits, tests",
        "answers",
        "A chain of any number of launches copies as often, and PyTorch raises where the host waits "
        "between its first launch and its last.",
        {
            "what": ("what", ""),
            "launches": ("launches", ",.0f"),
            "copies up": ("copies_up", ".0f"),
            "copies down": ("copies_down", ".0f"),
            "tests": ("suite", ""),
            "outcome": ("outcome", ""),
            "note": ("note", ""),
        },
    ),
)
"""The tables: title, block, what it is, columns."""


def summary(row: Row) -> str:
    """Return a row as a line for who watches a pass."""
    if row.get("what") == "end":
        return f"{row['block']}: {row['seconds']:.1f} s, {row['error'] or 'done'}"
    names = ("mode", "workload", "what", "contender", "backend", "batch", "width", "ms", "busy", "note")
    parts = [f"{x:.4g}" if isinstance(x, float) else str(x) for x in map(row.get, names) if x is not None]
    return f"  {row['block']}: {', '.join(parts)}"


class PassRows:
    """The rows of a pass, found by what they say."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.all = [{**row, "first_s": row["first_ms"] / 1e3} if "first_ms" in row else row for row in rows]

    @property
    def first(self) -> Row:
        """The first row that says which machine this is."""
        return next(row for row in self.all if "machine" in row)

    def of(self, block: str) -> list[Row]:
        """Return what a block has measured."""
        return [row for row in self.all if row["block"] == block and row.get("what") != "end"]

    def value(self, name: str, **said: Any) -> float | None:
        """Return a number of the first row that says so; None if there is no such row or number."""
        found = (
            row for row in self.all if said.items() <= {k: v for k, v in row.items() if k in said}.items()
        )
        return next((row[name] for row in found if row.get(name) is not None), None)


def write_page(rows: Iterable[Row], docs: Path) -> list[Path]:
    """Write ``gpu.md`` with its figures into a folder of pages, and the lines of the README beside it.

    Raises
    ------
    MultifoldError
        If the rows were measured on a CPU, of which the page claims nothing.
    """
    found = PassRows(row for row in rows if row.get("command") == "bench device")
    devices = sorted({row["device"] for row in found.all if "device" in row})
    if not devices or any(not device.startswith("cuda") for device in devices):
        raise MultifoldError(
            f"Expected the rows of a pass over a GPU. Received rows of {' and '.join(devices) or 'none'}.",
            f"on a machine with one: {COMMAND.partition(' &&')[0]}.",
        )
    written = [docs / "gpu.md", *draw(found, docs)]
    written[0].write_text(page(found), encoding="utf-8")
    listed = [
        (docs / "index.md", "results/README", "gpu"),
        (docs / "README.md", "| [Results](results/README.md)", f"| [On a GPU](gpu.md) | {QUESTION} |"),
    ]
    for path, after, line in listed:
        if path.exists() and line not in (text := path.read_text(encoding="utf-8")).splitlines():
            text = re.sub(rf"(?m)^{re.escape(after)}.*$", rf"\g<0>\n{line}", text)
            path.write_text(text, encoding="utf-8")
            written.append(path)
    readme = docs.parent / "README.md"
    if readme.exists():
        text = re.sub(r"(?ms)^## On a GPU\n.*?(?=^## )", "", readme.read_text(encoding="utf-8"))
        section = f"## On a GPU\n\n{lines_of(found)}\n\n"
        readme.write_text(re.sub(r"(?m)^(?=## More$)", lambda _: section, text), encoding="utf-8")
        written.append(readme)
    return written


QUESTION = (
    "is a GPU busy while Python runs, and what a step takes there beside CUDA graphs and `torch.compile`"
)


def number_text(value: Any, form: str) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:{form}}" if form else str(value).replace("|", "\\|")


def table(columns: Columns, rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table, without columns in which nothing stands."""
    kept = {title: x for title, x in columns.items() if any(row.get(x[0]) is not None for row in rows)}
    align = ["---:" if form else "---" for _, form in kept.values()]
    lines = [list(kept), align]
    lines += [[number_text(row.get(name), form) for name, form in kept.values()] for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def page(found: PassRows) -> str:
    """Return the page as Markdown."""
    first = found.first
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    lines = [
        "# On a GPU",
        "",
        f"One pass over {first['machine']}: {versions}. The core was {first['core']}.",
    ]
    lines += ["All below is made of its rows by a command, at the end.", "", "## What it says", ""]
    lines += [*claims(found), "", "## What it does not say", ""]
    lines += [
        "- It is one machine, and nearly all of it one model: a binary Tree-LSTM, trees of 14 to 22 words.",
        "- Optimizers, data loaders and several GPUs are not in it.",
        *[
            f"- `{row['block']}` ended after {row['seconds']:.0f} s: {row['error']}."
            for row in found.all
            if row.get("what") == "end" and row["error"] is not None
        ],
        "",
    ]
    pictures = {"steps": "gpu-steps.png", "pipelined": "gpu-pipelined.png"}
    for title, block, said_of_it, columns in SECTIONS:
        rows = found.of(block)
        if rows:
            lines += [f"## {title}", "", said_of_it, "", *table(columns, rows), ""]
            lines += [f"![{title}]({pictures[block]})", ""] if block in pictures else []
    return "\n".join([*lines, "## The command", "", "```sh", COMMAND, "```", ""])


def claims(found: PassRows) -> list[str]:
    """Return what was wanted and what was measured, a line each."""
    traced = {"block": "steps", "mode": "train", "contender": "fold-traced"}
    floor = found.value("ms", block="floor", mode="train", contender="hand-ready", graph=True)
    graphs = found.value("ms", block="rivals", contender="fold, graphs")
    on_gpu = {"block": "host", "workload": "trees", "backend": found.first["device"]}
    host = found.value("own_ms", **on_gpu)
    allowed = found.value("allowed_ms", **on_gpu)
    busy = found.value("busy", **traced)
    to_hand = found.value("ratio", **traced)
    to_floor = by(graphs, floor)
    return [
        claim("The GPU is busy in a traced step of training", busy, ".0%", least=BUSY),
        claim("A traced step by one batched by hand", to_hand, ".2f", most=TO_HAND),
        claim("A step as graphs by one graph of the same minibatch", to_floor, ".2f", most=TO_FLOOR),
        claim("multifold's own milliseconds on the host", host, ".2f", most=allowed),
    ]


def claim(
    what: str, value: float | None, form: str, least: float | None = None, most: float | None = None
) -> str:
    """Return a line that says a figure, what was wanted of it, and whether it is that."""
    limit = least if most is None else most
    if value is None or limit is None:
        return f"- {what}: not measured."
    met = value >= limit if most is None else value <= limit
    wanted = f"{'at least' if most is None else 'at most'} {limit:{form}}"
    return f"- {what}: **{value:{form}}**, wanted {wanted}: {'reached' if met else 'not reached'}."


def by(x: float | None, other: float | None) -> float | None:
    """Return a ratio, None where one of its figures is missing."""
    return None if x is None or not other else x / other


def lines_of(found: PassRows) -> str:
    """Return the four lines of the README."""
    first = found.first

    def step(contender: str, name: str, form: str) -> str:
        value = found.value(name, block="steps", mode="train", contender=contender)
        return "(not measured)" if value is None else f"{value:{form}}"

    times = by(
        found.value("ms", block="steps", mode="train", contender="loop"),
        found.value("ms", block="steps", mode="train", contender="fold-traced"),
    )
    floor = found.value("ms", block="floor", mode="train", contender="hand-ready", graph=True)
    batch = found.value("batch", block="steps") or 0
    width = found.value("width", block="steps") or 0
    faster = "(not measured)" if times is None else f"{times:.0f}"
    graph = "(not measured)" if floor is None else f"{floor:.2f}"
    traced, recorded = (step(way, "ms", ".2f") for way in ("fold-traced", "fold"))
    busy = step("fold-traced", "busy", ".0%")
    to_hand = step("fold-traced", "ratio", ".2f")
    trees = f"{batch:.0f} trees of width {width:.0f}"
    return f"""\
On {first["machine"]}, {trees} train in {traced} ms a step by traces, in {recorded} recorded anew:
{faster} times as fast as one by one, and {to_hand} of the time of batching by hand. The GPU is busy in
{busy} of it; one CUDA graph of the same minibatch, which fits no other, takes {graph} ms.
[All figures](docs/gpu.md)."""


def draw(found: PassRows, docs: Path) -> list[Path]:
    """Draw what steps take, and what a pipeline gives, as far as that was measured; return the files."""
    import matplotlib as mpl

    mpl.use("Agg")
    drawn: dict[str, Callable[[list[Row]], Any]] = {"steps": draw_steps, "pipelined": draw_pipelined}
    files = []
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        for block, picture in drawn.items():
            if found.of(block):
                files.append(docs / f"gpu-{block}.png")
                picture(found.of(block)).savefig(files[-1], dpi=DPI, metadata={"Software": None})
    return files


def draw_steps(rows: list[Row]) -> Any:
    """Return a figure with a bar for each contender: its time, filled as far as the GPU is busy."""
    from matplotlib.figure import Figure

    modes = {"train": "training", "infer": "inference"}
    figure = Figure(figsize=(8.5, 3.4), layout="constrained")
    for axes, (mode, title) in zip(figure.subplots(1, 2), modes.items(), strict=True):
        mine = sorted((row for row in rows if row["mode"] == mode), key=lambda row: -row["ms"])
        busy = ["" if row.get("busy") is None else f", {row['busy']:.0%} busy" for row in mine]
        names = [f"{row['contender']}\n{row['ms']:.2f} ms{x}" for row, x in zip(mine, busy, strict=True)]
        axes.barh(names, [row["ms"] for row in mine], color="#dddddd")
        axes.barh(names, [row["ms"] * (row.get("busy") or 0) for row in mine], color="#0072B2")
        others = [row["ms"] for row in mine if row["contender"] != "loop"]
        axes.set_xlim(0, 1.2 * max(others, default=1.0))  # the loop's bar leaves the panel
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("milliseconds a step")
    return figure


def draw_pipelined(rows: list[Row]) -> Any:
    """Return a figure of nodes a second and of the busy share, over the size of a minibatch."""
    from matplotlib.figure import Figure

    styles = {"waits": STYLES["hand"], "pipelined": STYLES["fold-traced"]}
    figure = Figure(figsize=(8.5, 3.0), layout="constrained")
    panels = {"nodes_per_second": "nodes a second", "busy": "share in which the GPU is busy"}
    for axes, (name, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for way, style in styles.items():
            mine = [row for row in rows if row["contender"] == way and row.get(name) is not None]
            axes.plot([row["batch"] for row in mine], [row[name] for row in mine], label=way, **style)
        sizes = sorted({row["batch"] for row in rows})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set_ylim(0, 1.05 if name == "busy" else None)
        axes.set_xlabel("trees in a minibatch (log scale)")
        axes.set_title(title, fontsize=9)
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    figure.axes[0].legend(frameon=False)
    return figure
