"""The watched counts: what small programs execute in the core, compared with what is stored."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import multifold

WATCHED = Path(__file__).resolve().parents[1] / "watched"


@pytest.fixture(scope="module")
def watched():
    return runpy.run_path(str(WATCHED), run_name="watched")


def test_the_core_executes_as_much_as_is_stored():
    """In a process of its own, since other tests leave more types and backends behind."""
    done = subprocess.run([sys.executable, "-P", WATCHED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_counts_repeat_and_a_needless_loop_is_counted(watched):
    source = f"{Path(multifold.__file__).parent}/_schedule/needless.py"
    names = {}
    exec(compile("def loop(n):\n    for _ in range(n):\n        pass", source, "exec"), names)

    def slower():
        yield from watched["WORKLOADS"][0]()
        names["loop"](1000)

    count = watched["counts"].count
    before, after = count(watched["WORKLOADS"][0]), count(slower)
    assert count(watched["WORKLOADS"][0]) == before
    assert 2000 < after["rooms"]["_schedule"] - before["rooms"]["_schedule"] < 5000
    assert after["calls"] == before["calls"] + 1  # of range


def counted(bytecodes):
    return {"bytecodes": bytecodes, "calls": 10, "rooms": {"_wiring": bytecodes - 100, "_schedule": 100}}


@pytest.mark.parametrize("bytecodes", [1050, 950])
def test_a_change_of_five_percent_is_a_sentence_that_names_the_room(watched, bytecodes):
    _, sentences = watched["compare"]({"planning": counted(bytecodes)}, {"planning": counted(1000)})
    (sentence,) = sentences
    assert sentence.startswith(f"planning: bytecodes went from 1,000 to {bytecodes:,} (")
    assert sentence.endswith(f"most of it in _wiring ({bytecodes - 1000:+d}).")


def test_less_than_five_percent_passes(watched):
    assert watched["compare"]({"planning": counted(1049)}, {"planning": counted(1000)})[1] == []


def test_a_workload_that_is_new_or_gone_has_to_be_stored(watched):
    _, sentences = watched["compare"]({"new": counted(1000)}, {"gone": counted(1000)})
    assert sentences == [
        "new: this workload has no stored counts.",
        "gone: stored, but no longer a workload.",
    ]
