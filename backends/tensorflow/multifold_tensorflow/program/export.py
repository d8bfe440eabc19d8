"""SavedModels whose signature takes programs: served where neither multifold nor the model's code is.

A signature of TensorFlow takes named tensors. The one idea: a program is a few tensors, so they get names;
`tensors_of` is what a client sends. A program of another form would be read as other calls, so the tensors
say which form they belong to, and the SavedModel refuses any other.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any

import optree
import tensorflow as tf

from multifold.program import Form, Program
from multifold_tensorflow.program import run
from multifold_tensorflow.program.tensors import ProgramSpec, TensorProgram, as_tensors

FORM = "form"
"""The name of the tensor that says which form a program has."""


def tensors_of(program: Program | TensorProgram) -> dict[str, tf.Tensor]:
    """Return the tensors of a program, name -> tensor, as an exported signature takes them.

    Examples
    --------
    >>> import multifold
    >>> fold = multifold.Fold(backend="tensorflow")
    >>> program = fold.program([[fold.add("double", fold.add("double", i)) for i in (1, 2)]])
    >>> {name: tensor.shape.as_list() for name, tensor in tensors_of(program).items()}
    {'form': [], 'lengths': [7], 'counts': [13], 'index': [6]}
    """
    program = as_tensors(program)
    return {FORM: tf.constant(fingerprint(program.form)), **named(program._type_spec, program)}


def export(model: Any, program: Program | TensorProgram, path: str | os.PathLike[str]) -> None:
    """Write a SavedModel that runs programs of one form by its signature ``"serving_default"``.

    The signature takes what `tensors_of` returns, and returns the results: those of a dictionary by its
    keys, others as ``output_0``, ``output_1`` and so on. Loading it needs TensorFlow and nothing else.

    Parameters
    ----------
    model : object
        Where op names are looked up. Its variables are saved as they are now.
    program : Program or TensorProgram
        Any program of the form. A fold that has seen all ops, as by ``fold.program(all_traces)``, makes
        programs of that form from then on; keep it, or its traces, where requests are recorded.
    path : str or path
        A directory.

    Raises
    ------
    LaunchError
        If an op cannot be traced.

    Examples
    --------
    >>> import multifold, tempfile
    >>> fold = multifold.Fold(backend="tensorflow")
    >>> record = lambda fold, numbers: fold.reduce("add", numbers)
    >>> minibatches = [[1, 2, 3], [4, 5]], [[3, 4, 5], [6, 7], [8, 9]]
    >>> programs = [fold.program(multifold.traces(record, numbers)) for numbers in minibatches]
    >>> with tempfile.TemporaryDirectory() as path:
    ...     export({"add": lambda x, y: x + y}, programs[0], path)
    ...     served = tf.saved_model.load(path).signatures["serving_default"]
    ...     served(**tensors_of(programs[1]))["output_0"].numpy()
    array([12, 13, 17])
    """
    spec = as_tensors(program)._type_spec
    expected = fingerprint(spec.key[0])

    def serve(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        message = "Expected a program of the form that was exported. Received one of another form."
        check = tf.debugging.assert_equal(tensors[FORM], expected, message)
        with tf.control_dependencies([check] if check is not None else []):
            results = run(model, with_names(spec, tensors))
        if isinstance(results, Mapping) and all(isinstance(name, str) for name in results):
            return dict(results)
        return {f"output_{i}": leaf for i, leaf in enumerate(optree.tree_leaves(results))}

    specs = {FORM: tf.TensorSpec((), tf.string, FORM)}
    for name, component in named(spec, spec).items():
        specs[name] = tf.TensorSpec(component.shape, component.dtype, name)
    served = tf.function(serve, autograph=False).get_concrete_function(**specs)
    module = tf.Module()
    # A SavedModel holds the variables that its module tracks, and no others.
    module.read = list(served.graph.variables)
    tf.saved_model.save(module, os.fspath(path), signatures={"serving_default": served})


def named(spec: ProgramSpec, program: ProgramSpec | TensorProgram) -> dict[str, Any]:
    """Return the components of ``program``, name -> tensor, or of ``spec`` itself, name -> spec."""
    parts = spec._component_specs if program is spec else spec._to_components(program)
    lengths, buffers, given, shared = parts
    rows = {
        f"{kind}_{i}": x for kind, xs in (("given", given), ("shared", shared)) for i, x in enumerate(xs)
    }
    return {"lengths": lengths, **buffers, **rows}


def with_names(spec: ProgramSpec, tensors: Mapping[str, tf.Tensor]) -> TensorProgram:
    """Return the program of type ``spec`` whose components are ``tensors``, named as by `named`."""
    _lengths, buffers, given, shared = spec._component_specs
    found = (
        tensors["lengths"],
        {name: tensors[name] for name in buffers},
        tuple(tensors[f"given_{i}"] for i in range(len(given))),
        tuple(tensors[f"shared_{i}"] for i in range(len(shared))),
    )
    return spec._from_components(found)


def fingerprint(form: Form) -> str:
    """Return a SHA-256 of a form, as text: equal for equal forms, in each process."""
    kernels = [(k.name, k.key, k.operands, k.structure, k.solo, k.whole, k.rows) for k in form.kernels]
    rest = form.sources, form.slabs, form.wholes, form.phases, form.groups, form.structure, form.leaves
    text = re.sub(r" at 0x[0-9a-f]+", "", repr((kernels, rest)))  # where an op's function lies in memory
    return hashlib.sha256(text.encode()).hexdigest()
