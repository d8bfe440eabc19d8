"""The first blocks: a sum, a recursion, and layers over lists of any length.

python examples/blocks/quick_start.py [--backend numpy]

Each block is written for one example, and runs on a minibatch of them in few launches.
"""

import argparse

import multifold
from multifold import ops
from multifold_compat.blocks import (
    FC,
    AllOf,
    Concat,
    ForwardDeclaration,
    Function,
    Layers,
    Length,
    Map,
    Max,
    Mean,
    OneHotFromList,
    OneOf,
    Record,
    Reduce,
    Scalar,
    Sum,
    Vector,
)  # fmt: skip

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--backend", default="numpy")
backend = parser.parse_args().backend
fold = multifold.Fold(backend=backend)


def run(block, examples, model=None):
    """Return what a block makes of examples, as NumPy arrays, and the launches that it took."""
    fold.reset()
    result = fold.run(model, examples, block)
    return multifold.load_backend(backend).to_numpy(result).tolist(), len(fold.explain())


numbers = [[1, 2, 3, 4], [5], [6, 7]]
print("sums and launches:", *run(Map(Scalar()) >> Sum(), numbers))

multiply = Function(lambda x, y: x * y, out="float")  # any function of arrays that have a row for each call
print("products, by pairs:", *run(Map(Scalar()) >> Reduce(multiply), numbers))

both = Map(Scalar()) >> AllOf(Max(), Mean()) >> Concat()  # one sequence, two readers
print("largest and mean:", *run(both, numbers))

expression = ForwardDeclaration(output_type="float")  # a number, or a pair of expressions
pair = Record((expression(), expression())) >> multiply
expression.resolve_to(OneOf(type, {int: Scalar(), tuple: pair}))
print("products of trees:", *run(expression(), [((1, 2), (3, 4)), 5, (6, (7, 1))]))

point = {"where": Vector(2), "colour": OneHotFromList(["red", "green", "blue"])} >> Concat()
points = [{"where": [0.5, 1.0], "colour": "green"}, {"where": [2.0, 0.0], "colour": "red"}]
print("rows of features:", *run(point, points))

layers = point >> Function(FC(4, ops.tanh)) >> Function(FC(2, activation=None))
scores, launches = run(layers, points, Layers(layers).on(backend))
print(
    f"scores of {len(scores)} points in {launches} launches; the layers know their sizes:",
    *Layers(layers).weights(),
)
print(Map(Scalar()) >> AllOf(Sum(), Length("int")))
