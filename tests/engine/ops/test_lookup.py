"""How the name of an op is found on a model, and what is said where there is none."""

from __future__ import annotations

from collections import ChainMap, Counter, OrderedDict, UserDict
from types import SimpleNamespace

import pytest
from error_texts import here, launch_error

from multifold import Fold, LaunchError

MISSING = {
    "a typo": ("encdoe", "no op 'encdoe'"),
    "a method of dict": ("update", "has no op 'update'"),
    "a path": ("encode.deeper", "has no op 'encode.deeper'"),
    "a value": ("width", "'width'.*callable.*int"),
}


@pytest.mark.parametrize(("op", "words"), MISSING.values(), ids=MISSING)
def test_an_op_that_the_model_lacks_is_named_before_anything_runs(fold, op, words):
    ran = []
    outputs = [fold.add("encode", 1.0), fold.add(op, 1.0)]
    where = here(back=1)
    with pytest.raises(LaunchError, match=f"(?s){words}.*Hint: ") as caught:
        fold.apply({"encode": ran.append, "width": 3}, tuple(outputs))
    assert where in str(caught.value)
    assert not ran


def test_names_need_a_model(fold):
    assert "Received none" in launch_error(fold, None, fold.add("f", 1.0))


@pytest.mark.parametrize("name", ["²", "7"])
def test_a_position_that_a_list_lacks_is_no_op(name):
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match=f"no op '{name}'"):
        fold.apply([lambda x: x], fold.add(name, 1))


def test_private_names_are_no_suggestions():
    class Model:
        def _encode(self, x):
            return x

    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match="has no op 'encode'") as error:
        fold.apply(Model(), [fold.add("encode", 1.0)])
    assert error.value.hint == "op names are attributes, paths or keys."


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("encoder.sell", "encoder.cell"),
        ("encodr.cell", "encoder.cell"),
        ("encoder.layers.0.forwrad", "encoder.layers.0.forward"),
    ],
)
def test_a_name_inside_of_a_path_is_suggested(wrong, right):
    layer = SimpleNamespace(forward=abs)
    model = {"encoder": SimpleNamespace(cell=abs, layers=[layer])}
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError) as error:
        fold.apply(model, [fold.add(wrong, 1.0)])
    assert error.value.hint == f"did you mean '{right}'?"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Counter({"f": 1}), "update"),
        (OrderedDict(f=1), "pop"),
        (UserDict(f=1), "get"),
        (ChainMap({"f": 1}), "items"),
        ({"f": 1}, "copy"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_what_every_mapping_has_is_no_op_of_a_model(model, name):
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match=f"has no op '{name}'"):
        fold.apply(model, fold.add(name, 1.0))


def test_a_mapping_of_a_users_own_may_define_an_op_of_such_a_name():
    class Ops(dict):
        def update(self, x):
            return x + 1

    fold = Fold(backend="numpy")
    assert fold.apply(Ops(), fold.add("update", 1.0)).tolist() == [2.0]


def test_a_name_with_a_dot_may_be_a_key_or_a_path():
    fold = Fold(backend="numpy")
    model = {"a.b": lambda x: x + 1, "c": SimpleNamespace(d=lambda x: x + 2)}
    assert fold.apply(model, [fold.add("a.b", 1.0), fold.add("c.d", 1.0)]).tolist() == [2.0, 3.0]
    with pytest.raises(LaunchError, match=r"c\.e"):
        fold.apply(model, fold.add("c.e", 1.0))


@pytest.mark.parametrize("path", ["nothing.__init__", "nothing.__call__", "part.nothing.__str__"])
def test_a_path_that_ends_early_leads_to_no_op(path):
    fold = Fold(backend="numpy")
    model = SimpleNamespace(part=SimpleNamespace())
    with pytest.raises(LaunchError, match="has no op"):
        fold.apply(model, [[fold.add(path, 1.0)]])
