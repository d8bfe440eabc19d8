"""The same model on Ray Serve: several replicas, on one machine or many, each with a `multifold.Server`.

python examples/serving/ray_app.py [--backend torch] [--replicas 2] [--port 8000]
curl -d '{"tree": ["It", ["was", "lovely"]]}' -H 'content-type: application/json' localhost:8000/classify

A server shares launches among the requests of its own process, so add replicas when one has its core or its
device busy, not before. In a Ray cluster they may be on any of its machines; Ray starts, watches and
replaces them. `serve run ray_app:app` runs the same, with Ray's own options.
"""

import argparse
import asyncio
import math
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import ray
import sentiment
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from ray import serve

import multifold

http = FastAPI(title="Sentiment of trees")


class Sentence(BaseModel):
    tree: list | str


@serve.deployment(
    num_replicas=2,
    # Ray sends a replica no more than this at a time, so that the server of each can share launches.
    max_ongoing_requests=200,
    graceful_shutdown_timeout_s=10,
)
@serve.ingress(http)
class Sentiment:
    """One replica: a process with a model and its server."""

    def __init__(self, backend="numpy", weights=None):
        self.server = sentiment.make_server(backend, weights, timeout=0.5).start()
        # Ray sends requests to a replica when its constructor has returned, so here it warms up.
        # Its event loop waits for that, so another one does it.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, self.server.warm(sentiment.EXAMPLES)).result()

    @http.post("/classify")
    async def classify(self, sentence: Sentence):
        try:
            if sentiment.check(sentence.tree) > sentiment.MOST:
                raise ValueError(f"Expected at most {sentiment.MOST} words.")
            found = await self.server(sentence.tree)
        except (ValueError, RecursionError) as error:
            raise HTTPException(422, str(error)) from error
        except multifold.Overloaded as error:
            after = {"Retry-After": str(math.ceil(error.retry_after))}
            raise HTTPException(503, str(error), after) from error
        except multifold.DeadlineExceeded as error:
            raise HTTPException(504, str(error)) from error
        return sentiment.answer(found) | {"replica": os.getpid()}

    def check_health(self):
        """Ray asks now and then, and replaces a replica that raises."""
        self.server.submit(sentiment.EXAMPLES[0], timeout=10).result()

    def __del__(self):
        self.server.stop()  # answers what is there; Ray waits for as long as it was told above


app = Sentiment.bind()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--weights", help="a file that `multifold train` has written; random without")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    ray.init(log_to_driver=False, include_dashboard=False)
    serve.start(http_options={"host": arguments.host, "port": arguments.port})
    deployment = Sentiment.options(num_replicas=arguments.replicas)
    serve.run(deployment.bind(arguments.backend, arguments.weights))
    print(f"{arguments.replicas} replicas: http://{arguments.host}:{arguments.port}/classify", flush=True)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()
    serve.shutdown()  # each replica answers what it has
    ray.shutdown()


if __name__ == "__main__":
    main()
