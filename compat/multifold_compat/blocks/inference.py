"""Type inference, in one place: `Flow.of` asks a block which type comes out for the type that goes in.

A block says two things: what it accepts, a type of which parts may be open, and ``infer(given, flow)``,
which asks ``flow.of`` about the blocks inside. Nothing is solved and nothing is guessed: types go in the
direction of the data, and each composition asks again about all that it holds. What was asked is kept as a
tree, which is what ``print(block)`` shows. A block that stands in several places, with one type that goes
in, is asked once and has one `Use`: forty blocks, each of which holds the one before twice, are forty uses,
though there are 2 ** 40 paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from multifold_compat.blocks.types import (
    BlockError,
    BroadcastSequenceType,
    Disjoint,
    Known,
    PyObjectType,
    SequenceType,
    TupleType,
    canonical,
    meet,
    shown,
)


class Typed(Protocol):
    """What inference needs of a block: declared types, a hint for errors, and three methods."""

    accepts: Known
    returns: Known
    hint: str

    def infer(self, given: Known, flow: Flow) -> Known:
        """Return the type that comes out if ``given`` goes in; None where it is open."""

    def learn(self, given: Known) -> None:
        """Keep the type of what goes in, if an empty sequence needs it later."""

    def stands_for(self) -> Typed | None:
        """Return the block that a use of a `ForwardDeclaration` refers to; None for other blocks."""


@dataclass
class Use:
    """A block in one place: the types that go in and come out, and the uses of the blocks inside."""

    block: Any
    given: Known
    returned: Known = None
    inside: list[Use] = field(default_factory=list)


class Flow:
    """One walk of types through a block and the blocks inside of it.

    Parameters
    ----------
    teaches : bool
        Whether blocks learn what goes in. They do when blocks are put together; looking changes nothing.

    Attributes
    ----------
    place : Use
        Whose insides are being asked.
    found : dict
        The use of each block by its ``id`` and what goes in; a use keeps its block alive.
    """

    def __init__(self, teaches: bool = True) -> None:
        self.teaches = teaches
        self.root = Use(None, None)
        self.place = self.root
        self.found: dict[tuple[int, Known], Use] = {}

    def of(self, block: Typed, given: Known) -> Known:
        """Return the type that comes out of a block if ``given`` goes in; None where it is open.

        Raises
        ------
        BlockError
            If the block, or one inside of it, does not accept what goes in.
        """
        given = fitting(f"as the input of {block!r}", block.accepts, canonical(given), block.hint)
        use = self.found.get((id(block), given))
        if use is None:
            outer = self.place
            # Blocks that `infer` asks about become the insides of this use.
            self.place = inner = Use(block, given)
            returned = canonical(block.infer(given, self))
            returned = fitting(f"as the output of {block!r}", block.returns, returned, DECLARED)
            if self.teaches:
                block.learn(given)
            use = self.found[id(block), given] = Use(block, given, returned, inner.inside)
            self.place = outer
        self.place.inside.append(use)
        return use.returned


DECLARED = "this type was declared; either the declaration or the block is another than was meant."


def fitting(where: str, expected: Known, received: Known, hint: str) -> Known:
    """Return the type that says what both types say, as `meet`; raise `BlockError` if no value has both.

    ``where`` says in the error whose type it is: ``"as the input of <Sum>"``.
    """
    try:
        return canonical(meet(expected, received))
    except Disjoint:
        raise BlockError(f"Expected {shown(expected)} {where}. Received {shown(received)}.", hint) from None


def item_of(block: Typed, given: Known, key: Any) -> Known:
    """Return the type of ``x[key]``, where ``x`` of type ``given`` goes into a block.

    Raises `BlockError` for a type without such an item.
    """
    if given is None or isinstance(given, PyObjectType):
        return given
    if isinstance(given, TupleType) and isinstance(key, (int, slice)):
        try:
            found = given.items[key]
        except IndexError:
            raise BlockError(
                f"Expected a tuple with item {key} as the input of {block!r}. Received {given}.", block.hint
            ) from None
        return TupleType(*found) if isinstance(found, tuple) else found
    if isinstance(given, SequenceType) and isinstance(key, (int, slice)):
        return given if isinstance(key, slice) else given.element_type
    return fitting(f"with item {key!r} as the input of {block!r}", PyObjectType(), given, block.hint)


def tensors_only(block: Typed, given: Known) -> None:
    """Raise `BlockError` if ``given`` is or holds a Python object or a sequence.

    Tensors, tuples of them, void and open types pass.
    """
    pending = [given]
    while pending:
        kind = pending.pop()
        if isinstance(kind, TupleType):
            pending += kind.items
        elif isinstance(kind, (PyObjectType, SequenceType, BroadcastSequenceType)):
            raise BlockError(
                f"Expected tensors as the input of {block!r}. Received {shown(given)}.", block.hint
            )


def use_of(block: Typed, given: Known = None, teaches: bool = True) -> Use:
    """Return the `Use` of a block that gets ``given``, with all uses inside.

    ``teaches`` is that of a `Flow`.
    """
    flow = Flow(teaches)
    flow.of(block, given)
    return flow.root.inside[0]


def uses_in(use: Use) -> Iterator[Use]:
    """Yield a use and all uses inside of it, each once.

    After a use of a declaration those of its target follow.
    """
    followed: list[Any] = []
    pending = [use]
    seen = dict[int, Use]()
    while pending:
        use = pending.pop()
        if id(use) in seen:
            continue
        seen[id(use)] = use  # kept, since an id is used again when its object is gone
        yield use
        pending += reversed(use.inside)
        target = use.block.stands_for()
        if target is not None and not any(target is block for block in followed):
            followed.append(target)
            pending.append(use_of(target, use.given))
