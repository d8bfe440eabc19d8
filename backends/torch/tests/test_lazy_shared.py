"""What examples leave in a place that they share, or in a result of another one: as in the loop."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import multifold
from multifold import RecordError

torch.manual_seed(0)
LIN = nn.Linear(4, 4)
XS = torch.randn(6, 4)


def total(box, x):
    y = LIN(x).sum()
    box.total += y
    return y


def total_without_gradient(box, x):
    box.total += LIN(x).sum().detach()
    return box.total * 1


def returned_total(box, x):
    box.total += LIN(x)
    return box.total


def kept_in_a_list(box, x):
    box.found.append(LIN(x) * 1)
    if len(box.found) > 1:
        box.found[-2].mul_(0.5)
    return box.found[-1]


def moving_average(box, x):
    y = LIN(x)
    box.average.mul_(0.9).add_(0.1 * y.detach())
    return (y - box.average).sum()


def memory(box, x):
    box.memory[len(box.found)] = LIN(x).detach()
    box.found.append(x)
    return box.memory.sum()


def maximum(box, x):
    box.average.copy_(torch.maximum(box.average, LIN(x).detach()))
    return box.average.sum()


def maximum_by_out(box, x):
    y = LIN(x).detach()
    torch.maximum(box.average, y, out=box.average)
    return torch.add(y, box.average, out=box.average * 1).sum()


def first_or_more(box, x):
    if not box.found:
        box.found.append(LIN(x).detach().clone())
    box.found[0].add_(x.sum())
    return LIN(x) + box.found[0]


def one_for_all(box, x):
    if not box.found:
        box.found.append(LIN(x))
    return box.found[0]


PROGRAMS = [
    *(total, total_without_gradient, returned_total, kept_in_a_list, moving_average, memory, maximum),
    maximum_by_out,
    *(first_or_more, one_for_all),
]


def new_box():
    return SimpleNamespace(total=0.0, found=[], average=torch.zeros(4), memory=torch.zeros(6, 4))


def looped(program, box):
    return [program(box, x) for x in XS]


def batched(program, box):
    return multifold.batched(lambda x: program(box, x), join="list", backend="torch")(XS)


def in_a_block(program, box):
    with multifold.pending(backend="torch"):
        return [program(box, x) for x in XS]


def outcome(way, program):
    """Return results, what the box has in the end, and the gradients of both."""
    box = new_box()
    found = [*way(program, box), *[x * 1.0 for x in (box.average, box.memory, *box.found)]]
    found.append(torch.as_tensor(box.total))
    LIN.zero_grad()
    (sum(x.sum() for x in found) + 0 * LIN.weight.sum()).backward()
    return [*found, LIN.weight.grad.clone()]


@pytest.mark.parametrize("way", [batched, in_a_block])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_examples_share_ends_as_in_the_loop(program, way):
    found, wanted = outcome(way, program), outcome(looped, program)
    torch.testing.assert_close(found, wanted, check_device=False)


def test_a_tensor_that_several_examples_return_is_one_object():
    first, *others = batched(one_for_all, new_box())
    assert all(x is first for x in others)


def test_a_buffer_that_an_example_sets_is_no_parameter_of_the_next_one():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(4))

        def forward(self, x):
            self.state = 0.9 * self.state + 0.1 * LIN(x).detach()
            return self.state.sum()

    one, other = Average(), Average()
    for _ in range(2):
        found, wanted = multifold.batched(one)(XS), torch.stack([other(x) for x in XS])
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(one.state * 1, other.state)


@pytest.mark.parametrize("way", [batched, in_a_block])
def test_a_returned_view_of_what_a_later_example_changes_is_refused(way):
    def program(box, x):
        if not box.found:
            box.found.append(LIN(x) * 1)
            return box.found[0][1:]
        box.found[0].add_(1)
        return LIN(x)

    with pytest.raises(RecordError, match=r"shares its memory|outside of its batched program"):
        way(program, new_box())[0].sum()


@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_the_example_whose_call_fails_is_blamed_and_not_the_one_that_began_the_sum(on_error):
    @multifold.cell
    def picky(x):
        if (x > 9).any():
            raise ValueError("too large")
        return x * 1

    box = new_box()
    examples = XS.clone()
    examples[3] = 10

    def program(x):
        y = picky(x).sum()
        box.total += y
        return y

    run = multifold.batched(program, backend="torch", on_error=on_error)
    if on_error == "raise":
        with pytest.raises(multifold.MultifoldError):
            run(examples)
    else:
        results, failures = run(examples)
        assert 3 in failures and 0 not in failures and len(results) + len(failures) == len(examples)


def test_a_fold_that_has_a_result_already_refuses_its_change():
    box = new_box()
    program = multifold.plain(lambda x: returned_total(box, x), backend="torch")
    with pytest.raises(RecordError, match="what another one has returned"):
        multifold.Fold(backend="torch").run(None, [*XS], program)


@pytest.mark.parametrize("program", [total, returned_total, moving_average, memory])
def test_traces_of_examples_that_add_into_a_shared_place_are_refused(program):
    box = new_box()
    run = multifold.batched(lambda x: program(box, x), backend="torch")
    with pytest.raises(RecordError, match="read its own nodes"):
        run.traces(XS)


def reads_and_averages(box, x):
    y = LIN(x)
    box.average.mul_(0.9).add_(0.1 * y.detach())
    return box.average * y.sum().item()


def reads_and_keeps_the_largest(box, x):
    y = LIN(x).detach()
    torch.maximum(box.average, y, out=box.average)
    return box.average * float(y[0])


def reads_and_fills_a_buffer(box, x):
    box.unit.kept = box.unit.kept * 0.5 + LIN(x).detach()
    return box.unit.kept * float(box.unit.kept[0])


def adds_and_calls_a_layer(box, x):
    box.average.add_(LIN(x).detach())
    return LIN(box.average)


@pytest.mark.parametrize(
    "program",
    [reads_and_averages, reads_and_keeps_the_largest, reads_and_fills_a_buffer, adds_and_calls_a_layer],
)
def test_runs_go_on_with_what_runs_before_have_left(program):
    box, found = box_of_all(), box_of_all()
    run = multifold.batched(lambda x: program(found, x), join="list")
    for _ in range(3):
        torch.testing.assert_close(run(XS), [program(box, x) for x in XS])


def box_of_all():
    """Return what examples share: a tensor, and a module with a buffer."""
    unit = nn.Module()
    unit.register_buffer("kept", torch.ones(4))
    return SimpleNamespace(average=torch.ones(4), unit=unit)


def test_what_a_run_has_left_is_changed_in_place_by_the_next_one():
    def program(held, x):
        y = LIN(x)
        held.append(y * 1)
        held[0][1] = 0.5
        held[-1] += y.detach()
        return held[0] * 1

    kept, found = [], []
    run = multifold.batched(lambda x: program(found, x), join="list")
    for _ in range(3):
        torch.testing.assert_close(run(XS), [program(kept, x) for x in XS])
    assert same_gradient(sum(found).sum(), sum(kept).sum())


def test_a_result_and_what_is_held_of_it_are_one_object():
    held = []

    def program(x):
        held.append(LIN(x))
        return held[-1]

    found = multifold.batched(program, join="list")(XS)
    held[0] += 1
    torch.testing.assert_close(found, [LIN(XS[0]) + 1, *LIN(XS[1:])])


def same_gradient(x, y):
    """Return whether two losses have the same gradient."""
    return torch.allclose(*[torch.autograd.grad(loss, LIN.weight)[0] for loss in (x, y)])


class SetsWhatIsNotThere(nn.Module):
    """Sets an attribute that PyTorch keeps in a dictionary of its own, which is empty before."""

    def __init__(self, kind):
        super().__init__()
        self.lin, self.kind, self.holder = nn.Linear(4, 4), kind, nn.Module()

    def forward(self, x):
        self.start = self.holder.start = self.kind(x)
        h = self.lin(x)
        for _ in range(4):
            if h.norm() > 0.5:
                h = torch.tanh(self.lin(h)) * 0.7
        return h + self.start + self.holder.start


@pytest.mark.parametrize("kind", [nn.Buffer, nn.Parameter, torch.clone], ids=lambda kind: kind.__name__)
def test_attributes_are_seen_in_dictionaries_that_were_empty(kind):
    xs = [torch.randn(4) for _ in range(7)]
    model, own = SetsWhatIsNotThere(kind), SetsWhatIsNotThere(kind)
    own.load_state_dict(model.state_dict())
    run = multifold.batched(own, may_loop=False)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(xs), torch.stack([model(x) for x in xs]))


class ReadsLater(nn.Module):
    """Counts its examples and reads values, once it is told to."""

    def __init__(self):
        super().__init__()
        self.lin, self.reads, self.count = nn.Linear(4, 4), False, 0

    def forward(self, x):
        y = self.lin(x)
        if self.reads:
            self.count += 1
            if y.sum().item() > 0:
                y = self.lin(y)
        return y * self.count


def test_what_examples_write_is_seen_in_programs_that_begin_to_read_late():
    xs = [torch.randn(4) for _ in range(8)]
    model, own = ReadsLater(), ReadsLater()
    own.load_state_dict(model.state_dict())
    run = multifold.batched(own, may_loop=False)
    with torch.no_grad():
        for _ in range(40):  # by then no turn is watched for random numbers
            run(xs)
        model.reads = own.reads = True
        for _ in range(3):
            torch.testing.assert_close(run(xs), torch.stack([model(x) for x in xs]))


class Steps(nn.Module):
    """Has a method of one of its layers as an attribute, which each example chooses."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.step = self.first.forward

    def forward(self, x):
        self.step = (self.first if x[0] > 0 else self.second).forward
        y = torch.tanh(self.first(x))
        if y.sum() > 0:
            y = y * 2
        return torch.tanh(self.step(y))


def test_methods_of_two_objects_are_no_one_attribute():
    model, xs = Steps(), [torch.randn(4) for _ in range(20)]
    run = multifold.batched(model, may_loop=False)
    for _ in range(3):
        torch.testing.assert_close(run(xs), torch.stack([model(x) for x in xs]))
