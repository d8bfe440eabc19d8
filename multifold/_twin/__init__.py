"""The twin: one call at a time, each with one row. What a fold returns is compared with it.

- `unfold`: `multifold.Unfold`, which runs every call when it is recorded.
- `check`: runs a fold and its twin, and compares values and gradients; behind `multifold.Fold.check`.
- `shapes`: a dry run of one example, which tells what each op receives and returns.
"""
