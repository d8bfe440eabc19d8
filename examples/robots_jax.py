"""Robots of many bodies learn to reach: gradients with respect to each robot's own joints, in JAX.

python examples/robots_jax.py

Each robot is a tree of links of its own: a torso with arms, arms with hands. The joints are what is learnt,
so the gradients that are wanted are those of the examples' own inputs, and not of a model. They lie in one
array, of which a trace records the places. So `jax.grad` gives their gradients in one array of that shape,
and `jax.jit` compiles one step for all structures.
"""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import multifold_jax
import numpy as np

import multifold


def body(rng, links):
    """Draw a robot: each link has a length, and the links that hang at its end."""
    parts, left = [], links - 1
    while left:
        size = rng.randint(1, left)
        parts.append(body(rng, size))
        left -= size
    return 0.5 + rng.random(), parts


def links_of(robot):
    return 1 + sum(map(links_of, robot[1]))


def hands(fold, example):
    """Record where the ends of a robot are: those links at which no other one hangs."""
    robot, joint = example  # its first joint, by the place in the array of all
    places, found = iter(range(joint, joint + links_of(robot))), []

    def follow(link, at, angle):
        length, parts = link
        at, angle = fold.add("turn", at, angle, next(places), length).split(2)
        if not parts:
            found.append(at)
        for part in parts:
            follow(part, at, angle)

    follow(robot, fold.add("origin"), 0.0)
    return fold.add("middle", multifold.ragged(found))


def ops(joints):
    """The ops, for the joints of all robots, ``(all joints,)``."""

    def turn(at, angle, joint, length):
        angle = angle + joints[joint]
        arm = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
        return at + length[:, None] * arm, angle

    return {
        "origin": lambda: jnp.zeros((1, 2)),
        "turn": turn,
        "middle": lambda ends: multifold.ops.segment_mean(ends.values, ends),
    }


@jax.jit
def step(joints, program, targets):
    """Move the joints of some robots, so that hands come near their targets; return the loss, too."""

    def loss(joints):
        return ((multifold_jax.run(ops(joints), program) - targets) ** 2).sum(axis=1).mean()

    value, slopes = jax.value_and_grad(loss)(joints)
    return joints - 2.0 * slopes, value


def main(robots=48, batch=16, steps=200):
    rng = random.Random(0)
    found = [body(rng, rng.randint(3, 12)) for _ in range(robots)]
    sizes = [*map(links_of, found)]
    first = np.cumsum([0, *sizes])
    traces = multifold.traces(hands, [*zip(found, first[:-1].tolist(), strict=True)])
    targets = np.random.default_rng(0).normal(size=(robots, 2)).astype(np.float32)
    joints, fold = jnp.zeros(first[-1]), multifold.Fold(backend="jax")
    fold.program(sorted(traces, key=len)[-batch:])  # the largest first: smaller ones fit into its sizes
    losses = []
    for _ in range(steps):
        drawn = rng.sample(range(robots), batch)
        program = fold.program([traces[i] for i in drawn])
        joints, value = step(joints, program, targets[drawn])
        losses.append(float(value))
    print(f"{robots} structures, {step._cache_size()} compiled: loss {losses[0]:.2f} to {losses[-1]:.2f}")
    own = jnp.split(joints, first[1:-1])  # the joints of each robot, in its own shape
    assert [len(x) for x in own] == sizes
    return step._cache_size(), losses


if __name__ == "__main__":
    main()
