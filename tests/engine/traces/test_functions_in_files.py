"""Functions in files of traces are found by name in modules that are imported; nothing is executed."""

from __future__ import annotations

import dataclasses
import math
import sys
import types

import numpy as np
import pytest
from trace_files import Model, triple, written

import multifold
from multifold import Fold, RecordError, trace
from multifold._engine.record.texts import decode, name_of


def test_functions_are_found_in_modules_that_are_imported():
    ops = [math.sqrt, np.tanh, len, Model.double, triple]
    traces = [trace(lambda fold, op: fold.add(op, 4.0, act=op), op) for op in ops]
    assert [t.vocabulary.signatures[0].op for t in written(traces)] == ops
    assert name_of(Model.double) == f"{Model.__module__}:Model.double"


@pytest.fixture
def gone(monkeypatch):
    """A function of a module that nobody imports any more, and would fail to."""
    module = types.ModuleType("gone_module")
    exec("def op(x):\n    return 10 * x", vars(module))
    monkeypatch.setitem(sys.modules, "gone_module", module)
    table = multifold.to_arrow([trace(lambda fold, x: fold.add(module.op, x), 2)])
    monkeypatch.delitem(sys.modules, "gone_module")
    return table


def test_a_function_that_is_not_imported_is_named_and_not_imported(gone, tmp_path, monkeypatch):
    (tmp_path / "gone_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecordError, match="Expected 'gone_module:op' in `ops` or in a module") as error:
        multifold.from_arrow(gone)
    assert "import gone_module before, or pass ops={'gone_module:op': the function}" in error.value.hint
    assert "gone_module" not in sys.modules


def test_ops_stand_in_for_functions(gone):
    (one,) = multifold.from_arrow(gone, ops={"gone_module:op": triple})
    assert Fold(backend="numpy").run({}, [one]).tolist() == [6]


@pytest.mark.parametrize("as_file", [False, True], ids=["path", "file"])
def test_ops_stand_in_for_functions_of_a_file(gone, as_file, tmp_path):
    path = tmp_path / "gone.parquet"
    multifold.save(multifold.from_arrow(gone, ops={"gone_module:op": triple}), path)
    name = f"{triple.__module__}:triple"
    with open(path, "rb") as file:
        (one,) = multifold.load(file if as_file else path, ops={name: quadruple})
    assert Fold(backend="numpy").run({}, [one]).tolist() == [8]


def quadruple(x):
    return 4 * x


def test_nothing_is_executed_when_a_table_is_read(monkeypatch):
    """What a hostile file could name: a class, a lazy attribute, a property, an enum of another kind."""
    ran = []

    class Trap(type):
        @property
        def inner(cls):
            ran.append("property")

    module = types.ModuleType("trap")
    vars(module).update(
        __getattr__=ran.append,
        call=lambda *x: ran.append("call"),
        Made=dataclasses.make_dataclass(
            "Made",
            ["name"],
            namespace={"__post_init__": ran.append, "__setattr__": lambda *x: ran.append(x)},
        ),
        Class=Trap("Class", (), {"__new__": lambda cls, *x: ran.append("new")}),
    )
    monkeypatch.setitem(sys.modules, "trap", module)
    for code in (
        ["name", "trap:missing"],
        ["name", "trap:Class.inner"],
        ["name", "trap:call"],
        ["namedtuple", ["name", "trap:Class"], 1],
        ["namedtuple", ["name", "trap:call"], 1],
        ["enum", ["name", "trap:Class"], "A"],
        ["dtype", ["name", "trap:Class"]],
        ["partial", ["name", "trap:call"], ["tuple"], ["dict"]],
        ["dataclass", ["name", "trap:Class"], ["tuple"]],
        ["dataclass", ["name", "trap:Made"], ["tuple", "name"], "a"],
        ["name", "os:system", "true"],
        ["call", ["name", "trap:call"]],
    ):
        try:
            decode(code)
        except (LookupError, TypeError, ValueError, AttributeError):
            continue
    assert ran == []
