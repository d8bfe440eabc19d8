"""Sessions of ONNX Runtime take and return NumPy arrays, so they are ops of the NumPy backend."""

from __future__ import annotations

import numpy as np
import pytest

from multifold import Fold, Unfold

onnxruntime = pytest.importorskip("onnxruntime", reason="the session tests(numpy) installs ONNX Runtime")
helper = pytest.importorskip("onnx.helper")

TREES = [(1.0, 2.0), ((3.0, 4.0), 5.0), 6.0, ((1.0, (2.0, 3.0)), (4.0, 5.0))]


def session_of(op, *names):
    """Export ``tanh(op(*names) @ weight)`` of rows of three, with a first axis of any length."""
    import onnx

    rows = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3]) for name in (*names, "y")]
    weight = np.random.default_rng(0).normal(size=(3 * len(names), 3)).astype(np.float32)
    nodes = [
        helper.make_node("Concat", names, ["joined"], axis=1),
        helper.make_node("MatMul", ["joined", "weight"], ["product"]),
        helper.make_node("Tanh", ["product"], ["y"]),
    ]
    constants = [helper.make_tensor("weight", onnx.TensorProto.FLOAT, weight.shape, weight.ravel())]
    graph = helper.make_graph(nodes, op, rows[:-1], rows[-1:], constants)
    version = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=version, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda *rows: session.run(None, dict(zip(names, rows, strict=True)))[0]


@pytest.fixture(scope="module")
def model():
    return {"leaf": session_of("leaf", "x"), "join": session_of("join", "a", "b")}


def record(fold, tree):
    if isinstance(tree, float):
        return fold.add("leaf", np.full((1, 3), tree, np.float32))
    return fold.add("join", *[record(fold, child) for child in tree])


def test_a_fold_of_sessions_equals_one_call_at_a_time(model):
    fold = Fold(backend="numpy")
    twin = Unfold(model, backend="numpy")
    (found,) = fold.apply(model, [[record(fold, tree) for tree in TREES]])
    (wanted,) = twin.apply(model, [[record(twin, tree) for tree in TREES]])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-7)
    assert len(fold) == 18 and len(fold.schedule()) == 4


def test_check_passes_although_sessions_round_by_batch(model):
    fold = Fold(backend="numpy")
    fold.check(model, [[record(fold, tree) for tree in TREES]])
