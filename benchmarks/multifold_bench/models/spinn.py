"""SPINN: a shift-reduce parser with a Tree-LSTM on its stack, and an LSTM that watches it."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, final

from multifold import ops
from multifold.backend import Array
from multifold.models.layers import Initial, linear, lstm, parts, postorder
from multifold.models.model import Model


@final
class SPINN(Model):
    """Says how two sentences relate, each read by a shift-reduce parser along its known parse.

    Parameters
    ----------
    vocabulary : int
        The number of word ids.
    width : int
        The width of ``h`` and ``c`` on the stack.
    classes : int
        The number of relations.
    inputs : int, optional
        The width of word vectors; ``width`` by default.
    tracker : int
        The width of the state of the tracker, which sees every step.
    hidden : int
        The width of the layer that compares the sentences.
    seed, dtype
        Of the initial values.

    References
    ----------
    Bowman et al., A Fast Unified Model for Parsing and Sentence Understanding, ACL 2016.

    Examples
    --------
    >>> import multifold
    >>> from types import SimpleNamespace as Phrase
    >>> phrase = Phrase(word=None, left=Phrase(word=1), right=Phrase(word=2))
    >>> pair = Phrase(premise=phrase, hypothesis=Phrase(word=4))
    >>> model = SPINN(vocabulary=5, width=8, classes=3)
    >>> fold = multifold.Fold(backend="numpy")
    >>> fold.apply(model, model.compare(fold, pair)).shape
    (1, 3)
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        classes: int = 3,
        *,
        inputs: int | None = None,
        tracker: int = 64,
        hidden: int = 200,
        seed: int = 0,
        dtype: str = "float32",
    ) -> None:
        initial = Initial(seed, dtype)
        inputs = width if inputs is None else inputs
        parameters = {
            "embedding": initial.embedding(vocabulary, inputs),
            **initial.linear("word", inputs, 2 * width),
            "nothing.h": initial.state(width),
            "nothing.c": initial.state(width),
            "begin.h": initial.state(tracker),
            "begin.c": initial.state(tracker),
            **initial.lstm("tracker", 3 * width, tracker),
            **initial.linear("compose", 2 * width + tracker, 5 * width, slice(width, 3 * width)),
            **initial.linear("relation", 4 * width, hidden),
            **initial.linear("output", hidden, classes),
        }
        super().__init__(parameters, width=width)

    def shift(self, word: Array) -> tuple[Array, Array]:
        """Return the states ``(h, c)`` of words: ids ``(n,)`` give ``(n, width)`` each."""
        h, c = ops.split(linear(self.word, ops.take(self.embedding, word)), 2, axis=1)
        return h, c

    def empty(self) -> tuple[Array, Array]:
        """Return the state ``(h, c)`` that stands where stack or buffer hold nothing; one row."""
        return self.nothing.h, self.nothing.c

    def watch(self) -> tuple[Array, Array]:
        """Return the state of the tracker before the first step; one row."""
        return self.begin.h, self.begin.c

    def track(self, second: Array, first: Array, following: Array, h: Array, c: Array) -> Any:
        """Return the tracker's next state ``(h, c)``.

        Parameters
        ----------
        second, first, following : arrays of shape ``(n, width)``
            ``h`` of the two topmost phrases of the stack and of the next word.
        h, c : arrays of shape ``(n, tracker)``
            The tracker's state.
        """
        return lstm(self.tracker, second, first, following, h, c)

    def reduce(
        self, left_h: Array, left_c: Array, right_h: Array, right_c: Array, tracker: Array
    ) -> tuple[Array, Array]:
        """Return the states ``(h, c)`` of phrases from both parts' states and the tracker's ``h``."""
        return ops.lstm_state(linear(self.compose, left_h, right_h, tracker), [left_c, right_c])

    def logits(self, premise: Array, hypothesis: Array) -> Array:
        """Return the scores of the relations of sentences, from ``h`` of each: ``(n, classes)``."""
        both = [premise, hypothesis, premise - hypothesis, premise * hypothesis]
        return linear(self.output, ops.relu(linear(self.relation, *both)))

    def encode(
        self, fold: Any, tree: Any, word: Callable[[Any], int] = attrgetter("word")
    ) -> tuple[Any, Any]:
        """Record the parser's steps over a sentence and return its state ``(h, c)``.

        Parameters
        ----------
        fold : Fold, Unfold or the recorder of a trace
        tree : object
            The parse, a node with the attributes ``word``, None above the leaves, and there
            ``left`` and ``right``. May be as deep as it likes.
        word : callable, optional
            Gives the id of a leaf's word; by default the word is one.
        """
        steps = postorder(tree, parts)
        empty = fold.add("empty").split(2)
        tracker = fold.add("watch").split(2)
        words = [fold.add("shift", word(node)).split(2) for node in steps if node.word is not None]
        buffer = [empty, *reversed(words)]
        stack = [empty, empty]
        for node in steps:
            seen = stack[-2][0], stack[-1][0], buffer[-1][0]
            tracker = fold.add("track", *seen, *tracker).split(2)
            if node.word is not None:
                stack.append(buffer.pop())
            else:
                right = stack.pop()
                left = stack.pop()
                stack.append(fold.add("reduce", *left, *right, tracker[0]).split(2))
        return stack[-1]

    def compare(self, fold: Any, pair: Any, word: Callable[[Any], int] = attrgetter("word")) -> Any:
        """Record a pair, with the trees ``premise`` and ``hypothesis``; return its `logits`."""
        (premise, _), (hypothesis, _) = (
            self.encode(fold, tree, word) for tree in (pair.premise, pair.hypothesis)
        )
        return fold.add("logits", premise, hypothesis)
