"""How large the rooms may be and what may stand in them, read from the source of every module.

A limit is a promise to readers: a module fits into one sitting, a function onto one screen. Where an issue
needs a larger count, raise it here and say in the commit why.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = sorted((ROOT / "multifold").rglob("*.py"))
ADAPTERS = sorted(ROOT.glob("backends/*/multifold_*/**/*.py"))
BENCHMARKS = sorted(ROOT.glob("benchmarks/multifold_bench/**/*.py"))
OURS = [*CORE, *ADAPTERS, *BENCHMARKS]
SUFFIXES = ("c", "h", "pyx", "pxd", "pxi")
COMPILED = [path for suffix in SUFFIXES for path in ROOT.glob(f"multifold/**/*.{suffix}")]

MODULES_AT_THE_TOP = 10
LINES_OF_A_MODULE = 450
LINES_OF_A_FUNCTION = 60
LINES_OF_FOLD = 360
"""350 were enough until `reset` kept what a fold has learned, and `clear` came to drop it."""
LINES_OF_CODE_IN_THE_CORE = 18_800
"""Without what `multifold compare` keeps of the benchmarks and their data sets.

10,500 were enough until the core had to say what it cannot do exactly like a loop. Since then some 680
lines came for files of traces, 520 for static values and their copies, 480 for the trials of ambiguous
launches, 280 for damaged traces, for their pickles and for ops that write to their operands, and 120 for
rows of two float dtypes that meet, 290 for nodes that are taken for arrays and results that keep their
example, 160 for dry runs, 330 for streams, 110 for balanced minibatches, and 30 for what trainers ask of
a batch, 420 for errors, hints and tables that new users asked for, 150 for metrics and spans of a server,
and 310 for its rounds that end between two launches. 700 are for rounds of one launch of each op, which
run without a plan, and for pages of rows; 130 more give such rounds to `Fold.run`, 60 find the rows of all
launches of such a round at once, and 35 let NumPy read and write pages that it sees. The 330 after them
are for programs of several shards, 90 for bounds that a few paths prove, 60 for futures without locks, and
180 for the reference of rounds that are planned and wired in one call. 20 leave out of a search for a
schedule what is in no circle, 160 let newcomers of a server catch up together and join in groups, 50 tell
what a worker cannot send, and 150 are for more hints. The rest, up to 1,100, is for what makes small and
irregular minibatches fast, and for the fused functions of `multifold.ops`.
"""
LINES_OF_COMPILED_SOURCE = 3_745
"""They were 2,208 while recording was C. The 820 lines of it are 440 of Cython, which records as fast.

1,800 served until loops off the main road were compiled as well: the cover of graphs whose types meet in a
circle, and equal calls recorded once. Some 150 lines cut traces out of one graph, and 130 schedule calls
whose types meet in no circle in one pass, in 0.6 of the time. Some 20 refuse attributes of nodes, and up to
280 are for rounds of awaited values: the table of all calls grows in C, and tasks take their steps there.
160 more prove how few launches hard graphs need: in Python that takes a hundred times as long. 290 plan
hard graphs in one call: which calls are in a circle, both ways of a beam, and links that its states share.
In Python and NumPy the same steps, without the beam, took half of the time of planning a small minibatch.
120 make the wiring of a launch as finished objects, and plan a round in one call. 60 find the rows of all
that tasks of a server wait for, where NumPy took a tenth of a round. 55 note whose calls are
whose after each step of a task: in Python that took 3 % of a round. 80 look at a call's line in the table
only once, walk back from the awaited calls without a sort, and group the calls of launches in one array.
"""
COMMENTS_PER_1000_LINES = 20
COMMENTED_ROOMS = ("_wiring", "_run", "_await", "program")
MODULES_THAT_COMPARE_KINDS = 3

MAKES_NODES = ROOT / "multifold" / "_compiled" / "reference" / "recording.py"
"""Fills in new nodes without calling their class, which would take a third longer on the hottest path."""

BLOCKS = ROOT / "multifold" / "blocks"
LINES_OF_CODE_IN_BLOCKS = 2_010
"""Counted apart from the core, which never imports them: a library of small functions on top of it.

1,500 were enough until metrics came, dry runs, and the 150 lines by which blocks write one function.
Another 120 let definitions for TensorFlow Fold run as they are: labels of metrics, results that are called
by their key, endless sequences, types as tuples; take results apart that are said to be tuples; and
refuse results that nobody reads.
"""

PREDECESSORS = (ROOT / "multifold" / "compat", BLOCKS)
"""Classes here have the names that programs for TorchFold, mxnet-jit-batch and TensorFlow Fold import."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


# ---- reading sources -----------------------------------------------------------------------------


def name_of(path: Path) -> str:
    """Return a path as it is shown in a message and in the id of a test."""
    return str(path.relative_to(ROOT))


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the lines of all strings that stand by themselves: docstrings, also those of attributes."""
    alone = (node for node in ast.walk(tree) if isinstance(node, ast.Expr))
    strings = (n for n in alone if isinstance(n.value, ast.Constant) and isinstance(n.value.value, str))
    return {line for node in strings for line in range(node.lineno, node.end_lineno + 1)}


AROUND = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
NO_CODE = {*AROUND, tokenize.COMMENT}


def lines_of_code(source: str) -> int:
    """Return how many lines hold code: no blank lines, comments or docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for t in tokens if t.type not in NO_CODE for line in range(t.start[0], t.end[0] + 1)}
    return len(lines - docstring_lines(ast.parse(source)))


def comments(source: str) -> int:
    """Return how many comments there are for people: not those that speak to a tool."""
    to_tools = ("# noqa", "# type:", "# fmt:", "# ruff:")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(t.type == tokenize.COMMENT and not t.string.startswith(to_tools) for t in tokens)


def functions(tree: ast.AST) -> Iterator[Function]:
    """Walk the functions and methods of a module."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def length(function: Function) -> int:
    """Return the lines of a function without its docstring, which is as long as a user needs it."""
    first = function.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = first.end_lineno - first.lineno + 1 if has_docstring else 0
    return function.end_lineno - function.lineno + 1 - docstring


def targets(tree: ast.AST) -> Iterator[ast.expr]:
    """Walk what a module assigns to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            pending = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            pending = [node.target]
        else:
            continue
        while pending:
            target = pending.pop()
            if isinstance(target, ast.Tuple | ast.List):
                pending += target.elts
            else:
                yield target


def set_from_outside(source: str) -> list[str]:
    """Return assignments to attributes of others than ``self`` and ``cls``, causes of errors left out."""
    attributes = (x for x in targets(ast.parse(source)) if isinstance(x, ast.Attribute))
    return [
        f"{x.lineno}: {ast.unparse(x)}"
        for x in attributes
        if not (isinstance(x.value, ast.Name) and x.value.id in ("self", "cls")) and x.attr != "__cause__"
    ]


def compares_kinds(source: str) -> bool:
    """Return whether a module compares ``slot.kind``, or asks whether it is in a collection."""
    comparisons = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare))
    operands = (x for node in comparisons for x in (node.left, *node.comparators))
    return any(
        isinstance(x, ast.Attribute) and x.attr == "kind" and "slot" in ast.unparse(x.value)
        for x in operands
    )


# ---- the checker is checked ----------------------------------------------------------------------


def test_code_is_counted_without_blank_lines_comments_and_docstrings():
    source = '"""Of the module."""\nX = 1\n\n\ndef f():\n    """Of f."""\n    return X  # why\n    # why\n'
    assert lines_of_code(source) == 3
    assert comments(source) == 2


def test_an_attribute_that_is_set_from_outside_is_found():
    source = (
        "class A:\n    def f(self, b):\n        self.x = b.y = 1\n        b.z += 1\n        c, b.w = 1, 2\n"
    )
    assert [found.split()[1] for found in set_from_outside(source)] == ["b.y", "b.z", "b.w"]


def test_a_comparison_of_a_slots_kind_is_found():
    assert compares_kinds("x = slot.kind == 'node'")
    assert compares_kinds("x = self.slot.kind in (A, B)")
    assert not compares_kinds("x = other.kind == 'node'")


# ---- size ----------------------------------------------------------------------------------------


def test_few_modules_stand_beside_the_rooms():
    at_the_top = sorted(path.name for path in CORE if path.parent == ROOT / "multifold")
    assert len(at_the_top) <= MODULES_AT_THE_TOP, at_the_top


def test_a_module_fits_into_one_sitting():
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in OURS}
    assert {name: n for name, n in lengths.items() if n > LINES_OF_A_MODULE} == {}


def test_a_function_fits_onto_one_screen():
    found = [(path, f) for path in OURS for f in functions(ast.parse(path.read_text()))]
    lengths = {f"{name_of(path)}: {f.name}": length(f) for path, f in found}
    assert {name: n for name, n in lengths.items() if n > LINES_OF_A_FUNCTION} == {}


def test_fold_is_the_door_and_not_the_house():
    assert len((ROOT / "multifold" / "fold.py").read_text().splitlines()) <= LINES_OF_FOLD


def test_the_core_stays_small():
    package = ROOT / "multifold"
    compare = {package / "compare.py", *(package / "_compare").glob("*.py")}
    kept = [path for path in CORE if path not in compare and BLOCKS not in path.parents]
    assert sum(lines_of_code(path.read_text()) for path in kept) <= LINES_OF_CODE_IN_THE_CORE


def test_blocks_stay_small():
    blocks = [path for path in CORE if BLOCKS in path.parents]
    assert sum(lines_of_code(path.read_text()) for path in blocks) <= LINES_OF_CODE_IN_BLOCKS


def test_little_source_is_compiled_and_none_of_it_was_generated():
    sources = {path: path.read_text().splitlines() for path in COMPILED}
    written = {path: lines for path, lines in sources.items() if "Generated by Cython" not in lines[0]}
    assert sum(map(len, written.values())) <= LINES_OF_COMPILED_SOURCE


@pytest.mark.parametrize("room", COMMENTED_ROOMS)
def test_a_room_that_is_hard_to_read_explains_itself(room):
    sources = [path.read_text() for path in CORE if path.parent.name == room]
    lines = sum(len(source.splitlines()) for source in sources)
    assert 1000 * sum(map(comments, sources)) / lines >= COMMENTS_PER_1000_LINES


# ---- what stands where ---------------------------------------------------------------------------


def test_kinds_of_slots_are_compared_in_few_modules():
    found = [name_of(path) for path in [*CORE, *ADAPTERS] if compares_kinds(path.read_text())]
    assert len(found) <= MODULES_THAT_COMPARE_KINDS, found


def test_no_attribute_is_set_outside_of_its_class():
    found = {name_of(path): set_from_outside(path.read_text()) for path in CORE if path != MAKES_NODES}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_class_has_its_name_for_itself():
    classes = [
        node.name
        for path in OURS
        if not set(PREDECESSORS) & set(path.parents)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    twice = {name for name, count in Counter(classes).items() if count > 1}
    assert twice == set()
