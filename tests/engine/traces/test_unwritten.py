"""What cannot be written into a file of traces is refused by its name and its line."""

from __future__ import annotations

import enum
import functools
import json
from typing import Any

import numpy as np
import pytest
from trace_files import Model, Mutable, made, written

import multifold
from multifold import RecordError, ragged, shared, static, trace
from multifold._engine.traces.vocabularies import read_vocabulary, write_vocabulary


class Plain:
    """An object of a class that no file knows."""


class Entries(dict):
    """A mapping that may keep more than its entries."""


def with_more() -> Any:
    value = Mutable("a")
    value.more = 1
    return value


def local(x: Any) -> Any:
    def inside(x: Any) -> Any:
        return x

    return inside


REFUSED = {
    "lambda": (lambda fold: fold.add(lambda x: x, 1), "the lambda"),
    "local function": (
        lambda fold: fold.add(local(1), 1),
        "the local function local.<locals>.inside as an op",
    ),
    "bound method": (lambda fold: fold.add(Model().leaf, 1), "the bound method Model.leaf as an op"),
    "object": (lambda fold: fold.add("f", 1, by=Plain()), r"Plain as the keyword argument 'by' of 'f'"),
    "inside": (lambda fold: fold.add("f", 1, by=({"a": [Plain()]},)), "Plain as the keyword argument 'by'"),
    "operand": (lambda fold: fold.add("f", static(Plain())), "Plain among the operands of 'f'"),
    "subclass": (lambda fold: fold.add("f", 1, by=Entries(a=1)), "Entries"),
    "more": (lambda fold: fold.add("f", 1, by=with_more()), "Mutable as the keyword argument 'by'"),
    "objects": (lambda fold: fold.add("f", 1, by=static(np.array([None]))), "an array of dtype object"),
    "partial": (lambda fold: fold.add(functools.partial(lambda x: x, 1)), "the lambda"),
    "row": (lambda fold: fold.add("f", np.zeros((1, 2)).view(np.recarray)), "recarray"),
    "loose": (lambda fold: fold.add("f", ragged([enum.IntEnum("Of", "A").A])), "an object of type"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_written_is_refused_by_name_and_line(name, tmp_path):
    record, said = REFUSED[name]
    refused = trace(lambda fold, _: record(fold), None)
    with pytest.raises(RecordError, match=said) as error:
        multifold.save([*made(), refused], tmp_path / "traces")
    assert "test_unwritten.py" in str(error.value) and "trace 4" in str(error.value)
    assert error.value.hint
    assert not list(tmp_path.iterdir())


def test_what_is_refused_is_named_with_the_line_of_its_first_call():
    def record(fold, _):
        x = fold.add("f", fold.add("f", 1))
        for _ in range(2):
            x = fold.add("g", x, by=Plain())
        return x, fold.add("h", x)

    with pytest.raises(RecordError, match="Plain as the keyword argument 'by' of 'g'") as error:
        written([trace(record, 0)])
    line = record.__code__.co_firstlineno + 3
    assert f"recorded at {__file__}:{line} (trace 0)" in str(error.value)


class Odd(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({Plain(): [1.0]}, "Plain in what the traced function returned, recorded at no call (trace 0)"),
        ([Odd.ONE], "in trace 0, recorded in no file."),
    ],
)
def test_what_is_refused_in_a_trace_without_calls_was_recorded_nowhere(result, said):
    with pytest.raises(RecordError) as error:
        written([trace(lambda fold, _: result, 0)])
    assert said in str(error.value)


def test_values_that_are_nested_deeply_are_refused(monkeypatch):
    def too_deep(*_: Any) -> None:
        raise RecursionError

    made_before = made()[:1]
    monkeypatch.setattr("multifold._engine.traces.vocabularies.encode", too_deep)
    with pytest.raises(
        RecordError, match=r"not nested deeply\. Received one as an op, recorded at"
    ) as error:
        written(made_before)
    assert "trace_files.py:" in str(error.value) and "(trace 0)" in str(error.value)
    assert error.value.hint.startswith("pass a flat value")


@pytest.mark.parametrize("damage", [ValueError, KeyError])
def test_a_vocabulary_that_cannot_be_read_again_is_refused(damage, monkeypatch):
    def fail(*_: Any) -> None:
        raise damage

    twice = trace(lambda fold, x: fold.add("g", fold.add("f", fold.add("f", x), by=1)), 1)
    monkeypatch.setattr("multifold._engine.traces.vocabularies.read_vocabulary", fail)
    with pytest.raises(RecordError, match=r"read as others, in trace 0 of ops f, g\."):
        written([twice])


def test_an_array_of_a_framework_is_refused(backend, array):
    shares = trace(lambda fold, x: fold.add("f", shared(x), 1), array([1.0]))
    if backend == "numpy":
        assert written([shares]) == [shares]
    else:
        with pytest.raises(RecordError, match="among the operands of 'f', recorded at") as error:
            written([shares])
        assert type(array([1.0])).__qualname__ in str(error.value)


def test_only_traces_are_written():
    batch = multifold.merge(made())
    for other in (batch, made()[0], [1], [*made(), "words"]):
        with pytest.raises(RecordError, match="Expected traces to write"):
            multifold.to_arrow(other)
    with pytest.raises(RecordError, match=rf"Received a str as number {len(made())}\."):
        multifold.to_arrow([*made(), "words"])


def test_a_vocabulary_with_a_signature_twice_or_a_name_of_multifold_is_not_written():
    made_before = trace(lambda fold, x: [fold.add("f", x)], 1)
    form, values = write_vocabulary(made_before, 0)
    assert "multifold._" not in form  # what a file holds does not depend on where classes stand
    code = json.loads(form)
    code["signatures"] *= 2
    with pytest.raises(ValueError, match="two signatures are equal"):
        read_vocabulary(json.dumps(code), values, None)
