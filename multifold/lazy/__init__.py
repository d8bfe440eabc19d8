"""Plain programs: a person's own code for one example, run for many without being rewritten.

- `function`: runs the code of examples on a fold, beside other functions of examples.
- `batched`: runs it for many examples, and joins what they return.
- `block`: runs a loop over examples that is inside of a person's own method.
- `waiting`: lets the code of an example wait where it reads a computed value.
- `sharing`: what examples share while they wait.
- `cells`: functions that are recorded whole.
- `candidates`: which functions to make cells of.
- `explained`: what the explanation of a run says besides.

Which functions of a framework are recorded, and how a function of one example runs for many, is in the
adapters (`multifold.lazy.recorder.LazyRecorder`), what records in this thread in `multifold.lazy.current`.
"""

from multifold.lazy.batched import Batched, batched
from multifold.lazy.block import pending
from multifold.lazy.cells import op
from multifold.lazy.function import plain

__all__ = ["Batched", "batched", "op", "pending", "plain"]
