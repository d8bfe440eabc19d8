"""What cannot be awaited, or not there: it is refused with a hint, and never computed as something else."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from awaits import grow

import multifold
from multifold import Fold, RecordError, Unfold


def test_other_awaitables_are_refused(backend, model):
    class Foreign:
        def __await__(self):
            yield "a socket"

    async def fn(fold, n):
        await Foreign()

    with pytest.raises(RecordError, match=r"Expected example 0 .* to await values"):
        Fold(backend=backend).run(model, [1], fn)


def test_values_are_awaited_in_a_run_only(backend, model):
    async def outside(fold):
        return await fold.value(fold.add("leaf", 1))

    fold = Fold(backend=backend)
    with pytest.raises(RecordError, match=r"inside fold\.run"):
        asyncio.run(outside(fold))
    with pytest.raises(RecordError, match="Expected a node"):
        fold.value(3)
    with pytest.raises(RecordError, match="another fold"):
        fold.value(Fold(backend=backend).add("leaf", 1))


def test_a_program_with_an_event_loop_may_call_it(backend, model, equal):
    async def main():
        return Fold(backend=backend).run(model, [3, 70], grow)

    equal(asyncio.run(main()), [[192], [140]])


def test_runs_do_not_nest_and_keep_their_graph(backend, model):
    async def fn(fold, n):
        with pytest.raises(RecordError, match="Expected no other run"):
            fold.run(model, [1], grow)
        with pytest.raises(RecordError, match="Expected no reset"):
            fold.reset()
        return fold.add("leaf", n)

    Fold(backend=backend).run(model, [1], fn)


FORGOTTEN = {
    "if": bool,
    "compared": lambda x: x == 1.0,
    "ordered": lambda x: x > 1,
    "looked for": lambda x: x in (1.0, 2.0),
    "unpacked": list,
    "indexed": lambda x: x[0],
    "a number": float,
    "an array": np.asarray,
    "added": lambda x: 1 + x,
}


@pytest.mark.parametrize("use", FORGOTTEN.values(), ids=FORGOTTEN)
@pytest.mark.parametrize("recorder", [Fold, Unfold])
def test_a_value_that_is_not_awaited_can_not_be_used(recorder, use):
    def forgetful(fold, x):
        node = fold.add(abs, x)
        use(fold.value(node))
        return node

    with pytest.raises(RecordError, match=r"(?s)Expected the value of a node.*write `await fold\.value"):
        recorder(backend="numpy").run(None, [1.0], forgetful)


def test_what_is_not_awaited_has_no_attributes_of_arrays():
    fold = Fold(backend="numpy")
    pending = fold.value(fold.add("double", 1.0))
    with pytest.raises(RecordError, match=r"write `await fold\.value\(node\)`"):
        pending.argmax()
    assert not hasattr(pending, "shape") and not hasattr(pending, "__fspath__")


@pytest.mark.parametrize("where", ["operand", "ragged", "output", "group"])
def test_what_is_not_awaited_is_neither_an_operand_nor_a_result(where):
    async def inner(fold, x):
        return fold.add("double", x)

    def forgetful(fold, x):
        pending = fold.value(fold.add("double", x))
        if where == "operand":
            return fold.add("double", pending)
        if where == "ragged":
            return fold.add("double", multifold.ragged([pending]))
        return [pending] if where == "group" else pending

    with pytest.raises(RecordError, match="Received a ValuesRequest"):
        Fold(backend="numpy").run({"double": lambda x: 2 * x}, [1.0], forgetful)
    fold = Fold(backend="numpy")
    coroutine = inner(fold, 1.0)
    with pytest.raises(RecordError, match="`await` it"):
        fold.add("double", coroutine)
    coroutine.close()


@pytest.mark.parametrize("recorder", [Fold, Unfold])
@pytest.mark.parametrize("what", ["value", "gather"])
def test_values_of_another_fold_are_refused(recorder, what):
    outer, inner = recorder(backend="numpy"), recorder(backend="numpy")

    async def example(fold, x):
        node = fold.add(abs, 100 + x)

        async def within(other, k):
            other.add(abs, k)
            return await (fold.value(node) if what == "value" else fold.gather(fold.value(node)))

        return inner.run(None, [1, 2], within)

    with pytest.raises(RecordError, match=r"(?s)Received a request of another one.*outer fold before"):
        outer.run(None, [0, 1], example)


def test_values_kept_from_an_earlier_run_are_refused():
    fold, kept = Fold(backend="numpy"), []

    async def keep(fold, x):
        kept.append(fold.value(fold.add(abs, x)))
        return x

    async def use(fold, x):
        fold.add(abs, x)
        return await kept[x]

    fold.run(None, [11, 12], keep)
    with pytest.raises(RecordError, match=r"(?s)from before a reset.*forgotten when the next one begins"):
        fold.run(None, [0, 1], use)


@pytest.mark.parametrize("recorder", [Fold, Unfold])
@pytest.mark.parametrize("arguments", [(abs, [1, 2]), (abs, "text"), (3, "text")], ids=str)
def test_examples_come_before_the_function(recorder, arguments):
    with pytest.raises(RecordError, match=r"(?s)Expected examples and a function.*the examples come first"):
        recorder(backend="numpy").run(None, *arguments)


def test_what_was_awaited_once_is_refused_with_a_hint():
    async def child():
        return 1

    async def parse(fold, x):
        request = fold.gather(child())
        await request
        await request

    with pytest.raises(RecordError, match="Received it a second time") as error:
        Fold(backend="numpy").run({}, [1.0], parse)
    assert error.value.hint.startswith("keep what `await` returned")
