"""Forms of modules: all of a module but the values of its parameters and buffers.

Two modules ``nn.Linear(3, 5)`` have one form, and ``nn.Linear(3, 6)`` has another. The form of a module
says its class and its options, as its sizes and whether it has a bias, and the same of each module in it.

A module has no form if more than that decides what it makes of a row: hooks, the other rows of the launch,
random numbers, attributes that the module changes, or objects whose contents may change.
"""

from __future__ import annotations

import copy
import dis
import functools
import itertools
import math
import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any, final

import torch

from multifold.backend import ModuleForm
from multifold_torch.trials import HOOKS, RESERVED

LARGEST = 1 << 14
"""Modules of more numbers have launches of their own: to copy these takes longer than a launch does."""

CROWD = 1 << 10
"""So many numbers of the rows of a module in a launch, on a CPU, are put together as fast as launched."""

PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, type, BuiltinFunctionType)
"""Types of attributes that are compared by value, and never change."""

TABLES = ("_parameters", "_buffers", "_modules", *HOOKS)
"""The dictionaries of a module. One is another object once its state was put back, as after a trial."""

DRAWING = frozenset(
    {
        "bernoulli",
        "dropout",
        "alpha_dropout",
        "feature_alpha_dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
    }
    | {"multinomial", "normal", "poisson", "rand", "rand_like", "randint", "randn", "randn_like", "rrelu"}
    | {"bernoulli_", "normal_", "uniform_", "exponential_", "gumbel_softmax", "randperm", "random"}
)
"""Names of functions that draw random numbers."""

DRAWING_ALWAYS = frozenset(name for name in DRAWING if "dropout" not in name)
"""Those that draw where a module is not trained, too."""

DRAWN: weakref.WeakSet[type] = weakref.WeakSet()
"""Classes of modules that were seen to draw random numbers."""

HIDDEN = frozenset({"__slots__", "__getattr__", "__getattribute__"})
"""What lets a class have attributes that are not among its variables."""

MODES = (
    *(torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase, torch.nn.RReLU),
    *(torch.nn.MultiheadAttention, torch.nn.FractionalMaxPool2d, torch.nn.FractionalMaxPool3d),
)
"""Layers that draw random numbers, or look at all rows, while they are trained."""

OF_ALL_ROWS = ("sparse", "scale_grad_by_freq", "max_norm", "padding_idx")
"""Options with which gradients of embeddings depend on all rows, are sparse, or wrong in `torch.vmap`."""

BY_INDEX = frozenset({"embedding", "embedding_bag", "one_hot", "index_fill", "index_fill_"})
"""Names of functions that `torch.vmap` lets take an index out of range, or gradients of a padding index."""

OF_PARAMETERS = frozenset(
    {"parameters", "named_parameters", "buffers", "named_buffers", "state_dict", "_parameters", "_buffers"}
    | {"requires_grad", "Parameter", "is_leaf", "grad", "grad_fn", "_version", "data_ptr", "storage"}
)
"""Names of what tells a parameter from the tensors that `torch.vmap` puts in the place of one."""

WRITES = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL"})
"""Python's instructions that change an object."""


class SeenModules:
    """Attributes of modules as they were when this was made: what tells that one has changed its form.

    Parameters
    ----------
    modules : sequence of Module
        A module that has a form, followed by all modules inside of it.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self.own = [*map(vars, modules)]
        self.tables = [own[name] for own in self.own for name in TABLES]
        self.parts = [part for own in self.own for part in own["_modules"].values()]
        self.classes = [*map(type, self.parts)]
        self.kinds = [seen_kind(module) for module in modules]

    @classmethod
    def of(cls, some: Sequence[SeenModules]) -> SeenModules:
        """Return what has seen the modules of all these, which have one form."""
        found = cls([])
        for other in some:
            found.own += other.own
            found.tables += other.tables
            found.parts += other.parts
            found.classes += other.classes
            found.kinds += some[0].kinds  # equal to its own, and in the caches of the processor
        return found

    def holds(self) -> bool:
        """Return whether nothing has changed; the sizes of parameters are not looked at."""
        from multifold.lazy.recorder import are_as_seen  # late: most programs have no populations

        parts = TABLES.index("_modules"), self.parts, self.classes
        return are_as_seen(self.own, self.kinds, TABLES, self.tables, *parts)


def seen_kind(module: torch.nn.Module) -> tuple[int, tuple[str, ...], list[Any], list[tuple[str, ...]]]:
    """Return what modules of one form have in common, as `are_as_seen` takes it.

    That is the number of attributes; names of options, and their values; and the names in each of `TABLES`.
    """
    own = vars(module)
    names = options_of(module)
    return len(own), names, [seen(own[name]) for name in names], [(*own[name],) for name in TABLES]


@final
class TorchForm(ModuleForm):
    """The form of a module, and where its parameters and buffers are.

    ``modules`` are the module and all those in it, each once, and ``key`` is equal for equal forms. The
    module itself is not kept.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], key: Hashable) -> None:
        self.key = key
        self.kind = type(modules[0])
        self.seen = SeenModules(modules)
        self.places = places_of(modules)
        self.sizes = self.sizes_now()
        self.module = weakref.ref(modules[0])
        tensors = [own[name] for own, name in self.places]
        self.numbers = sum(x.numel() for x in tensors)
        # Rows are about as wide as the root of the numbers of a layer.
        self.crowd = CROWD / math.sqrt(self.numbers) if tensors and tensors[0].is_cpu else math.inf

    def holds(self) -> bool:
        is_own = type(self.module()) is self.kind and self.kind not in DRAWN
        return is_own and self.seen.holds() and self.sizes_now() == self.sizes

    def sizes_now(self) -> list[Hashable]:
        """Return shape, dtype and device of each parameter and buffer; None for one that is gone."""
        tensors = [own.get(name) for own, name in self.places]
        return [None if x is None else (x.shape, x.dtype, x.device) for x in tensors]


def form_of(module: Any) -> TorchForm | None:
    """Return the form of a module; None for large ones, tied tensors, and where `part_form` is None."""
    if not isinstance(module, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule):
        return None
    if type(module) in DRAWN:
        return None
    modules = [*module.modules()]
    tensors = [own[name] for own, name in places_of(modules)]
    if len({*map(id, tensors)}) < len(tensors):  # one that several layers share would be several
        return None
    numbers = {id(part): i for i, part in enumerate(modules)}
    parts = []
    for part in modules:
        found = part_form(part, numbers)
        if found is None:
            return None
        parts.append(found)
    form = TorchForm(modules, tuple(parts))
    return form if form.numbers <= LARGEST else None


def part_form(part: torch.nn.Module, numbers: Mapping[int, int]) -> Hashable | None:
    """Return what modules of one form have in common in one part of them; None if it has no form.

    ``numbers`` has the number of each part of the module by its id.
    """
    kind, own = type(part), vars(part)
    options = {name: x for name, x in own.items() if name not in RESERVED}
    tensors = [*part._parameters.items(), *part._buffers.items()]
    if (
        kind.__call__ is not torch.nn.Module.__call__
        or not all(own.get(name) is None or own[name] is False for name in OF_ALL_ROWS)  # an index may be 0
        or any(own[name] for name in HOOKS)
        or not all(map(is_plain, options.values()))
        or not all(x is None or is_plain_tensor(x) for _, x in tensors)
        or not computes(kind, part.training)  # type: ignore[arg-type]
    ):
        return None
    return (
        kind,
        part.training if has_modes(kind) else None,
        tuple([(name, type(x), plain_key(x)) for name, x in sorted(options.items())]),
        tuple([(name, None if x is None else (x.shape, x.dtype, x.device)) for name, x in tensors]),
        tuple([(name, numbers.get(id(x))) for name, x in part._modules.items()]),
    )


def is_plain(x: Any) -> bool:
    """Return whether a value counts by its contents, or is a function that binds nothing."""
    if isinstance(x, (tuple, list)):
        return all(map(is_plain, x))
    if isinstance(x, FunctionType):
        return not (x.__closure__ or x.__defaults__ or x.__kwdefaults__)
    return isinstance(x, PLAIN)


def plain_key(x: Any) -> Hashable:
    """Return a key of a value that `is_plain`: equal for values of equal types and contents."""
    if isinstance(x, (tuple, list)):
        return tuple([(type(part), plain_key(part)) for part in x])
    return repr(x) if isinstance(x, float) else x


def options_of(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the options of a module: attributes that may count.

    What a linear layer does, only its parameters say.
    """
    names = (
        [] if type(module) is torch.nn.Linear else [name for name in vars(module) if name not in RESERVED]
    )
    return *names, *["training"] * has_modes(type(module))


def seen(x: Any) -> Any:
    """Return a value of an attribute; of a list a copy, so that a change shows."""
    return copy.deepcopy(x) if type(x) in (list, tuple) else x


def is_plain_tensor(x: Any) -> bool:
    """Return whether ``x`` is a parameter or buffer of PyTorch's own class, with sizes and strides."""
    return type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided and not vars(x)


def has_modes(kind: type[torch.nn.Module]) -> bool:
    """Return whether modules of a class may compute otherwise while they are trained."""
    return not kind.__module__.startswith("torch.nn.") or issubclass(kind, MODES)


@functools.lru_cache(maxsize=1024)
def computes(kind: type[torch.nn.Module], training: bool) -> bool:
    """Return whether modules of a class compute each row from it and from parameters, by all that shows.

    Not so in training for dropout and for layers of statistics of all rows; nor for a class whose code
    changes attributes, or what these hold, by itself or by what it calls; that names a function which draws
    random numbers; or that may tell one module from another, as by ``id(self)`` (see `hands_on`).
    """
    from multifold.lazy.beyond import names_called
    from multifold.lazy.straight import names_changer
    from multifold.lazy.writes import NAMELESS, functions_in, is_known_module

    if issubclass(kind, torch.nn.RNNBase):  # which has its parameters in a list, too
        return False
    if issubclass(kind, MODES):
        return not training
    own = [base for base in kind.__mro__ if base.__module__.partition(".")[0] != "torch"]
    for base in own:
        if HIDDEN & vars(base).keys() and base is not object:
            return False
        for name, x in vars(base).items():
            x = getattr(x, "__func__", x)
            if isinstance(x, FunctionType) and name != "__init__":
                names, instructions = words_of(x.__code__)
                # A module may tell itself from others, or write by names that the code does not have.
                if instructions & WRITES or names & {"id", *NAMELESS} or (training and names & DRAWING):
                    return False
                if names & OF_PARAMETERS:
                    return False
    called = functions_in(own, lambda name: is_known_module(("torch.",), name))
    functions = [x for x in called if x.__name__ != "__init__"]
    names = names_called(functions, {"forward"})
    codes = [x.__code__ for x in functions if x.__name__ in names or x.__name__.startswith("__")]
    return not (
        names & ((DRAWING if training else DRAWING_ALWAYS) | BY_INDEX)
        or any(names_changer(code) or words_of(code)[1] & WRITES for code in codes)
        or any(hands_on(code) for code in codes if code.co_varnames[:1] == ("self",))
    )


def hands_on(code: CodeType) -> bool:
    """Return whether a method uses ``self`` for anything else than to reach an attribute.

    It may tell the module from others then: ``helper(self, x)``, ``self in chosen``, ``self is best``.
    """
    from multifold.lazy.frames import Steps

    inner = [x for x in code.co_consts if isinstance(x, CodeType) and "self" in x.co_freevars]
    return any(map(hands_on, inner)) or any(
        step.name.startswith(("LOAD_FAST", "LOAD_DEREF"))
        and (step.value == "self" or (isinstance(step.value, tuple) and "self" in step.value))
        and after.name not in OF_ITS_OWN
        for step, after in itertools.pairwise(Steps.of(code).steps)
    )


OF_ITS_OWN = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "LOAD_SUPER_ATTR")
"""Instructions that take an attribute of what the one before has loaded."""


def words_of(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names and the instructions of code, and of functions inside."""
    names, instructions = set(code.co_names), {x.opname for x in dis.get_instructions(code)}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more = words_of(inner)
            names |= more[0]
            instructions |= more[1]
    return names, instructions


def places_of(modules: Iterable[torch.nn.Module]) -> list[tuple[dict[str, Any], str]]:
    """Return where the parameters and buffers of modules are: dictionaries and names, in their order."""
    owns = [own for module in modules for own in (module._parameters, module._buffers)]
    return [(own, name) for own in owns for name, x in own.items() if x is not None]
