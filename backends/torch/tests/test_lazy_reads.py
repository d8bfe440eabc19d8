"""Reads: a program that looks at a computed value waits for it, and the others go on."""

from __future__ import annotations

import contextlib
import random
import re
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
import torch
import torch.distributions as D  # noqa: N812 - as everybody calls it
from torch import nn

import multifold
from multifold import LaunchError, RecordError
from multifold._engine import compiled
from multifold.lazy import waiting

torch.manual_seed(0)
LIN = nn.Linear(4, 4)
PARAMETERS = [*LIN.parameters()]
XS = [torch.randn(4) for _ in range(7)]


def while_large(x):
    count = 0
    while x.norm() > 0.3 and count < 20:
        x = torch.tanh(LIN(x)) * 0.8
        count += 1
    return x, count


def without_gradient(x):
    with torch.no_grad():
        y = LIN(x)
        if y[0] > 0:
            y = y * 2
    return y, LIN(y)


def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = LIN(x)
        if y[0] > 0:
            y = LIN(y)
    return y.float(), LIN(x)


def beam(x):
    states = [(0.0, x)]
    for _ in range(3):
        grown = [(score + float(part.sum()), part) for score, s in states for part in (LIN(s), LIN(s + 1))]
        states = sorted(grown, key=lambda pair: -pair[0])[:2]
    return states[0][1]


def in_place_and_read(x):
    y = LIN(x)
    before = y[0].item()
    y += 1
    return y, round(y[0].item() - before, 4)


READS = {
    "while": while_large,
    "no_grad": without_gradient,
    "beam": beam,
    "in place": in_place_and_read,
    "item": lambda x: LIN(x) * 2 if LIN(x).sum().item() > 0 else LIN(x) - 1,
    "any": lambda x: 1 if (LIN(x) > 0.5).any() else 0,
    "sorted": lambda x: sorted(LIN(x).unbind(), key=float)[0],
    "largest": lambda x: max(LIN(x)),
    "contains": lambda x: LIN(x)[0] in [1, 2],
    "text": lambda x: (f"{LIN(x)[0]:.2f}", f"{LIN(x)[1].item():.1f}"),
    "numbers": lambda x: (float(LIN(x)[0]), int(LIN(x).argmax()), [round(v, 3) for v in LIN(x).tolist()]),
    "an index of a list": lambda x: ["a", "b", "c", "d"][LIN(x).argmax()],
    "a range": lambda x: [LIN(x)[i] for i in range(LIN(x).argmax() + 1)],
    "a slice": lambda x: LIN(x)[: LIN(x).argmax() + 1].sum(),
    "an array": lambda x: float(LIN(x).detach().numpy().sum().round(3)),
    "an array by NumPy": lambda x: round(float(np.asarray(LIN(x).detach()).sum()), 3),
    "a mask": lambda x: LIN(x).detach()[LIN(x) > 0],
    "where": lambda x: torch.where(LIN(x) > 0),
    "nonzero": lambda x: (LIN(x) > 0).nonzero(),
    "equal": lambda x: torch.equal(LIN(x), LIN(x)) and torch.allclose(LIN(x), LIN(x) + 1e-9),
    "a mask that is set": lambda x: (y := LIN(x), y.__setitem__(y > 0, 0.0), y)[2],
    "a real tensor set": lambda x: (t := torch.zeros(4), t.__setitem__(0, LIN(x).detach()[1]), t)[2],
    "a full tensor": lambda x: torch.full((2,), LIN(x)[0].item()),
    "the sizes of parts": lambda x: LIN(x).split([int(LIN(x).argmax()) + 1, 3 - int(LIN(x).argmax())])[0],
    "distribution": lambda x: torch.distributions.Categorical(logits=LIN(x)).entropy(),
}


@pytest.mark.parametrize("program", READS)
def test_a_program_that_reads_returns_what_the_loop_returns(program, as_loop):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        as_loop(READS[program], XS, parameters=PARAMETERS)
        with torch.no_grad():
            as_loop(READS[program], XS)


def test_autocast_is_in_force_again_after_a_read(as_loop):
    as_loop(autocast, XS, parameters=PARAMETERS, within=0.2)


def test_examples_that_wait_share_launches():
    def steps(x):
        n = 0
        while n < 3 and LIN(x).sum() < 100:
            n += 1
        return n

    run = multifold.batched(steps, backend="torch")
    assert run(XS) == [3] * 7
    assert len(run.explain()) <= 9


def test_a_vector_whose_entries_are_compared_is_read_once():
    wide = nn.Linear(4, 64)
    run = multifold.batched(lambda x: float(sorted(wide(x))[0]))
    assert run(XS) == pytest.approx([wide(x).min().item() for x in XS], abs=1e-6)
    assert len(run.explain().rounds) == 2


def test_the_error_of_a_call_comes_before_one_that_the_example_raises_later():
    table = nn.Embedding(4, 4)

    def program(x, i):
        y = table(torch.tensor(i))
        if i > 3:
            raise ValueError("too large", y)
        return y + LIN(x)

    with pytest.raises(IndexError):
        program(XS[4], 4)
    _, failures = multifold.batched(program, on_error="collect")(XS, range(len(XS)))
    assert {*failures} == {4, 5, 6} and all("IndexError" in str(x) for x in failures.values())


def failing(x):
    y = LIN(x)
    if y[0] > 0:
        raise ValueError("positive")
    return y


def test_the_error_of_one_example_is_raised_or_collected():
    with pytest.raises(ValueError, match="positive"):
        multifold.batched(failing)(XS)
    results, failures = multifold.batched(failing, on_error="collect")(XS)
    fine = [x for x in XS if LIN(x)[0] <= 0]
    assert {*failures} == {i for i, x in enumerate(XS) if LIN(x)[0] > 0}
    assert torch.allclose(results, torch.stack([LIN(x) for x in fine]), atol=1e-6)
    assert {type(x) for x in failures.values()} == {ValueError}
    with pytest.raises(RecordError, match="on_error"):
        multifold.batched(failing, on_error="ignore")


@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_what_examples_have_kept_before_one_fails_is_that_of_the_loop(on_error):
    kept = [[] for _ in XS]

    def failing(x, kept):
        kept.append(LIN(x))
        if LIN(x).sum() > -1e9:
            raise ValueError("no")

    run = multifold.batched(failing, on_error=on_error, backend="torch")
    with contextlib.nullcontext() if on_error == "collect" else pytest.raises(ValueError, match="no"):
        run(XS, kept)
    for own, x in zip(kept, XS, strict=True):
        torch.testing.assert_close(own[0] * 1, LIN(x))


def test_a_mask_takes_numbers_with_their_gradients(as_loop):
    def program(x):
        h = LIN(x)
        h[h > 0.1] *= 2
        return h[h > 0].sum(), h.view(2, 2)[:, h[:2] > 0], h[torch.tensor([True, False, True, False])]

    as_loop(program, XS, parameters=[*LIN.parameters()])


def test_a_selection_by_a_mask_keeps_its_gradients(as_loop):
    def program(x):
        h, some = LIN(x), torch.tensor([[True], [False]])
        pairs = h.view(2, 2)
        return h.masked_select(h > 0).sum(), torch.masked_select(pairs, some), h[0].masked_select(h > 0)

    as_loop(program, XS, parameters=[*LIN.parameters()])


def test_a_program_catches_what_it_raises(as_loop):
    def fn(x):
        try:
            return failing(x)
        except ValueError:
            return LIN(x) * 3

    as_loop(fn, XS, parameters=PARAMETERS)


@multifold.cell
def fragile(x):
    if x.dim() and (x == 0).all():
        raise ZeroDivisionError("all zero")
    return x * 2


def test_a_program_catches_the_error_of_a_launch_where_it_reads():
    def fn(x):
        try:
            return float(fragile(LIN(x) * x).sum() * 0)
        except LaunchError:
            return -1.0

    found = multifold.batched(fn, backend="torch", join="list")([XS[0], torch.zeros(4), XS[1]])
    assert found == [0.0, -1.0, 0.0]


def test_an_interrupt_ends_the_run_and_the_programs_that_wait():
    ended = []
    note = types.MethodType(list.append, ended)  # a change of the list that is not seen in the code

    def fn(x):
        try:
            if LIN(x).sum() > -100 and not ended:
                raise KeyboardInterrupt
        finally:
            note(1)

    with pytest.raises(KeyboardInterrupt):
        multifold.batched(fn, backend="torch")(XS)
    assert len(ended) == 7 and torch.is_grad_enabled()


def test_finally_of_an_example_that_waits_runs_when_another_one_ends_the_run():
    ended = []
    note = types.MethodType(list.append, ended)  # a change of the list that is not seen in the code

    def fn(x, fails):
        with torch.no_grad():
            try:
                while LIN(x).sum() > -100:
                    if fails:
                        raise KeyboardInterrupt
            finally:
                note(fails)
        return x

    with pytest.raises(KeyboardInterrupt):
        multifold.batched(fn, backend="torch")(XS[:3], [False, True, False])
    assert sorted(ended) == [False, False, True] and torch.is_grad_enabled()


def number(y):
    return y.detach()[0]


def count(y):
    return y.argmax() + 1


TAKES_NUMBERS = {
    "tensor": lambda y, x: torch.tensor([y[0], y[1]]) + y[:2],
    "tensor, long after": lambda y, x: torch.tensor([y[0], *[y.sum() * i for i in range(20)]]),
    "as_tensor": lambda y, x: torch.as_tensor([[y[0], 1.0], [y[1], 2.0]]),
    "bools": lambda y, x: torch.tensor([y[0] > 0, y[1] > 0]),
    "a copy": lambda y, x: torch.tensor(y.detach()),
    "new_tensor": lambda y, x: x.new_tensor([y[0], y[1]]),
    "clamp": lambda y, x: torch.clamp(y, 0.01, number(y)) + torch.clamp(x, 0.01, number(y)),
    "arange": lambda y, x: torch.arange(0, count(y)).sum(),
    "full": lambda y, x: torch.full((2,), number(y)) * y[:2],
    "zeros": lambda y, x: torch.zeros(count(y), 2).sum() + y,
    "index_select": lambda y, x: y.index_select(0, count(y) - 1) + x.index_select(0, count(y) - 1),
    "narrow": lambda y, x: y.narrow(0, count(y) - 1, 1),
    "slice": lambda y, x: y[: count(y)].sum() + x[: count(y)].sum(),
    "repeat": lambda y, x: y.repeat(count(y)).sum() + x.repeat(count(y)).sum(),
    "view": lambda y, x: y.repeat(2).view(count(y) * 0 + 2, 4),
    "unflatten": lambda y, x: y.unflatten(0, (count(y) * 0 + 2, 2)),
    "topk": lambda y, x: torch.topk(y, count(y))[0].sum(),
    "pad": lambda y, x: nn.functional.pad(y, (0, count(y))).sum(),
    "alpha": lambda y, x: torch.add(y, x, alpha=number(y)),
    "repeat_interleave": lambda y, x: torch.repeat_interleave(y, y.argsort()).sum() * y,
    "one_hot": lambda y, x: nn.functional.one_hot(y.argsort()) @ torch.arange(4),
    "a tensor where it takes no number": lambda y, x: torch.histogram(number(y).abs(), 3)[0],
    "a check of a loss": lambda y, x: nn.functional.gaussian_nll_loss(y, x, y.exp()),
}


@pytest.mark.parametrize("case", TAKES_NUMBERS)
def test_numbers_that_a_function_needs_are_read_as_in_the_loop(case, as_loop):
    as_loop(lambda x: TAKES_NUMBERS[case](LIN(x), x), XS, parameters=PARAMETERS)
    assert torch.is_grad_enabled() and LIN(XS[0]).requires_grad


@pytest.mark.parametrize("case", ["tensor", "a copy", "clamp", "arange", "full", "index_select"])
def test_numbers_are_read_in_inference_mode_and_under_autocast(case):
    def fn(x):
        return TAKES_NUMBERS[case](LIN(x), x) * 1.0

    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found = multifold.batched(fn, join="list")(XS)
        torch.testing.assert_close(found, [fn(x) for x in XS], rtol=0.05, atol=0.05)


def test_a_launch_that_fails_in_the_middle_of_a_function_raises_there():
    @multifold.cell
    def picky(x):
        if (x > 9).any():
            raise ValueError("too large")
        return x * 1

    run = multifold.batched(lambda x: torch.tensor([picky(LIN(x) * 0 + x)[0]]), on_error="collect")
    found, failures = run([*XS[:3], torch.full((4,), 10.0)])
    torch.testing.assert_close(found, torch.stack([x[:1] for x in XS[:3]]))
    assert [*failures] == [3] and LIN(XS[0]).requires_grad


def test_a_loss_that_refuses_its_arguments_refuses_them_of_one_example():
    def fn(x):
        try:
            return nn.functional.gaussian_nll_loss(LIN(x), x, LIN(x))
        except ValueError:
            return x.sum()

    torch.testing.assert_close(multifold.batched(fn)(XS), torch.stack([fn(x) for x in XS]))


def test_a_read_in_inference_mode_is_refused():
    def fn(x):
        y = LIN(x)
        with torch.inference_mode():
            return y if y.sum() > 0 else y * 2

    with pytest.raises(RecordError, match="inference mode"):
        multifold.batched(fn)(XS)
    assert not torch.is_inference_mode_enabled()


def test_a_read_of_a_stale_view_is_refused():
    def fn(x):
        y = LIN(x)
        view = y.view(2, 2)
        y += 1
        return view.tolist()

    with pytest.raises(RecordError, match="shares its memory"):
        multifold.batched(fn, join="list")(XS)


class Stack(nn.Module):
    """A model that keeps a stack on itself."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.stack = []
        self.last = None

    def forward(self, x):
        self.stack.clear()
        self.stack.append(x)
        for _ in range(3):
            self.stack.append(torch.tanh(self.lin(self.stack[-1])))
            if self.stack[-1].sum() > 0:
                self.stack.append(self.stack[-1] * 2)
        return self.stack[-1]


class Last(Stack):
    """A model that keeps a tensor on itself."""

    def forward(self, x):
        self.last = x
        for _ in range(3):
            self.last = torch.tanh(self.lin(self.last))
            if self.last.sum() > 0:
                self.last = self.last * 2
        return self.last


class Item(Stack):
    """A model that replaces an entry of a list on itself."""

    def forward(self, x):
        self.stack[:] = [x]
        for _ in range(3):
            self.stack[0] = torch.tanh(self.lin(self.stack[0]))
            if self.stack[0].sum() > 0:
                self.stack[0] = self.stack[0] * 2
        return self.stack[0]


class Long(Stack):
    """A model that fills a long list on itself."""

    def forward(self, x):
        self.stack[:] = [x] * 1000
        while self.stack[-1].sum() > 0 and len(self.stack) < 1005:
            self.stack.append(torch.tanh(self.lin(self.stack[-1])))
        return self.stack[-1]


class Searching:
    """An object with a method that is named like a variable of its module."""

    def run(self, x):
        return x * 2 if LIN(x).sum() > 0 else x


def test_an_attribute_named_like_a_global_is_none():
    program = {"multifold": multifold, "searching": Searching()}
    exec("def fn(x):\n    return searching.run(x)\nrun = multifold.batched(fn, backend='torch')", program)
    for _ in range(2):  # what `run` has learnt by then is nothing that the examples share
        assert program["run"](XS).shape == (7, 4)


def test_examples_share_a_long_container_that_stays_as_it_is(as_loop):
    known = set(range(1000))

    def fn(x):
        count = 0
        while x.norm() > 0.3 and count in known:
            x, count = torch.tanh(LIN(x)) * 0.8, count + 1
        return x, count

    as_loop(fn, XS)


@pytest.mark.parametrize("kind", [Stack, Last, Item, Long])
@pytest.mark.parametrize("own", [False, True])
def test_examples_with_state_on_a_model_go_on_alone_unless_each_has_its_own(kind, own):
    model = kind()
    wanted = torch.stack([model(x) for x in XS])
    run = multifold.batched(model, own=own)
    found = run(XS)
    assert torch.allclose(found, wanted, atol=1e-6)
    assert (
        re.search(r"attribute '(stack|last)' of \w+, which test_\S+py:\d+", str(run.explain())) is None
    ) is own
    found.sum().backward()
    assert model.lin.weight.grad is not None


def test_state_on_a_model_is_as_in_the_loop_where_examples_end_before_others_begin(as_loop):
    class Kept(Stack):
        def forward(self, x):
            self.last = self.lin(x)
            return torch.tanh(self.last)

    as_loop(Kept(), XS)


DRAWS = {
    "torch": lambda: torch.rand(()),
    "numpy": np.random.rand,
    "random": random.random,
    "a random state": np.random.RandomState(0).random_sample,
}


@pytest.mark.parametrize("source", DRAWS)
def test_random_numbers_between_reads_warn_once(source):
    def fn(x):
        y = LIN(x)
        for _ in range(3):
            y = y + float(DRAWS[source]())
            if y.sum() > 1e9:
                break
        return y

    with pytest.warns(UserWarning, match="draw random numbers") as caught:
        multifold.batched(fn)(XS)
    assert len([x for x in caught if "draw random" in str(x.message)]) == 1
    assert {x.filename for x in caught} == {__file__}


def test_functions_of_a_small_tensor_that_was_read_need_no_round():
    def program(x):
        for _ in range(3):
            label = torch.max(LIN(x), 0)[1].data
            x = x + 1 if label == 1 else x - 1 if label == 2 else x * 0.9 if label == 0 else x * 2
        return x

    run = multifold.batched(program)
    torch.testing.assert_close(run(XS), torch.stack([program(x) for x in XS]))
    assert len(run.explain().rounds) <= 5  # 10 where each comparison is awaited


def test_a_view_of_a_small_tensor_that_was_read_is_not_written_alone():
    def program(x, writes):
        with torch.no_grad():
            h = LIN(x)
            h.tolist()
            view = h.view(2, 2)
            if writes:
                view += 1
            return LIN(h)

    run = multifold.batched(program)
    run(XS, [False] * len(XS))  # learns the view
    with pytest.raises(RecordError, match="shares its memory"):
        run(XS, [True] * len(XS))


def test_results_that_are_read_one_after_the_other_take_one_round(as_loop):
    def program(x):
        with torch.no_grad():
            policy, value = LIN(x), LIN(x).tanh().sum()
        return policy.numpy().tolist(), value.item(), policy[2].item()

    run = as_loop(program, XS)
    assert len([found for found in run.explain().rounds if len(found)]) == 1


def test_values_that_a_program_never_asks_for_are_not_brought_with_others_for_long(monkeypatch):
    asked, values = [], multifold.Fold.values
    monkeypatch.setattr(
        multifold.Fold, "values", lambda fold, nodes: asked.append(len(nodes)) or values(fold, nodes)
    )

    def settle(x):
        for _ in range(20):
            x = LIN(x)  # which the program has, and whose value it never asks for
            if x.sum() > 99:
                break
        return x

    run = multifold.batched(settle, cells=(), may_loop=False)
    with torch.no_grad():
        run(XS), run(XS)
    assert max(asked) > 1 and sum(asked) < len(asked) + 2 * 40  # the layer's result, and the sum


@pytest.mark.parametrize("kind", [bool, float, int, torch.Tensor.item])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_number_that_is_read_is_that_of_the_loop(kind, dtype):
    def program(x):
        y = LIN(x).sum().mul(3).to(dtype)
        return kind(y), kind(y[None]), y

    with torch.no_grad():
        found = multifold.batched(program, join="list")(XS)
        for (one, same, y), x in zip(found, XS, strict=True):
            assert (one, type(one)) == (same, type(same)) == (kind(y), type(kind(y)))
            torch.testing.assert_close(y, program(x)[2])


@pytest.mark.parametrize("kind", [bool, float, int, torch.Tensor.item])
def test_several_numbers_are_no_number_as_in_the_loop(kind):
    with pytest.raises((RuntimeError, ValueError)) as told:
        kind(XS[0])
    with pytest.raises(told.type, match=re.escape(str(told.value))):
        multifold.batched(lambda x: kind(LIN(x)))(XS)


@pytest.mark.parametrize("source", ["torch", "numpy", "python", "generator"])
def test_with_a_seed_examples_draw_the_same_numbers_as_in_the_loop(source):
    generator = np.random.default_rng(0)
    draw = {
        "torch": lambda: float(torch.rand(())),
        "numpy": np.random.rand,
        "python": random.random,
        "generator": generator.random,
    }[source]

    def program(x):
        drawn = [draw()]
        while LIN(x).sum() > 0.5 or len(drawn) < 3:
            drawn.append(draw())
            x = LIN(x) * drawn[-1]
        return x, drawn

    run = multifold.batched(program, seed=3, may_loop=False, join="list")
    with warnings.catch_warnings(action="error"):
        (found, drawn), (wanted, others) = zip(*run(XS), strict=True), zip(*run.loop(XS), strict=True)
    assert drawn == others and len({numbers[0] for numbers in drawn}) == len(XS)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y)


def test_a_run_with_a_seed_leaves_the_generators_where_they_are():
    before = torch.get_rng_state(), random.getstate()
    multifold.batched(lambda x: LIN(x) * torch.rand(()) + random.random(), seed=0)(XS)
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


@pytest.mark.parametrize("seed", [-1, True, "0"])
def test_a_seed_that_is_no_integer_of_at_least_0_is_refused(seed):
    with pytest.raises(RecordError, match="Expected seed to be an integer"):
        multifold.batched(LIN, seed=seed)


def test_random_numbers_without_reads_are_those_of_the_loop(as_loop):
    as_loop(lambda x: LIN(x) * torch.rand(()) + torch.randn_like(LIN(x)), XS, parameters=PARAMETERS)


def test_without_greenlet_examples_that_read_go_on_alone(monkeypatch, as_loop):
    monkeypatch.setattr(waiting, "greenlet", None)
    as_loop(lambda x: torch.tanh(LIN(x)), XS, parameters=PARAMETERS)
    as_loop(while_large, XS)
    run = multifold.batched(while_large)
    run(XS)
    assert "pip install 'multifold-core[plain]'" in str(run.explain())


def test_a_read_in_a_greenlet_of_the_program_is_refused():
    greenlet = waiting.greenlet

    def fn(x):
        y = LIN(x)
        return greenlet.greenlet(lambda: float(y.sum())).switch()

    with pytest.raises(RecordError, match="another greenlet"):
        multifold.batched(fn, backend="torch")(XS)


def test_context_variables_are_those_around_the_run():
    import contextvars

    scale = contextvars.ContextVar("scale", default=1)
    scale.set(3)
    found = multifold.batched(lambda x: LIN(x) * scale.get() if LIN(x).sum() < 99 else x, backend="torch")(
        XS
    )
    assert torch.allclose(found, torch.stack([LIN(x) * 3 for x in XS]), atol=1e-6)
    assert sys.getrecursionlimit() >= 1000


PROGRAM = """
import sys, torch, multifold
layer = torch.nn.Linear(4, 4)

def program(number):
    x = torch.ones(1, 4) * number
    for _ in range(5):
        x = torch.tanh(layer(x))
        if float(x[0, 0]) > 10:
            break
    return x if number % 3 else torch.zeros(2, 3) @ torch.zeros(4, 5)

if sys.argv[1] == "batched":
    run = multifold.batched(program, join="list", on_error="collect")
    with torch.no_grad():
        print(*[len(run(range(n))[1]) for n in (1, 4, 16, 64)])
else:
    with multifold.Server(None, multifold.plain(program), backend="torch") as server:
        for _ in range(4):
            errors = [server.submit(float(i)).exception() for i in range(16)]
            print(sum(error is not None for error in errors))
"""


@pytest.mark.skipif(not compiled.in_use, reason="without compiled code nothing tells where a stack ends")
@pytest.mark.parametrize("way", ["batched", "served"])
def test_an_error_of_pytorch_after_a_read_does_not_end_the_process(way):
    """PyTorch walks over all C frames when it makes an error: it must stop at the foot of a greenlet."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", PROGRAM, way]  # -P: what is installed
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == (["1", "2", "6", "22"] if way == "batched" else ["6"] * 4)


FIRST_RUN = """
import sys, torch, multifold
lin = torch.nn.Linear(3, 3)
cell = multifold.cell(lambda x: torch.tanh(lin(x)) * 2)
multifold.batched(lambda x: cell(lin(x)))([*torch.randn(4, 3)]).sum().backward()
print({"torch._dynamo", "sympy"} & {*sys.modules})
"""


def test_a_first_run_does_not_import_the_compiler_of_pytorch():
    """It takes a second."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", FIRST_RUN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "set()"


DISTRIBUTIONS = {
    "normal": lambda h: D.Normal(h[:3], h[3:].exp()).log_prob(torch.ones(3)),
    "bernoulli": lambda h: D.Bernoulli(h.sigmoid()).log_prob(torch.ones(6)),
    "categorical": lambda h: D.Categorical(logits=h).log_prob(torch.tensor(2)),
    "of a matrix": lambda h: D.MultivariateNormal(h[:3], torch.diag(h[3:].exp())).log_prob(torch.ones(3)),
    "dirichlet": lambda h: D.Dirichlet(torch.ones(6)).log_prob(h.softmax(0)),
    "one of one": lambda h: D.OneHotCategorical(logits=h).log_prob(torch.eye(6)[1]),
    "a sum of some": lambda h: D.Independent(D.Laplace(h[:3], h[3:].exp()), 1).log_prob(torch.ones(3)),
    "an assertion": lambda h: (torch._assert((h < 9).all(), "too large"), h)[1],
    "an assertion that runs later": lambda h: (torch._assert_async((h < 9).all()), h)[1],
    "equal tensors": lambda h: (torch.testing.assert_close(h, h * 1), h)[1],
}


@pytest.mark.parametrize("case", DISTRIBUTIONS)
def test_a_check_of_arguments_looks_at_those_of_one_example(case, monkeypatch):
    monkeypatch.setattr(D.Distribution, "_validate_args", True)  # trainers turn it off for good
    net = nn.Linear(4, 6)
    xs = torch.randn(5, 4)
    xs[3, 2] = torch.nan

    def plain(x):
        return DISTRIBUTIONS[case](net(x)).sum()

    def careful(x):
        try:
            return plain(x)
        except (ValueError, AssertionError, RuntimeError):
            return torch.tensor(-7.0)

    found = multifold.batched(careful)(xs)
    torch.testing.assert_close(found, torch.stack([careful(x) for x in xs]))
    assert (found == -7).tolist() == [False, False, False, True, False]
    with pytest.raises((ValueError, AssertionError, RuntimeError)) as raised:
        multifold.batched(plain)(xs)
    (note,) = raised.value.__notes__
    assert note.startswith("Raised by example 3 of the batched program")


def where_negative(x):
    return (x[:1] > 0).long() * 9


OUT_OF_BOUNDS = {
    "a table of its own": lambda y, i: nn.functional.embedding(i, y.view(4, 1)),
    "classes": lambda y, i: nn.functional.one_hot(i, 4) * y,
    "rows": lambda y, i: y.index_select(0, i),
    "a filled index": lambda y, i: y.index_fill(0, i, 1.0),
}


@pytest.mark.parametrize("case", OUT_OF_BOUNDS)
def test_an_index_of_one_example_finds_no_row_of_another(case):
    with pytest.raises(LaunchError):
        multifold.batched(lambda x: OUT_OF_BOUNDS[case](LIN(x), where_negative(LIN(x))))(XS)


def test_complex_numbers_are_read():
    def fn(x):
        y = LIN(x)
        z = torch.complex(y, -y).sum()
        return z.item(), complex(z), bool(z)

    with torch.no_grad():
        found = multifold.batched(fn, join="list", may_loop=False)(XS)
        for x, y in zip(found, map(fn, XS), strict=True):
            assert x == pytest.approx(y)


def test_a_program_that_has_read_nothing_makes_no_stacks(monkeypatch):
    run = multifold.batched(lambda x: LIN(x) * 2, may_loop=False)
    run(XS)
    made = []
    make = waiting.greenlet.greenlet
    monkeypatch.setattr(waiting.greenlet, "greenlet", lambda code: made.append(code) or make(code))
    run(XS)
    assert not made


def test_rows_that_need_no_gradient_are_numbers_beside_rows_that_need_one(as_loop):
    log = []

    def fn(x):
        log.append(0)  # so that the first examples go on alone, and rows of many rounds are put together
        y = LIN(x)
        return torch.clamp(y, 0.01, number(y)) + torch.clamp(x, 0.01, number(y))

    as_loop(fn, XS, parameters=PARAMETERS)


OPERATORS = {
    "a number": lambda y: y * torch.ops.aten.item(y.sum()),
    "places": lambda y: torch.ops.aten.nonzero(y > 0),
    "some": lambda y: torch.ops.aten.masked_select(y, y > 0),
    "a condition": lambda y: y if torch.ops.aten.is_nonzero((y > 0).sum()) else -y,
    "no read": torch.ops.aten.tanh,
    "in place": lambda y: (z := y * 1, torch.ops.aten.add_(z, 1.0))[0],
    "in place and returned": lambda y: torch.ops.aten.relu_(y * 1),
}


@pytest.mark.parametrize("how", OPERATORS)
def test_functions_of_torch_ops_read_at_once(how):
    run = multifold.batched(lambda x: OPERATORS[how](LIN(x)), join="list", may_loop=False)
    with torch.no_grad():
        for _ in range(3):
            for found, x in zip(run(XS), XS, strict=True):
                torch.testing.assert_close(found, OPERATORS[how](LIN(x)))
