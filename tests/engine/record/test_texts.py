"""The text that stands for a value in files and tables: it says the whole value, or is refused."""

from __future__ import annotations

import enum
import functools
import json
import math
import sys
import types
from collections import OrderedDict

import numpy as np
import pytest
from trace_files import Color, Config, Mutable, Pair

import multifold
from multifold import RecordError, trace
from multifold._engine.record.freezing import freeze
from multifold._engine.record.texts import (
    BUILD,
    NoText,
    decode,
    encode,
    encode_dtype,
    look_up,
    name_of,
    text,
)

TEXTS = {
    "null": None,
    "true": True,
    r'"\u00e9"': "é",
    '["str","7aCA"]': "\ud800",
    '["int","0x8000000000000000"]': 2**63,
    '["float","AAAAAAAA8H8="]': math.inf,
    '["bytes","YWI="]': b"ab",
    '["tuple",1]': (1,),
    '["list",2.5]': [2.5],
    '["set",3,5]': {5, 3},
    '["frozenset",4]': frozenset({4}),
    '["dict","a",1]': {"a": 1},
    '["OrderedDict","a",1]': OrderedDict(a=1),
    '["slice",1,null,null]': slice(1, None),
    '["range",1,5,2]': range(1, 5, 2),
    '["complex",1.0,2.0]': 1 + 2j,
    '["Ellipsis"]': ...,
    '["dtype","<f4"]': np.dtype("<f4"),
    '["dtype",["dict","names",["list","a"],"formats",["list",["dtype","<i2"]],"offsets",["list",0],'
    '"itemsize",2]]': np.dtype([("a", "<i2")]),
    '["array",["dtype","<i2"],1,2,["bytes","AQACAA=="]]': np.array([[1, 2]], "<i2"),
    '["transpose",["array",["dtype","|i1"],2,2,["bytes","AQIDBA=="]],1,0]': np.int8([[1, 2], [3, 4]]).T,
    '["scalar",["dtype","<f4"],["bytes","AAAAPw=="]]': np.float32(0.5),
    '["partial",["name","builtins:max"],["tuple",1],["dict","key",["name","builtins:abs"]]]': (
        functools.partial(max, 1, key=abs)
    ),
    '["enum",["name","HERE:Color"],"RED"]': Color.RED,
    '["namedtuple",["name","HERE:Pair"],1,2]': Pair(1, 2),
    '["dataclass",["name","HERE:Config"],["tuple","width","sizes"],3,["list"]]': Config(3, []),
}
"""What files hold: who changes one of these texts raises the version of the layout."""


@pytest.mark.parametrize("written", TEXTS)
def test_a_value_has_the_text_that_it_has_in_the_files_there_are(written):
    value = TEXTS[written]
    written = written.replace("HERE", Color.__module__)
    assert text(encode(value)) == written
    assert freeze(decode(json.loads(written))) == freeze(value)


def test_a_text_holds_no_number_that_json_does_not_know():
    with pytest.raises(ValueError, match="not JSON compliant"):
        text([math.nan])


@pytest.mark.parametrize("wrap", [lambda x: Pair(x, 1), Mutable, lambda x: [x], lambda x: {"a": x}])
def test_a_caller_says_what_stands_for_its_own_objects_wherever_they_are(wrap):
    own = object()
    code = encode(wrap(own), lambda x: ["own"] if x is own else None)
    again = decode(code, special={"own": lambda: own})
    assert again == wrap(own)


def test_a_value_that_would_be_read_as_another_one_is_refused(monkeypatch):
    """As a safeguard: everything that is written is read at once, and compared."""
    monkeypatch.setitem(BUILD, "tuple", lambda *parts: list(parts))
    with pytest.raises(
        RecordError, match="Received some that would be read as others, in trace 0 of ops f, g"
    ):
        multifold.to_arrow([trace(lambda fold, x: fold.add("g", fold.add("f", by=x)), (1, 2))])


class Loose(Pair):
    """A named tuple with a `__dict__`, which a text would lose."""


class Called:
    def __call__(self) -> None: ...


def test_a_subclass_of_a_named_tuple_that_holds_more_is_refused():
    value = Loose(1, 2)
    assert decode(encode(value)) == value
    value.more = 3
    with pytest.raises(NoText):
        encode(value)


def test_a_partial_function_with_attributes_of_its_own_is_refused():
    value = functools.partial(triple, 1)
    assert decode(encode(value)).args == (1,)
    value.more = 3
    with pytest.raises(NoText):
        encode(value)


@pytest.mark.parametrize("damaged", ["YWI=!", "YW\nI=", "é"])
def test_bytes_of_other_letters_are_refused(damaged):
    assert decode(["bytes", "YWI="]) == b"ab"
    with pytest.raises(ValueError):  # noqa: PT011 - base64 says this and that
        decode(["bytes", damaged])


def test_an_object_without_a_name_is_refused_by_its_type():
    with pytest.raises(NoText, match=r"an object of type .*\.Called"):
        encode(Called())


class Fruit(enum.Enum):
    APPLE = 1
    PEAR = (2, "green")


@pytest.mark.parametrize("member", Fruit)
def test_a_member_of_an_enumeration_comes_back_as_itself(member):
    code = encode(member)
    assert code == ["enum", ["name", f"{__name__}:Fruit"], member.name]
    assert decode(json.loads(text(code))) is member


def test_a_function_is_named_by_any_module_that_holds_it(monkeypatch):
    """As torch.relu, which is written in C and does not know its module."""
    built_in = types.SimpleNamespace(__qualname__="Type.relu")
    module = types.ModuleType("of_users")
    module.relu = built_in
    monkeypatch.setitem(sys.modules, "a_longer_name_of_users", module)
    monkeypatch.setitem(sys.modules, "of_users", module)
    monkeypatch.setitem(sys.modules, "odd", Slotted())  # a module without names of its own
    assert name_of(built_in) == "of_users:relu"
    assert decode(["name", "of_users:relu"]) is built_in


class Slotted:
    __slots__ = ()


def triple(x):
    return 3 * x


def test_a_function_that_its_module_holds_no_more_is_refused(monkeypatch):
    gone = triple
    monkeypatch.setitem(globals(), "triple", None)
    with pytest.raises(NoText, match="its module does not hold under its name"):
        encode(gone)


def test_a_dtype_with_metadata_is_refused():
    value = np.zeros(2, np.dtype("f8", metadata={"unit": "m"}))
    with pytest.raises(NoText, match="the dtype dtype") as caught:
        encode(value)
    assert "without metadata" in str(caught.value.hint)


@pytest.mark.parametrize("value", [0, 127, 2**62, 2**63 - 1, -(2**63), -1000])
def test_an_integer_of_64_bits_stands_in_a_text_as_it_is(value):
    assert encode(value) == value


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_wider_integer_is_written_in_digits_of_its_own(value):
    assert encode(value)[0] == "int"
    assert decode(encode(value)) == value


def test_an_attribute_that_a_class_lacks_is_not_found():
    with pytest.raises(LookupError):
        look_up("multifold:Fold.nothing")


def test_a_dtype_that_a_package_adds_is_named_by_its_class():
    """Its short form is that of as many bytes, as that of bfloat16 is."""
    added = types.SimpleNamespace(
        str="<V2", names=None, fields=None, metadata=None, isalignedstruct=False, type=np.float16
    )
    added.dtype = np.dtype(np.float16)
    assert encode_dtype(added) == ["dtype", ["name", "numpy:float16"]]


def test_a_mapping_stands_for_nothing_in_a_text():
    with pytest.raises(TypeError, match="a mapping of JSON stands for nothing"):
        decode({"dict": 1})


def test_a_dtype_is_named_by_its_class_or_its_short_form():
    assert decode(["dtype", ["name", "numpy:float32"]]) == decode(["dtype", "<f4"]) == np.float32


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (["enum", ["name", "a"], "RED"], "no enumeration: <class"),
        (["dtype", ["name", "a"]], "no dtype: <class"),
        (["namedtuple", ["name", "a"], 1], "no named tuple: <class"),
        (["dataclass", ["name", "b"], ["tuple", "c"], 1], "has other fields than"),
        (
            ["array", ["dtype", "<f4"], 2, ["bytes", ""]],
            r"of shape \[2\] .* other than 0 bytes",
        ),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else "",
)
def test_what_a_text_names_must_be_of_the_kind_of_its_tag(code, message):
    names = {"a": type("Members", (), {"__members__": {"RED": 1}, "_fields": ("x",)}), "b": Config}
    with pytest.raises((TypeError, ValueError), match=message):
        decode(code, names.__getitem__)
