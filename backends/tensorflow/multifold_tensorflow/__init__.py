"""TensorFlow 2 as a backend of multifold: eager, under a `tf.GradientTape`, inside a `tf.function`.

`backend` is the seam that every fold runs through. `run` computes a program instead: a schedule laid out as
data, which one traced `tf.function` reads whatever the structure.
"""

from __future__ import annotations

from multifold_tensorflow.backend import TensorflowBackend
from multifold_tensorflow.data import dataset
from multifold_tensorflow.program import run
from multifold_tensorflow.program.export import export, tensors_of
from multifold_tensorflow.program.model import ProgramModel
from multifold_tensorflow.program.tensors import TensorProgram, as_tensors

__all__ = [
    "ProgramModel",
    "TensorProgram",
    "TensorflowBackend",
    "as_tensors",
    "dataset",
    "export",
    "run",
    "tensors_of",
]
