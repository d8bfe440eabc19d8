"""Batched and one call at a time: the same values and gradients, also where values decide what follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from multifold._twin.unfold import Unfold
from multifold.operands import ragged
from multifold.testing.conformance.suite import Suite


class GradientTests(Suite):
    """Values and gradients of a fold, of its eager twin, and of examples that await values."""

    def tree(self, fold: Any, depth: int, seed: int) -> Any:
        """Record a lopsided binary tree on a fold; return the two states of its root, each a node.

        ``depth`` is that of its longest path, and ``seed`` decides the leaves and which branches are
        shorter.
        """
        if depth == 0:
            return fold.add("leaf", float(seed % 5)).split(2)
        left = self.tree(fold, depth - 1, 3 * seed + 1)
        right = self.tree(fold, max(depth - 1 - seed % 2, 0), 3 * seed + 2)
        return fold.add("cell", *left, *right).split(2)

    def tree_model(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return name -> op for ``"leaf"`` and ``"cell"``, and the parameters by their names.

        ``parameters`` has ``"w"``, ``"b"`` and ``"u"``, arrays of shape ``(1, 2)``.
        """
        w, b, u = (parameters[name] for name in "wbu")
        leaf = lambda x: (self.outer(b, x) * w, self.outer(w, x))  # noqa: E731
        cell = lambda lh, lc, rh, rc: (lh * w - rh * u, lc * rc * u + lh)  # noqa: E731
        return {"leaf": leaf, "cell": cell, **parameters}

    def parameters(self) -> dict[str, np.ndarray]:
        """Return the parameters of `tree_model`: name -> float32 array of shape ``(1, 2)``.

        They are the same at each call.
        """
        rng = np.random.default_rng(0)
        return {name: rng.uniform(0.3, 0.9, (1, 2)).astype("float32") for name in "wbu"}

    def trees(self, fold: Any) -> list[Any]:
        """Record three trees on a fold; return a list with the first state of each root, a node."""
        return [self.tree(fold, depth, seed)[0] for depth, seed in ((3, 0), (1, 1), (4, 2))]

    def differentiated(
        self, run: Callable[[dict[str, Any]], Any], values: dict[str, Any], weights: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Return the sum of ``run(parameters) * weights``, and name -> gradient of each parameter.

        ``values`` has the parameters by name, which become variables of the framework. Needs a training
        kit.
        """
        kit = self.seam.kit
        parameters = {name: kit.variable(np.array(x, "float32")) for name, x in values.items()}
        return kit.value_and_grad(lambda p: kit.dot(run(p), np.asarray(weights, "float32")), parameters)

    def test_fold_equals_unfold(self) -> None:
        model = self.tree_model({k: self.array(v) for k, v in self.parameters().items()})
        got, expected = (
            f.apply(model, self.trees(f)) for f in (self.fold(), Unfold(model, backend=self.backend))
        )
        self.equal(got, self.seam.to_numpy(expected))

    def test_gradients_equal_those_of_one_call_at_a_time(self) -> None:
        if self.kit is None:
            return
        fold = self.fold()
        weights = np.linspace(-1, 1, 6).reshape(3, 2)
        outputs = self.trees(fold)

        def eagerly(model: Any) -> Any:
            unfold = Unfold(model, backend=self.backend)
            return unfold.apply(model, self.trees(unfold))

        _, batched = self.differentiated(
            lambda p: fold.apply(self.tree_model(p), outputs), self.parameters(), weights
        )
        _, single = self.differentiated(lambda p: eagerly(self.tree_model(p)), self.parameters(), weights)
        for name, grad in batched.items():
            self.equal(grad, self.seam.to_numpy(single[name]))
            self.must(np.abs(self.seam.to_numpy(grad)).max() > 0, f"the gradient of {name} is zero")

    def test_gradients_of_rows_that_are_read_often(self) -> None:
        if self.kit is None:
            return
        fold = self.fold()
        x = fold.add("first")
        nodes = [fold.add("scale", x, float(i)) for i in (1, 2, 3)]
        value, grads = self.differentiated(
            lambda p: fold.apply({"first": lambda: p["w"], "scale": self.scale}, nodes),
            {"w": [[1, 2]]},
            np.ones((3, 2)),
        )
        self.equal(grads["w"], [[6, 6]])
        total = float(self.seam.to_numpy(value))
        self.must(bool(np.isclose(total, 18)), "value_and_grad() must return the value")

    def test_gradients_through_ragged_rows(self) -> None:
        if self.kit is None:
            return
        fold = self.fold()
        rows = [fold.add("row", self.array([[float(i), 1.0]])) for i in range(3)]
        nodes = [fold.add("sum", ragged([rows[i] for i in pick])) for pick in ([0, 1, 2], [2], [1, 1])]
        _, grads = self.differentiated(
            lambda p: fold.apply({"row": lambda x: x * p["w"], "sum": self.sum_rows}, nodes),
            {"w": [[1, 1]]},
            np.ones((3, 2)),
        )
        self.equal(grads["w"], [[7, 6]])

    def test_a_parameter_that_is_not_used_has_zero_gradient(self) -> None:
        if self.kit is None:
            return
        fold = self.fold()
        node = fold.add("f", 2.0)
        _, grads = self.differentiated(
            lambda p: fold.apply({"f": lambda x: x * p["used"]}, node), {"used": [3], "idle": [3]}, [1]
        )
        self.equal(grads["used"], [2])
        self.equal(grads["idle"], [0])

    async def climb(self, fold: Any, start: float) -> Any:
        """Double a row ``[start, 1]`` until its first number is at least 8, and return its node.

        It awaits that number in each step, and parts of a result on the way.
        """
        x = fold.add("row", self.array([[start, 1.0]]))
        for _ in range(5):  # enough, and an end also where an adapter is wrong
            if (await fold.value(x))[0] >= 8:
                break
            low, high = fold.add("pair", x).split(2)
            first, second = await fold.gather(fold.value(low), fold.values([high]))
            x = high if second[0][0] == 2 * first[0] else low
        return x

    def test_awaited_values_decide_what_follows(self) -> None:
        model = {"row": lambda x: x, "pair": lambda x: (x, x * 2)}
        for run in (
            self.fold().run,
            lambda model, *rest: Unfold(model, backend=self.seam).run(None, *rest),
        ):
            self.equal(run(model, [3.0, 9.0, 1.0], self.climb), [[12, 4], [9, 1], [8, 8]])

    def test_gradients_through_awaited_values(self) -> None:
        if self.kit is None:
            return
        _, grads = self.differentiated(
            lambda p: self.fold().run(
                {"row": lambda x: x * p["w"], "pair": lambda x: (x, x * 2)}, [3.0, 9.0, 1.0], self.climb
            ),
            {"w": [[1, 1]]},
            np.ones((3, 2)),
        )
        self.equal(grads["w"], [[12 + 9 + 8, 4 + 1 + 8]])
