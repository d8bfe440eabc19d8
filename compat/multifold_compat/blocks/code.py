"""From blocks to one Python function: what a person would write by hand for the same model.

A block that called those inside of it would take several times as long as a function written by hand, most
of it in calls of Python. So a block writes itself: ``emit(code, x)`` appends lines to `Code` that do
what the block does with the value of an expression, and returns the expression of the result. The block
``{"x": Scalar(), "y": Scalar()} >> Function("add", out=[])`` becomes, but for errors,

    def f0(fold, x):
        add = fold.add
        v1 = x['x']
        v2 = float(v1)
        v3 = x['y']
        v4 = float(v3)
        v5 = add('add', v2, v4)
        return v5

A line has the number of the line that made its `Function`, and the function the name of that file: so
errors, `Fold.explain` and debuggers point at the definition of the block.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from multifold._engine.record.node import Node
from multifold_compat.blocks.types import Known, TensorType, TupleType

Value = Any
"""An expression, as a str; or a tuple of such, where a block is known to return a tuple."""


class One(str):
    """An expression, as text, of one operand: its value is neither a tuple nor None."""

    __slots__ = ()


NOWHERE = 1 << 20
"""The line of a ``def``: after the end of any file, so that no other text is taken for its source."""

SHORT = 8
"""Up to so many lines of a block are written again where it stands a second time, in place of a call."""

PLAIN = (int, str, bool, type(None))
"""Types of constants that are written as they print."""


def joined(x: Value) -> str:
    """Return a value as one expression: of a tuple ``"(a, (b, c))"``, of text the text itself."""
    if isinstance(x, tuple):
        return f"({', '.join(map(joined, x))}{',' * (len(x) == 1)})"
    return x


def apart(x: Any, size: int) -> Any:
    """Return the ``size`` parts of a node by ``split``; anything else, a tuple already, as it is."""
    return x.split(size) if isinstance(x, Node) else x


class Code:
    """The source of one Python function for a block, and of those that it calls; `made` compiles it.

    Parameters
    ----------
    dry : bool
        Whether it is for a dry run, which compares what each `Function` returns with what was declared.
    """

    def __init__(self, dry: bool) -> None:
        self.dry = dry
        self.file: str | None = None
        self.line = 1
        self.lines: list[tuple[str, int]] = []
        self.constants: dict[str, Any] = {"__name__": "<block>"}
        self.names: dict[int, str] = {}
        self.functions: dict[int, str] = {}
        self.pending: list[Any] = []
        self.tables: list[tuple[dict[Any, Any], dict[Any, str]]] = []
        self.written: dict[int, int] = {}
        self.depth = 1
        self.count = 0
        self.total = 0

    def of(self, block: Any, x: Value) -> Value:
        """Append what a block does with ``x``, or a call of the block; return the expression of its result.

        A block of more than a few lines that was written before is a function of its own, so that blocks
        which share parts do not grow; and so is one that stands inside of itself, and one with a
        ``__call__`` of its own.
        """
        # A block without blocks inside writes few lines, so a call is never worth it.
        long = block.nests and (block.recurs or self.written.get(id(block), 0) > SHORT)
        if long or not self.takes(block):
            return self.let(f"{self.called(block)}(fold, {joined(x)})")
        return self.emitted(block, x)

    def called(self, block: Any) -> str:
        """Return the expression of a function ``f(fold, x)`` that records a block.

        It is a function that is written here, or the block itself if `takes` refuses it.
        """
        return self.function(block) if self.takes(block) else self.constant(block)

    def emitted(self, block: Any, x: Value) -> Value:
        """Append what a block does with ``x``; return the expression of its result.

        Lines of calls that the block records get the number of the line that made the block.
        """
        outer = self.line
        before = self.total
        # While it is being written it counts as long, so that a block inside of itself becomes a function.
        self.written.setdefault(id(block), SHORT + 1)
        if block.records and self.file == block.at[0]:
            self.line = block.at[1]
        made = block.emit(self, x)
        if block.stands_for() is None:  # what a declaration stands for does it itself
            made = self.taken_apart(made, block.output_type)
        self.line = outer
        self.written[id(block)] = self.total - before
        return made

    def taken_apart(self, x: Value, kind: Known) -> Value:
        """Return the tuple of the parts of ``x`` if ``kind`` is the type of a tuple, else ``x``.

        An op returns one node, whatever its type; so has an op without a declared type, where a declared
        one stands beside it: another case, the first state, a `ForwardDeclaration`.
        """
        if isinstance(x, tuple) or not isinstance(kind, TupleType) or not kind.items:
            return x
        parts = [
            (One if isinstance(x, One) or type(item) is TensorType else str)(self.new()) for item in kind
        ]
        size = len(parts)
        split = f"{x}.split({size})" if isinstance(x, One) else f"{self.constant(apart)}({x}, {size})"
        self.write(f"{joined(tuple(parts))} = {split}")
        return tuple([self.taken_apart(part, item) for part, item in zip(parts, kind, strict=True)])

    def takes(self, block: Any) -> bool:
        """Return whether the code of a block may stand here.

        It may not if the block has a ``__call__`` of its own, or records calls and was made in another
        file.
        """
        if block.calls_itself():
            return False
        if block.records and self.file is None:
            self.file = block.at[0]
        return not block.records or self.file == block.at[0]

    def write(self, text: str) -> None:
        """Append one line of source, indented to the present depth."""
        self.total += 1
        self.lines.append(("    " * self.depth + text, self.line))

    @contextmanager
    def under(self, text: str) -> Iterator[None]:
        """Append a line that ends with a colon; return a context in which lines are indented below it."""
        self.write(text)
        self.depth += 1
        yield
        self.depth -= 1

    def new(self) -> str:
        """Return the name of a new variable: ``"v1"``, ``"v2"`` and so on."""
        self.count += 1
        return f"v{self.count}"

    def let(self, expression: str) -> str:
        """Append an assignment of ``expression`` to a new variable; return the name of the variable."""
        name = self.new()
        self.write(f"{name} = {expression}")
        return name

    def constant(self, value: Any) -> str:
        """Return the expression of a Python object.

        Integers, text, bools and None are written as they print, others become globals.
        """
        if type(value) in PLAIN:
            return repr(value)
        # `constants` keeps the object alive, so that no other one gets its id.
        name = self.names.setdefault(id(value), f"c{len(self.names)}")
        self.constants[name] = value
        return name

    def item(self, x: Value, key: Any) -> Value:
        """Return the expression of ``x[key]``: a part of a tuple at once, else a new variable."""
        if isinstance(x, tuple) and isinstance(key, (int, slice)):
            return x[key]
        return self.let(f"{joined(x)}[{self.constant(key)}]")

    def function(self, block: Any) -> str:
        """Return the name of the function of ``block``, as ``"f0"``; `made` writes the function later."""
        if id(block) not in self.functions:
            self.functions[id(block)] = f"f{len(self.functions)}"
            self.pending.append(block)
        return self.functions[id(block)]

    def table(self, blocks: Mapping[Any, Any]) -> str:
        """Return the name of a global dictionary: key of ``blocks`` -> function that records that block."""
        functions: dict[Any, Any] = {}
        self.tables.append((functions, {key: self.called(block) for key, block in blocks.items()}))
        return self.constant(functions)

    def choice(self, cases: Sequence[tuple[str, Callable[[], Value]]]) -> Value:
        """Append the code of several cases; return the expression of the result.

        A case is a line, such as ``"if x is None:"``, and a function that appends what is below it and
        returns the expression of its result, or None if it raises.
        """
        outer = self.lines
        branches = []
        for head, write in cases:
            self.lines = []
            with self.under(head):
                result = write()
            branches.append((self.lines, result))
        self.lines = outer
        results = [result for _, result in branches if result is not None]  # a case that raises has none
        sizes = {len(result) if isinstance(result, tuple) else None for result in results}
        names: Value = self.new()
        # All cases return tuples of one size: with a variable for each part the parts stay known.
        if len(sizes) == 1 and None not in sizes:
            names = tuple(self.new() for _ in results[0])
        elif all(isinstance(result, One) for result in results):
            names = One(names)
        for lines, result in branches:
            self.lines += lines
            if result is not None:
                self.depth += 1
                self.write(f"{joined(names)} = {joined(result)}")
                self.depth -= 1
        return names

    def made(self, block: Any) -> Callable[[Any, Any], Any]:
        """Return the compiled function ``f(fold, x)`` of a block, with all functions that it calls."""
        self.takes(block)
        first = self.function(block)
        while self.pending:
            self.body(self.pending.pop())
        tree = ast.parse("\n".join(text for text, _ in self.lines))
        for node in ast.walk(tree):
            if isinstance(node, (ast.stmt, ast.expr, ast.excepthandler, ast.arg, ast.keyword)):
                line = self.lines[node.lineno - 1][1]
                # Each statement gets the line of the block that it was written for, as tracebacks show it.
                vars(node).update(lineno=line, end_lineno=line, col_offset=0, end_col_offset=0)
        exec(compile(tree, self.file or "<block>", "exec"), self.constants)
        for table, names in self.tables:
            # Only now, since the functions that a table names were defined by the `exec` above.
            table.update((key, self.constants[name]) for key, name in names.items())
        made: Callable[[Any, Any], Any] = self.constants[first]
        return made

    def body(self, block: Any) -> None:
        """Append the ``def`` of the function of a block."""
        self.lines.append((f"def {self.functions[id(block)]}(fold, x):", NOWHERE))
        self.depth = 1
        self.write("add = fold.add")
        self.write(f"return {joined(self.emitted(block, 'x'))}")
