"""Instructions that our compiled code executes, counted by valgrind's callgrind.

All workloads run in one process, since Python takes ten seconds to start under valgrind. Callgrind can
write its counts down whenever some C function is called, and then begin anew. Nothing else calls
``getppid``, so `os.getppid` before and after the counted part of each workload cuts its counts out. Only
instructions inside our own extension modules count: Python's and NumPy's belong to their builds.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from workloads import WORKLOADS, Workload

from multifold import _compiled

MODULES = re.compile(r"multifold/_compiled/(_\w+)\.[^/]*$")


def build() -> str:
    """Return what the counts depend on: Python, the processor and the compiler."""
    module = next(Path(_compiled.__file__).parent.glob("_calls.*.so"))
    compiler = re.search(rb"GCC: \([^)]*\) [\d.]+|clang version [\d.]+", module.read_bytes())
    name = compiler[0].decode() if compiler else "an unknown compiler"
    return f"Python {sys.version_info.major}.{sys.version_info.minor}, {platform.machine()}, {name}"


def count_all(workloads: Sequence[Workload]) -> dict[str, dict[str, object]]:
    """Run all workloads under callgrind; return the instructions of our code where it runs."""
    if shutil.which("valgrind") is None:
        raise SystemExit("Expected valgrind on the path.\n\nHint: apt-get install valgrind")
    with TemporaryDirectory() as folder:
        out = Path(folder, "out")
        tool = ("valgrind", "--quiet", "--tool=callgrind", "--dump-before=getppid")
        options = (f"--callgrind-out-file={out}", sys.executable, "-P", __file__)
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path[1:]])
        subprocess.run([*tool, *options], check=True, env=environment)
        # Part 1 ends where the first workload begins to be counted, part 2 where it has ended, and so on.
        parts = [Path(f"{out}.{2 * i + 2}") for i in range(len(workloads))]
        found = {
            workload.__name__: own_instructions(part.read_text())
            for workload, part in zip(workloads, parts, strict=True)
        }
        return {name: count for name, count in found.items() if count["instructions"]}


def own_instructions(profile: str) -> dict[str, object]:
    """Return the instructions of our modules, all and by module, in what callgrind wrote.

    Callgrind writes ``ob=(3) path`` where the functions of a file begin, later ``ob=(3)`` alone; lines of
    a position and a cost; and after ``calls=`` one such line for what was called, which is not our own.
    """
    files: dict[str, str] = {}
    found: Counter[str] = Counter()
    module = called = ""
    for line in profile.splitlines():
        if match := re.match(r"(c?ob)=(\(\d+\))(?: (.*))?", line):
            if match[3]:
                files[match[2]] = match[3]
            if match[1] == "ob":
                ours = MODULES.search(files[match[2]])
                module = ours[1] if ours else ""
        elif line.startswith("calls="):
            called = line
        elif re.match(r"[+\-*\d]", line):
            if module and not called:
                found[module] += int(line.split()[1])
            called = ""
    return {"instructions": found.total(), "rooms": dict(sorted(found.items()))}


def run_all() -> None:
    """Run every workload three times, as `counts.count` does, and mark the third."""
    for workload in WORKLOADS:
        for _ in range(2):
            for _ in workload():
                pass
        steps = workload()
        next(steps)
        os.getppid()
        next(steps, None)
        os.getppid()


if __name__ == "__main__":
    run_all()
