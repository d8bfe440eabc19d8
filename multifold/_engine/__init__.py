"""The engine: what was recorded becomes integers, the integers a plan, and the plan launches.

It knows nothing of what is built on it. Of the floor above it imports only what each adapter knows, too:
`multifold.backend`, `multifold.errors`, `multifold.operands` and `multifold.marks`. A value goes through
these rooms, from the left to the right, and never back::

    frameworks ─▶ record ─▶ plan ─▶ run ─▶ rounds
                    └─▶ traces ─┘   └─ ops

- `compiled`: the inner loops of all other rooms, compiled where a compiler is at hand.
- `record`: each call once, as integers in flat columns; what must be equal for two calls to share a launch.
- `frameworks`: which adapter an array or a model belongs to, and recording for one framework.
- `plan`: which calls share a launch, in which order, and which rows go where between the results.
- `traces`: recorded examples that are kept, pickled, written as tables, and merged.
- `ops`: what an op is, reaches, receives and leaves behind: how it is found on a model, what it may change,
  how its first launches show that it keeps rows apart.
- `run`: a plan through a backend; the one room where arrays are touched.
- `rounds`: examples that wait for computed values, and the rounds that compute these.
"""
