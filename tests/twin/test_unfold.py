"""The eager twin raises at the call, and goes on afterwards."""

from __future__ import annotations

import pytest
from error_texts import PARTS, here

from multifold import LaunchError, MultifoldError, Unfold


def test_the_eager_twin_raises_at_the_call(backend):
    unfold = Unfold({"op": lambda x, k: 1 / 0}, backend=backend)
    with pytest.raises(LaunchError, match="ZeroDivisionError") as caught:
        unfold.add("op", 1.0, k=2)
    where = here(back=1)
    for words in ("'op'", where, "0 float (1,)", "Hint: "):
        assert words in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(("part", "words"), PARTS.values(), ids=PARTS)
def test_the_eager_twin_names_a_part_that_is_not_there(backend, part, words):
    unfold = Unfold({"pair": lambda x: (x, {"none": None})}, backend=backend)
    node = part(unfold.add("pair", 1.0))
    with pytest.raises(LaunchError, match="Hint: ") as caught:
        unfold.apply(None, [node])
    assert __file__ in str(caught.value)


def test_the_eager_twin_goes_on_after_an_error(backend, equal):
    unfold = Unfold({"op": lambda x: x * 2, "bad": lambda x: 1 / 0}, backend=backend)
    first = unfold.add("op", 1.0)
    for add in (lambda: unfold.add("bad", first), lambda: unfold.add("op", {1})):
        with pytest.raises(MultifoldError):
            add()
    equal(unfold([first, unfold.add("op", first)]), [2, 4])


def test_a_node_of_the_eager_twin_prints_its_value(backend):
    unfold = Unfold({"op": lambda x: (x, x + 1)}, backend=backend)
    node = unfold.add("op", 1.0)
    assert str(node[1]).startswith("<node 0 of op[1]>: ") and "2." in str(node[1])
    assert repr(node) == "<node 0 of op>"
