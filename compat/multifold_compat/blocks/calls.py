"""How a `Function` is written: the call of its op, with the operands that are known to be there."""

from __future__ import annotations

from keyword import iskeyword
from typing import Any

from multifold_compat.blocks.code import Code, One, Value, joined
from multifold_compat.blocks.dry import tried


def call_of(block: Any, code: Code, x: Value) -> Value:
    """Append the call of a `Function` to ``code``; return the expression of its result."""
    if code.dry:
        return code.let(f"{code.constant(tried)}({code.constant(block)}, fold, {joined(x)})")
    return One(code.let(expression(block, code, x)))


def expression(block: Any, code: Code, x: Value) -> str:
    """Return the text of a call of ``add`` with ``x`` as one operand, as several, or as none.

    A tuple is several operands. Where the code does not tell what ``x`` is, the text decides when an
    example is recorded.
    """
    op, static = block.call()
    named = [f"{name}={code.constant(value)}" for name, value in static.items()]
    if not all(name.isidentifier() and not iskeyword(name) for name in static):
        # A keyword such as `class` can only be passed in a dictionary.
        named = [f"**{code.constant(static)}"]

    def call(*operands: str) -> str:
        return f"add({', '.join([code.constant(op), *operands, *named])})"

    if isinstance(x, tuple) and not block.is_layer:
        return call(*map(joined, x))
    if x == "None":
        return call()
    # Known to be one operand. Of any other expression the type is asked for when an example is recorded.
    if isinstance(x, One) or block.is_layer:
        return call(joined(x))
    return f"{call('*' + x)} if type({x}) is tuple else {call()} if {x} is None else {call(x)}"
