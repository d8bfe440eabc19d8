"""How a `Function` is written: the call of its op, with the operands that are known to be there."""

from __future__ import annotations

from keyword import iskeyword
from typing import Any

from multifold.blocks.code import Code, One, Value, joined
from multifold.blocks.dry import tried
from multifold.blocks.types import Known, TupleType


def call_of(block: Any, code: Code, x: Value) -> Value:
    """Write the call of a `Function`; return the expression of its node, or of the parts of that."""
    if code.dry:
        return code.let(f"{code.constant(tried)}({code.constant(block)}, fold, {joined(x)})")
    return taken_apart(code, One(code.let(expression(block, code, x))), block.out)


def expression(block: Any, code: Code, x: Value) -> str:
    """Return the expression of a call: of one operand, or of the items of a tuple, as far as is known."""
    op, static = block.call()
    named = [f"{name}={code.constant(value)}" for name, value in static.items()]
    if not all(name.isidentifier() and not iskeyword(name) for name in static):
        named = [f"**{code.constant(static)}"]

    def call(*operands: str) -> str:
        return f"add({', '.join([code.constant(op), *operands, *named])})"

    if isinstance(x, tuple) and not block.is_layer:
        return call(*map(joined, x))
    if x == "None":
        return call()
    if isinstance(x, One) or block.is_layer:
        return call(joined(x))
    return f"{call('*' + x)} if type({x}) is tuple else {call()} if {x} is None else {call(x)}"


def taken_apart(code: Code, node: str, kind: Known) -> Value:
    """Return the expression of a node, or the tuple of its parts where its result is a tuple."""
    if not isinstance(kind, TupleType) or not kind.items:
        return node
    parts = [One(code.new()) for _ in kind.items]
    code.write(f"{joined(tuple(parts))} = {node}.split({len(parts)})")
    return tuple([taken_apart(code, part, item) for part, item in zip(parts, kind.items, strict=True)])
