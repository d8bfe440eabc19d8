"""`Folded`: a module whose ``forward`` folds, for whatever wraps modules.

Trainers wrap a module and call that: `DistributedDataParallel`, FSDP, Lightning, accelerate. All that they
do for several ranks hangs on one ``forward``, so the fold happens in there. Ranks fold different examples,
and one of them may lack an op that the others call, or have no example at all. All of them wait for the
gradient of each parameter, so each rank gives one for every parameter: zeros where its minibatch has none.

The zeros come from a function of autograd between the results and the parameters. `0 * parameter.sum()`,
which is often seen, gives NaN for a parameter that holds an infinity, and reads all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

import multifold
from multifold.errors import RecordError


@final
class Folded(torch.nn.Module):
    """A module that runs examples as one minibatch: ``Folded(model, fn)(examples)``.

    Parameters
    ----------
    model : torch.nn.Module
        Where op names are looked up.
    fn : callable, optional
        ``fn(fold, example)`` records an example, as for `multifold.Fold.run`. Traces and minibatches of
        them need none.
    fold : multifold.Fold, optional
        For its options, as ``cse`` or a compiler of ops.

    Notes
    -----
    ``forward`` takes a list of examples, a list of traces or a `multifold.Minibatch`, and returns what
    ``fold.run`` returns. Without an example (an empty list, or None) it returns a tensor of shape ``(0,)``.
    Its sum is zero, and on several ranks ``backward`` of that takes part with gradients of zeros.

    On several ranks each parameter has a gradient on each rank, zeros where its minibatch does not use it,
    so that `DistributedDataParallel` needs no ``find_unused_parameters``.

    Raises
    ------
    RecordError
        If examples are no traces and there is no ``fn``.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(10, 4), "score": torch.nn.Linear(4, 2)})
    >>> module = Folded(model, lambda fold, word: fold.add("score", fold.add("embed", word)))
    >>> module([1, 2, 3]).shape, module([]).shape
    (torch.Size([3, 2]), torch.Size([0]))
    """

    def __init__(
        self,
        model: torch.nn.Module,
        fn: Callable[[Any, Any], Any] | None = None,
        *,
        fold: multifold.Fold | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.fn = fn
        self.fold = multifold.Fold(backend="torch") if fold is None else fold

    def forward(self, examples: Iterable[Any] | multifold.Minibatch | None) -> Any:
        """Return the results of the examples, as ``fold.run`` does; zeros of shape ``(0,)`` for none."""
        parameters = [x for x in self.parameters() if x.requires_grad]
        if not isinstance(examples, multifold.Minibatch):
            examples = [] if examples is None else list(examples)
        if not len(examples):
            # Of the dtype and on the device of the model, as results of examples would be.
            like = next(self.parameters(), torch.empty(0))
            return with_all_gradients(torch.zeros(0, dtype=like.dtype, device=like.device), parameters)
        found = self.run(examples)
        return with_all_gradients(found, parameters) if ranks() > 1 else found

    def run(self, examples: Sequence[Any] | multifold.Minibatch) -> Any:
        """Return ``fold.run`` of at least one example, without regard to gradients on other ranks.

        Raises `RecordError` if they are no traces and there is no ``fn``.
        """
        # nn.DataParallel runs copies of a module in threads, and a fold belongs to one thread.
        fold = multifold.Fold(backend="torch") if getattr(self, "_is_replica", False) else self.fold
        if isinstance(examples, multifold.Minibatch) or isinstance(examples[0], multifold.Trace):
            return fold.run(self.model, examples)
        if self.fn is None:
            raise RecordError(
                f"Expected traces or a minibatch of them. Received examples of type "
                f"{type(examples[0]).__qualname__}.",
                "record them with multifold.trace(fn, example), or name the function: Folded(model, fn).",
            )
        return fold.run(self.model, examples, self.fn)


def ranks() -> int:
    """Return the number of processes of `torch.distributed`; 1 if it is not initialised."""
    here = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if here else 1


def with_all_gradients(found: Any, parameters: Sequence[torch.Tensor]) -> Any:
    """Return results that give each parameter a gradient in ``backward``, zeros if none of their own.

    Parameters
    ----------
    found : structure of tensors
        Lists, tuples and dictionaries; what is no floating tensor stays as it is.
    parameters : sequence of torch.Tensor
        Leaves of autograd, that require gradients.
    """
    if not parameters or not torch.is_grad_enabled():
        return found
    leaves, structure = tree_flatten(found)
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    if not places:
        return found
    tied = AllGradients.apply(len(places), *[leaves[place] for place in places], *parameters)
    for place, leaf in zip(places, tied, strict=True):
        leaves[place] = leaf
    return tree_unflatten(leaves, structure)


class AllGradients(torch.autograd.Function):
    """Copies of some tensors, with gradients of zeros for all parameters.

    Copies and not views: FSDP warns of a view, since a change in place would end its hook.
    """

    @staticmethod
    def forward(context: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return copies of the first ``count`` tensors; the others are parameters."""
        context.count = count
        context.set_materialize_grads(False)
        context.like = [(x.shape, x.dtype, x.device) for x in tensors[count:]]
        return tuple(x.clone() for x in tensors[:count])

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        """Return the gradients of the tensors as they come, and for each parameter zeros of its shape.

        The zeros take the memory of one number.
        """
        zeros = [torch.zeros((), dtype=t, device=d).expand(shape) for shape, t, d in context.like]
        return None, *gradients, *zeros
