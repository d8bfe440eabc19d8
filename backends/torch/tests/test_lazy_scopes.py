"""Scopes: what an example holds open, or has changed, where it reads a value and others could go on."""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import ctypes
import ctypes.util
import decimal
import functools
import io
import itertools
import logging
import operator
import os
import sys
import tempfile
import threading
import types
import unittest.mock
import warnings
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import multifold
from multifold import RecordError
from multifold.lazy import waiting

torch.manual_seed(0)
LIN = nn.Linear(4, 4)
XS = [*torch.randn(8, 4)]
STACK: list[float] = []
LOCK, LOCAL = threading.Lock(), threading.local()


class Settings:
    factor = 1.0


def read(x):
    return LIN(x).detach().sum().item()


@contextlib.contextmanager
def handler(scale):
    STACK.append(scale)
    try:
        yield
    finally:
        STACK.pop()


def on_a_stack(x, i):
    with handler(i):
        return read(x) + LIN(x) * STACK[-1]


def lock(x, i):
    with LOCK:
        return read(x) + LIN(x)


def lock_without_with(x, i):
    LOCK.acquire()
    try:
        return read(x) + LIN(x)
    finally:
        LOCK.release()


def class_attribute(x, i):
    Settings.factor = i
    y = read(x) + LIN(x) * Settings.factor
    Settings.factor = 1.0
    return y


def of_a_function(x, i):
    of_a_function.last = i
    return read(x) + LIN(x) * of_a_function.last


def thread_local(x, i):
    LOCAL.value = i
    return read(x) + LIN(x) * LOCAL.value


def patched(x, i):
    with unittest.mock.patch.object(Settings, "factor", i):
        return read(x) + LIN(x) * Settings.factor


def caught_warnings(x, i):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = read(x) + LIN(x)
        [warnings.warn("one", stacklevel=1) for _ in range(i)]
    return y * len(caught)


def output(x, i):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        y = read(x) + LIN(x)
        sys.stdout.write("x" * i)
    return y * len(out.getvalue())


def dtype(x, i):
    torch.set_default_dtype(torch.float64 if i % 2 else torch.float32)
    y = read(x) + LIN(x) + torch.zeros(4)
    torch.set_default_dtype(torch.float32)
    return y.float().round(decimals=4)


def environment(x, i):
    os.environ["OF_EXAMPLE"] = str(i)
    y = read(x) + LIN(x) * int(os.environ["OF_EXAMPLE"])
    del os.environ["OF_EXAMPLE"]
    return y


def folder(x, i):
    with contextlib.chdir(tempfile.gettempdir() if i % 2 else "/"):
        return read(x) + LIN(x) * len(os.getcwd())


def seed(x, i):
    torch.manual_seed(i)
    return read(x) + LIN(x) * torch.rand(4)


def one_of_several_contexts(x, i):
    with contextlib.nullcontext() if i % 2 else handler(i):
        return read(x) + LIN(x) * sum(STACK)


def counter(x, i):
    Settings.factor += 1
    return read(x) + LIN(x) * Settings.factor


class Meter:
    """As one of an installed library, which has the file of none of the user's modules."""

    def __init__(self):
        self.total = 0

    def update(self, x):
        self.total += x


Meter.__module__ = "meters"
METER = Meter()
NET = nn.Sequential(nn.Linear(4, 4))
LOGGER = logging.Logger("one", 20)
VAR = contextvars.ContextVar("var", default=0)
IDS = itertools.count()


class Keeps:
    found: ClassVar[dict[str, int]] = {}


def meter(x, i):
    METER.update(i + 1)
    return read(x) + LIN(x) * METER.total


def set_by_name(x, i):
    setattr(Settings, "fac" + "tor", i)
    y = read(x) + LIN(x) * Settings.factor
    setattr(Settings, "fac" + "tor", 1.0)
    return y


def of_a_class(x, i):
    Keeps.found["last"] = i
    return read(x) + LIN(x) * Keeps.found["last"]


def level_of_a_logger(x, i):
    LOGGER.setLevel(10 + i)
    y = read(x) + LIN(x) * LOGGER.level
    LOGGER.setLevel(20)
    return y


def mode_of_a_model(x, i):
    NET.train(i % 2 == 0)
    y = read(x) + LIN(x) * NET[0].training
    NET.train()
    return y


def context_variable(x, i):
    VAR.set(VAR.get() + i)
    return LIN(x) * VAR.get()


def from_an_iterator(x, i):
    n = read(x)
    return n + LIN(x) * (next(IDS) % 8)


class Stack(list):
    """A container of the user."""


class Remembers:
    """A descriptor, which keeps what its attribute is set to."""

    value = 0

    def __get__(self, owner, kind):
        return self.value

    def __set__(self, owner, value):
        self.value = value


class Described:
    number = Remembers()


USERS, TABLE, TREE, DESCRIBED = Stack(), collections.UserDict(n=0), types.SimpleNamespace(), Described()
TREE.inner = types.SimpleNamespace()
BYTES, NUMBERS, MANY = bytearray(8), array.array("d", [0.0]), np.zeros(2000)
put, put_n, push = operator.setitem, functools.partial(dict.__setitem__, Keeps.found, "n"), USERS.append
settings = types.ModuleType("settings")
sys.modules["settings"] = settings


def patch_begun(x, i):
    patched = unittest.mock.patch.object(Settings, "factor", i)
    patched.start()
    y = read(x) + LIN(x) * Settings.factor
    patched.stop()
    return y


def own_container(x, i):
    USERS.append(i)
    y = read(x) + LIN(x) * USERS[-1]
    USERS.pop()
    return y


def table_of_a_class(x, i):
    TABLE["n"] = i
    return read(x) + LIN(x) * TABLE["n"]


def bytes_and_numbers(x, i):
    BYTES[0] = NUMBERS[0] = MANY[1999] = i
    return read(x) + LIN(x) * (BYTES[0] + NUMBERS[0] + MANY[1999])


def by_another_name(x, i):
    put(Keeps.found, "last", i)
    put_n(i)
    push(i)
    y = read(x) + LIN(x) * (Keeps.found["last"] + Keeps.found["n"] + USERS[-1])
    USERS.clear()
    return y


def by_a_path(x, i):
    TREE.inner.number = i
    return read(x) + LIN(x) * TREE.inner.number


def flag_of_the_framework(x, i):
    torch.backends.cudnn.benchmark = i % 2 == 0
    y = read(x) + LIN(x) * torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    return y


def imported_inside(x, i):
    import settings as found
    from settings import __dict__ as names

    found.number = names["other"] = i
    return read(x) + LIN(x) * (found.number + names["other"])


def by_a_name_of_the_module(x, i):
    globals()["SCALE"] = i
    return read(x) + LIN(x) * globals()["SCALE"]


def executed(x, i):
    exec(f"last = {i}", Keeps.found)
    return read(x) + LIN(x) * Keeps.found["last"]


def descriptor(x, i):
    DESCRIBED.number = i
    return read(x) + LIN(x) * DESCRIBED.number


def class_of_an_object(x, i):
    METER.__class__ = Meter if i % 2 else OtherMeter
    y = read(x) + LIN(x) * isinstance(METER, OtherMeter)
    METER.__class__ = Meter
    return y


class OtherMeter(Meter):
    pass


def context_of_decimals(x, i):
    decimal.getcontext().prec = 3 + i
    y = read(x) + LIN(x) * float(decimal.Decimal(1) / 3)
    decimal.getcontext().prec = 28
    return y


def limits(x, i):
    sys.setrecursionlimit(1000 + i)
    torch.set_printoptions(precision=i + 1)
    y = read(x) + LIN(x) * (sys.getrecursionlimit() + len(str(torch.tensor(1 / 3))))
    sys.setrecursionlimit(1000)
    torch.set_printoptions(precision=4)
    return y


def hook(x, i):
    handle = NET[0].register_forward_hook(lambda module, arguments, result: result * i)
    y = read(x) + NET(LIN(x))
    handle.remove()
    return y


SEEN = [
    *(patch_begun, own_container, table_of_a_class, bytes_and_numbers, by_another_name, by_a_path),
    *(flag_of_the_framework, imported_inside, by_a_name_of_the_module, executed, descriptor),
    *(class_of_an_object, context_of_decimals, limits, hook),
    *(level_of_a_logger, mode_of_a_model),
    *(meter, set_by_name, of_a_class, from_an_iterator),
    *(on_a_stack, lock, lock_without_with, class_attribute, of_a_function, thread_local, patched),
    *(caught_warnings, output, dtype, environment, folder, seed, one_of_several_contexts, counter),
]


@pytest.fixture(autouse=True)
def _as_before():
    before = Settings.factor
    yield
    Settings.factor = before
    assert not STACK and not LOCK.locked()


def both(fn):
    """Return the results of the loop, those of a batched run, and the run."""
    wanted = [fn(x, i) for i, x in enumerate(XS)]
    Settings.factor, METER.total = 1.0, 0
    run = multifold.batched(fn, join="list")
    return wanted, run(XS, range(8)), run


@pytest.mark.parametrize("fn", SEEN, ids=lambda fn: fn.__name__)
def test_an_example_goes_on_alone_while_others_could_see_what_it_has_changed(fn):
    wanted, found, run = both(fn)
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted))
    assert sum(run.explain().read_alone.values()) >= 4  # what some examples set was there before


def no_grad(x, i):
    with torch.no_grad():
        return read(x) + LIN(x)


def autocast(x, i):
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        return read(x) + LIN(x)


def decorated(x, i):
    return torch.no_grad()(lambda: read(x) + LIN(x))()


def known_context(x, i):
    with contextlib.suppress(ValueError), contextlib.nullcontext() as nothing:
        return read(x) + LIN(x) if nothing is None else x


def decimals(x, i):
    with decimal.localcontext() as context:
        context.prec = 3 + i
        return read(x) + LIN(x) * float(decimal.Decimal(1) / 3)


def own_containers(x, i):
    found, table = [], {}
    found.append(read(x))
    table["y"] = LIN(x)
    return found[0] + table["y"] * read(table["y"].detach())


def put_back(x, i):
    Settings.factor = i
    y = LIN(x) * Settings.factor
    Settings.factor = 1.0
    return read(x) + y


@pytest.mark.parametrize(
    "fn", [no_grad, autocast, decorated, known_context, decimals, own_containers, put_back]
)
def test_examples_wait_where_others_cannot_tell(fn):
    wanted, found, run = both(fn)
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted))
    run(XS, range(8))  # in the first run one example may have gone on alone
    assert not run.explain().read_alone and len(run.explain().rounds) <= 3


def test_context_variables_are_left_as_the_loop_leaves_them():
    VAR.set(0)
    wanted = [context_variable(x, i) for i, x in enumerate(XS)], VAR.get()
    VAR.set(0)
    found = multifold.batched(context_variable, join="list")(XS, range(8))
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted[0]))
    assert VAR.get() == wanted[1] == 28


def test_explain_says_which_line_makes_examples_go_on_alone():
    _, _, run = both(lock)
    assert "the with statement at test_lazy_scopes.py:" in str(run.explain())
    _, _, run = both(class_attribute)
    assert "attribute 'factor' of Settings, which test_lazy_scopes.py:" in str(run.explain())


def sorted_by_c(x, i):
    """Sort by a function of C that calls back, and keeps what it does on the way where we cannot see it."""
    numbers = (ctypes.c_int * 4)(3, 1, 2, 0)
    order = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
    compare = order(lambda a, b: int(a[0] - b[0] + 0 * read(x)))
    C.qsort(numbers, 4, ctypes.sizeof(ctypes.c_int), compare)
    return LIN(x) * torch.tensor([*numbers])


C = ctypes.CDLL(ctypes.util.find_library("c"))


def test_an_example_goes_on_alone_inside_of_compiled_code_that_calls_it_back():
    wanted, found, run = both(sorted_by_c)
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted))
    assert all("compiled code" in reason for reason in run.explain().read_alone)


def test_a_change_that_an_example_has_missed_while_it_waited_is_refused():
    def fn(x, i):
        if i > 5:
            Settings.factor += 1
        return read(x) + LIN(x) * Settings.factor  # example 5 reads before all changes, in the loop

    with pytest.raises(RecordError, match="share attribute 'factor' of Settings, and others changed it"):
        multifold.batched(fn)(XS, range(8))


def test_examples_go_on_in_the_order_of_the_loop_once_one_has_left_something():
    def fn(x, i):
        y = read(x) + LIN(x)
        Settings.factor += i + 1
        return y * Settings.factor

    wanted, found, run = both(fn)
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted))
    assert "and examples leave that for later ones" in str(run.explain())


def test_a_counter_that_ends_by_chance_where_it_began_is_still_one():
    def fn(x, i):
        Settings.factor = 0
        while read(x) * 0 + Settings.factor < (2, 2, 3, 1, 4, 2, 5, 1)[i]:
            Settings.factor += 1
        return LIN(x) * Settings.factor

    wanted = [fn(x, i) for i, x in enumerate(XS)]
    Settings.factor = 2  # which is what the first two examples leave
    found = multifold.batched(fn)(XS, range(8))
    torch.testing.assert_close(found, torch.stack(wanted))


def test_an_example_reads_alone_where_the_end_of_its_stack_is_not_marked(monkeypatch):
    monkeypatch.setattr(waiting.compiled, "ends_stacks", False)
    run = multifold.batched(lambda x: read(x) + LIN(x))
    torch.testing.assert_close(run(XS), torch.stack([read(x) + LIN(x) for x in XS]))
    assert run.explain().read_alone == {waiting.NO_STACKS: 8}


def test_a_server_answers_requests_whose_reads_run_alone():
    program = multifold.plain(lambda pair: lock(*pair), backend="torch")
    with multifold.Server(None, program, backend="torch") as server:
        requests = [server.submit((x, i)) for i, x in enumerate(XS)]
        for request, x in zip(requests, XS, strict=True):
            torch.testing.assert_close(torch.as_tensor(request.result(60))[0], lock(x, 0).detach())


@pytest.mark.parametrize("way", ["run", "replayed"])
def test_weights_that_autocast_has_cast_are_not_kept_from_run_to_run(way):
    layer = nn.Linear(3, 4)

    def fn(x):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    xs = [*torch.randn(4, 3)]
    run = multifold.batched(fn, join="list", may_loop=False)
    traces = run.traces(xs)
    found, wanted = [], []  # the loop, which empties PyTorch's cache, runs at the end
    for _ in range(3):
        with torch.no_grad():
            layer.weight.add_(1.0)
        found.append(run(xs) if way == "run" else run.replay(traces))
        wanted.append([layer(x) for x in xs])
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.05, check_dtype=False)


class AddsToTanh(TorchFunctionMode):
    def __torch_function__(self, func, kinds, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found + 1 if func is torch.tanh else found


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [AddsToTanh, Dispatches, lambda: torch.device("cpu")])
def test_modes_around_a_run_see_what_they_see_in_the_loop(as_loop, mode):
    with mode():
        as_loop(lambda x: torch.tanh(LIN(x)), XS, parameters=[*LIN.parameters()])


def test_forward_derivatives_around_a_run_are_those_of_the_loop():
    run = multifold.batched(lambda x: torch.tanh(LIN(x)), join="list", backend="torch")
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, torch.ones(4)) for x in XS]
        for found, x in zip(run(duals), duals, strict=True):
            wanted = forward_ad.unpack_dual(torch.tanh(LIN(x))).tangent
            torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, wanted)
