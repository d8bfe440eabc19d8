"""The example of serving on Ray: two replicas behind HTTP, asked by a real client on the loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "serving"
TREE = ["It", ["was", ["a", ["lovely", "day"]]]]


@pytest.fixture
def served():
    """The URL of the example, and its process, whose children end with it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "ray_app.py", "--backend", "torch", "--replicas", "2", "--port", str(port)]
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=FOLDER, env=os.environ | quiet, stdout=subprocess.PIPE) as process:
        assert b"2 replicas" in process.stdout.readline()
        yield f"http://127.0.0.1:{port}/classify", process
        process.terminate()


def test_replicas_answer_alike_until_they_are_told_to_stop(served):
    url, process = served
    with httpx.Client(timeout=60) as client, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: client.post(url, json={"tree": TREE}).json(), range(64)))
        assert client.post(url, json={"tree": ["one"]}).status_code == 422
    assert len({answer["replica"] for answer in answers}) == 2
    sys.path.insert(0, str(FOLDER))
    import sentiment

    with sentiment.make_server("torch") as server:
        expected = sentiment.answer(server.submit(TREE).result(60))
    for answer in answers:
        assert answer["class"] == expected["class"]
        np.testing.assert_allclose(answer["probabilities"], expected["probabilities"], rtol=1e-5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
