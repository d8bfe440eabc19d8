"""Plain programs: a person's own code for one example, run for many without being rewritten.

- `program`: runs the code of examples on a fold, beside other functions of examples.
- `loop`: runs it for many examples, and joins what they return.
- `block`: runs a loop over examples that is inside of a person's own method.
- `waiting`: lets the code of an example wait where it reads a computed value.
- `sharing`: what examples share while they wait.
- `cells`: functions that are recorded whole.
- `candidates`: which functions to make cells of.
- `explained`: what the explanation of a run says besides.
- `advice`: what a program would gain, measured before it is changed.
- `arrays`: programs of NumPy, which is part of the core.

Which functions of a framework are recorded, and how a function of one example runs for many, is in the
adapters (`multifold.plain_values.PlainValues`), what records in this thread in `multifold.recording`.
"""

from multifold._plain.advice import advise
from multifold._plain.block import pending
from multifold._plain.cells import op
from multifold._plain.loop import Batched, batched
from multifold._plain.program import plain

__all__ = ["Batched", "advise", "batched", "op", "pending", "plain"]
