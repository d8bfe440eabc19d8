"""All distributions have one number, and a backend of another number than the core's is refused."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import multifold
from multifold import BackendError, load_backend
from multifold._frameworks import registry

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def release():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "release.py")))


def test_the_number_is_the_same_wherever_it_stands(release):
    assert list(release.written()) == [multifold.__version__]


def test_the_number_stands_in_each_distribution_and_is_what_it_asks_of_the_core(release):
    places = release.written()[multifold.__version__]
    for folder in release.DISTRIBUTIONS:
        name = (folder / "pyproject.toml").relative_to(ROOT).as_posix()
        assert places.count(name) >= 2, f"{name} has a number of its own, and asks for that of the core"


def test_each_backend_is_an_extra_of_the_core():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in {*registry.BACKENDS, "bench"} - {"numpy"}:
        assert extras[name] == [f"multifold-{name}=={multifold.__version__}"]


def test_a_backend_of_another_number_is_refused(monkeypatch):
    point = SimpleNamespace(name="torch", dist=SimpleNamespace(name="multifold-torch", version="0.0.7"))
    monkeypatch.setattr(registry, "entry_points", lambda: {"torch": point})
    with pytest.raises(BackendError, match=r"multifold-torch 0\.0\.7") as caught:
        load_backend.__wrapped__("torch")  # the function behind the cache
    assert "pip install ./backends/torch" in str(caught.value)
