"""The command: ``python -m multifold_bench.gates --against /path/to/other/checkout``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from multifold_bench.gates.driver import Comparison, measure_all, table
from multifold_bench.gates.worker import all_figures


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(prog="python -m multifold_bench.gates", description=__doc__)
    parser.add_argument("--against", type=Path, required=True, metavar="DIR", help="the other checkout")
    parser.add_argument("--only", metavar="a,c", help="letters of gates; all by default")
    parser.add_argument(
        "--framework", action="append", metavar="NAME", help="may be repeated; all by default"
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="the interpreter for a framework; by default the one that runs this",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and few repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines as JSON, too")
    return parser.parse_args(arguments)


def tell(what: str) -> None:
    """Say what goes on."""
    print(what, file=sys.stderr, flush=True)  # noqa: T201 - a program's own output


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return 1 if something failed or two results differ."""
    options = parsed(arguments)
    wanted = options.only.split(",") if options.only else None
    figures = [
        figure
        for figure in all_figures().values()
        if (wanted is None or figure.gate in wanted)
        and (options.framework is None or figure.framework in options.framework)
    ]
    pythons = dict(pair.split("=", 1) for pair in options.python)
    settings = Comparison(
        there=options.against.resolve(),
        pythons=pythons,
        quick=options.quick,
        tell=tell,
    )
    lines = measure_all(figures, settings)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    print(table(lines))  # noqa: T201
    return int(any(line.note and line.met is False for line in lines))


if __name__ == "__main__":
    sys.exit(main())
