"""A module of PyTorch with padded children and a mask, taken from its loop to ops, one step at a time.

python examples/your_module.py [--plans 128] [--width 64] [--rounds 7]

Each step is compared with the loop, values and gradients, in evaluation mode; then a step of training, with
dropout, is timed: medians of rounds that take turns. docs/your-module.md explains the steps.
"""

import argparse
import random
import statistics
import time
from typing import NamedTuple

import torch

import multifold
from multifold import ops

FEATURES, MOST = 16, 4


class Plan(NamedTuple):
    features: torch.Tensor
    children: tuple = ()


class PlanCost(torch.nn.Module):
    """The cost of one query plan, by attention over the children of each node."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.enter = torch.nn.Linear(FEATURES, width)
        self.query, self.key = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.value, self.mix = torch.nn.Linear(width, width), torch.nn.Linear(2 * width, width)
        self.drop, self.cost = torch.nn.Dropout(0.1), torch.nn.Linear(width, 1)
        self.register_buffer("padding", torch.zeros(MOST, width))

    def read(self, features):
        return torch.relu(self.enter(features))

    def join(self, x, kids):
        padded = torch.cat([*kids, self.padding[len(kids) :]])
        present = torch.arange(MOST) < len(kids)
        scores = self.query(x) @ self.key(padded).T / self.width**0.5
        weights = torch.softmax(scores.masked_fill(~present, -1e9), dim=1) * present
        context = weights @ self.value(padded)
        return self.drop(torch.tanh(self.mix(torch.cat([x, context], dim=1))))

    def encode(self, plan):
        kids = [self.encode(child) for child in plan.children]
        return self.join(self.read(plan.features), kids)

    def forward(self, plan):
        return self.cost(self.encode(plan))


class PlanOps(PlanCost):
    """The same parameters, and an op that attends to the children of many nodes."""

    def attend(self, x, kids):
        query = ops.take(self.query(x), kids.segment_ids)
        scores = (query * self.key(kids.values)).sum(dim=1) / self.width**0.5
        weights = ops.segment_softmax(scores, kids)
        context = ops.segment_sum(weights[:, None] * self.value(kids.values), kids)
        return self.drop(torch.tanh(self.mix(torch.cat([x, context], dim=1))))

    def unpadded(self, plan):
        """Return the cost of one plan without padding, to measure what that takes of the loop."""

        def encode(plan):
            x, context = self.read(plan.features), torch.zeros(1, self.width)
            if plan.children:
                kids = torch.cat([encode(child) for child in plan.children])
                scores = self.query(x) @ self.key(kids).T / self.width**0.5
                context = torch.softmax(scores, dim=1) @ self.value(kids)
            return self.drop(torch.tanh(self.mix(torch.cat([x, context], dim=1))))

        return self.cost(encode(plan))


def steps(model, plans):
    """Return what computes the costs of all plans, by name, in the mode that the model is in."""

    def encode(fold, plan):
        kids = [encode(fold, child) for child in plan.children]
        x = fold.add("read", plan.features.numpy())
        return fold.add("attend", x, multifold.ragged(kids, row_shape=(model.width,)))

    def cost(fold, plan):
        return fold.add("cost", encode(fold, plan))

    run = multifold.batched(model, join="cat")
    named = multifold.batched(model, cells=[PlanCost.read, PlanCost.join], join="cat")
    run(plans)  # from here on `run` knows its cells
    kept, traces = run.traces(plans), multifold.traces(cost, plans)
    return {
        "the loop": lambda: torch.cat([model(plan) for plan in plans]),
        "the loop, without padding": lambda: torch.cat([model.unpadded(plan) for plan in plans]),
        "batched(model)": lambda: run(plans),
        "... cells=[read, join]": lambda: named(plans),
        "batched(model), replayed": lambda: run.replay(kept),
        "fold.add": lambda: multifold.Fold(backend="torch").run(model, plans, cost),
        "fold.add, traces": lambda: multifold.Fold(backend="torch").run(model, traces),
    }


def gradients(model, compute):
    """Run one step of training; return the costs and the gradients."""
    costs = compute()
    return [costs.detach(), *torch.autograd.grad(costs.square().mean(), [*model.parameters()])]


def random_plan(nodes):
    children, left = [], nodes - 1
    while left:
        children.append(random.randint(1, left) if len(children) < MOST - 1 else left)
        left -= children[-1]
    return Plan(torch.randn(1, FEATURES), tuple(map(random_plan, children)))


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("plans", 128), ("width", 64), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    plans = [random_plan(random.randrange(10, 28)) for _ in range(asked.plans)]
    model = PlanOps(asked.width).eval()
    found = steps(model, plans)
    wanted = gradients(model, found["the loop"])
    for name, compute in found.items():
        for x, y in zip(gradients(model, compute), wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6, msg=f"{name} differs from the loop")
    found = steps(model.train(), plans)
    times = {name: [] for name in found}
    for _ in range(asked.rounds):
        for name, compute in found.items():
            began = time.perf_counter()
            gradients(model, compute)
            times[name].append(time.perf_counter() - began)
    loop = statistics.median(times["the loop"])
    for name, own in times.items():
        print(f"{name:26} {1e3 * statistics.median(own):7.1f} ms {loop / statistics.median(own):6.1f} x")


if __name__ == "__main__":
    main()
