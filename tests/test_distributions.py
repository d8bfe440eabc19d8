"""All distributions have one number, and what pages and errors tell people to install is there."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import tomllib
import zipfile
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

import multifold
from multifold import BackendError, load_backend
from multifold._engine.frameworks import registry

ROOT = Path(__file__).resolve().parents[1]
NUMBER = multifold.__version__


@pytest.fixture(scope="module")
def release():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "release.py")))


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


# ---- names and numbers ---------------------------------------------------------------------------


def test_a_distribution_has_the_name_that_a_release_looks_for(release):
    assert [project(folder)["name"] for folder in release.DISTRIBUTIONS.values()] == [
        *release.DISTRIBUTIONS
    ]
    backends = [f"multifold-{name}" for name in registry.BACKENDS if name != "numpy"]
    assert set(release.DISTRIBUTIONS) == {
        "multifold-core",
        "multifold-compat",
        "multifold-bench",
        *backends,
    }


def test_the_number_is_the_same_wherever_it_stands(release):
    assert list(release.written()) == [NUMBER]


def test_each_distribution_asks_for_the_core_of_its_own_number(release):
    places = release.written()[NUMBER]
    for name, folder in release.DISTRIBUTIONS.items():
        if name != "multifold-core":
            asked = [x for x in project(folder)["dependencies"] if x.startswith("multifold")]
            assert [re.sub(r"\[.*\]", "", x) for x in asked] == [f"multifold-core=={NUMBER}"]
            assert project(folder)["version"] == NUMBER
            file = (folder / "pyproject.toml").relative_to(ROOT).as_posix()
            assert places.count(file) == 2, f"a release writes both numbers of {file}"


def test_a_backend_of_another_number_than_that_of_the_installed_core_is_refused(monkeypatch):
    installed = {project(ROOT)["name"]: "0.0.8"}
    point = SimpleNamespace(name="torch", dist=SimpleNamespace(name="multifold-torch", version="0.0.7"))
    monkeypatch.setattr(metadata, "version", installed.__getitem__)
    monkeypatch.setattr(registry, "entry_points", lambda: {"torch": point})
    with pytest.raises(BackendError, match=r"0\.0\.8\. Received multifold-torch 0\.0\.7") as caught:
        load_backend.__wrapped__("torch")  # the function behind the cache
    assert registry.install_line("torch") in str(caught.value)


# ---- what is built -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "package"), [("multifold-core", "multifold"), ("multifold-torch", "multifold_torch")]
)
def test_a_release_sees_what_a_wheel_lacks_and_what_it_has_besides(
    release, monkeypatch, tmp_path, name, package
):
    monkeypatch.setitem(release.DISTRIBUTIONS, name, tmp_path)
    (tmp_path / package).mkdir()
    for file in ("kept.py", "lost.py", "source.pyx"):
        (tmp_path / package / file).touch()
    for command in ("init", "add ."):
        subprocess.run(["git", *command.split()], cwd=tmp_path, capture_output=True, check=True)
    stem = f"{name.replace('-', '_')}-{NUMBER}"
    wheel = tmp_path / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        for file in ("kept.py", "made.so"):
            made.writestr(f"{package}/{file}", "")
        made.writestr(f"{stem}.dist-info/METADATA", "")
        made.writestr("strange.py", "")
    assert release.missing_and_foreign(wheel) == ({f"{package}/lost.py"}, {"strange.py"})


@pytest.mark.parametrize("file", ["noxfile.py", ".github/workflows/release.yml"])
def test_what_looks_for_the_wheels_of_the_core_finds_these_alone(file):
    patterns = re.findall(r"\bmultifold\w*-\*[.\w]*", (ROOT / file).read_text())
    assert patterns
    for pattern in patterns:
        assert fnmatch(f"multifold_core-{NUMBER}-cp311-cp311-linux_x86_64.whl", pattern)
        assert not fnmatch(f"multifold_torch-{NUMBER}-py3-none-any.whl", pattern)


# ---- what people are told to install -------------------------------------------------------------

OURS = re.compile(r"""(?<=[\s'"])(multifold(?:-[a-z]+)?|\.[\w/]*)(?:\[([\w,]+)\])?(?=[\s'"]|$)""")
"""What is installed by ``pip install`` and is of this repository, by name or by folder, with its extras."""


def installed():
    """Return each line that installs something, of all pages and sources."""
    folders = ("backends", "benchmarks", "compat", "docs", "examples", "multifold")
    files = [*ROOT.glob("*.*"), *(x for folder in folders for x in (ROOT / folder).rglob("*.*"))]
    texts = [file.read_text() for file in files if file.suffix in (".md", ".py", ".sh")]
    return [f" {line}" for text in texts for line in re.findall(r"pip install ([^`#&;\n]+)", text)]


def test_each_distribution_and_extra_that_is_to_be_installed_is_there(release):
    found = {(line, *match) for line in installed() for match in OURS.findall(line)}
    assert {"multifold-core", "multifold-torch", "."} <= {name for _, name, _ in found}
    for line, name, extras in found:
        folder = release.DISTRIBUTIONS.get(name, ROOT / name)
        assert (folder / "pyproject.toml").exists(), f"{name} is no distribution: pip install{line}"
        known = project(folder).get("optional-dependencies", {})
        assert not [x for x in extras.split(",") if x and x not in known], f"pip install{line}"


def noxfile():
    """Return the tables of noxfile.py by name, without importing nox."""
    lines = [x for x in ast.parse((ROOT / "noxfile.py").read_text()).body if isinstance(x, ast.Assign)]
    return {ast.unparse(x.targets[0]): x.value for x in lines if isinstance(x.value, ast.Dict)}


def pinned(packages, name):
    """Return the version of a framework in a list of packages; without a number pip takes the newest."""
    found = [x.partition("==")[2].removesuffix(".*") for x in packages if x.startswith(f"{name}==")]
    return found[0] if found else "newest"


@pytest.mark.parametrize("title", ["NumPy", "PyTorch", "TensorFlow", "MXNet", "JAX"])
def test_the_table_of_versions_is_what_the_sessions_run(title):
    name = title.removeprefix("Py").lower()
    used, oldest = (ast.literal_eval(noxfile()[table]) for table in ("FRAMEWORKS", "EXTREMES"))
    jobs = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    pythons = ", ".join(re.findall(rf'"tests\({name}\)", python: "([\d.]+)" }}', jobs))
    cells = (title, pinned(used[name], name), pinned(oldest.get(name, used[name]), name), pythons)
    assert f"| {' | '.join(cells)} |" in (ROOT / "README.md").read_text().splitlines()
