"""TensorFlow Fold's blocks are `multifold_compat.blocks`, in a distribution of their own."""

from multifold.errors import ExtraMissing


def __getattr__(name: str) -> object:
    """Say where a name is now."""
    if not name[:1].isupper():  # what is no block, as the names that tools ask of any module
        raise AttributeError(f"module 'multifold.blocks' has no attribute {name!r}")
    raise ExtraMissing(
        "Expected multifold_compat.blocks. Received multifold.blocks: it is in a distribution of its own.",
        "pip install multifold-compat; in a checkout: pip install ./compat",
    )
