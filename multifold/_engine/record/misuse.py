"""What a node is taken for: an array. Each question that Python or a framework asks of arrays is refused.

While a program is recorded no result exists, so ``node + 1`` or ``torch.relu(node)`` cannot be computed.
Python would say "unsupported operand", and PyTorch "must be Tensor, not Node". `Uncomputed` answers by the
protocols through which arrays of other kinds take over, and shows the call of `add` that was meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, NoReturn

from multifold.errors import RecordError

BINARY = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
    "lshift": "<<",
    "rshift": ">>",
    "and": "&",
    "or": "|",
    "xor": "^",
}
COMPARISONS = ("<", "<=", ">", ">=")
UNARY = {"neg": "-", "pos": "+", "invert": "~"}
CONVERSIONS = {"float": "float", "int": "int", "index": "int", "complex": "complex", "len": "len"}

PLAIN = "Code that computes with arrays as it stands needs no fold: `multifold.batched(fn)(examples)`."
AWAIT = f"`await fold.value(node)` inside of an `async def` computes it; else compute inside an op. {PLAIN}"
JOINS = ("cat", "concat", "concatenate", "stack", "hstack", "vstack")
"""Functions of several arrays, where the axis of the examples matters."""

APART = ("chunk", "unbind", "unstack", "tensor_split")
"""Methods that take an array apart, as ``x.chunk(2)``; on a node `split` was meant."""


class NoAttributeError(RecordError, AttributeError):
    """An attribute that a node does not have, such as the shape of an array: ``hasattr`` says no."""


def refuse(what: str, hint: str) -> NoReturn:
    """Raise `RecordError`: ``what``, a text such as ``node + x``, needs a result. ``hint`` is its hint."""
    raise RecordError(
        f"`{what}` needs a result, and a node stands for one that was not computed yet.", hint
    )


def by_call(call: str) -> str:
    """Return a hint that shows what to write: ``by_call("abs, node")`` shows ``fold.add(abs, node)``."""
    return f"record a call of it, `fold.add({call})`, or write it inside an op of the model. {PLAIN}"


def refuse_function(function: Any) -> NoReturn:
    """Raise `RecordError` for a framework's function, as `torch.relu`, that was called on a node."""
    name = getattr(function, "__name__", "function")
    if name in JOINS:
        hint = "record an op that joins its operands along axis 1: `fold.add(join, node, other)`."
    else:
        hint = (
            'record a call: of a layer by its name in the model, `fold.add("layer", node)`, of a function '
            f"itself, `fold.add({name}, node)`."
        )
    refuse(f"{name}(node)", f"{hint} {PLAIN}")


def refusing(written: str, hint: str) -> Callable[..., NoReturn]:
    """Return a method that always raises `RecordError`; ``written`` is the user's code, as ``-node``."""

    def refused(self: object, *others: object) -> NoReturn:
        refuse(written, hint)

    return refused


class Uncomputed:
    """A base class whose operators, and whose protocols of NumPy, PyTorch, TensorFlow and JAX, raise.

    They raise `RecordError`, which shows the call of ``fold.add`` that was meant.
    """

    __slots__ = ()

    def _lacks(self, name: str) -> NoReturn:
        """Raise `NoAttributeError` for an attribute that the node lacks; it says what was meant.

        For a name that begins with two underscores it is a plain `AttributeError`.
        """
        # Copy, pickle and inspect ask for many such names. They want a plain AttributeError at once, and no
        # search for near names.
        if name.startswith("__"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        # Names with an underscore are private, and no user means one of these.
        near = difflib.get_close_matches(name, [x for x in dir(type(self)) if x[0] != "_"], n=1)
        hint = f"did you mean `node.{near[0]}`?" if near else AWAIT
        if name in APART:
            hint = "take the array apart inside of its op, which returns a tuple: `h, c = node.split(2)`."
        raise NoAttributeError(
            f"A {self!r} has no attribute '{name}': it stands for a result, and is no array.",
            AWAIT if name == "value" else hint,
        )

    def __array__(self, *_: object, **__: object) -> NoReturn:
        refuse("array(node)", by_call("function, node"))

    def __array_ufunc__(self, ufunc: Any, *_: Any, **__: Any) -> NoReturn:
        refuse_function(ufunc)

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        refuse_function(function)

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> NoReturn:
        refuse_function(function)

    def __tf_tensor__(self, *_: object, **__: object) -> NoReturn:
        refuse("tensor(node)", by_call("function, node"))

    def __jax_array__(self) -> NoReturn:
        refuse("array(node)", by_call("function, node"))

    def __abs__(self) -> NoReturn:
        refuse("abs(node)", by_call("abs, node"))

    def __setitem__(self, key: object, value: object) -> NoReturn:
        refuse("node[...] = x", by_call("function, node, x"))


def _add_methods() -> None:
    for name, symbol in BINARY.items():
        # `and` and `or` are keywords of Python, so the module `operator` calls its functions and_ and or_.
        function = f"operator.{name}{'_' * (name in ('and', 'or'))}"
        setattr(Uncomputed, f"__{name}__", refusing(f"node {symbol} x", by_call(f"{function}, node, x")))
        setattr(Uncomputed, f"__r{name}__", refusing(f"x {symbol} node", by_call(f"{function}, x, node")))
    for name, symbol in UNARY.items():
        setattr(Uncomputed, f"__{name}__", refusing(f"{symbol}node", by_call(f"operator.{name}, node")))
    for name, function in CONVERSIONS.items():
        setattr(Uncomputed, f"__{name}__", refusing(f"{function}(node)", AWAIT))


_add_methods()
