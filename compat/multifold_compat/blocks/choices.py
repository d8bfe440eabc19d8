"""Which block runs is decided by a Python object, while the example is recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from multifold_compat.blocks.block import Block, as_block, pairs
from multifold_compat.blocks.code import Code, Value, joined
from multifold_compat.blocks.inference import Flow, fitting
from multifold_compat.blocks.inputs import InputTransform, Zeros
from multifold_compat.blocks.types import OBJECT, VOID, BlockError, Known, TupleType, shown

FEW = 4
"""Up to so many cases are compared with the key one after the other; more are looked up."""

ONE_TYPE = "all cases return one type; put a block behind the case that makes it so."


def agreed(block: Block, types: list[tuple[str, Known]]) -> Known:
    """Return the type that all cases have in common; ``types`` has (name of the case, its type).

    Raises `BlockError` where two exclude each other.
    """
    found: Known = None
    for case, kind in types:
        found = fitting(f"as the output of {case} of {block!r}", found, kind, ONE_TYPE)
    return found


class OneOf(Block):
    """Give the input to one of several blocks, which a key chooses, and return what that block returns.

    Parameters
    ----------
    key_fn : callable or block
        Returns the key of a case for an input: a function of Python objects, or a block that returns one.
    case_blocks : dict, list of (key, block), or tuple of blocks
        All of them take one type and return one type. The keys of a tuple are 0, 1, 2, ..., and -1 is
        its last one.
    pre_block : block, optional
        Runs on the input before the case does.

    Raises
    ------
    BlockError
        If there is no case, or two of different types; when recorded, for a key without a case.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import InputTransform, Scalar
    >>> block = OneOf(type, {int: Scalar(), str: InputTransform(len) >> Scalar()})
    >>> multifold.Fold(backend="numpy").run(None, [3, "word"], block)
    array([3., 4.])
    """

    def __init__(
        self,
        key_fn: Callable[[Any], Any] | Block,
        case_blocks: Any,
        pre_block: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if not callable(key_fn):
            raise BlockError(
                f"Expected a function or a block as key_fn in OneOf. Received {key_fn!r}.",
                "OneOf(type, {int: a, str: b}) calls type(x); GetItem('kind') is a block.",
            )
        self.key = key_fn if isinstance(key_fn, Block) else InputTransform(key_fn)
        found = pairs(case_blocks)
        self.cases = dict(found)
        self.by_place = (
            bool(found)
            and isinstance(case_blocks, (list, tuple))
            and (not isinstance(case_blocks[0], tuple))
        )
        if not found:
            raise BlockError(
                "Expected at least one case in OneOf. Received none.", "{0: a, 1: b} has two cases."
            )
        if len(self.cases) < len(found):
            raise BlockError(
                f"Expected each key once in the cases of OneOf. Received {[key for key, _ in found]}.",
                "only one block can be that of a key.",
            )
        self.before = None if pre_block is None else as_block(pre_block)
        self.infer(None, Flow())

    nests = True

    def emit(self, code: Code, x: Value) -> Value:
        key = joined(code.of(self.key, x))
        refuse = code.constant(self.refuse)
        if self.by_place or len(self.cases) > FEW:
            return self.looked_up(code, key, refuse, x)
        cases: list[tuple[str, Callable[[], Value]]] = []
        for one, block in self.cases.items():
            same = "is" if one is None or isinstance(one, type) else "=="
            head = f"{'elif' if cases else 'if'} {key} {same} {code.constant(one)}:"
            cases.append((head, partial(self.taken, code, block, x)))
        return code.choice([*cases, ("else:", lambda: code.write(f"{refuse}({key}, {joined(x)})"))])

    def looked_up(self, code: Code, key: str, refuse: str, x: Value) -> Value:
        """Append code that looks the case up in a dictionary; return the expression of its result.

        ``key`` and ``refuse`` are expressions: the key, and `refuse`. Cases by place count from the end,
        too, as -1.
        """
        last = {place - len(self.cases): block for place, block in self.cases.items() if self.by_place}
        table = code.table({**self.cases, **last})
        case = code.new()
        with code.under("try:"):
            code.write(f"{case} = {table}[{key}]")
        with code.under("except (LookupError, TypeError) as error:"):
            code.write(f"{refuse}({key}, {joined(x)}, error)")
        return code.let(f"{case}(fold, {joined(self.prepared(code, x))})")

    def prepared(self, code: Code, x: Value) -> Value:
        """Append the code of ``pre_block``, if there is one.

        Return the expression of what the case gets.
        """
        return x if self.before is None else code.of(self.before, x)

    def taken(self, code: Code, block: Block, x: Value) -> Value:
        """Append the code of one case, ``block``, and what runs before it.

        Return the expression of its result.
        """
        return code.of(block, self.prepared(code, x))

    def refuse(self, key: Any, x: Any, cause: Exception | None = None) -> NoReturn:
        """Raise `BlockError`: no case has the key ``key``."""
        raise BlockError(
            f"Expected a key of a case of {self!r}. Received {key!r}, for the input {x!r}.",
            f"it has the cases {self.label()}; add one for what is missing.",
        ) from cause

    def infer(self, given: Known, flow: Flow) -> Known:
        key = flow.of(self.key, given)
        fitting(f"as the key of {self!r}", OBJECT, key, "a tensor has no value while it is recorded.")
        if self.before is not None:
            given = flow.of(self.before, given)
        return agreed(
            self, [(f"case {named(key)}", flow.of(case, given)) for key, case in self.cases.items()]
        )

    def label(self) -> str:
        return ", ".join(named(key) for key in self.cases)


def named(key: Any) -> str:
    """Return the text of the key of a case in messages: ``__name__`` if it has one, else ``repr``."""
    return str(getattr(key, "__name__", repr(key)))


class Optional(Block):
    """Give an input that is not None to one block; run another block for None.

    Parameters
    ----------
    some_case : block
        Runs on an input that is not None.
    none_case : block, optional
        Runs where the input is None, and is given nothing. Zeros of the other's type by default.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Scalar
    >>> multifold.Fold(backend="numpy").run(None, [3, None], Optional(Scalar()))
    array([3., 0.])
    """

    accepts = OBJECT
    hint = "None stands among Python objects; a tensor is always there."

    def __init__(self, some_case: Any, none_case: Any = None, name: str | None = None) -> None:
        super().__init__(name)
        self.some = as_block(some_case)
        if none_case is None:
            returned = self.some.output_type
            try:
                none_case = Zeros(returned)
            except BlockError as error:
                raise BlockError(
                    f"Expected none_case in {self!r}, whose zeros are not known. Received some_case, "
                    f"which returns {shown(returned)}.",
                    "give it a none_case, or declare what some_case returns: Function(op, out=16).",
                ) from error
        self.none = as_block(none_case)
        self.infer(OBJECT, Flow())

    nests = True

    def emit(self, code: Code, x: Value) -> Value:
        nothing = f"if {joined(x)} is None:", lambda: code.of(self.none, "None")
        return code.choice([nothing, ("else:", lambda: code.of(self.some, x))])

    def infer(self, given: Known, flow: Flow) -> Known:
        cases = [("some_case", flow.of(self.some, given)), ("none_case", flow.of(self.none, VOID))]
        return agreed(self, cases)


class AllOf(Block):
    """Give the same input to each block, and return the tuple of what they return; None without blocks.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Concat, InputTransform, Scalar
    >>> block = AllOf(InputTransform(len) >> Scalar(), InputTransform(max) >> Scalar()) >> Concat()
    >>> multifold.Fold(backend="numpy").run(None, [[5, 7], [9]], block)
    array([[2., 7.],
           [1., 9.]])
    """

    def __init__(self, *blocks: Any, name: str | None = None) -> None:
        super().__init__(name)
        self.blocks = tuple(map(as_block, blocks))
        self.infer(None, Flow())

    nests = True

    def emit(self, code: Code, x: Value) -> Value:
        return tuple([code.of(block, x) for block in self.blocks]) or "None"

    def infer(self, given: Known, flow: Flow) -> Known:
        types = [flow.of(block, given) for block in self.blocks]
        return TupleType(*types) if types else VOID
