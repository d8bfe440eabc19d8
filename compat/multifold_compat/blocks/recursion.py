"""Recursion: a block that is used before it is known.

``tree = ForwardDeclaration(OBJECT, 16)`` declares what goes in and comes out, ``tree()`` is a block to use
inside of the definition, and ``tree.resolve_to(block)`` says which block was meant.
"""

from __future__ import annotations

from typing import Any

from multifold_compat.blocks.block import Block, as_block
from multifold_compat.blocks.code import Code, Value, joined
from multifold_compat.blocks.inference import Flow, fitting, use_of
from multifold_compat.blocks.types import BlockError, Known, TupleType, as_type


class ForwardDeclaration:
    """Declare a block that is used before it is made, as in recursion.

    Parameters
    ----------
    input_type, output_type : optional
        As `as_type` reads them. An output type that is left open is inferred when the block is known.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Function, OneOf, Record, Scalar
    >>> formula = ForwardDeclaration()
    >>> pair = Record((formula(), formula())) >> Function("add")
    >>> total = formula.resolve_to(OneOf(type, {int: Scalar(), tuple: pair}))
    >>> fold = multifold.Fold(backend="numpy")
    >>> fold.run({"add": lambda x, y: x + y}, [((1, 2), 3), 4], total)
    array([6., 4.])
    """

    def __init__(self, input_type: Any = None, output_type: Any = None, name: str | None = None) -> None:
        self.given = as_type(input_type)
        self.returned = as_type(output_type)
        self.name = name
        self.target: Block | None = None

    def __call__(self) -> Reference:
        """Return a new block that stands for the declared one, to be used inside of its definition."""
        return Reference(self)

    def resolve_to(self, block: Any) -> Block:
        """Set which block was declared, and return it.

        Raises
        ------
        BlockError
            If it was said before, or the block takes or returns another type than declared.
        """
        target = as_block(block)
        if self.target is not None:
            raise BlockError(
                f"Expected {self!r} to be resolved once. Received a second block, {target!r}.",
                "make a ForwardDeclaration for each block that is used before it is known.",
            )
        if isinstance(target, Reference) and target.declaration is self:
            raise BlockError(
                f"Expected a block as what {self!r} stands for. Received the declaration itself.",
                "resolve it to a block that uses it: OneOf has a case that ends the recursion.",
            )
        fitting(f"as the input of {target!r}", use_of(target).given, self.given, "it was declared so.")
        for _ in range(2):  # once to infer what was left open, once to compare with it
            returned = use_of(target, self.given).returned
            where = f"as the output of {target!r}, as it was declared"
            self.returned = fitting(where, self.returned, returned, "declare what the block returns.")
        # An op that declares nothing returns one node. Declared as a tuple, the result is taken apart.
        if isinstance(self.returned, TupleType):
            target.set_output_type(self.returned)
        target.may_recur()
        self.target = target
        return target

    def __repr__(self) -> str:
        return f"<ForwardDeclaration{'' if self.name is None else f' {self.name!r}'}>"


class Reference(Block):
    """A use of a declared block; made by calling a `ForwardDeclaration`."""

    def __init__(self, declaration: ForwardDeclaration) -> None:
        super().__init__(declaration.name)
        self.declaration = declaration
        self.accepts = declaration.given

    def __repr__(self) -> str:
        return f"<{repr(self.declaration)[1:-1]}()>"

    def stands_for(self) -> Block | None:
        return self.declaration.target

    def emit(self, code: Code, x: Value) -> Value:
        target = self.declaration.target
        if target is None or not code.takes(target):
            return code.let(f"{code.constant(self.known)}()(fold, {joined(x)})")
        return code.let(f"{code.function(target)}(fold, {joined(x)})")

    def known(self) -> Block:
        """Return the block that was declared; raise `BlockError` if `resolve_to` was not called yet."""
        target = self.declaration.target
        if target is None:
            raise BlockError(
                f"Expected {self.declaration!r} to be resolved before an example is recorded.",
                "declaration.resolve_to(block) says which block it stands for.",
            )
        return target

    def infer(self, given: Known, flow: Flow) -> Known:
        return self.declaration.returned
