"""Query plans: what PostgreSQL's ``EXPLAIN (ANALYZE, FORMAT JSON)`` prints; one tree per plan.

Each node is an operator (``"Hash Join"``) with its own set of measures, so a model has one network
per operator. A file may hold one plan or several, in one JSON list, or as one JSON document after
the other, as ``psql`` writes them; a folder holds such files.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multifold._measure.files import DatasetError, PathLike, Progress, existing_file, source_hint
from multifold_bench.datasets.trees import Tree

SOURCE = (
    "write some with psql -qAt -c 'EXPLAIN (ANALYZE, FORMAT JSON) SELECT ...' and pass the path of "
    "the file or of a folder of such files."
)

_NAME = "Node Type"
_CHILDREN = "Plans"

OPERATOR = re.compile(r"[A-Z][^.]*")
"""How the names of operators look: weights are named by them, and points divide these names."""

NUMBERS = (
    *("Startup Cost", "Total Cost", "Plan Rows", "Plan Width", "Workers Planned"),
    *("Actual Startup Time", "Actual Total Time", "Actual Rows", "Actual Loops"),
)
"""What is a number that is not negative, wherever it is printed."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryPlan(Tree):
    """An operator of a query plan and what it reads from.

    Attributes
    ----------
    operator : str
        PostgreSQL's name of the operator, ``"Seq Scan"`` for instance.
    fields : dict
        Everything else that was printed for it: ``"Plan Rows"``, ``"Total Cost"``, and, with
        ANALYZE, ``"Actual Total Time"`` in milliseconds per loop, ``"Actual Loops"``, ...
    children : tuple
        The operators below.
    """

    operator: str
    fields: dict[str, Any] = field(default_factory=dict)
    children: tuple[QueryPlan, ...] = ()


def read(path: PathLike, progress: Progress | None = None) -> Iterator[QueryPlan]:
    """Read the plans of a file, or of all ``*.json`` files in a folder.

    Parameters
    ----------
    path : str or path
        The file, or the folder, whose files are read in the order of their names (``2.json`` before
        ``10.json``).
    progress : callable, optional
        Called after each file with the number of bytes that were read so far.

    Raises
    ------
    DatasetError
        At once if there is nothing to read; at the plan concerned if a file does not hold one.

    References
    ----------
    https://www.postgresql.org/docs/current/sql-explain.html. Marcus and Papaemmanouil,
    Plan-Structured Deep Neural Network Models for Query Performance Prediction, VLDB 2019.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "1.json")
    >>> _ = path.write_text('''[{"Plan": {"Node Type": "Limit", "Actual Total Time": 0.2, "Plans": [
    ...     {"Node Type": "Seq Scan", "Relation Name": "lineitem"}]}}]''')
    >>> plan, = read(path)
    >>> plan.operator, plan.fields["Actual Total Time"], plan.children[0].operator
    ('Limit', 0.2, 'Seq Scan')
    """
    path = Path(path)
    if not path.is_dir():
        return _plans([existing_file(path, SOURCE)], progress)
    files = sorted(path.glob("*.json"), key=_natural)
    if not files:
        hint = source_hint(path, SOURCE)
        raise DatasetError("expected *.json files in the folder, found none.", hint, path=path)
    return _plans(files, progress)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts ``2.json`` before ``10.json``."""
    parts = re.findall(r"\d+|\D+", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _plans(files: list[Path], progress: Progress | None) -> Iterator[QueryPlan]:
    done = 0
    for file in files:
        raw = file.read_bytes()
        for document, line in _documents(raw, file):
            for item in document if isinstance(document, list) else [document]:
                yield _tree(item.get("Plan") if isinstance(item, dict) else None, file, line)
        done += len(raw)
        if progress is not None:
            progress(done)


def _documents(raw: bytes, file: Path) -> Iterator[tuple[Any, int]]:
    """Walk over the JSON documents of a file, each with the line that it begins at."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DatasetError(f"expected UTF-8, but {error.reason}.", path=file, line=line) from error
    decoder = json.JSONDecoder()
    starts = re.compile(r"\S")
    position = 0
    while start := starts.search(text, position):
        line = text.count("\n", 0, start.start()) + 1
        try:
            document, position = decoder.raw_decode(text, start.start())
        except json.JSONDecodeError as error:
            message = f"expected JSON: {error.msg}."
            raise DatasetError(message, SOURCE, path=file, line=error.lineno) from error
        except ValueError as error:  # a number of thousands of digits
            raise DatasetError(f"expected JSON: {error}.", SOURCE, path=file, line=line) from error
        except RecursionError as error:
            message = "expected a plan that Python's json module can read, received a deeper one."
            raise DatasetError(message, path=file, line=line) from error
        yield document, line


def _is_amount(x: Any) -> bool:
    """Return whether a value of JSON is a number from 0 on, and no infinity."""
    return isinstance(x, (int, float)) and not isinstance(x, bool) and 0 <= x <= sys.float_info.max


def _tree(root: Any, file: Path, line: int) -> QueryPlan:
    # every node before its children, the last child first
    nodes = []
    stack = [root]
    while stack:
        node = stack.pop()
        children = node.get(_CHILDREN, []) if isinstance(node, dict) else None
        name = node.get(_NAME) if isinstance(node, dict) else None
        if not isinstance(children, list) or not isinstance(name, str) or not OPERATOR.fullmatch(name):
            shown = f"an object with {', '.join(node)}" if isinstance(node, dict) else repr(node)
            if isinstance(name, str) and isinstance(children, list):
                shown = f"the operator {name!r}"
            raise DatasetError(
                f"expected a plan, an object with {_NAME!r}, received {shown} "
                "in the document that begins here.",
                path=file,
                line=line,
            )
        for name in NUMBERS:
            if name in node and not _is_amount(node[name]):
                shown = repr(node[name])[:40]
                raise DatasetError(
                    f"expected {name!r} to be a number from 0 on, received {shown} in the document that "
                    "begins here.",
                    path=file,
                    line=line,
                )
        nodes.append((node, len(children)))
        stack.extend(children)
    built: list[QueryPlan] = []
    for node, arity in reversed(nodes):
        first = len(built) - arity
        fields = {key: value for key, value in node.items() if key not in (_NAME, _CHILDREN)}
        built[first:] = [QueryPlan(node[_NAME], fields, tuple(built[first:]))]
    return built[0]
