"""Programs of one form for several shards: here, and where processes tell each other what theirs need."""

from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np
import pytest
from random_trees import random_trees, record

from multifold import Fold, RecordError, merge, shared, traces
from multifold._numpy.backend import NumpyBackend
from multifold.program import run

OPS = {
    "leaf": lambda x: 1.5 * x[:, None] + np.arange(2),
    "join": lambda a, b: np.tanh(a - b),
    "up": lambda a: a * 0.5,
    "count": lambda a, k: a + k[:, None],
    "total": lambda rows: np.stack([x.sum(0) for x in np.split(rows.values, np.cumsum(rows.lengths)[:-1])]),
}


class Tiled(NumpyBackend):
    """NumPy, for which programs have fixed sizes, as JAX needs them."""

    name = "tiled"
    tiles = True


def expected(trees):
    fold = Fold(backend="numpy")
    return fold.apply(OPS, [[record(fold, tree) for tree in trees]])[0]


def results(shards):
    """Return the results of programs as if devices had run them."""
    found = np.zeros((len(shards), shards.rows, 2))
    for shard, program in zip(found, shards, strict=True):
        if program.counts[0]:
            rows = run(OPS, program)
            shard[: len(rows)] = rows
    return shards.join(found)


# ---- one process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["numpy", Tiled])
def test_shards_of_random_trees_have_one_form_and_the_values_of_all(kind, seed):
    fold = Fold(backend=kind)
    for count in (17, 3, 40):
        trees = random_trees((seed, count), count)
        shards = fold.program(traces(record, trees), shards=4)
        assert len({program.form for program in shards}) == 1
        np.testing.assert_allclose(results(shards), expected(trees), rtol=1e-12)


def test_shards_are_alike_in_calls():
    made = traces(record, random_trees(0, 200))
    shards = Fold(backend=Tiled).program(made, shards=4)
    calls = [sum(len(made[i]) for i in own) for own in shards.examples]
    assert sorted(np.concatenate(shards.examples)) == list(range(200))
    assert max(calls) <= 1.01 * np.mean(calls)


def test_stacked_arrays_have_the_shards_in_front():
    shards = Fold(backend=Tiled).program(traces(record, random_trees(1, 9)), shards=3)
    launches = shards.arrays[3]
    assert launches.shape == (3, *shards[0].launches.shape)
    assert (launches[2] == shards[2].launches).all()
    assert [len(column) for column in shards.arrays[4][0]] == [3] * len(shards[0].columns[0])


def test_shards_without_examples_have_programs_without_calls():
    trees = [("leaf", 1.0), ("up", ("leaf", 2.0))]
    shards = Fold(backend=Tiled).program(traces(record, trees), shards=4)
    assert shards.counts.tolist() == [1, 1, 0, 0] and len({x.form for x in shards}) == 1
    assert [program.counts.tolist() for program in shards] == [[1], [1], [0], [0]]
    assert shards.weights.tolist() == [2, 2, 0, 0]
    np.testing.assert_allclose(results(shards), expected(trees))


def test_later_programs_keep_the_form_where_they_fit():
    fold = Fold(backend=Tiled)
    fold.programs.budget = 20
    forms = []
    for _ in range(2):
        for seed in range(20):
            fold.program(traces(record, random_trees(seed, 40, most=20)), shards=2)
        forms.append(len(fold.programs))
    assert forms[0] == forms[1] < 12


def test_labels_go_where_results_are_and_results_come_back():
    labels = np.arange(20).reshape(10, 2)
    shards = Fold(backend=Tiled).program(traces(record, random_trees(2, 10)), shards=3)
    there = shards.split(labels, fill=-1)
    assert there.shape == (3, shards.rows, 2) and len(run(OPS, shards[0])) == shards.rows
    assert (there.reshape(-1, 2) == -1).all(1).sum() == 3 * shards.rows - 10
    assert (shards.join({"labels": there})["labels"] == labels).all()


def test_weighted_means_of_unequal_shards_are_the_mean():
    values = np.array([1.0, 2, 3, 10, 20, 30, 5])
    trees = [("leaf", 0.0)] * 6 + random_trees(3, 1)
    shards = Fold(backend=Tiled).program(traces(record, trees), shards=2)
    assert len(set(shards.counts.tolist())) == 2
    means = [values[own].mean() for own in shards.examples]
    assert np.mean(shards.weights * means) == pytest.approx(values.mean())


def test_every_example_has_its_rows_where_they_are_marked():
    import multifold

    def words(fold, tree):
        return multifold.each([str(tree), record(fold, tree)])

    trees = random_trees(4, 5)
    for program, own in zip(
        shards := Fold(backend=Tiled).program(traces(words, trees), shards=2), shards.examples, strict=True
    ):
        found = program.each(run(OPS, program))
        assert [text for text, _ in found] == [str(trees[i]) for i in own]


def test_a_merged_minibatch_is_shared_out():
    batch = merge(traces(record, random_trees(5, 6)))
    assert Fold(backend=Tiled).program(batch, shards=2).counts.sum() == 6


# ---- several processes ---------------------------------------------------------------------------


class Meeting:
    """Threads that stand for processes: each sends bytes, and all see what all have sent."""

    def __init__(self, count):
        self.barrier = threading.Barrier(count, timeout=20)
        self.said = [b""] * count
        self.sent = [0] * count

    def exchange(self, rank):
        def exchange(said):
            self.said[rank] = said
            self.sent[rank] += 1
            self.barrier.wait()
            found = list(self.said)
            self.barrier.wait()
            return found

        return exchange

    def run(self, make):
        """Return what each process makes, or what it raises."""
        found = [None] * len(self.said)

        def call(rank):
            try:
                found[rank] = make(rank, self.exchange(rank))
            except Exception as error:  # noqa: BLE001 - the test looks at it
                found[rank] = error

        threads = [threading.Thread(target=call, args=(rank,)) for rank in range(len(found))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        return found


@pytest.mark.parametrize("seed", range(5))
def test_processes_agree_on_one_form(seed):
    folds = [Fold(backend=Tiled) for _ in range(3)]
    meeting = Meeting(3)
    for step in range(4):
        batches = [random_trees((seed, step, rank), 5 * rank) for rank in range(3)]

        def make(rank, exchange, batches=batches):
            return folds[rank].program(traces(record, batches[rank]), shards=2, exchange=exchange)

        found = meeting.run(make)
        assert len({program.form for shards in found for program in shards}) == 1
        assert np.concatenate([shards.weights for shards in found]).sum() == pytest.approx(6)
        for shards, trees in zip(found[1:], batches[1:], strict=True):
            np.testing.assert_allclose(results(shards), expected(trees), rtol=1e-12)


def test_processes_that_have_met_all_ops_and_sizes_say_three_things_a_step():
    folds = [Fold(backend=Tiled) for _ in range(2)]
    meeting = Meeting(2)
    sent = []
    for _ in range(3):
        meeting.run(
            lambda rank, exchange: folds[rank].program(
                traces(record, random_trees(rank, 20)), shards=1, exchange=exchange
            )
        )
        sent.append(meeting.sent[0])
    assert [b - a for a, b in pairwise(sent)] == [3, 3]


def test_what_one_process_can_not_do_is_raised_in_all():
    folds = [Fold(backend=Tiled) for _ in range(2)]
    meeting = Meeting(2)
    made = traces(lambda fold, x: fold.add(lambda x: x, x), [1.0])

    def make(rank, exchange):
        own = made if rank else traces(record, [("leaf", 1.0)])
        return folds[rank].program(own, shards=1, exchange=exchange)

    first, second = meeting.run(make)
    assert isinstance(first, RecordError) and "Process 1 could not make its programs" in str(first)
    assert isinstance(second, RecordError) and "pickled" in str(second)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [0, True, 2.0])
def test_a_number_of_shards_is_at_least_one(shards):
    with pytest.raises(RecordError, match="shards to be an integer of at least 1"):
        Fold(backend=Tiled).program(traces(record, random_trees(6, 2)), shards=shards)


def test_outputs_of_a_fold_can_not_be_shared_out():
    fold = Fold(backend=Tiled)
    with pytest.raises(RecordError, match="traces to share out"):
        fold.program([[record(fold, ("leaf", 1.0)), 2], {}], shards=2)


def test_no_example_on_any_shard_is_refused():
    with pytest.raises(RecordError, match="on at least one shard"):
        Fold(backend=Tiled).program([], shards=2)


def test_ragged_programs_have_no_stack():
    shards = Fold(backend="numpy").program(traces(record, random_trees(7, 4)), shards=2)
    with pytest.raises(RecordError, match="fixed sizes to stack"):
        shards.arrays  # noqa: B018


def test_labels_of_other_examples_are_refused():
    shards = Fold(backend=Tiled).program(traces(record, random_trees(8, 4)), shards=2)
    with pytest.raises(RecordError, match="a value for each of 4 examples"):
        shards.split([1, 2, 3])


def test_results_that_are_read_whole_are_of_another_form_on_each_shard():
    def table(fold, n):
        x = fold.add("leaf", float(n))
        for i in range(n):
            x = fold.add("mix", x, fold.add("pair", i).no_batch(), shared(np.ones(2)))
        return x

    with pytest.raises(RecordError, match="can have one form"):
        Fold(backend=Tiled).program(traces(table, [0, 1, 2, 5]), shards=2)
