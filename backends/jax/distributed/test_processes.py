"""Two processes of two devices each: they agree on forms, train as one process does, and fail together."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from ranks import RankError, Ranks, finished, free_port

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "scaling" / "jax_shards.py"


def weights_of(folder, devices, processes):
    """Return the weights after examples/scaling/jax_shards.py ran on that many devices and processes."""
    out = str(folder / f"{devices}-{processes}.npz")
    address = f"127.0.0.1:{free_port()}"
    where = ("--address", address, "--processes", str(processes)) if processes > 1 else ()
    commands = [
        [sys.executable, str(EXAMPLE), *where, "--process", str(rank), "--epochs", "1", "--out", out]
        for rank in range(processes)
    ]
    flags = f"--xla_force_host_platform_device_count={devices}"
    finished(commands, lambda rank: {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}, seconds=110)
    with np.load(out) as found:
        return list(found.values())


def test_the_example_ends_with_the_same_weights_on_any_number_of_devices(tmp_path):
    one = weights_of(tmp_path, 1, 1)
    four = weights_of(tmp_path, 2, 2)
    for x, y in zip(one, four, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def record(fold, tree):
    if isinstance(tree, int):
        return fold.add("leaf", tree)
    return fold.add("up" if len(tree) == 1 else "join", *[record(fold, child) for child in tree])


def ops():
    return {"leaf": lambda x: x[:, None] * 1.0, "join": lambda a, b: a - b, "up": lambda a: a * 0.5}


def alone(rank):
    """Return the results of process 0, which has all examples, and of process 1, which has none."""
    import jax
    import multifold_jax

    import multifold

    made = multifold.traces(record, [(1, 2), 3, (4,)] if rank == 0 else [])
    shards = multifold.Fold(backend="jax").program(made, shards=2, exchange=multifold_jax.exchange)
    run = jax.jit(jax.vmap(lambda program: multifold_jax.run(ops(), program)))
    return np.asarray(run(shards)).shape, shards.counts.tolist(), shards.weights.tolist()


def test_a_process_without_examples_runs_the_same_program(two_processes):
    first, second = two_processes.run(alone)
    assert first[0] == second[0]
    assert first[1] == [1, 2] and second[1:] == ([0, 0], [0, 0])
    np.testing.assert_allclose(first[2], [4 / 3, 8 / 3], rtol=1e-6)


def failed(rank):
    """Return what each process says where the second can't lay out its traces."""
    import multifold_jax

    import multifold

    def words(fold, word):
        return fold.add("f", multifold.ragged([fold.add("leaf", 1), 2.0]) if word else word)

    fold = multifold.Fold(backend="jax")
    made = multifold.traces(words if rank else record, [1])
    try:
        fold.program(made, {"f": None} if rank else None, shards=1, exchange=multifold_jax.exchange)
    except multifold.MultifoldError as error:
        return type(error).__name__, str(error)


def test_what_fails_in_one_process_is_raised_in_both(two_processes):
    (kind, message), (other, _) = two_processes.run(failed)
    assert kind == "RecordError" and "Process 1 could not make its programs" in message
    assert other == "LaunchError"


def recorded(rank):
    """Exchange forms, where an example of the second process fails before that."""
    import multifold_jax

    import multifold

    made = multifold.traces(lambda fold, x: fold.add("leaf", 1 / x), [1, 2, 1 - rank])
    multifold.Fold(backend="jax").program(made, shards=1, exchange=multifold_jax.exchange)


def test_an_example_that_fails_in_one_process_is_named(two_processes):
    with pytest.raises(RankError, match=r"process 1 raised(.|\n)*example 2"):
        two_processes.run(recorded, seconds=60)


def long_messages(rank):
    import multifold_jax

    own = [bytes([rank]) * size for size in (0, 5, 4088, 4089, 70_000 * (rank + 1))]
    return [[(len(x), set(x)) for x in multifold_jax.exchange(said)] for said in own]


def test_messages_of_any_length_reach_all(two_processes):
    first, second = two_processes.run(long_messages)
    assert first == second
    assert [[size for size, _ in one] for one in first] == [[n, n] for n in (0, 5, 4088, 4089)] + [
        [70_000, 140_000]
    ]
    assert all(content <= {rank} for one in first for rank, (_, content) in enumerate(one))


def half_way(_, rank, address):
    """Die in process 1 while process 0 waits for what it says."""
    import jax
    import multifold_jax

    jax.distributed.initialize(address, 2, rank, heartbeat_timeout_seconds=10)
    multifold_jax.exchange(b"both are here")
    if rank == 1:
        os._exit(3)
    try:
        multifold_jax.exchange(b"is anybody there?")
    except Exception as error:  # noqa: BLE001 - JAX may raise anything
        return f"raised {error}"


def test_a_process_waits_for_no_dead_one():
    address = f"127.0.0.1:{free_port()}"
    variables = {"JAX_PLATFORMS": "cpu"}
    with Ranks(1, lambda _: variables) as first, Ranks(1, lambda _: variables) as second:
        with ThreadPoolExecutor() as pool:
            running = [
                pool.submit(one.run, half_way, rank, address) for rank, one in enumerate([first, second])
            ]
        assert "died" in str(running[1].exception())
        # It is told by the connection that closed, or ended by JAX where no heartbeat comes any more.
        error = running[0].exception()
        assert "died" in str(error) if error else running[0].result()[0].startswith("raised")
