"""Two habits of the code that keep it readable, read from the source of every module.

An attribute belongs to its class, which alone sets it. A class has its name for itself, so that a reader
who searches for the name finds one thing. `tests/test_architecture.py` holds who may import whom.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = sorted((ROOT / "multifold").rglob("*.py"))
ADAPTERS = sorted(ROOT.glob("backends/*/multifold_*/**/*.py"))
BENCHMARKS = sorted(ROOT.glob("benchmarks/multifold_bench/**/*.py"))
COMPAT = sorted(ROOT.glob("compat/multifold_compat/**/*.py"))
OURS = [*CORE, *ADAPTERS, *BENCHMARKS, *COMPAT]

COMPILED = ROOT / "multifold" / "_engine" / "compiled"
FILLS_IN = (COMPILED / "reference" / "recording.py", COMPILED / "_lazy.py")
"""These fill in new nodes and new pending values: to call the class would take longer."""

PREDECESSORS = ROOT / "compat"
"""Classes here have the names that programs for TorchFold, mxnet-jit-batch and TensorFlow Fold import."""


def targets(tree: ast.AST) -> Iterator[ast.expr]:
    """Walk what a module assigns to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            pending = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            pending = [node.target]
        else:
            continue
        while pending:
            target = pending.pop()
            if isinstance(target, ast.Tuple | ast.List):
                pending += target.elts
            else:
                yield target


def set_from_outside(source: str) -> list[str]:
    """Return assignments to attributes of others than ``self`` and ``cls``, causes of errors left out."""
    attributes = (x for x in targets(ast.parse(source)) if isinstance(x, ast.Attribute))
    return [
        f"{x.lineno}: {ast.unparse(x)}"
        for x in attributes
        if not (isinstance(x.value, ast.Name) and x.value.id in ("self", "cls")) and x.attr != "__cause__"
    ]


def test_an_attribute_that_is_set_from_outside_is_found():
    source = (
        "class A:\n    def f(self, b):\n        self.x = b.y = 1\n        b.z += 1\n        c, b.w = 1, 2\n"
    )
    assert [found.split()[1] for found in set_from_outside(source)] == ["b.y", "b.z", "b.w"]


def test_no_attribute_is_set_outside_of_its_class():
    found = {
        str(path.relative_to(ROOT)): set_from_outside(path.read_text())
        for path in CORE
        if path not in FILLS_IN
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_class_has_its_name_for_itself():
    classes = [
        node.name
        for path in OURS
        if PREDECESSORS not in path.parents
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    twice = {name for name, count in Counter(classes).items() if count > 1}
    assert twice == set()


def named_in(door: str) -> set[str]:
    """Return the modules that the docstring of a room lists, as ``- `plan`: all decisions of a run``."""
    lists = re.findall(r"^- (.+?):", door, re.MULTILINE)
    return {name for line in lists for name in re.findall(r"`+(\w+)`+", line) if line.startswith("`")}


def test_modules_that_a_room_lists_are_there():
    for path in [path for path in OURS if path.name == "__init__.py"]:
        source = path.read_text()
        names_of_its_own = set(re.findall(r"\w+", source.rpartition('"""')[2]))
        there = {other.stem for other in path.parent.iterdir()} | names_of_its_own
        strange = named_in(ast.get_docstring(ast.parse(source)) or "") - there
        assert not strange, f"{path.relative_to(ROOT)} lists {strange}"
