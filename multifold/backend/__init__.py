"""The contract between multifold and a framework: what an adapter implements, what it gets and returns.

`seam` has `Backend`, of which an adapter has a subclass. Beside it stands what goes through:

- `alike`: modules that differ in their parameters only.
- `arrays`: rows on axis 0, `Ragged` rows, and dtypes that promote each other.
- `cells`: recurrent cells in the form that `Fold.unroll` takes.
- `objects`: what is asked of a user's objects, and the `StateSlot` that says what of them an op may change.
- `kit`: the `TrainingKit` by which `check`, tests and benchmarks differentiate on any framework.
"""

from __future__ import annotations

from multifold.backend.alike import Groups, ModuleForm, Together
from multifold.backend.arrays import NUMBER_DTYPES, PIECE, Array, Ragged, cached_pieces, promoted
from multifold.backend.cells import Bidirectional, Cell, Stack
from multifold.backend.kit import TrainingKit, Transfers
from multifold.backend.objects import StateSlot, attribute_of, comes_from, owner_of
from multifold.backend.seam import Backend, unsupported

__all__ = [
    "NUMBER_DTYPES",
    "PIECE",
    "Array",
    "Backend",
    "Bidirectional",
    "Cell",
    "Groups",
    "ModuleForm",
    "Ragged",
    "Stack",
    "StateSlot",
    "Together",
    "TrainingKit",
    "Transfers",
    "attribute_of",
    "cached_pieces",
    "comes_from",
    "owner_of",
    "promoted",
    "unsupported",
]
