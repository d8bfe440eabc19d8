"""Every compiled function stands at the one door, has a reference, and refuses arrays of another kind."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import pytest
from kernel_references import REFERENCES, defines

from multifold._engine import compiled

pytestmark = pytest.mark.skipif(not compiled.in_use, reason=compiled.state())


def test_every_name_of_the_door_is_compiled_and_has_a_reference():
    names = set(compiled.__all__) - {"ends_stacks", "in_use", "missing", "state"}
    for name in names:
        (module,) = [x for x in REFERENCES.values() if defines(x, name)]
        found = getattr(compiled, name)
        reference = getattr(module, name)
        assert found is not reference or isinstance(found, int)
        if isinstance(reference, int):
            assert found == reference
        elif not isinstance(reference, type):
            assert list(inspect.signature(found).parameters) == list(
                inspect.signature(reference).parameters
            )


def test_no_compiled_function_is_left_out_of_the_door():
    for name in REFERENCES:
        module = importlib.import_module(f"multifold._engine.compiled.{name}")
        own = {key for key in vars(module) if not key.startswith("_") and defines(module, key)}
        functions = {key for key in own if callable(vars(module)[key]) and key.islower()}
        assert functions <= set(compiled.__all__)


def test_other_dtypes_and_orders_are_refused():
    for column in (np.zeros(1, np.int32), np.zeros(4, np.int64)[::2], np.zeros((1, 1), np.int64), None):
        with pytest.raises((TypeError, ValueError)):
            compiled.typed_levels(column, np.zeros(0, np.int64), np.zeros(0, np.int64))
