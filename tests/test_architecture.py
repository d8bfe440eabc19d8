"""Who may import whom, read from the syntax tree of every module: nothing here runs the package.

An import inside a function counts as much as one at the top of a module, except where a rule says
otherwise. What stands under ``if TYPE_CHECKING:`` never runs and is left out.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = {path.parent.name: path for path in sorted(ROOT.glob("backends/*/pyproject.toml"))}
FRAMEWORKS = {
    *("torch", "tensorflow", "keras", "mxnet", "jax", "jaxlib", "flax", "equinox", "optax"),
    *(f"multifold_{name}" for name in PROJECTS),
}
CONTRACT = re.compile(r"multifold(\.(backend|errors|program|lazy(\.\w+)?))?")
"""What adapters import of the core."""

INTEGER_ROOMS = ("_engine.compiled", "_engine.record", "_engine.plan", "_engine.traces")
CONTRACT_ROOMS = {"backend", "errors", "marks", "operands"}
ENGINE = {
    f"_engine.{name}"
    for name in ("compiled", "record", "frameworks", "plan", "traces", "ops", "run", "rounds")
}
PACKAGE = ""
"""`multifold` itself: what stands in ``__init__.py``."""

MAY_IMPORT = {
    # What everything may know.
    "errors": set(),
    "backend": {"errors"},
    "operands": {"errors"},
    "marks": {"errors"},
    "sampling": {"errors"},
    # Signposts: what had these names is in a distribution of its own.
    "blocks": {"errors"},
    "compat": {"errors"},
    # The engine. Nothing here knows what is below this block.
    "_engine": set(),
    "_engine.compiled": set(),
    "_engine.record": {"_engine.compiled"},
    "_engine.frameworks": {"_engine.compiled", "_engine.record"},
    "_engine.plan": {"_engine.compiled", "_engine.record"},
    "_engine.traces": {"_engine.compiled", "_engine.record", "_engine.plan"},
    "_engine.ops": {"_engine.compiled", "_engine.record", "_engine.plan"},
    "_engine.run": ENGINE - {"_engine.rounds", "_engine.traces"},
    "_engine.rounds": ENGINE - {"_engine.traces"},
    # What users call, each room with those above it.
    "_twin": ENGINE,
    "explain": ENGINE,
    "program": ENGINE | {"_twin", "sampling"},
    "fold": ENGINE | {"_twin", "explain", "program"},
    "lazy": ENGINE | {"explain", "fold"},
    "serve": ENGINE | {"explain", "fold"},
    "testing": ENGINE | {"_twin", "fold"},
    "ops": {"_engine.frameworks"},
    "models": {"_engine.frameworks", "ops"},
    # What brings NumPy to all of that, as an adapter brings its framework.
    "_numpy": ENGINE | {"lazy", "ops", "program"},
    # What measures, the face of all, and the command line.
    "_measure": ENGINE | {"fold", "lazy", "models", "ops"},
    PACKAGE: ENGINE | {"_measure", "_twin", "fold", "lazy", "serve"},
    "cli": ENGINE | {"_measure", PACKAGE},
    "__main__": {"cli"},
}
"""Room -> the rooms that it may import besides itself and the contract; CONTRIBUTING says what each is."""


# ---- reading imports -----------------------------------------------------------------------------


def modules_of(package: Path) -> dict[str, Path]:
    """Return the files of a package by dotted module name."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def statements(tree: ast.AST, *, functions: bool, types: bool) -> Iterator[ast.AST]:
    """Walk a tree; function bodies, and what stands under TYPE_CHECKING, only if asked."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending.extend(node.orelse)
        elif functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending.extend(ast.iter_child_nodes(node))


def imports(
    source: str, *, functions: bool = True, types: bool = False, known: frozenset[str] = frozenset()
) -> set[str]:
    """Return the dotted names of the modules that a source imports.

    ``from package import name`` imports the module ``package.name`` if ``known`` holds it.
    """
    found = set()
    for node in statements(ast.parse(source), functions=functions, types=types):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & known
            if inner - known:
                found.add(node.module)
    return found


def roots(names: set[str]) -> set[str]:
    """Return the top-level packages of dotted names."""
    return {name.partition(".")[0] for name in names}


def reachable(graph: dict[str, set[str]], start: set[str]) -> set[str]:
    """Return the modules that can be reached from some, these included."""
    found = set(start)
    pending = list(start)
    while pending:
        new = graph[pending.pop()] - found
        found |= new
        pending.extend(new)
    return found


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    reach = {name: reachable(graph, targets) for name, targets in graph.items()}
    circles = {
        frozenset(other for other in reach[name] if name in reach[other])
        for name in graph
        if name in reach[name]
    }
    return sorted(map(sorted, circles))


CORE = modules_of(ROOT / "multifold")


def room_of(name: str) -> str:
    """Return the room of a module: the first name below the package, in the engine the first two."""
    parts = name.split(".")[1:]
    return ".".join(parts[: 2 if parts[:1] == ["_engine"] else 1])


INTEGERS_ONLY = {name for name in CORE if room_of(name) in INTEGER_ROOMS}
GRAPH = {
    name: (imports(path.read_text(), known=frozenset(CORE)) & set(CORE)) - {name}
    for name, path in CORE.items()
}


# ---- the checker is checked ----------------------------------------------------------------------


def test_an_import_inside_a_function_is_found_and_may_be_left_out():
    source = "import numpy\ndef f():\n    import torch.nn\n"
    assert imports(source) == {"numpy", "torch.nn"}
    assert imports(source, functions=False) == {"numpy"}


def test_an_import_for_the_type_checker_does_not_count():
    source = "import typing\nif typing.TYPE_CHECKING:\n    import torch\nelse:\n    import os\n"
    assert imports(source) == {"typing", "os"}


def test_from_package_import_module_counts_as_the_module():
    source = "from multifold._engine.record import graph, Fold"
    known = frozenset({"multifold._engine.record.graph"})
    assert imports(source, known=known) == {"multifold._engine.record", "multifold._engine.record.graph"}


def test_a_cycle_is_named():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert cycles(graph) == [["b", "c"]]


# ---- the rules -----------------------------------------------------------------------------------


def test_rooms_of_integers_and_all_that_they_reach_import_no_framework():
    for name in reachable(GRAPH, INTEGERS_ONLY & set(CORE)):
        found = roots(imports(CORE[name].read_text())) & FRAMEWORKS
        assert not found, f"{name} imports {found}"


def test_a_room_imports_only_what_its_row_names():
    for name, targets in GRAPH.items():
        room = room_of(name)
        allowed = MAY_IMPORT[room] | CONTRACT_ROOMS | {room}
        found = {target for target in targets if room_of(target) not in allowed}
        assert not found, f"{name} imports {found}"


def test_rooms_do_not_import_each_other_in_a_circle():
    rooms: dict[str, set[str]] = {room: set() for room in MAY_IMPORT}
    for name, targets in GRAPH.items():
        rooms[room_of(name)] |= {room_of(target) for target in targets} - {room_of(name)}
    assert cycles(rooms) == []


def test_compiled_modules_are_imported_at_the_one_door():
    room = ROOT / "multifold" / "_engine" / "compiled"
    sources = [
        *room.glob("_*.pyx"),
        *(path for path in room.glob("_*.py") if path.with_suffix(".pxd").exists()),
    ]
    compiled = {f"multifold._engine.compiled.{path.stem}" for path in sources}
    assert {"multifold._engine.compiled._recording", "multifold._engine.compiled._rows"} <= compiled
    for name, path in CORE.items():
        found = imports(path.read_text(), known=frozenset(compiled)) & compiled
        assert not found or room_of(name) == "_engine.compiled", f"{name} imports {found}"


@pytest.mark.parametrize("package", ["multifold", *(f"multifold_{name}" for name in PROJECTS)])
def test_no_modules_of_a_package_import_each_other_in_a_circle(package):
    """Not for the type checker either: a reader follows those imports, too."""
    folder = "multifold" if package == "multifold" else f"backends/{package[10:]}/{package}"
    modules = modules_of(ROOT / folder)
    everything = {
        name: (imports(path.read_text(), known=frozenset(modules), types=True) & set(modules)) - {name}
        for name, path in modules.items()
    }
    circles = [" and ".join(circle) for circle in cycles(everything)]
    assert not circles, f"importing each other in a circle: {circles}"


def test_the_core_imports_no_framework_when_it_is_imported():
    for name, path in CORE.items():
        found = roots(imports(path.read_text(), functions=False)) & FRAMEWORKS
        assert not found, f"{name} imports {found} at module level"


def test_the_core_never_imports_an_adapter():
    for name, path in CORE.items():
        found = {root for root in roots(imports(path.read_text())) if root.startswith("multifold_")}
        assert not found, f"{name} imports {found}; adapters are found by entry point"


def project(name: str) -> dict[str, Any]:
    """Return the project table of an adapter's pyproject.toml."""
    return tomllib.loads(PROJECTS[name].read_text())["project"]


def declared(name: str) -> set[str]:
    """Return the packages that an adapter names as dependencies, optional ones included."""
    optional = project(name).get("optional-dependencies", {}).values()
    lines = [*project(name)["dependencies"], *(line for extra in optional for line in extra)]
    return {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in lines}


@pytest.mark.parametrize("name", PROJECTS)
def test_an_adapter_imports_its_own_framework_and_the_contract(name):
    package = modules_of(PROJECTS[name].parent / f"multifold_{name}")
    assert package, f"backends/{name} has no package multifold_{name}"
    own = {*sys.stdlib_module_names, *declared(name), "numpy", f"multifold_{name}"} - {"multifold"}
    for module, path in package.items():
        found = imports(path.read_text(), known=frozenset(CORE))
        found = {x for x in found if not CONTRACT.fullmatch(x)}
        strange = {x for x in found if x.partition(".")[0] not in own}
        assert not strange, f"{module} imports {strange}: neither declared nor in the contract"


SHAPE = {"__init__", "backend", "cells", "kit", "lazy", "modules", "ops", "trials"}
"""What each adapter has under the same name, as a module or a folder."""


@pytest.mark.parametrize("name", PROJECTS)
def test_an_adapter_has_the_shape_of_all(name):
    folder = PROJECTS[name].parent / f"multifold_{name}"
    assert {path.stem for path in folder.iterdir()} >= SHAPE
    classes = [
        x.name for x in ast.parse((folder / "backend.py").read_text()).body if isinstance(x, ast.ClassDef)
    ]
    assert f"{name.capitalize()}Backend" in classes


@pytest.mark.parametrize("name", PROJECTS)
def test_an_adapter_depends_on_no_other_framework(name):
    others = {x for other in PROJECTS if other != name for x in (other, f"multifold_{other}")}
    assert declared(name) & others == set()


@pytest.mark.parametrize("name", PROJECTS)
def test_one_spelling_is_directory_distribution_and_entry_point(name):
    assert project(name)["name"] == f"multifold-{name}"
    assert list(project(name)["entry-points"]["multifold.backends"]) == [name]


# ---- import multifold ----------------------------------------------------------------------------


@pytest.fixture
def python(tmp_path):
    """Run code in fresh interpreters at the root of the tree; they keep bytecode as pip does."""
    env = {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def run(code: str) -> str:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True)
        return done.stdout.decode()

    return run


def test_import_multifold_imports_no_framework_and_nothing_of_the_extras(python):
    loaded = set(python("import sys, multifold; print(*sys.modules)").split())
    heavy = {
        *FRAMEWORKS,
        "pyarrow",
        "click",
        "rich",
        "matplotlib",
        "sklearn",
        "pytest",
        "hypothesis",
        "greenlet",
    }
    assert loaded & heavy == set()


def test_import_multifold_takes_150_ms_or_no_longer_than_numpy(python):
    code = (  # time of the processor; a machine whose cores are all busy takes longer for NumPy, too
        "import time; times = [time.process_time()];"
        "import numpy; times.append(time.process_time());"
        "import multifold; times.append(time.process_time());"
        "print(times[1] - times[0], times[2] - times[1])"
    )
    of_numpy, own = zip(*[map(float, python(code).split()) for _ in range(5)], strict=True)
    assert min(own) < max(0.15, min(of_numpy))


# ---- nothing of a machine ------------------------------------------------------------------------

OF_A_MACHINE = re.compile(
    r"(?<![\w.}])/(?:work|tmp|root|home|opt|farm)/"
    r"|-(?:extra-)?index-url|find[-]links|pythonhosted[.]org|pypi[.]org/simple"
)
TEXT = {
    "",
    ".cfg",
    ".ini",
    ".ipynb",
    ".json",
    ".md",
    ".py",
    ".sh",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
}
MADE_HERE = {"__pycache__", "build", "dist", "htmlcov"}


def files_of(folder: Path) -> Iterator[Path]:
    """Walk the text files of the tree without what tools make; of hidden folders, only .ci."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            made = path.name in MADE_HERE or (path / "pyvenv.cfg").exists()
            if path.name == ".ci" or not (made or path.name.startswith(".")):
                yield from files_of(path)
        elif path.suffix in TEXT and path.name != ".git":  # a file in a worktree of git
            yield path


def test_nothing_names_a_path_or_a_package_host_of_some_machine():
    for path in files_of(ROOT):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            found = OF_A_MACHINE.search(line)
            assert not found, f"{path.relative_to(ROOT)}:{number} names {found[0]!r}"
