"""A model behind HTTP: FastAPI and uvicorn, with what a service needs around it.

python examples/serving/fastapi_app.py [--backend torch] [--port 8000]
curl -d '{"tree": ["It", ["was", "lovely"]]}' -H 'content-type: application/json' localhost:8000/classify

POST /classify   200; 422 for what is no tree, 503 with Retry-After if too many wait, 504 past the deadline
                 a client that goes before its answer cancels its request
GET  /health     200 while the process lives: restart it if not
GET  /ready      200 once the server is warm, and 503 before and while it stops: send requests elsewhere
GET  /metrics    for Prometheus

At SIGTERM no new connection is taken, and the process ends when the requests that are there are answered.
"""

import argparse
import asyncio
import contextlib
import math
import signal
import sys

import sentiment
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, Field

import multifold
from multifold.serve import Collector


class Sentence(BaseModel):
    tree: list | str
    timeout: float | None = Field(default=None, gt=0)  # seconds


async def unless_gone(request, answer):
    """Await an answer and return it; cancel it when the client of the request has gone."""

    async def watch():
        while (await request.receive())["type"] != "http.disconnect":
            pass
        asked.cancel()

    asked = asyncio.ensure_future(answer)
    watcher = asyncio.ensure_future(watch())
    try:
        return await asked
    except asyncio.CancelledError as error:
        if watcher.done():  # else the handler itself was cancelled
            raise HTTPException(499, "the client has gone") from error  # the client does not receive it
        raise
    finally:
        watcher.cancel()


def make_app(server):
    """Return the application that serves a `multifold.Server`."""
    registry = CollectorRegistry()
    registry.register(Collector(server))

    @contextlib.asynccontextmanager
    async def lifespan(app):
        async with server:  # answers what is there when it ends
            app.state.warm = asyncio.create_task(server.warm(sentiment.EXAMPLES))
            yield
            app.state.warm.cancel()
            app.state.warm = None

    app = FastAPI(title="Sentiment of trees", lifespan=lifespan)

    @app.post("/classify")
    async def classify(sentence: Sentence, request: Request):
        try:
            if sentiment.check(sentence.tree) > sentiment.MOST:
                raise ValueError(f"Expected at most {sentiment.MOST} words.")
        except (ValueError, RecursionError) as error:
            raise HTTPException(422, str(error)) from error
        found = await unless_gone(request, server(sentence.tree, timeout=sentence.timeout))
        return sentiment.answer(found)

    @app.exception_handler(multifold.Overloaded)
    async def overloaded(request: Request, error: multifold.Overloaded):
        return Response(str(error), 503, {"Retry-After": str(math.ceil(error.retry_after))})

    @app.exception_handler(multifold.DeadlineExceeded)
    async def late(request: Request, error: multifold.DeadlineExceeded):
        return Response(str(error), 504)

    @app.get("/health")
    async def health():
        return "alive"

    @app.get("/ready")
    async def ready():
        warm = app.state.warm
        if warm is None or not warm.done():
            raise HTTPException(503, "stopping" if warm is None else "not warm yet")
        warm.result()  # what has failed while warming up is an error of the service
        return "ready"

    @app.get("/metrics")
    async def metrics():
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--weights", help="a file that `multifold train` has written; random without")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--timeout", type=float, default=0.5, help="seconds that a request may take")
    parser.add_argument("--queue", type=int, default=200, help="requests that may wait")
    arguments = parser.parse_args()
    server = sentiment.make_server(
        arguments.backend, arguments.weights, timeout=arguments.timeout, queue=arguments.queue
    )
    # uvicorn stops gracefully at SIGTERM, and then hands the signal on to whoever was there before it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(make_app(server), host=arguments.host, port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
