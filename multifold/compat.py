"""TorchFold's and mxnet-jit-batch's names are `multifold_compat`, in a distribution of their own."""

from multifold.errors import ExtraMissing


def __getattr__(name: str) -> object:
    """Say where a name is now."""
    if name not in ("torchfold", "mxnet_fold"):
        raise AttributeError(f"module 'multifold.compat' has no attribute {name!r}")
    raise ExtraMissing(
        "Expected multifold_compat. Received multifold.compat: it is in a distribution of its own.",
        "pip install multifold-compat; in a checkout: pip install ./compat",
    )
