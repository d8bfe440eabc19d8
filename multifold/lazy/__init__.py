"""Code as it stands: a person's own function of one example, run for many without being rewritten.

Take ``run = multifold.batched(model)``. The code of each example runs by itself, one after the other, and
what it calls of its framework is recorded on a fold. Where an array is not computed yet it holds a
*pending* one, which answers questions by its form, as its shape; a question about its values is a *read*,
for which the example waits while the others go on. What users call:

- `batching`: `batched`, which runs a function for many examples, and joins what they return.
- `function`: `plain`, which runs one beside other functions of examples.
- `block`: `pending`, for a loop over examples that is inside of a person's own method.
- `cells`: `cell` and `op`, for functions that are recorded whole; `candidates` finds functions that
  could be.
- `found`: straight functions, which are cells without being named; `divided`: straight statements of other
  functions, with `source`, `statements` and `taken_out`; `finding`: how they are recorded in frameworks
  that compile calls.
- `pace`: whether the plain loop is faster without gradients, which then takes the place of a run.
- `explained`: what the explanation of a run says, and `changes`, what to change; `comparing`: whether it is
  what the loop returns.

How an example runs:

- `current`: what records in this thread.
- `waiting`: lets the code of an example wait where it reads a computed value.
- `copies`: of a model, one for each example.
- `frames`: what the code of an example holds open, so that it must not be left there.
- `sharing`: what examples share while they take turns; `watched`: where that is; `writes`: what code may
  write, told from its bytecode. `seen`: what a recorded call finds around it; `beyond`: what functions
  that it calls find.

What the adapters build on, `_numpy.lazy` among them:

- `recorder`: pending values, and what is done with them recorded; `forms`: what is known without values.
- `calls`: a function of one example, run on the rows of all.
- `pending_array`, `operators`: pending arrays of frameworks that let any class stand for one, or whose
  arrays never change. `patches`: methods of a framework that are others meanwhile.
"""

from multifold.lazy.batching import Batched, batched
from multifold.lazy.block import pending
from multifold.lazy.cells import cell, op
from multifold.lazy.function import plain

__all__ = ["Batched", "batched", "cell", "op", "pending", "plain"]
