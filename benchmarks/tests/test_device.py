"""``multifold bench device``: a pass over a CPU in small sizes, and the page of made-up rows of a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from multifold.errors import MultifoldError
from multifold_bench.device.page import write_page

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def torch_only(backend):
    if backend != "torch":
        pytest.skip("a pass is PyTorch's")


def test_a_pass_runs_from_end_to_end_and_keeps_its_rows(torch_only, tmp_path):
    file = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "multifold", "bench", "device", "--small", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["block"]: row["error"] for row in rows if row.get("what") == "end"} == dict.fromkeys(
        ("answers", "steps", "floor", "rivals", "pipelined", "host", "widths", "types", "await", "jax")
    )
    assert all(row["core"] and row["machine"] and row["device"] == "cpu" for row in rows)
    short, long, step, *_ = (row for row in rows if row["block"] == "answers")
    assert short["waits"] == long["waits"] == step["waits"] == 0  # 10 and 30 launches
    ways = [row["contender"] for row in rows if row["block"] == "steps" and row.get("mode") == "train"]
    assert ways == ["hand", "hand-ready", "hand-frontier", "fold", "fold-traced", "loop"]
    rivals = {
        row["contender"]: row.get("ratio") for row in rows if row["block"] == "rivals" if "mode" in row
    }
    assert rivals["hand, compiled"] and rivals["hand, reduce-overhead"] and rivals["fold, compiled"]
    nodes = [row["nodes_per_second"] for row in rows if row["block"] == "pipelined" if "batch" in row]
    assert len(nodes) == 4 and min(nodes) > 0


def test_a_block_that_fails_dies_or_takes_too_long_leaves_a_row(torch_only):
    from multifold_bench.device.running import Block, Lease, run_pass

    def one(then):
        def rows(lease):
            yield {"found": 1}
            then()

        return rows

    blocks = [
        Block("fine", 9, one(lambda: None)),
        Block("fails", 9, one(lambda: 1 / 0)),
        Block("dies", 9, one(lambda: os._exit(3))),
        Block("sleeps", 3, one(lambda: time.sleep(60))),
        Block("late", 9, one(lambda: None)),
    ]
    rows = list(run_pass(blocks, Lease("cpu", None), 22))
    found = [row["block"] for row in rows if "found" in row]
    errors = {row["block"]: row["error"] for row in rows if row.get("what") == "end"}
    assert found == ["fine", "fails", "dies", "sleeps", "late"] and errors.pop("fine") is None
    assert "ZeroDivisionError: division by zero (test_device.py:" in errors["fails"]
    assert "ended with code 3" in errors["dies"] and "not done after 3 seconds" in errors["sleeps"]


def test_a_block_without_time_is_left_out(torch_only):
    from multifold_bench.device.running import Block, Lease, run_pass

    (row,) = run_pass([Block("late", 9, lambda lease: iter([{}]))], Lease("cpu", None), 0.5)
    assert row["error"] == "no time was left for its 9 seconds"


def event(name, begin, end, device="CUDA", kernels=(), own=0):
    span = SimpleNamespace(start=begin, end=end)
    taken = [SimpleNamespace(duration=x) for x in kernels]
    kind = SimpleNamespace(name=device)
    return SimpleNamespace(
        name=name, time_range=span, device_type=kind, kernels=taken, self_cpu_time_total=own
    )


def test_the_busy_share_is_the_time_in_which_a_kernel_ran(torch_only):
    from multifold_bench.device.kernels import summed

    found = summed(
        [
            event("aten::addmm", 0, 9, "CPU", kernels=[6]),
            event("aten::index_select", 0, 9, "CPU", kernels=[2]),
            event("cudaStreamSynchronize", 0, 9, "CPU"),
            event("sm90_gemm", 10, 16),
            event("indexSelect", 14, 20),  # beside the other one for a while
            event("Memcpy HtoD (Pinned -> Device)", 30, 32),
        ],
        steps=2,
    )
    assert (found.kernels, found.up, found.down, found.waits) == (1.0, 0.5, 0, 0.5)
    assert found.row(wall=24e-6)["busy"] == pytest.approx(0.25)  # 12 us of 48
    assert found.shares == {"products": 0.75, "gathers": 0.25, "rest": 0.0}


def test_on_a_cpu_there_is_no_busy_share(torch_only):
    from multifold_bench.device.kernels import summed

    found = summed(
        [event("aten::mm", 0, 9, "CPU", own=3), event("aten::tanh", 0, 9, "CPU", own=1)], steps=1
    )
    assert found.kernels is None and found.row(1.0)["busy"] is None and found.shares["products"] == 0.75


# ---- the page ----------------------------------------------------------------------------------------


def made_up(device="cuda"):
    facts = {"command": "bench device", "device": device, "machine": "a made-up GPU", "core": "compiled"}
    facts["versions"] = {"python": "3.12", "torch": "2.11"}
    step = {"block": "steps", "width": 300, "batch": 256, "launches": 14, "kernels": 800}
    ways = {"loop": (900.0, 90.0, 0.3), "hand": (10.0, 1.0, 0.9), "fold-traced": (11.5, 1.15, 0.85)}
    rows = [
        {**step, "mode": mode, "contender": name, "ms": ms, "ratio": ratio, "busy": busy}
        for mode in ("train", "infer")
        for name, (ms, ratio, busy) in ways.items()
    ]
    graph = {"block": "floor", "mode": "train", "contender": "hand-ready", "graph": True, "ms": 5.0}
    rival = {"block": "rivals", "contender": "fold, graphs", "ms": 5.5, "first_ms": 2500.0}
    rows += [graph, rival]
    rows += [
        {"block": "pipelined", "contender": way, "batch": batch, "nodes_per_second": 1e6, "busy": 0.9}
        for way in ("waits", "pipelined")
        for batch in (64, 256)
    ]
    rows.append({"block": "jax", "what": "end", "seconds": 45.0, "error": "it was not done"})
    return [{**facts, **row} for row in rows]


@pytest.fixture
def project(tmp_path):
    """A folder with what the page is listed in, as it is in this one."""
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/README.md", "docs/index.md"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    return tmp_path


def test_a_page_of_a_gpu_says_what_was_reached_and_what_not(project):
    pytest.importorskip("matplotlib")
    written = write_page(made_up(), project / "docs")
    page = (project / "docs" / "gpu.md").read_text()
    assert "a traced step of training: **85%**, wanted at least 80%: reached." in page
    assert "A traced step by one batched by hand: **1.15**, wanted at most 1.00: not reached." in page
    assert "one graph of the same minibatch: **1.10**, wanted at most 1.15: reached." in page
    assert "milliseconds on the host: not measured." in page
    assert "- `jax` ended after 45 s: it was not done." in page
    assert "| train | fold-traced | 11.50 | 1.15 | 14 | 800 | 85% |" in page
    pictures = [path for path in written if path.suffix == ".png"]
    assert len(pictures) == 2 and all(
        f"]({path.name})" in page and path.stat().st_size for path in pictures
    )


def test_the_readme_has_four_lines_of_it_and_each_time_anew(project):
    pytest.importorskip("matplotlib")
    rows = made_up()
    write_page(rows, project / "docs")
    write_page([row | {"machine": "another GPU"} for row in rows], project / "docs")
    before, _, rest = (project / "README.md").read_text().partition("## On a GPU\n\n")
    section, _, after = rest.partition("\n\n## More\n")
    assert len(section.splitlines()) == 4 and section.startswith("On another GPU, 256 trees of width 300")
    assert "78 times as fast as one by one" in section and "takes 5.00 ms" in section
    assert f"{before}## More\n{after}" == (ROOT / "README.md").read_text()
    assert (project / "docs" / "index.md").read_text().count("\ngpu\n") == 1
    assert (project / "docs" / "README.md").read_text().count("](gpu.md)") == 1


@pytest.mark.parametrize("rows", [made_up("cpu"), [], made_up() + made_up("cpu")])
def test_rows_of_a_cpu_make_no_page(project, rows):
    with pytest.raises(MultifoldError, match="Expected the rows of a pass over a GPU"):
        write_page(rows, project / "docs")
    assert not (project / "docs" / "gpu.md").exists()


def test_the_script_says_that_there_is_no_pytorch(backend, tmp_path):
    if backend != "numpy":
        pytest.skip("its environment has none")
    command = ["bash", str(ROOT / "benchmarks" / "gpu.sh"), str(tmp_path), str(tmp_path / "out")]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1 and "has no PyTorch." in done.stderr
