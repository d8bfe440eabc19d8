"""The examples of serving over HTTP, asked by a real client on the loopback."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

import multifold

pytestmark = pytest.mark.nightly(but=["numpy"])

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "serving"
TREE = ["It", ["was", ["a", ["lovely", "day"]]]]


def comb(words):
    """Return a tree as deep as it has words, for a request that takes long."""
    tree = "end"
    for i in range(words - 1):
        tree = [f"word{i}", tree]
    return tree


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def sentiment():
    sys.path.insert(0, str(FOLDER))
    import sentiment

    yield sentiment
    sys.path.remove(str(FOLDER))


@pytest.fixture
def started(backend):
    """Start the application in a process of its own; return its URL and the process."""
    processes = []

    def started(*options):
        port = free_port()
        command = [
            sys.executable,
            str(FOLDER / "fastapi_app.py"),
            "--backend",
            backend,
            "--port",
            str(port),
        ]
        processes.append(subprocess.Popen([*command, *options]))
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                    return url, processes[-1]
            except httpx.TransportError:
                assert processes[-1].poll() is None
            time.sleep(0.1)
        raise TimeoutError(url)

    yield started
    for process in processes:
        process.kill()
        process.wait(30)


def test_requests_are_answered_as_by_a_fold(backend, started, sentiment):
    url, process = started()
    found = httpx.post(f"{url}/classify", json={"tree": TREE}).json()
    server = sentiment.make_server(backend)
    fold = multifold.Fold(backend=backend)
    expected = fold.run(server._worker.model, [TREE], sentiment.classify)
    expected = multifold.load_backend(backend).to_numpy(expected)
    np.testing.assert_allclose(found["probabilities"], expected[0], rtol=1e-4)
    assert found["class"] == sentiment.CLASSES[int(expected[0].argmax())]
    assert httpx.get(f"{url}/health").json() == "alive"
    assert httpx.post(f"{url}/classify", json={"tree": ["one"]}).status_code == 422
    assert httpx.post(f"{url}/classify", json={"tree": TREE, "timeout": 1e-6}).status_code == 504
    metrics = httpx.get(f"{url}/metrics").text
    many = len(sentiment.EXAMPLES)
    warmed = 2 * many - 3 if backend == "jax" else many  # JAX meets the sizes of fewer requests, too
    assert re.search(rf'multifold_requests_total{{outcome="done"}} {warmed + 1}', metrics)
    assert re.search(r'multifold_requests_total{outcome="deadline"} 1', metrics)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_an_address_in_use_is_one_line(backend):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen()
        options = "--backend", backend, "--port", str(found.getsockname()[1])
        command = [sys.executable, str(FOLDER / "fastapi_app.py"), *options]
        process = subprocess.run(command, capture_output=True, check=False, text=True, timeout=60)
    assert re.fullmatch("ERROR: .* address already in use\n", process.stderr) and process.returncode


def test_requests_that_are_there_are_answered_when_the_process_is_told_to_stop(started):
    url, process = started("--queue", "3", "--timeout", "60")

    async def main():
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            long = {"tree": comb(400)}
            asked = [asyncio.ensure_future(client.post("/classify", json=long)) for _ in range(30)]
            for first in asyncio.as_completed(asked):
                if (await first).status_code == 200:  # by now all of them have arrived
                    break
            process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*asked)

    answers = asyncio.run(main())
    assert {answer.status_code for answer in answers} == {200, 503}
    refused = [answer for answer in answers if answer.status_code == 503]
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert process.wait(60) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


def test_a_client_that_goes_cancels_its_request(started, sentiment):
    url, _ = started("--timeout", "60")
    body = json.dumps({"tree": comb(400)}).encode()
    fields = f"host: here\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    head = f"POST /classify HTTP/1.1\r\n{fields}\r\n\r\n".encode()
    address = "127.0.0.1", int(url.rpartition(":")[2])
    clients = [socket.create_connection(address) for _ in range(30)]
    for client in clients:
        client.sendall(head + body)
    for client in clients:
        client.close()
    warmed = len(sentiment.EXAMPLES)
    for _ in range(300):
        metrics = httpx.get(f"{url}/metrics").text
        ended = dict(re.findall(r'multifold_requests_total{outcome="(\w+)"} (\d+)', metrics))
        if sum(map(int, ended.values())) - warmed >= 25:
            break
        time.sleep(0.1)
    assert int(ended["cancelled"]) >= 15, ended
    assert httpx.post(f"{url}/classify", json={"tree": TREE}).status_code == 200


def test_a_client_that_goes_cancels_what_is_streamed_to_it(backend):
    async def endless(fold, x):
        while True:
            yield f"{await fold.value(fold.add('half', x))} "

    async def answer():
        return StreamingResponse(server.stream(8.0), media_type="text/plain")

    app = FastAPI()
    app.get("/")(answer)
    port = free_port()
    web = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=web.run)
    server = multifold.Server({"half": lambda x: x / 2}, endless, backend=backend).start()
    thread.start()
    try:
        while not web.started:
            time.sleep(0.01)
        with httpx.stream("GET", f"http://127.0.0.1:{port}") as response:
            assert next(response.iter_text()).startswith("4.0 ")
        for _ in range(300):
            if server.stats().outcomes:
                break
            time.sleep(0.1)
        ended = server.stats().outcomes
    finally:
        server.stop(drain=False)
        web.should_exit = True
        thread.join(30)
    assert ended == {"cancelled": 1}
