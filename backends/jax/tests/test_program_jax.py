"""Programs inside `jax.jit`: held to the eager twin in values and gradients, and to one compilation."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import equinox
import jax
import jax.numpy as jnp
import model_checks
import multifold_jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings

import multifold
from multifold import Fold, Unfold, ragged, shared
from multifold.errors import BackendError, LaunchError, RecordError

TESTS = Path(__file__).resolve().parents[3] / "tests"


def load(name, folder=TESTS):
    """Load a test module of the core: test modules do not import each other."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look up the module of a class
    spec.loader.exec_module(module)
    return module


graphs = load("test_properties")
models = load("test_models")
of_data_sets = load("test_models_for_data_sets", TESTS.parent / "benchmarks" / "tests")
MODELS = models.MODELS | of_data_sets.MODELS
backend = multifold_jax.JaxBackend()


def total(rows):
    return jax.ops.segment_sum(rows.values, rows.segment_ids, rows.lengths.shape[0])


def column(numbers):
    return numbers.astype("float32")[:, None]


def ops_of(p):
    """The ops of the random graphs, written for tracers."""
    return {
        "leaf": lambda x: x * 1.5,
        "squash": jnp.tanh,
        "mix": lambda x, y: jnp.tanh(x) * y - x,
        "number": lambda x, k: x * column(k),
        "numbers": lambda x, a, b: x + column(a) * 0.1 - column(b),
        "weighted": lambda x, w: x * w,
        "both": lambda d: {"sum": d["x"] + d["yz"][0], "pair": (d["yz"][1] * 0.5, [d["x"]])},
        "total": total,
        "beside": lambda x, rows: x - total(rows),
        "scaled": lambda x, k, by: x * (k + by),
        "pair": lambda x: (x * 0.7, jnp.tanh(x)),
        "stack": lambda *xs: jnp.concatenate(xs),
        "whole": lambda w, x: w.sum(axis=0, keepdims=True) * 0.5 + x,
        "constant2": lambda: p["v2"] * 2.0,
        "constant3": lambda: p["v3"] * 2.0,
    }


def weighted(results):
    return sum((x * jnp.cos(jnp.arange(len(x)))[:, None]).sum() for x in results)


@settings(graphs.relaxed, max_examples=3)
@given(program=graphs.programs, choice=graphs.picks)
def test_random_graphs_have_the_values_and_gradients_of_unfold(program, choice):
    rng = np.random.default_rng(0)
    shapes = {name: (int(name[1]),) if name[0] == "s" else (1, int(name[1])) for name in graphs.NAMES}
    p = {name: jnp.asarray(rng.uniform(-1, 1, shape), "float32") for name, shape in shapes.items()}

    def expected(p):
        unfold = Unfold(ops_of(p), backend="jax")
        return weighted(unfold.apply(None, graphs.groups(graphs.record(unfold, program, p), choice)))

    def got(p):
        fold = Fold(backend="jax")
        outputs = graphs.groups(graphs.record(fold, program, p), choice)
        return weighted(multifold_jax.run(ops_of(p), fold.program(outputs, ops_of(p))))

    value, gradients = jax.value_and_grad(got)(p)
    wanted, references = jax.value_and_grad(expected)(p)
    np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)
    for name, gradient in references.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-4, atol=1e-4)


# ---- models --------------------------------------------------------------------------------------


COMPILED_LONG = [pytest.param(name, marks=pytest.mark.nightly) for name in ("listops-lstm", "lattice-lstm")]


@pytest.mark.parametrize("name", ["binary-tree-lstm", "spinn", "qppnet", *COMPILED_LONG])
def test_models_have_the_values_of_numpy_and_gradients_of_differences(name):
    make, record = MODELS[name]
    model = models.disturbed(make())
    numpy_fold = Fold(backend="numpy")
    fold = Fold(backend="jax")
    (expected,) = numpy_fold.apply(model, [record(model, numpy_fold)])
    weights = np.random.default_rng(1).normal(size=expected.shape).astype("float32")

    @jax.jit
    def step(model, program):
        def loss(model):
            (answers,) = multifold_jax.run(model, program)
            return (answers * weights).sum(), answers

        return jax.grad(loss, has_aux=True)(model)

    gradients, got = step(model.on("jax"), fold.program([record(model, fold)]))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    rng = np.random.default_rng(2)
    for parameter, x in backend.kit.parameters(gradients).items():
        direction = rng.normal(size=x.shape)
        slope = model_checks.slope(make, record, parameter, direction, weights)
        np.testing.assert_allclose((x * direction).sum(), slope, rtol=1e-3, atol=1e-4)


# ---- one compilation -----------------------------------------------------------------------------


def chain(fold, spec):
    """Apply an op for each letter to a number."""
    number, ops = spec
    x = fold.add("start", number)
    for op in ops:
        x = fold.add(op, x)
    return x


def programs_of(fold, batches):
    """Return a program for each minibatch of chains."""
    return [fold.program([multifold.trace(chain, spec) for spec in batch]) for batch in batches]


CHAIN = {"start": lambda x: x, "a": lambda x: x + 1, "b": lambda x: 2 * x}


def test_one_compilation_serves_every_structure():
    run = jax.jit(lambda program: multifold_jax.run(CHAIN, program))
    first = [(1.0, "abab"), (2.0, "bbaa")]
    second = [(3.0, "aab"), (1.0, "")]
    fold = Fold(backend="jax")
    for batch, program in zip([first, second], programs_of(fold, [first, second]), strict=True):
        traces = [multifold.trace(chain, spec) for spec in batch]
        np.testing.assert_array_equal(run(program), Fold(backend="numpy").run(CHAIN, traces))
    assert run._cache_size() == len(fold.programs) == 1


def test_a_minibatch_without_an_op_needs_no_compilation():
    fold = Fold(backend="jax")
    _, program = programs_of(fold, [[(1.0, "ab"), (2.0, "ba")], [(1.0, "a"), (3.0, "aa")]])
    assert len(fold.programs) == 1
    np.testing.assert_array_equal(multifold_jax.run(CHAIN, program), [2, 5])


def test_padded_results_need_no_compilation_for_each_number_of_rows():
    fold = Fold(backend="jax")
    model = {"f": lambda x: x + 1}
    run = jax.jit(lambda program: multifold_jax.run(model, program))
    for count in (9, 10, 9):
        program = fold.program([[fold.add("f", float(i)) for i in range(count)]], pad=True)
        (rows,) = run(program)
        assert program.counts.tolist() == [count]
        np.testing.assert_array_equal(rows[:count], np.arange(count) + 1)
        assert np.isfinite(rows).all()
    assert run._cache_size() == 1


# ---- operands of all kinds -----------------------------------------------------------------------


def test_shared_arrays_nested_operands_and_whole_results_have_gradients():
    table = np.arange(6, dtype="float32").reshape(3, 2)

    def record(fold, p):
        rows = [fold.add("look_up", shared(p["table"]), i) for i in (2, 0)]
        both = fold.add("stack", {"pair": (rows[0], rows[1])}).no_batch()
        return [fold.add("beside", both, row) for row in rows]

    def ops(p):
        return {
            "look_up": lambda t, i: t[i] * p["scale"],
            "stack": lambda d: jnp.concatenate(d["pair"]) * p["scale"],
            "beside": lambda all_rows, row: row * (all_rows**2).sum(),
        }

    def loss(p, fold, run):
        (rows,) = run(fold, [record(fold, p)])
        return (rows * jnp.array([[1.0, -2.0], [0.5, 3.0]])).sum()

    p = {"table": jnp.asarray(table), "scale": jnp.array([1.5, -0.5])}
    got = jax.grad(
        lambda p: loss(p, Fold(backend="jax"), lambda f, o: multifold_jax.run(ops(p), f.program(o)))
    )(p)
    expected = jax.grad(lambda p: loss(p, Unfold(ops(p), backend="jax"), lambda f, o: f.apply(None, o)))(p)
    for name in p:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-4)


def test_arrays_and_numbers_of_the_program_have_gradients():
    fold = Fold(backend="jax")
    rows = [np.array([[1.0, 2.0]], "float32"), np.array([[3.0, 4.0]], "float32")]
    made = [fold.add("scale", fold.add("scale", x, 2.0), 3.0) for x in rows]
    program = fold.program([made])
    gradients = jax.grad(
        lambda p: multifold_jax.run({"scale": lambda x, k: x * k[:, None]}, p)[0].sum(), allow_int=True
    )(program)
    (given,) = gradients.given
    np.testing.assert_array_equal(given[:2], np.full((2, 2), 6.0))


def test_callable_ops_keep_the_gradients_of_what_they_close_over():
    def loss(w):
        fold = Fold(backend="jax")

        def scale(x):
            return w * x

        return multifold_jax.run(None, fold.program([fold.add(scale, fold.add(scale, 2.0))]))[0].sum()

    assert jax.grad(loss)(3.0) == 12.0


def test_modules_of_equinox_are_models():
    model = equinox.nn.MLP(2, 2, 3, 1, key=jax.random.key(0))
    fold = Fold(backend="jax")
    x = np.array([[0.5, -1.0]], "float32")
    program = fold.program([fold.add("each", fold.add("each", x))])

    @equinox.filter_jit
    @equinox.filter_grad
    def gradient(model, program):
        return multifold_jax.run({"each": jax.vmap(model)}, program)[0].sum()

    expected = equinox.filter_grad(lambda model: model(model(x[0])).sum())(model)
    for got, wanted in zip(*map(jax.tree.leaves, (gradient(model, program), expected)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


# ---- what pads -----------------------------------------------------------------------------------


def test_what_pads_leaks_no_nan_into_gradients():
    def record(fold, n):
        x = fold.add("leaf", float(n))
        for i in range(n):
            x = fold.add("node", x, ragged([x] * (i % 3), row_shape=()))
        return x

    def ops(w):
        return {
            "leaf": lambda x: x * w,
            "node": lambda x, rows: jnp.log(x + 1 / x) / jnp.sqrt(rows.lengths + x) + total(rows) / x,
        }

    fold = Fold(backend="jax")
    program = fold.program([multifold.trace(record, n) for n in (1, 2, 4)])
    value, gradient = jax.value_and_grad(lambda w: multifold_jax.run(ops(w), program).sum())(1.5)

    def expected(w):
        unfold = Unfold(ops(w), backend="jax")
        return unfold([[record(unfold, n) for n in (1, 2, 4)]])[0].sum()

    wanted, reference = jax.value_and_grad(expected)(1.5)
    np.testing.assert_allclose([value, gradient], [wanted, reference], rtol=1e-4)


def test_an_op_that_a_minibatch_lacks_makes_no_nan():
    def record(fold, ops):
        x = fold.add("start", 2.0)
        for op in ops:
            x = fold.add(op, x)
        return fold.add("end", x)

    def loss(s, program):
        model = {"start": lambda x: s * x, "double": lambda x: 2 * x, "end": lambda x: s * x}
        return multifold_jax.run({**model, "log": lambda x: jnp.log(s * x)}, program).sum()

    fold = Fold(backend="jax")
    fold.program([multifold.trace(record, ("double", "double", "log"))])
    program = fold.program([multifold.trace(record, ())])
    got = jax.jit(jax.value_and_grad(loss))(1.5, program)
    np.testing.assert_allclose(got, (2 * 1.5**2, 4 * 1.5), rtol=1e-6)


# ---- transformations -----------------------------------------------------------------------------


POWERS = [[(1.0, "w"), (1.0, "www")], [(1.0, "ww"), (1.0, "www")]]


def powers(w, program):
    """Multiply by w for each letter."""
    return multifold_jax.run({"start": lambda x: x, "w": lambda x: w * x}, program)


def test_second_derivatives():
    program, _ = programs_of(Fold(backend="jax"), POWERS)
    second = jax.grad(jax.grad(lambda w: powers(w, program).sum()))
    np.testing.assert_allclose(jax.jit(second)(2.0), 12.0, rtol=1e-6)


def test_vmap_over_models():
    program, _ = programs_of(Fold(backend="jax"), POWERS)
    got = jax.jit(jax.vmap(jax.value_and_grad(lambda w: powers(w, program).sum())))(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(got, [[2, 10], [4, 13]], rtol=1e-6)


def test_programs_of_one_form_are_stacked_and_mapped_over_devices():
    stacked = jax.tree.map(lambda *xs: np.stack(xs), *programs_of(Fold(backend="jax"), POWERS))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    spec = jax.sharding.PartitionSpec
    mapped = jax.shard_map(
        jax.vmap(powers, (None, 0)),
        mesh=mesh,
        in_specs=(spec(), spec("data")),
        out_specs=spec("data"),
        check_vma=False,
    )
    gradient = jax.grad(lambda w: mapped(w, stacked).sum())
    np.testing.assert_allclose(jax.jit(mapped)(2.0, stacked), [[2, 8], [4, 8]])
    np.testing.assert_allclose(jax.jit(gradient)(2.0), 1 + 12 + 4 + 12)


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (lambda x: x if float(x[0]) > 0 else -x, "cannot be traced by JAX: ConcretizationTypeError"),
        (lambda x: x[:, None] * x, r"rows of shape \(\d+,\) for \d+ nodes, and of shape"),
        (lambda x: x.sum(), "an array of 0 dimensions"),
        (lambda x: jnp.concatenate([x, x]), r"returned \d+ rows for \d+ row"),
    ],
)
def test_ops_that_cannot_be_compiled_are_named(op, message):
    fold = Fold(backend="jax")
    program = fold.program([[fold.add("f", 1.0), fold.add("f", 2.0)]])
    with pytest.raises(
        LaunchError, match=rf"The op 'f', first recorded at .*test_program_jax.py:\d+.*{message}"
    ):
        multifold_jax.run({"f": op}, program)


@pytest.mark.parametrize(
    ("op", "hint"),
    [
        (lambda x: x @ jnp.ones((2, 3)), "compare their widths"),
        (lambda x: x + jnp.ones(5), "compare their widths"),
        (lambda x: x if x.sum() > 0 else -x, "may not look at values"),
        (np.asarray, "may not look at values"),
        (lambda x: x[x > 0], "may not look at values"),
        (lambda x: x.widen(), "a breakpoint"),
    ],
)
def test_the_hint_of_an_op_that_cannot_be_traced_is_about_what_jax_said(op, hint):
    fold = Fold(backend="jax")
    program = fold.program([[fold.add("f", np.ones((1, 3), np.float32)) for _ in range(2)]])
    with pytest.raises(LaunchError) as caught:
        multifold_jax.run({"f": op}, program)
    assert hint in caught.value.hint


def test_a_ragged_program_is_refused():
    program = Fold(backend="numpy").program(multifold.merge([multifold.trace(chain, (1.0, "a"))]))
    with pytest.raises(BackendError, match=r"a tiled program(.|\n)*Fold\(backend='jax'\)"):
        multifold_jax.run(CHAIN, program)


def test_rows_of_two_shapes_need_the_model():
    fold = Fold(backend="jax")
    model = {"f": lambda x: x * 2}
    outputs = [[fold.add("f", fold.add("f", np.ones((1, n), "float32")))] for n in (2, 3)]
    with pytest.raises(
        LaunchError, match=r"rows of different classes(.|\n)*fold.program\(outputs, model\)"
    ):
        multifold_jax.run(model, fold.program(outputs))
    for rows, width in zip(multifold_jax.run(model, fold.program(outputs, model)), (2, 3), strict=True):
        np.testing.assert_array_equal(rows, np.full((1, width), 4.0))


# ---- rows of padding --------------------------------------------------------------------------------


def without_then_with(record_absent, record_present, model):
    """Return the gradients of a minibatch, where one before it had ops that it lacks."""
    fold = Fold(backend="jax")

    @jax.jit
    def loss_and_gradient(w, program):
        return jax.value_and_grad(lambda w: multifold_jax.run(model(w), program).sum())(w)

    for record in (record_absent, record_present):
        got = loss_and_gradient(2.0, fold.program([multifold.trace(record, 2.0)]))
    return [float(x) for x in got]


@pytest.mark.parametrize(
    "absent",
    [
        lambda f, x: f.add("mean", f.add("leaf", x), 3),
        lambda f, x: f.add("root", f.add("leaf", x)),
        lambda f, x: f.add("unit", f.add("image", np.ones((1, 3), np.float32))),
    ],
    ids=["divided by a number", "root", "normalised rows"],
)
def test_an_op_that_a_minibatch_lacks_leaves_no_trace_in_its_gradients(absent):
    def model(w):
        return {
            "leaf": lambda x: w * x,
            "mean": lambda x, n: x / n,
            "root": lambda x: jnp.sqrt(x - 1.0) * w,
            "image": lambda x: w * x / jnp.sqrt((x * x).sum(1, keepdims=True)),
            "unit": lambda x: x.sum(1),
        }

    assert without_then_with(absent, lambda f, x: f.add("leaf", x), model) == [4.0, 2.0]


def test_a_value_that_is_read_whole_may_lie_inside_of_a_circle_of_ops():
    fold = Fold(backend="jax")
    h = fold.add("step", fold.add("leaf", 1.0))
    whole = fold.add("pool", h).no_batch()
    outputs = [fold.add("step", fold.add("attend", h, whole))]
    model = {
        "leaf": lambda x: x, "step": lambda x: 2 * x, "pool": lambda x: x + 1, "attend": lambda h, s: h * s,
    }  # fmt: skip
    assert multifold_jax.run(model, fold.program(outputs)).tolist() == fold.apply(model, outputs).tolist()


@pytest.mark.parametrize("record", [Fold(backend="jax").run, lambda _, xs, fn: multifold.traces(fn, xs)])
def test_examples_inside_of_jit_are_refused_with_the_way_out(record):
    run = jax.jit(lambda xs: record({"f": lambda x: x}, xs, lambda fold, x: fold.add("f", x)))
    with pytest.raises(RecordError, match=r"(?s)\n\nHint: .* outside of"):
        run([1, 2])


def test_typed_keys_are_refused_with_the_way_out():
    fold = Fold(backend="jax")
    node = fold.add("f", 1.0, shared(jax.random.key(0)))
    with pytest.raises(LaunchError, match=r"key<fry>.*\n\nHint: pass jax.random.key_data"):
        multifold_jax.run({"f": lambda x, key: x}, fold.program([node]))


def test_second_derivatives_of_what_a_minibatch_lacks_are_none():
    def model(w):
        return {"leaf": lambda x: w * x, "root": lambda x: jnp.sqrt(x) * w}

    def record(f, x):
        return f.add("root", f.add("leaf", x)) if x > 0 else f.add("leaf", x)

    fold = Fold(backend="jax")
    second = jax.jit(jax.grad(jax.grad(lambda w, p: multifold_jax.run(model(w), p).sum())))
    got = [float(second(2.0, fold.program([multifold.trace(record, x) for x in xs])))
           for xs in ((2.0, -1.0), (-1.0, -2.0))]  # fmt: skip
    np.testing.assert_allclose(got, [0.75, 0.0])


@pytest.mark.parametrize("names", [("cell", "pass"), ("pass", "cell")])
def test_rows_of_a_ragged_operand_may_come_from_the_op_itself(names):
    cell, through = names

    def encode(fold, tree):
        children = [fold.add(through, encode(fold, child)) for child in tree]
        return fold.add(cell, float(len(tree)), ragged(children, row_shape=(2,)))

    def step(x, rows):
        return jnp.tanh(jnp.stack([x, x + 1], axis=1) + total(rows))

    fold = Fold(backend="jax")
    model = {cell: step, through: lambda x: 2 * x}
    outputs = [encode(fold, (((), ()), ())), encode(fold, ())]
    got = multifold_jax.run(model, fold.program(outputs))
    np.testing.assert_allclose(got, fold.apply(model, outputs), rtol=1e-6)


def test_rows_of_a_ragged_operand_may_be_pairs_of_the_op_itself():
    def cell(fold, tree):
        return fold.add("cell", ragged([cell(fold, child) for child in tree], row_shape=((2,), (3,))))

    def step(rows):
        return tuple(jnp.tanh(total(rows._replace(values=x)) + 1) for x in rows.values)

    fold = Fold(backend="jax")
    model = {"cell": step}
    outputs = [cell(fold, tree)[1] for tree in ((((), ()), ()), ())]
    program = fold.program(outputs)
    np.testing.assert_allclose(multifold_jax.run(model, program), fold.apply(model, outputs), rtol=1e-6)


# ---- what a loop draws, decides and lies on ----------------------------------------------------------

KEY = jax.random.key(0)


def bernoulli(x):
    return 1 + jax.random.bernoulli(KEY, 0.5, x.shape)


def repeated(op, counts):
    """Traces of an op that is called that many times, one behind the other."""

    def record(fold, n):
        x = fold.add("leaf", 1.0)
        for _ in range(n):
            x = fold.add(op, x)
        return x

    return [multifold.trace(record, n) for n in counts]


def test_the_gradient_of_a_random_op_is_that_of_what_it_drew():
    def value(w):
        ops = {"leaf": lambda x: x, "step": lambda x: w * x * bernoulli(x)}
        return multifold_jax.run(ops, program)

    counts = jnp.array([3.0, 9.0, 4.0, 1.0] * 5)
    program = Fold(backend="jax").program(repeated("step", counts.astype(int).tolist()))
    np.testing.assert_allclose(jax.jacrev(value)(0.5), counts * value(0.5) / 0.5, rtol=1e-5)


def test_an_op_that_mixes_its_rows_is_refused_beside_no_number():
    program = Fold(backend="jax").program(repeated("step", [2, 4, 3]))
    ops = {"leaf": lambda x: x, "step": lambda x: x * (1 + jnp.abs(x).sum())}
    with pytest.raises(LaunchError, match=r"'step'.*mixes its rows"):
        jax.jit(lambda p: multifold_jax.run(ops, p))(program)


def test_a_branch_that_no_tile_takes_has_no_part_in_the_gradient():
    def value(w):
        def step(x):
            return jax.lax.cond(x.min() > 0, lambda: jnp.sqrt(w * x), lambda: w * x)

        ops = {"leaf": lambda x: x - 1, "step": step}
        return multifold_jax.run(ops, program).sum()

    program = Fold(backend="jax").program(repeated("step", [2, 30, 3]))
    assert jax.grad(value)(0.5) == 0


def test_an_op_that_can_not_be_mapped_has_a_gradient_too():
    @jax.custom_vjp
    def tripled(x):
        return jax.pure_callback(lambda x: 3 * np.asarray(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    tripled.defvjp(lambda x: (tripled(x), None), lambda _, gradient: (3 * gradient,))

    def value(w):
        ops = {"leaf": lambda x: x, "step": lambda x: tripled(w * x)}
        return multifold_jax.run(ops, program).sum()

    program = Fold(backend="jax").program(repeated("step", [2, 4, 3]))
    expected = sum(n * 3**n * 0.5 ** (n - 1) for n in (2, 4, 3))
    np.testing.assert_allclose(jax.grad(value)(0.5), expected, rtol=1e-4)


def test_ragged_operands_of_many_tiles_have_the_gradients_of_the_loop():
    def record(fold, depth):
        if not depth:
            return fold.add("leaf", 1.0)
        return fold.add("join", ragged([record(fold, depth - 1) for _ in range(depth)]), 0.5)

    def loss(recorder, run):
        def value(w):
            ops = {
                "leaf": lambda x: w * x[:, None],
                "join": lambda rows, k: jnp.tanh(w * total(rows)) + k[:, None],
            }
            return run(recorder(ops), ops).sum()

        return jax.value_and_grad(value)(0.7)

    traces = [multifold.trace(record, depth) for depth in (4, 3, 5, 1)]
    program = Fold(backend="jax").program(traces)
    got = loss(lambda ops: None, lambda _, ops: multifold_jax.run(ops, program))
    expected = loss(lambda ops: Fold(backend="jax"), lambda fold, ops: fold.run(ops, traces))
    np.testing.assert_allclose(got, expected, rtol=1e-4)


ON_A_MESH = """
import jax, jax.numpy as jnp, multifold, multifold_jax
from jax.sharding import NamedSharding, PartitionSpec
mesh = jax.make_mesh((2,), ("data",))
def record(fold, tree):
    if isinstance(tree, int):
        return fold.add("leaf", tree)
    return fold.add("join", *[record(fold, child) for child in tree])
def loss(p, run):
    ops = {"leaf": lambda w: p["table"][w], "join": lambda a, b: jnp.tanh((a + b) @ p["weight"])}
    return (run(ops) ** 2).sum()
p = {"table": jnp.ones((10, 4)), "weight": jnp.eye(4)}
p = jax.device_put(p, NamedSharding(mesh, PartitionSpec()))
fold = multifold.Fold(backend="jax")
traces = [multifold.trace(record, tree) for tree in (((1, 2), 3), (4, 5))]
runs = [lambda ops: fold.run(ops, traces), lambda ops: multifold_jax.run(ops, fold.program(traces))]
one, other = [jax.jit(jax.grad(loss), static_argnums=1)(p, run)["weight"] for run in runs]
print(float(abs(one - other).max()) < 1e-6)
"""


def test_parameters_may_lie_on_a_mesh():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    environment = {**os.environ, **flags, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", ON_A_MESH]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"], done.stderr


def test_an_op_that_changes_its_models_state_is_told_so():
    dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    program = Fold(backend="jax").program(repeated(dropout, [1, 2]))
    with pytest.raises(LaunchError, match="may not change its model's state"):
        jax.jit(lambda program: multifold_jax.run({"leaf": lambda x: x}, program))(program)


def test_slices_of_results_are_parts_of_a_program():
    def record(fold, x):
        parts = fold.add("three", x)
        return parts[1:], fold.add("plus", parts[::2][1], parts[1:][0])

    model = {"three": lambda x: (x, 2 * x, 3 * x), "plus": lambda a, b: a + b}
    program = multifold.Fold(backend="jax").program([multifold.trace(record, x) for x in (1, 2)])
    (twice, thrice), both = jax.jit(lambda program: multifold_jax.run(model, program))(program)
    assert [x.tolist() for x in (twice, thrice, both)] == [[2, 4], [3, 6], [5, 10]]


def chained(fold, length):
    """Record a chain with NumPy leaves, numbers, a ragged and a shared operand in each call."""
    node = fold.add("leaf", np.full((1, 3), 0.1 * length, "float32"), length)
    for _ in range(length):
        node = fold.add("join", node, ragged([node, node]), shared(np.ones(3, "float32")))
    return node


def chain_ops(p):
    return {
        "leaf": lambda x, n: x * p["w"] + column(n),
        "join": lambda x, rows, s: jnp.tanh(x + total(rows) * s * p["w"]),
    }


@pytest.mark.filterwarnings("error:.*could not be tried")
def test_a_program_that_was_put_on_the_device_is_not_transferred_by_a_step():
    traces = [multifold.trace(chained, n) for n in (1, 3, 2)]
    p = {"w": jnp.full((3,), 0.5)}
    step = jax.jit(jax.value_and_grad(lambda p, program: multifold_jax.run(chain_ops(p), program).sum()))
    program = Fold(backend="jax").program(traces)
    placed = jax.device_put(program)
    with jax.transfer_guard("disallow"):
        value, gradients = step(p, placed)
        with pytest.raises(Exception, match="host-to-device"):
            step(p, program)
    want, wanted = jax.value_and_grad(lambda p: Fold(backend="jax").run(chain_ops(p), traces).sum())(p)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    np.testing.assert_allclose(gradients["w"], wanted["w"], rtol=1e-5)


def test_examples_keep_their_words_beside_the_rows_of_one_compilation():
    fold = Fold(backend="jax")
    model = {"length": lambda x: x * 2.0}
    step = jax.jit(lambda program: multifold_jax.run(model, program))

    def lengths(fold, sentence):
        words = sentence.split()
        return multifold.each({"words": words, "rows": [fold.add("length", len(word)) for word in words]})

    for sentences in (["a tree", "two"], ["three of", "b"]):
        program = fold.program(multifold.traces(lengths, sentences))
        for found, sentence in zip(program.each(step(program)), sentences, strict=True):
            assert found["words"] == sentence.split()
            assert found["rows"].tolist() == [2.0 * len(word) for word in found["words"]]
    assert step._cache_size() == 1


def test_traces_in_the_place_of_a_program_are_refused():
    traces = multifold.traces(lambda fold, x: fold.add("double", x), [1, 2])
    with pytest.raises(multifold.RecordError, match=r"Expected a program(.|\n)*fold\.program\(traces\)"):
        multifold_jax.run({"double": lambda x: 2 * x}, traces)
