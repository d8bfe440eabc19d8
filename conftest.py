"""What every test may ask for, here and in the distributions: backends by ``--backend``, and their arrays.

A test that takes `backend` runs once for each backend, and its id says which: ``test_split[torch]``.
Expected values are NumPy's. A backend that was asked for and cannot be imported fails one test of
`tests/test_backends.py`; the others do not run on it.

A framework changes nothing for a test without a backend: such a test runs where NumPy is among those asked
for. What takes long and seldom finds anything is marked `nightly`, and runs with ``--nightly``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import operator
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import optree
import pytest

import multifold
from multifold._engine.frameworks import registry
from multifold.backend import Backend
from multifold.lazy.pace import LoopPace, RunWay
from multifold.testing import Counting

# A process may stand still for seconds on a machine that others use: times are no reason to fail.
hypothesis.settings.register_profile(
    "timeless", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
# JAX compiles for each shape: shapes that come again are found among those that were kept.
hypothesis.settings.register_profile(
    "alike", hypothesis.settings.get_profile("timeless"), derandomize=True, database=None
)
hypothesis.settings.load_profile("timeless")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        action="append",
        metavar="NAME",
        help="run the tests on this backend; may be repeated (default: numpy)",
    )
    parser.addoption(
        "--device",
        metavar="NAME",
        help="PyTorch's default device during the tests (default: cpu); JAX takes a GPU by itself",
    )
    parser.addoption(
        "--nightly",
        action="store_true",
        help="run also the tests that are marked nightly: they take long, and seldom find anything",
    )
    parser.addoption(
        "--programs",
        type=int,
        default=100,
        metavar="N",
        help="random programs for each test of tests/soak.py, plain ones, and random ops (default: 100)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if "jax" in asked(config) and not config.getoption("--nightly"):
        hypothesis.settings.load_profile("alike")
    if "jax" in asked(config) and importable("multifold_jax"):
        # So many tests compile more often than a training loop may before it is told of programs.
        importlib.import_module("multifold_jax.eager").COMPILATIONS.hush()
    device = config.getoption("--device")
    if device is not None:
        importlib.import_module("torch").set_default_device(device)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what no backend that was asked for can fail, and what runs at night; not what is named."""
    if any("::" in argument for argument in config.args):
        return
    left_out = [item for item in items if not of_backends(item, config) or not of_this_hour(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def of_backends(item: pytest.Item, config: pytest.Config) -> bool:
    """Return whether a test has a backend, or there is NumPy for those that have none."""
    shared = any(item.path.is_relative_to(config.rootpath / folder) for folder in SHARED)
    names = getattr(item, "fixturenames", ())
    return not shared or "numpy" in asked(config) or "backend" in names or "asked_backend" in names


SHARED = ("tests", "compat/tests", "benchmarks/tests", "benchmarks/multifold_bench")
"""Folders of tests that the sessions of all backends run."""


def of_this_hour(item: pytest.Item, config: pytest.Config) -> bool:
    """Return whether a test runs each time, or this is the run of the night.

    A test marked ``nightly(but=["numpy"])`` runs each time on the backends that are named.
    """
    mark = item.get_closest_marker("nightly")
    if mark is None or config.getoption("--nightly"):
        return True
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return parameters.get("backend") in mark.kwargs.get("but", ())


def asked(config: pytest.Config) -> list[str]:
    """Return the backends that were asked for."""
    return list(dict.fromkeys(config.getoption("--backend") or ["numpy"]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = asked(metafunc.config)
    if "asked_backend" in metafunc.fixturenames:
        metafunc.parametrize("asked_backend", names)
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", [name for name in names if importable(name)])
    if "graph" in metafunc.fixturenames:
        metafunc.parametrize("graph", [pytest.param(graph, id=name) for name, graph in drawn().items()])


def drawn() -> dict[str, Any]:
    """Return the random graphs of multifold-bench by name; none where it is not installed."""
    if importlib.util.find_spec("multifold_bench") is None:
        return {}
    return dict(importlib.import_module("multifold_bench.graphs").GRAPHS)


@pytest.fixture(autouse=True)
def recorded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batched programs never take the loop, since what a test sees would depend on times.

    The tests in ``test_pace.py`` and ``test_lazy_pace.py`` say what time it is.
    """
    if not request.path.stem.endswith("pace"):
        monkeypatch.setattr(LoopPace, "next", lambda self, count: RunWay(looped=0, timed=False))


@pytest.fixture
def graphs() -> dict[str, Any]:
    """The random graphs of multifold-bench by name. A test that takes `graph` runs with each of them."""
    return drawn() or pytest.skip("multifold-bench, which draws graphs, is not installed")


def importable(name: str) -> bool:
    """Return whether a backend can be used here."""
    try:
        registry.load_backend(name)
    except multifold.BackendError:
        return False
    return True


@pytest.fixture
def seam(backend: str) -> Backend:
    """The `multifold.Backend` under test."""
    return registry.load_backend(backend)


@pytest.fixture
def fold(backend: str) -> multifold.Fold:
    """An empty fold."""
    return multifold.Fold(backend=backend)


@pytest.fixture
def counting(seam: Backend) -> Counting:
    """The backend under test, counting what is asked of it."""
    return Counting(seam)


@pytest.fixture
def array(seam: Backend) -> Callable[..., Any]:
    """Return a function that makes an array of the backend; floats become its default float."""

    def array(values: Any, dtype: Any = None) -> Any:
        values = np.array(values, dtype)
        if dtype is None and values.dtype.kind == "f":
            values = values.astype(seam.number_dtype(float))
        return seam.constant(values, None)

    return array


@pytest.fixture
def to_numpy(seam: Backend) -> Callable[[Any], Any]:
    """Return a function that brings all arrays of a structure to NumPy."""
    return lambda outputs: optree.tree_map(seam.to_numpy, outputs)


@pytest.fixture
def equal(to_numpy: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    """Return a function that compares an array of the backend with expected values and shape."""

    def equal(got: Any, expected: Any, rtol: float = 1e-5) -> None:
        got = to_numpy(got)
        expected = np.asarray(expected)
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol)

    return equal


@pytest.fixture
def column(seam: Backend) -> Callable[[Any], Any]:
    """Return a function from a batch of numbers, ``(n,)``, to floats of shape ``(n, 1)``."""

    def column(numbers: Any) -> Any:
        values = seam.to_numpy(numbers).astype(seam.number_dtype(float))
        return seam.constant(values.reshape(-1, 1), None)

    return column


@pytest.fixture
def take(seam: Backend) -> Callable[[Any, Any], Any]:
    """Return a function that looks up rows of a table, as an embedding does."""
    return seam.gather


@pytest.fixture
def ops(backend: str) -> SimpleNamespace:
    """The few functions that frameworks spell differently."""
    if backend == "mxnet":
        from mxnet import nd

        return SimpleNamespace(tanh=nd.tanh, matmul=nd.dot, transpose=nd.transpose)
    module = importlib.import_module({"tensorflow": "tensorflow", "jax": "jax.numpy"}.get(backend, backend))
    transpose = module.t if backend == "torch" else module.transpose
    return SimpleNamespace(tanh=module.tanh, matmul=module.matmul, transpose=transpose)


@pytest.fixture
def total(seam: Backend) -> Callable[[multifold.Ragged], Any]:
    """Return an op that adds the rows of each node of a ragged operand, of any arity."""

    def total(rows: multifold.Ragged) -> Any:
        lengths = seam.to_numpy(rows.lengths).tolist()
        shape = tuple(rows.values.shape)[1:]
        dtype = seam.to_numpy(rows.values).dtype
        zero = seam.constant(np.zeros((1, *shape), dtype), None)
        pieces = iter(seam.split(rows.values, [1] * sum(lengths)) if sum(lengths) else ())
        sums = []
        for length in lengths:
            sums.append(zero)
            for _ in range(length):
                sums[-1] = sums[-1] + next(pieces)
        return seam.concat(sums) if len(sums) > 1 else sums[0]

    return total


@pytest.fixture
def gradients(seam: Backend) -> Callable[..., dict[str, np.ndarray]]:
    """Return a function that differentiates the sum of arrays by the arrays that they are made of.

    ``gradients(fn, values)`` calls ``fn(parameters)`` with arrays of the backend that have those
    values; it returns an array or a list of them. The training kit is asked, or differences are
    taken where the backend has none.
    """

    def listed(results: Any) -> list[Any]:
        return results if isinstance(results, list) else [results]

    def of_kit(fn: Callable[[Any], Any], values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        def loss(parameters: Any) -> Any:
            results = listed(fn(parameters))
            return functools.reduce(
                operator.add, [seam.kit.dot(x, np.ones(tuple(x.shape))) for x in results]
            )

        parameters = {name: seam.kit.variable(value) for name, value in values.items()}
        found = seam.kit.value_and_grad(loss, parameters)[1]
        return {name: seam.to_numpy(grad) for name, grad in found.items()}

    def by_differences(
        fn: Callable[[Any], Any], values: dict[str, np.ndarray], step: float = 1e-6
    ) -> dict[str, np.ndarray]:
        def slope(name: str, at: tuple[int, ...]) -> float:
            ends = [{key: value.copy() for key, value in values.items()} for _ in range(2)]
            ends[0][name][at] += step
            ends[1][name][at] -= step
            pairs = zip(*(listed(fn(end)) for end in ends), strict=True)
            return sum(float((x - y).sum()) for x, y in pairs) / (2 * step)

        return {
            name: np.reshape([slope(name, at) for at in np.ndindex(value.shape)], value.shape)
            for name, value in values.items()
        }

    def gradients(fn: Callable[[Any], Any], values: dict[str, Any]) -> dict[str, np.ndarray]:
        values = {k: np.array(v, seam.number_dtype(float)) for k, v in values.items()}
        return (by_differences if "kit" in seam.gaps() else of_kit)(fn, values)

    return gradients


@pytest.fixture
def launches() -> Callable[..., Counter[str]]:
    """Return a function that counts the launches of each op in a fold's schedule."""

    def launches(fold: multifold.Fold, outputs: Any = None) -> Counter[str]:
        schedule = fold.schedule(outputs)
        return Counter(
            op if isinstance(op, str) else op.__name__ for op in (x.op for x in schedule.launches)
        )

    return launches
