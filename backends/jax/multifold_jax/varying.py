"""Over which axes of a mesh values vary: with ``check_vma=True``, `jax.shard_map` keeps it in their types.

There a program varies over the axis of its shards, while parameters are the same on all devices. JAX lets
the two meet by casting the parameters, and the gradient of that cast adds up what all devices contribute.
Inside of a program it must not stand: a kernel runs on some devices and not on others, which would then
wait for each other for ever. So parameters are cast once, before the program, and all arrays that a program
makes vary as it does.
"""

from __future__ import annotations

from typing import Any

import jax

from multifold.errors import LaunchError


def axes_of(x: Any) -> frozenset[str]:
    """Return the names of the mesh axes that a value varies over, as a frozenset.

    It is empty outside of `jax.shard_map`, and with ``check_vma=False``.
    """
    kind: Any = jax.typeof(x)
    # JAX 0.10 keeps them in a type of their own, releases before it in the type of the array.
    found: frozenset[str] = kind.mat.varying if hasattr(kind, "mat") else getattr(kind, "vma", frozenset())
    return found


def all_axes(*trees: Any) -> frozenset[str]:
    """Return the names of the mesh axes that any array in these structures varies over."""
    return frozenset().union(*(axes_of(x) for tree in trees for x in arrays_of(tree)))


def vary(x: Any, axes: frozenset[str]) -> Any:
    """Return ``x`` cast so that it varies over all of ``axes``, besides those it varies over already."""
    missing = axes - axes_of(x) if axes else axes
    return jax.lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x


def vary_all(tree: Any, axes: frozenset[str]) -> Any:
    """Return a structure with each array cast by `vary`; leaves that are no arrays stay.

    A structure that JAX cannot flatten is returned as it is.
    """
    if not axes or not arrays_of(tree):
        return tree
    return jax.tree.map(lambda x: vary(x, axes) if isinstance(x, jax.Array) else x, tree)


def arrays_of(tree: Any) -> list[Any]:
    """Return the leaves of a structure that are `jax.Array`; an empty list if JAX cannot flatten it."""
    try:
        return [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
    except (TypeError, ValueError):  # keys that cannot be sorted, for one: JAX takes no such dict
        return []


def refuse_unvarying(constants: list[Any], axes: frozenset[str]) -> None:
    """Raise `LaunchError` if a traced array of floats in ``constants`` varies over other axes.

    Such a one is a parameter that an op closes over, which `vary_all` of the model does not reach. ``axes``
    are those that the program varies over.
    """
    for x in constants:
        if isinstance(x, jax.core.Tracer) and jax.numpy.issubdtype(x.dtype, jax.numpy.inexact):
            found = axes_of(x)
            if found != axes:
                raise LaunchError(
                    f"Expected parameters that vary over the mesh as their program does, {sorted(axes)}. "
                    f"Received one of shape {x.shape} that varies over {sorted(found)}, which an op closes "
                    "over.",
                    "with check_vma=True cast it before the ops are made, w = jax.lax.pcast(w, 'data', "
                    "to='varying'), or hand over a model that is a pytree; its gradient is added up then.",
                )
