"""Results that keep their example: `multifold.each` on every road, beside the one-at-a-time loop."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

import multifold
from multifold import Fold, RecordError, Unfold, each, trace
from multifold._engine.record.freezing import freeze
from multifold._numpy.backend import NumpyBackend
from multifold.program import Tiler
from multifold.program import run as run_program

Parse = namedtuple("Parse", ["heads", "scores"])

SENTENCES = ["a tree", "two of them", "one"]

MODEL = {"leaf": lambda x: x * 2, "add": lambda a, b: a + b, "pair": lambda x: (x, x + 1)}


def parse(fold, sentence):
    """Return results of all kinds, of other lengths and structures in each example."""
    words = sentence.split()
    nodes = [fold.add("leaf", len(word)) for word in words]
    total = fold.reduce("add", nodes)
    pair = fold.add("pair", total)
    whole = fold.add("leaf", len(words)).no_batch()
    return {
        "total": total,
        "all": nodes,
        "own": each(nodes),
        "parse": each(Parse(list(range(len(words))), nodes)),
        "mixed": each({"words": words, "none": None, "sum": (total, pair[1]), "whole": whole}),
        "other": each(words[0] if len(words) == 1 else OrderedDict(left=nodes[0], right=(1.5, b"x"))),
    }


def alone(seam):
    """Return the entry of each sentence, computed by itself with the eager twin."""
    return [Unfold(MODEL, backend=seam).run(None, [x], parse) for x in SENTENCES]


def plain(seam, x):
    """Return a structure with what `freeze` compares in the place of arrays."""
    if seam.owns(x):
        return freeze(seam.to_numpy(x))
    if isinstance(x, dict):
        return type(x), {name: plain(seam, value) for name, value in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x), [plain(seam, value) for value in x]
    return type(x), x


KEEPS = ("own", "parse", "mixed", "other")


def holds(seam, found):
    """Assert that each example has the entry that it has alone, and that the rest is put together."""
    expected = alone(seam)
    for name in KEEPS:
        assert plain(seam, found[name]) == plain(seam, [x[name][0] for x in expected])
    totals = np.concatenate([seam.to_numpy(x["total"]) for x in expected])
    assert seam.to_numpy(found["total"]).tolist() == totals.tolist()


def test_the_eager_twin_returns_an_entry_an_example(seam):
    found = Unfold(MODEL, backend=seam).run(None, SENTENCES, parse)
    holds(seam, found)
    assert [seam.to_numpy(x).tolist() for x in found["own"]] == [[2, 8], [6, 4, 8], [6]]
    assert found["mixed"][0]["words"] == ["a", "tree"]


def test_a_run_returns_an_entry_an_example(seam):
    holds(seam, Fold(backend=seam).run(MODEL, SENTENCES, parse))


def test_a_run_that_awaits_returns_an_entry_an_example(seam):
    async def awaiting(fold, sentence):
        found = parse(fold, sentence)
        assert int(await fold.value(found["total"])) == 2 * len(sentence.replace(" ", ""))
        return found

    holds(seam, Fold(backend=seam).run(MODEL, SENTENCES, awaiting))


@pytest.mark.parametrize("runs", [1, 5])
def test_traces_return_an_entry_an_example(seam, runs):
    fold = Fold(backend=seam)
    traces = [trace(parse, x) for x in SENTENCES]
    for _ in range(runs):
        holds(seam, fold.run(MODEL, traces))


def test_apply_returns_the_entry_itself(seam):
    fold = Fold(backend=seam)
    found = fold.apply(MODEL, [parse(fold, x) for x in SENTENCES])
    for got, expected in zip(found, alone(seam), strict=True):
        assert all(plain(seam, got[name]) == plain(seam, expected[name][0]) for name in KEEPS)
    fold.check(MODEL, parse(fold, SENTENCES[0]))


def test_a_result_may_hold_no_node(seam):
    fold = Fold(backend=seam)
    assert fold.run(MODEL, SENTENCES, lambda fold, x: each(x)) == SENTENCES
    assert fold.run(MODEL, [trace(lambda fold, x: each([x, []]), x) for x in "ab"]) == [
        ["a", []],
        ["b", []],
    ]


def test_rows_that_stay_apart_share_the_launches(seam, counting):
    Fold(backend=counting).run(MODEL, [trace(parse, x) for x in SENTENCES])
    launches = counting.counts["call"]
    counting.counts.clear()
    Fold(backend=counting).run(MODEL, [trace(lambda f, x: parse(f, x)["total"], x) for x in SENTENCES])
    assert launches == counting.counts["call"] + 1 + len(SENTENCES)  # the pairs; a whole result is alone


def test_an_example_that_fails_has_no_entry(seam):
    def some(fold, sentence):
        if sentence == "one":
            raise ValueError(sentence)
        return parse(fold, sentence)

    found, failures = Fold(backend=seam).run(MODEL, SENTENCES, some, on_error="collect")
    assert [*failures] == [2] and [x["words"] for x in found["mixed"]] == [
        ["a", "tree"],
        ["two", "of", "them"],
    ]


def test_rows_of_other_widths_stay_apart_where_failures_are_collected(seam):
    model = {"leaf": lambda x: x, "half": lambda x: x[:, :1]}
    examples = [np.ones((1, 2), "float32"), np.ones((1, 3), "float32")]

    def record(fold, x):
        return each([fold.add("leaf", x), "x"])

    found, failures = Fold(backend=seam).run(model, examples, record, on_error="collect")
    assert not failures and [seam.to_numpy(x).shape for x, _ in found] == [(1, 2), (1, 3)]


# ---- traces: one by one, pickled, written --------------------------------------------------------------


def test_traces_equal_one_another_by_what_they_keep():
    one, other = (trace(lambda fold, x: each([x, fold.add("leaf", 1)]), x) for x in (1, 1.0))
    assert one != other and one == trace(lambda fold, x: each([x, fold.add("leaf", 1)]), 1)
    assert multifold.traces(parse, SENTENCES) == [trace(parse, x) for x in SENTENCES]


def test_an_object_that_nothing_can_compare_equals_itself(backend):
    objects = [SimpleNamespace(name=name) for name in "ab"]
    made = multifold.traces(lambda fold, x: each([x, object]), objects)
    assert all(got[0] is x for got, x in zip(Fold(backend=backend).run(None, made), objects, strict=True))


@pytest.mark.parametrize("many", [True, False])
def test_pickles_keep_it(seam, many):
    made = multifold.traces(parse, SENTENCES)
    again = pickle.loads(pickle.dumps(multifold.merge(made) if many else made))
    holds(seam, Fold(backend=seam).run(MODEL, again))
    assert many or again == made


def test_files_keep_it(seam):
    pytest.importorskip("pyarrow")
    made = multifold.traces(plain_parse, SENTENCES)
    file = io.BytesIO()
    multifold.save(made, file)
    assert multifold.load(file) == made
    found, expected = (Fold(backend=seam).run(MODEL, x) for x in (multifold.load(file), made))
    assert plain(seam, found) == plain(seam, expected)


def plain_parse(fold, sentence):
    """Return what a file can hold."""
    found = parse(fold, sentence)
    return {name: found[name] for name in ("own", "mixed", "other")}


def test_rows_with_and_without_it_stand_in_one_table():
    pa = pytest.importorskip("pyarrow")
    plain_ones = multifold.to_arrow([trace(lambda fold, x: fold.add("leaf", x), 1)])
    table = pa.concat_tables([plain_ones, multifold.to_arrow(multifold.traces(plain_parse, SENTENCES))])
    assert [len(x.kept) for x in multifold.from_arrow(table)] == [0, 3, 3, 3]


def test_a_file_names_the_trace_with_an_object_that_it_can_not_hold():
    pytest.importorskip("pyarrow")
    made = multifold.traces(lambda fold, x: each(x), ["words", object()])
    with pytest.raises(RecordError, match=r"plain data in multifold.each\(...\).*in trace 1"):
        multifold.to_arrow(made)


@pytest.mark.parametrize("text", ["", "[1]", '["tuple",["hole",3,false]]', '["tuple","a","b"]'])
def test_a_row_that_was_changed_is_refused(text):
    pa = pytest.importorskip("pyarrow")
    table = multifold.to_arrow(multifold.traces(plain_parse, SENTENCES[:1]))
    table = table.set_column(table.column_names.index("kept"), "kept", pa.array([text]))
    with pytest.raises(RecordError, match="damaged one in row 0"):
        multifold.from_arrow(table)


def test_what_a_caller_does_to_an_entry_is_not_seen_by_the_next_run(seam):
    fold = Fold(backend=seam)
    values = np.zeros(2)
    made = [trace(lambda fold, x: each({"list": [x], "array": values}), 1)]
    values += 1
    for _ in range(4):
        (found,) = fold.run(MODEL, made)
        assert found["list"] == [1] and found["array"].tolist() == [0, 0]
        found["list"].append(2)
        found["array"] += 1


# ---- gradients, programs and wrong uses ----------------------------------------------------------------


def test_gradients_pass_through_an_entry(backend, gradients):
    def total(p, batched):
        model = {"leaf": lambda x: x * p["w"]}

        def record(fold, n):
            return each([fold.add("leaf", np.full((1, 2), i + 1.0, "float32")) for i in range(n)])

        examples = [1, 3, 2]
        if batched:
            found = Fold(backend=backend).run(model, examples, record)
        else:
            found = [Unfold(model, backend=backend).run(None, [x], record)[0] for x in examples]
        return [n * x for n, x in zip(examples, found, strict=True)]

    start = {"w": np.array([[0.5, 2.0]])}
    batched, loop = (gradients(lambda p, b=b: total(p, b), start) for b in (True, False))
    np.testing.assert_allclose(batched["w"], loop["w"], rtol=1e-4)


@pytest.mark.parametrize("tiled", [False, True])
def test_a_program_computes_the_rows_of_which_entries_are_made(tiled):
    program = Fold(backend="numpy").program([trace(parse, x) for x in SENTENCES])
    if tiled:
        tiler = Tiler(program, pad=True)
        program = tiler.tiled(tiler.own())
    program = pickle.loads(pickle.dumps(program))
    found = run_program(MODEL, program)
    assert [len(x["own"]) for x in (found, program.each(found))] == [1, len(SENTENCES)]
    found = program.each({**found, "total": found["total"][: len(SENTENCES)]})
    holds(NumpyBackend(), found)


def test_what_a_caller_does_to_an_entry_of_a_program_is_not_seen_by_the_next():
    program = Fold(backend="numpy").program(multifold.traces(keep_words, SENTENCES))
    found = run_program(MODEL, program)
    program.each(found)[0][1][:] = -1
    assert program.each(found)[0][1].tolist() == [2, 8]


@pytest.mark.parametrize("found", [[np.array([2, 8, 6])], np.array([1])], ids=["rows", "structure"])
def test_results_of_another_program_are_refused(found):
    def record(fold, sentence):
        return {"own": keep_words(fold, sentence)}

    program = Fold(backend="numpy").program(multifold.traces(record, SENTENCES))
    with pytest.raises(RecordError, match="Expected the results of this program"):
        program.each({"own": found} if isinstance(found, list) else found)


def test_a_program_of_outputs_has_the_entry_itself():
    fold = Fold(backend="numpy")
    program = fold.program(each(["a", fold.add("leaf", 2)]))
    assert program.each(run_program(MODEL, program)) == ["a", np.array([4])]


def test_programs_of_other_sentences_have_one_form():
    fold = Fold(backend="numpy")
    for sentences in (["a tree"], ["two of them", "a"], ["a", "b", "c d"]):
        program = fold.program(multifold.traces(keep_words, sentences))
        found = program.each(run_program(MODEL, program))
        assert found == [(x.split(), pytest.approx([2 * len(y) for y in x.split()])) for x in sentences]
    assert len(fold.programs) == 1


def keep_words(fold, sentence):
    words = sentence.split()
    return each((words, [fold.add("leaf", len(word)) for word in words]))


def test_a_program_without_what_its_examples_keep_says_so():
    program = Fold(backend="numpy").program(multifold.traces(keep_words, SENTENCES))
    with pytest.raises(RecordError, match="outside of the function"):
        type(program)(program.form, *program.arrays).each([[1, 2]])


@pytest.mark.parametrize("mark", [each(1), multifold.static(1), multifold.shared(np.ones(2))])
def test_a_mark_inside_is_refused(mark):
    with pytest.raises(RecordError, match=r"Expected nodes and plain values in multifold\.each"):
        Fold(backend="numpy").run(MODEL, [1], lambda fold, x: each([mark]))


def test_an_operand_can_not_be_marked(fold):
    with pytest.raises(RecordError, match=r"Received multifold\.each"):
        fold.add("leaf", each(1))


def test_a_node_of_another_fold_is_refused(fold):
    with pytest.raises(RecordError, match="belongs to another fold"):
        fold.run(MODEL, [1], lambda fold, x: each(Fold(backend="numpy").add("leaf", x)))


def test_an_awaitable_is_refused(fold):
    with pytest.raises(RecordError, match="await"):
        fold.run(MODEL, [1], lambda fold, x: each([fold.value(fold.add("leaf", x))]))


def test_a_value_that_holds_itself_is_refused(fold):
    mine = []
    mine.append(mine)
    with pytest.raises(RecordError, match="contain"):
        fold.run(MODEL, [1], lambda fold, x: each(mine))
