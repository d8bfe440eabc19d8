"""A greedy shift-reduce parser: what it does next is what its own scores say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

from multifold import ops
from multifold.backend import Array, Ragged
from multifold.models.layers import Initial, linear, lstm
from multifold.models.model import Classifier
from multifold.operands import ragged
from multifold_bench.models.spinn import SPINN

SHIFT = 0
REDUCE = 1
"""The transitions: move a word to the stack, or join the two topmost phrases of the stack."""

READER = ("embedding", "word", "nothing", "tracker", "compose")
"""The parameters that it has in common with SPINN, by the beginning of their names."""


class Parsed(NamedTuple):
    """What a parser did with a sentence.

    Attributes
    ----------
    h : Node
        Of the whole sentence.
    scores : list of Node
        Of shift and reduce, at each step where both were possible.
    taken : list of int
        What was done at those steps.
    transitions : list of int
        What was done at all steps, one less than twice the number of words.
    """

    h: Any
    scores: list[Any]
    taken: list[int]
    transitions: list[int]


@final
class ShiftReduceParser(Classifier):
    """Parses a sentence by its own decisions, and classifies it: SPINN with predicted transitions.

    Parameters
    ----------
    vocabulary : int
        The number of word ids.
    width : int
        The width of ``h`` and ``c`` on the stack.
    classes : int
        The number of classes of a sentence.
    inputs : int, optional
        The width of word vectors; ``width`` by default.
    tracker : int
        The width of the state of the tracker, which sees every step and scores the next.
    seed, dtype
        Of the initial values.

    References
    ----------
    Bowman et al., A Fast Unified Model for Parsing and Sentence Understanding, ACL 2016.

    Examples
    --------
    >>> import multifold
    >>> model = ShiftReduceParser(vocabulary=9, width=8, classes=5)
    >>> async def classify(fold, words):
    ...     return fold.add("logits", (await model.parse(fold, words)).h)
    >>> fold = multifold.Fold(backend="numpy")
    >>> fold.run(model, [[1, 2, 3, 4], [5], [6, 7, 8]], classify).shape
    (3, 5)
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        classes: int,
        *,
        inputs: int | None = None,
        tracker: int = 64,
        seed: int = 0,
        dtype: str = "float32",
    ) -> None:
        initial = Initial(seed, dtype)
        reader = SPINN(vocabulary, width, inputs=inputs, tracker=tracker, seed=seed, dtype=dtype)
        parameters = {
            **{name: x for name, x in reader.parameters.items() if name.startswith(READER)},
            **initial.linear("begin", width, 2 * tracker),
            **initial.linear("transition", tracker, 2),
            **initial.linear("output", width, classes),
        }
        super().__init__(parameters, width=width)

    shift = SPINN.shift
    empty = SPINN.empty
    reduce = SPINN.reduce

    def look_over(self, words: Ragged) -> tuple[Array, Array]:
        """Return the state ``(h, c)`` of the tracker before the first step, from ``h`` of all words."""
        h, c = ops.split(ops.tanh(linear(self.begin, ops.segment_mean(words.values, words))), 2, axis=1)
        return h, c

    def step(
        self, second: Array, first: Array, following: Array, h: Array, c: Array
    ) -> tuple[Array, Array, Array]:
        """Return the tracker's next state ``(h, c)`` and the scores ``(n, 2)`` of shift and reduce.

        Parameters
        ----------
        second, first, following : arrays of shape ``(n, width)``
            ``h`` of the two topmost phrases of the stack and of the next word.
        h, c : arrays of shape ``(n, tracker)``
            The tracker's state.
        """
        h, c = lstm(self.tracker, second, first, following, h, c)
        return h, c, linear(self.transition, h)

    @staticmethod
    async def parse(fold: Any, words: Sequence[int], follow: Sequence[int] | None = None) -> Parsed:
        """Parse a sentence, step by step.

        Parameters
        ----------
        fold : Fold or Unfold
            Inside of its `run`.
        words : sequence of int
            The ids of one or more words.
        follow : sequence of int, optional
            The transitions to take, all of them; by default the parser takes what it scores highest,
            and waits for the scores wherever both are possible.
        """
        empty = fold.add("empty").split(2)
        leaves = [fold.add("shift", word).split(2) for word in words]
        h, c = fold.add("look_over", ragged([leaf[0] for leaf in leaves])).split(2)
        buffer = [empty, *reversed(leaves)]
        stack = [empty, empty]
        parsed = Parsed(None, [], [], [])
        for number in range(2 * len(words) - 1):
            seen = stack[-2][0], stack[-1][0], buffer[-1][0]
            h, c, scores = fold.add("step", *seen, h, c).split(3)
            can_shift = len(buffer) > 1
            can_reduce = len(stack) > 3
            if not (can_shift and can_reduce):
                transition = REDUCE if can_reduce else SHIFT
            else:
                if follow is None:
                    shift, reduce = await fold.value(scores)
                    transition = REDUCE if reduce > shift else SHIFT
                else:
                    transition = follow[number]
                parsed.scores.append(scores)
                parsed.taken.append(transition)
            parsed.transitions.append(transition)
            if transition == SHIFT:
                stack.append(buffer.pop())
            else:
                right = stack.pop()
                left = stack.pop()
                stack.append(fold.add("reduce", *left, *right, h).split(2))
        return parsed._replace(h=stack[-1][0])
