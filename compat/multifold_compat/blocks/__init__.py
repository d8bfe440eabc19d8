"""Models said as compositions of blocks, with types that are checked before the first minibatch.

A block is a function of one example: ``block(fold, x)`` records it, as any function that a fold takes. So
blocks go wherever such functions go: `multifold.Fold.run`, `multifold.Unfold`, `multifold.traces`,
programs. The names are those of TensorFlow Fold, whose models these blocks were made for; `docs/blocks.md`
has them all in one table.

One direction: `types` are what flows, `inference` leads them through blocks, `block` is what a block is,
with those that `>>` needs; the families `inputs`, `sequences`, `combining`, `reductions`, `choices`,
`recursion`, `composition`, `layers` and `metrics` stand on it. `code` and
`calls` write one function of Python for a block, `show` prints and draws, `dry` is what a dry run says.

Examples
--------
An expression is an integer, or a tuple of the name of an op and two expressions. Each op becomes one launch
for all of its calls that are ready together:

>>> import multifold
>>> from multifold_compat.blocks import ForwardDeclaration, Function, GetItem, OneOf, Record, Scalar
>>> expression = ForwardDeclaration()
>>> parts = Record([(1, expression()), (2, expression())])
>>> calls = OneOf(GetItem(0), {"+": parts >> Function("add"), "*": parts >> Function("multiply")})
>>> block = expression.resolve_to(OneOf(type, {int: Scalar(), tuple: calls}))
>>> model = {"add": lambda x, y: x + y, "multiply": lambda x, y: x * y}
>>> fold = multifold.Fold(backend="numpy")
>>> fold.run(model, [("+", 1, ("*", 2, 3)), ("*", ("+", 1, 2), ("+", 3, 4)), 5], block)
array([ 7., 21.,  5.])

What does not fit is refused where it is written:

>>> Record([("x", Scalar())]) >> Scalar()
Traceback (most recent call last):
multifold_compat.blocks.types.BlockError: Expected object as the input of <Scalar float[]>. ...
<BLANKLINE>
Hint: it makes a tensor of Python numbers; what a block before it returns is none of them.
>>> print(Record([("x", Scalar()), ("y", Scalar())]) >> Function("add", out=[]))
Pipe: ? -> float32[]
  Record x, y: ? -> (float[], float[])
    Scalar float[]: object -> float[]
    Scalar float[]: object -> float[]
  Function add: (float[], float[]) -> float32[]
"""

from __future__ import annotations

from multifold_compat.blocks.block import Block, FromTensor, Function, Layer, Pipe, Record, as_block
from multifold_compat.blocks.choices import AllOf, OneOf, Optional
from multifold_compat.blocks.combining import RNN, Fold, Reduce
from multifold_compat.blocks.composition import Composition
from multifold_compat.blocks.inputs import (
    Identity,
    InputTransform,
    OneHot,
    OneHotFromList,
    Scalar,
    Tensor,
    Vector,
    Void,
    Zeros,
)
from multifold_compat.blocks.layers import FC, Embedding, Layers
from multifold_compat.blocks.metrics import Metric, Metrics
from multifold_compat.blocks.recursion import ForwardDeclaration
from multifold_compat.blocks.reductions import Concat, Max, Mean, Min, Sum
from multifold_compat.blocks.sequences import (
    Broadcast,
    GetItem,
    Length,
    Map,
    NGrams,
    Nth,
    Slice,
    Zip,
    ZipWith,
)
from multifold_compat.blocks.types import (
    BlockError,
    BroadcastSequenceType,
    PyObjectType,
    ResultType,
    SequenceType,
    TensorType,
    TupleType,
    VoidType,
    as_type,
)

__all__ = [
    "FC",
    "RNN",
    "AllOf",
    "Block",
    "BlockError",
    "Broadcast",
    "BroadcastSequenceType",
    "Composition",
    "Concat",
    "Embedding",
    "Fold",
    "ForwardDeclaration",
    "FromTensor",
    "Function",
    "GetItem",
    "Identity",
    "InputTransform",
    "Layer",
    "Layers",
    "Length",
    "Map",
    "Max",
    "Mean",
    "Metric",
    "Metrics",
    "Min",
    "NGrams",
    "Nth",
    "OneHot",
    "OneHotFromList",
    "OneOf",
    "Optional",
    "Pipe",
    "PyObjectType",
    "Record",
    "Reduce",
    "ResultType",
    "Scalar",
    "SequenceType",
    "Slice",
    "Sum",
    "Tensor",
    "TensorType",
    "TupleType",
    "Vector",
    "Void",
    "VoidType",
    "Zeros",
    "Zip",
    "ZipWith",
    "as_block",
    "as_type",
]
