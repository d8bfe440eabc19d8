"""Speed that is watched by counts, which repeat exactly, where times on a shared machine never do.

``python benchmarks/watched`` runs the small programs of `workloads.py`, counts what the core executes for
each, and compares with `baseline.json`. A count that is 5 % off fails, in either direction: what became
cheaper is stored as well, or else it could be lost again unseen. asv and pytest-benchmark watch times, so
they need a quiet machine that is always the same.

- `counts.py`: bytecodes and calls of our Python, in two seconds. Each Python has counts of its own.
- `instructions.py`: instructions of our compiled code under valgrind, in a minute, with ``--instructions``.
  They belong to a compiler and a processor, so a build without a baseline is compared with nothing.

What the framework takes is a matter of times, and those are measured by hand: `multifold bench`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import counts
import instructions
from rich.console import Console
from rich.table import Table
from workloads import WORKLOADS

from multifold import _compiled

BASELINE = Path(__file__).with_name("baseline.json")
LIMIT = 0.05
ROOMS = "rooms"
"""Stands among the counts of a workload for the same count by room, which says where a change is."""

Found = Mapping[str, Mapping[str, Any]]
"""Workload -> what is counted -> how much of it."""


def compare(found: Found, baseline: Found) -> tuple[Table, list[str]]:
    """Return all counts beside the baseline as a table, and a sentence for each that is too far off."""
    measures = [measure for measure in next(iter(found.values())) if measure != ROOMS]
    table = Table("workload", *[x for measure in measures for x in (measure, "change")], box=None)
    sentences = []
    for name, now in found.items():
        then = baseline.get(name)
        cells = [name]
        for measure in measures:
            change = now[measure] / then[measure] - 1 if then else 0.0
            cells += [f"{now[measure]:,}", f"{change:+.1%}" if then else "new"]
            if then and abs(change) >= LIMIT:
                sentences.append(
                    f"{name}: {measure} went from {then[measure]:,} to {now[measure]:,} "
                    f"({change:+.1%}), most of it in {where(now[ROOMS], then[ROOMS])}."
                )
        if then is None:
            sentences.append(f"{name}: this workload has no stored counts.")
        table.add_row(*cells)
    sentences += [f"{name}: stored, but no longer a workload." for name in baseline if name not in found]
    return table, sentences


def where(now: Mapping[str, int], then: Mapping[str, int]) -> str:
    """Return the room whose count moved most."""
    changes = {room: now.get(room, 0) - then.get(room, 0) for room in {*now, *then}}
    room = max(sorted(changes), key=lambda room: abs(changes[room]))
    return f"{room} ({changes[room]:+,})"


def main(arguments: Iterable[str]) -> int:
    """Count, then compare or store; return the exit status."""
    parser = argparse.ArgumentParser(prog="watched", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--store", action="store_true", help="Make these counts the baseline, on purpose.")
    parser.add_argument("--instructions", action="store_true", help="Count compiled code, by valgrind.")
    options = parser.parse_args([*arguments])
    console = Console(highlight=False, soft_wrap=True)
    if not _compiled.in_use:
        console.print(f"Expected the compiled core, whose counts are stored. {_compiled.missing}")
        return 2
    if options.instructions:
        kind, build, found = "instructions", instructions.build(), instructions.count_all(WORKLOADS)
    else:
        kind, build = "bytecodes", f"Python {sys.version_info.major}.{sys.version_info.minor}"
        found = {workload.__name__: counts.count(workload) for workload in WORKLOADS}
    stored = json.loads(BASELINE.read_text())
    baseline = stored[kind].get(build)
    table, sentences = compare(found, baseline or {})
    console.print(f"{kind} of the core, {build}", table)
    if options.store:
        stored[kind][build] = found
        BASELINE.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
        console.print("These counts are the baseline now.")
        return 0
    if baseline is None:
        console.print(f"No {kind} of {build} are stored, so these were compared with nothing.")
        return 0
    for sentence in sentences:
        console.print(sentence)
    if sentences:
        console.print(
            "\nHint: if the change is meant, store the new counts beside it: nox -s watch -- --store"
        )
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
