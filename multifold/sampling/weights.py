"""The weight of a shard's mean loss, so that the average over shards is the mean over all examples."""

from __future__ import annotations

from collections.abc import Callable

from multifold.errors import RecordError


def mean_weight(count: int, shards: int, all_reduce: Callable[[int], int]) -> float:
    """Return what the mean loss of a shard is multiplied by before an engine averages over shards.

    Engines average gradients over shards, each of which counts as much as any other. With three examples
    on one shard and one on the other, the one would count three times as much as each of the three. The
    mean of a shard with ``count`` of ``total`` examples is to count ``count / total``, where the engine
    gives it ``1 / shards``.

    Parameters
    ----------
    count : int
        How many examples the mean of this shard is over; 0 where it has none. Then its loss must be a zero
        and no mean, which would be NaN.
    shards : int
        How many shards the engine averages over.
    all_reduce : callable
        Returns the sum over all shards of the number that it is given: one number, sent once a step.

    Returns
    -------
    float
        ``count * shards / total``; 0.0 where no shard has an example.

    Raises
    ------
    RecordError
        If a count is negative, or the sum is less than the count of this shard.

    Examples
    --------
    Two shards with the losses 1, 2, 3 and 6:

    >>> first, second = (mean_weight(count, 2, lambda count: 4) for count in (3, 1))
    >>> first, second
    (1.5, 0.5)
    >>> (first * 2.0 + second * 6.0) / 2  # the mean of 1, 2, 3 and 6
    3.0
    """
    total = all_reduce(count)
    if count < 0 or total < count:
        raise RecordError(
            f"Expected the number of examples on this shard, and their sum over all shards. Received "
            f"{count} and {total}.",
            "all_reduce returns the sum, not the mean, of what every shard gives.",
        )
    return count * shards / total if total else 0.0
