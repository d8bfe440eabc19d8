"""Readers of data sets: small files with the traps of the real ones, and known answers."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
import struct
import textwrap
from pathlib import Path

import numpy as np
import pytest

from multifold.errors import MultifoldError
from multifold_bench.datasets import (
    DatasetError,
    WordIds,
    bottom_up,
    conll,
    depth,
    idx,
    listops,
    plans,
    postorder,
    python_ast,
    sick,
    snli,
    sst,
)
from multifold_bench.datasets.dependencies import tree_of
from multifold_bench.datasets.snli import ParseTree

NOT_A_SPACE = "\u00a0"


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file and returns its path."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


# ---- trees ---------------------------------------------------------------------------------------


def leaf_of(levels: int) -> ParseTree:
    tree = ParseTree("end")
    for _ in range(levels):
        tree = ParseTree(None, (ParseTree("word"), tree))
    return tree


def test_postorder_gives_children_first_from_left_to_right():
    inner = ParseTree(None, (ParseTree("b"), ParseTree("c")))
    tree = ParseTree(None, (ParseTree("a"), inner, ParseTree("d")))
    assert [node.word for node in postorder(tree)] == ["a", "b", "c", None, "d", None]


def test_bottom_up_hands_each_node_the_values_of_its_own_children():
    inner = ParseTree(None, (ParseTree("b"), ParseTree("c")))
    tree = ParseTree(None, (ParseTree("a"), inner, ParseTree("d")))
    assert bottom_up(tree, lambda node, parts: node.word or list(parts)) == ["a", ["b", "c"], "d"]


def test_depth_counts_edges():
    assert [depth(leaf_of(levels)) for levels in (0, 1, 5)] == [0, 1, 5]


def test_trees_are_equal_by_value_and_shape():
    pair = ParseTree(None, (ParseTree("a"), ParseTree("b")))
    assert pair == ParseTree(None, (ParseTree("a"), ParseTree("b")))
    assert hash(pair) == hash(ParseTree(None, (ParseTree("a"), ParseTree("b"))))
    assert pair != ParseTree(None, (ParseTree("b"), ParseTree("a")))
    assert ParseTree(None, (pair, ParseTree("c"))) != ParseTree(None, (ParseTree("c"), pair))
    assert ParseTree("a") != "a"


def test_trees_cannot_be_changed():
    with pytest.raises(AttributeError):
        ParseTree("a").word = "b"


def test_a_tree_far_deeper_than_pythons_stack_compares_hashes_copies_pickles_and_prints():
    tree = leaf_of(20_000)
    again = pickle.loads(pickle.dumps(tree))
    assert again == tree
    assert copy.deepcopy(tree) == tree
    assert hash(again) == hash(tree)
    assert depth(tree) == 20_000
    assert repr(tree) == "ParseTree(children=<2>)"


# ---- what all readers share ----------------------------------------------------------------------

READERS = {
    "sst": (sst.read, "train.txt"),
    "sick": (sick.read, "train"),
    "snli": (snli.read, "train.jsonl"),
    "listops": (listops.read, "train.tsv"),
    "plans": (plans.read, "1.json"),
    "conll": (conll.read, "train.conll"),
    "idx": (idx.load, "train-images-idx3-ubyte"),
    "python_ast": (python_ast.read, "lib"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_missing_file_is_reported_at_once_and_says_where_to_get_it(name, tmp_path):
    read, file = READERS[name]
    with pytest.raises(DatasetError) as caught:
        read(tmp_path / file)
    assert str(caught.value).startswith(f"{tmp_path / file}: expected a ")
    assert "found nothing.\n\nHint: " in str(caught.value)


def test_a_folder_where_a_file_should_be_is_reported(tmp_path):
    with pytest.raises(DatasetError, match="expected a file, found a folder"):
        sst.read(tmp_path)


def test_a_file_where_a_folder_should_be_is_reported(write):
    with pytest.raises(DatasetError, match="expected a folder, found a file"):
        sick.read(write("train", ""))


def test_dataset_errors_are_multifold_errors_and_value_errors_and_survive_pickling():
    error = DatasetError("expected ')'.", "look there.", path="train.txt", line=17)
    assert isinstance(error, MultifoldError)
    assert isinstance(error, ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "train.txt:17: expected ')'.\n\nHint: look there."
    assert (again.path, again.line) == ("train.txt", 17)


def test_bytes_that_are_not_utf_8_are_reported_with_their_line(write):
    path = write("train.txt", b"(2 a)\n(2 caf\xe9)\n")
    with pytest.raises(DatasetError, match=r"train\.txt:2: expected UTF-8"):
        list(sst.read(path))


def test_only_line_feeds_end_a_line(write):
    path = write("train.txt", "\ufeff(2 a\u2028b)\r\n(2 c\u0085d)")
    assert [tree.word for tree in sst.read(path)] == ["a\u2028b", "c\u0085d"]


def test_progress_counts_bytes_up_to_the_size_of_the_file(write):
    path = write("train.txt", "(2 a)\n(2 é)\n\n")
    seen: list[int] = []
    list(sst.read(path, seen.append))
    assert seen == [6, 13, 14]


def test_reading_is_lazy(write):
    path = write("train.txt", "(2 a)\nnot a tree\n")
    assert next(sst.read(path)).word == "a"


# ---- Stanford Sentiment Treebank -----------------------------------------------------------------


def test_sst_reads_labels_words_and_children(write):
    path = write("train.txt", "(3 (2 It) (4 (2 's) (3 lovely)))\n\n(0 Awful)\n")
    first, second = sst.read(path)
    assert first.label == 3
    assert first.word is None
    assert (first.left.label, first.left.word) == (2, "It")
    assert [node.label for node in postorder(first)] == [2, 2, 3, 4, 3]
    assert second == sst.SentimentTree(0, "Awful")


def test_sst_keeps_words_with_no_break_spaces_whole(write):
    word = f"8{NOT_A_SPACE}1\\/2"
    (tree,) = sst.read(write("train.txt", f"(2 (2 {word}) (2 stars))\n"))
    assert tree.left.word == word


def test_sst_reads_trees_deeper_than_pythons_stack(write):
    path = write("train.txt", "(2 (2 w) " * 20_000 + "(2 end)" + ")" * 20_000)
    (tree,) = sst.read(path)
    assert depth(tree) == 20_000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("(3 (2 It) (4 lovely)", r"expected '\)', received the end of the line \(1 open\)"),
        ("(3 It))", r"expected the end of the line, received '\)'"),
        ("(3 It) (2 was)", r"expected one '\(...\)' and nothing else"),
        ("It was", r"expected one '\(...\)' and nothing else"),
        ("(7 It)", "label from 0 to 4"),
        ("(3 (2 It))", r"received \(3 \(...\)\)"),
        ("(3 It was)", r"received \(3 It was\)"),
        ("()", r"expected '\(label word\)'"),
    ],
)
def test_sst_says_what_is_wrong_with_a_tree_and_where(line, message, write):
    path = write("train.txt", f"(2 fine)\n{line}\n")
    with pytest.raises(DatasetError, match=f"train.txt:2: .*{message}"):
        list(sst.read(path))


# ---- SICK ----------------------------------------------------------------------------------------

SICK = {
    "a.toks": "A dog runs fast\nSilence\n",
    "a.parents": "2 3 0 3\n0\n",
    "b.toks": "dogs run\nNo noise\n",
    "b.parents": "2 0\n2 0\n",
    "sim.txt": "4.5\n5\n",
}


def write_sick(write, **changed: str) -> Path:
    for name, content in {**SICK, **changed}.items():
        path = write(f"train/{name}", content)
    return path.parent


def test_sick_reads_heads_that_count_from_one(write):
    first, second = sick.read(write_sick(write))
    assert first.similarity == 4.5
    assert (first.left.word, first.left.position) == ("runs", 2)
    assert [child.word for child in first.left.children] == ["dog", "fast"]
    assert [node.position for node in postorder(first.left)] == [0, 1, 3, 2]
    assert first.right.word == "run"
    assert second.left.children == ()


def test_sick_reports_bytes_of_all_files(write):
    seen: list[int] = []
    list(sick.read(write_sick(write), seen.append))
    assert seen[-1] == sum(map(len, SICK.values()))
    assert len(seen) == 2


def test_sick_names_the_file_of_the_folder_that_is_missing(write):
    folder = write_sick(write)
    (folder / "b.parents").unlink()
    with pytest.raises(DatasetError, match=r"b\.parents: expected a file, found nothing"):
        sick.read(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.parents", "2 3 0\n0\n", "a.parents:1: expected a head for each word, received 3 for 4"),
        ("a.parents", "2 3 0 5\n0\n", "a.parents:1: expected heads from 0 to 4, received 5"),
        ("a.parents", "2 3 0 0\n0\n", r"a.parents:1: expected one root \(head 0\), received 2"),
        ("a.parents", "2 1 0 3\n0\n", "received 1 'A' -> 2 'dog' -> 1 'A'"),
        ("a.parents", "2 3 0 x\n0\n", "a.parents:1: expected numbers of words"),
        ("a.toks", "A dog runs fast\n\n", "a.toks:2: expected a sentence"),
        ("sim.txt", "4.5\n", "sim.txt:1: expected 2 lines or more, as in a.toks, received 1"),
        ("sim.txt", "4.5\nhigh\n", "sim.txt:2: expected a score from 1 to 5, received 'high'"),
        ("sim.txt", "4.5\n0.5\n", "sim.txt:2: expected a score from 1 to 5, received '0.5'"),
    ],
)
def test_sick_says_what_is_wrong_with_a_pair_and_where(file, content, message, write):
    with pytest.raises(DatasetError, match=message):
        list(sick.read(write_sick(write, **{file: content})))


# ---- SNLI ----------------------------------------------------------------------------------------


def snli_line(label: str, premise: str, hypothesis: str = "( It moves )") -> str:
    record = {"sentence1_binary_parse": premise, "sentence2_binary_parse": hypothesis}
    return json.dumps({"gold_label": label, **record}) + "\n"


def test_snli_reads_binary_parses_and_labels(write):
    path = write("train.jsonl", snli_line("contradiction", "( ( A dog ) ( runs . ) )"))
    (pair,) = snli.read(path)
    assert snli.LABELS[pair.label] == "contradiction"
    assert pair.premise.left == ParseTree(None, (ParseTree("A"), ParseTree("dog")))
    assert pair.hypothesis.right.word == "moves"


def test_snli_skips_pairs_without_a_gold_label(write):
    lines = [snli_line("-", "( a b )"), snli_line("neutral", "( a b )"), "\n"]
    assert [pair.label for pair in snli.read(write("train.jsonl", "".join(lines)))] == [1]


def test_snli_transitions_shift_words_and_reduce_pairs(write):
    (pair,) = snli.read(write("a.jsonl", snli_line("neutral", "( ( A dog ) ( runs . ) )")))
    assert snli.transitions(pair.premise) == ("A", "dog", None, "runs", ".", None, None)


@pytest.mark.parametrize("parse", ["Nobody", "( Nobody )"])
def test_snli_reads_sentences_of_one_word_with_and_without_brackets(parse, write):
    (pair,) = snli.read(write("train.jsonl", snli_line("neutral", parse)))
    assert pair.premise == ParseTree("Nobody")


def test_snli_keeps_words_with_no_break_spaces_whole(write):
    word = f"a{NOT_A_SPACE}b"
    (pair,) = snli.read(write("train.jsonl", snli_line("neutral", f"( {word} c )")))
    assert pair.premise.left.word == word


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "expected one JSON object"),
        ("[1]", "expected a JSON object with a text 'gold_label'"),
        (snli_line("maybe", "( a b )"), "expected a gold_label of entailment, neutral"),
        (snli_line("neutral", "( a b"), r"expected '\)', received the end of the parse"),
        (snli_line("neutral", "a b )"), r"received '\)' without its '\('"),
        (snli_line("neutral", "( a b c )"), "expected two parts in each bracket, received 3"),
        (snli_line("neutral", "a b"), "expected one tree in the parse, received 2"),
        (snli_line("neutral", ""), "expected one tree in the parse, received 0"),
        ('{"gold_label": "neutral"}', "with a text 'sentence1_binary_parse', received None"),
    ],
)
def test_snli_says_what_is_wrong_with_a_pair_and_where(line, message, write):
    path = write("train.jsonl", snli_line("neutral", "( a b )") + line)
    with pytest.raises(DatasetError, match=f"train.jsonl:2: .*{message}"):
        list(snli.read(path))


# ---- ListOps -------------------------------------------------------------------------------------


def test_listops_drops_round_brackets_for_operators_with_any_number_of_operands(write):
    text = "9\t( ( ( ( [MAX 2 ) ( ( ( ( [MIN 4 ) 9 ) 3 ) ] ) ) 9 ) ] )\n"
    (example,) = listops.read(write("train.tsv", text))
    assert example.label == 9
    assert example.expression.op == "MAX"
    assert [child.op or child.digit for child in example.expression.children] == [2, "MIN", 9]
    assert [child.digit for child in example.expression.children[1].children] == [4, 9, 3]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("[MIN 4 2 9 ]", 2),
        ("[MAX 4 2 9 ]", 9),
        ("[MED 4 2 9 ]", 4),
        ("[MED 4 2 9 5 ]", 4),  # the mean of the middle two, rounded down
        ("[SM 4 9 9 ]", 2),
        ("[FIRST 4 2 9 ]", 4),
        ("[LAST 4 2 9 ]", 9),
        ("[SM [MAX 3 8 ] [MIN 0 6 ] 5 ]", 3),
        ("7", 7),
    ],
)
def test_listops_expressions_have_exact_values(expression, value, write):
    (example,) = listops.read(write("train.tsv", f"{value}\t{expression}\n"))
    assert listops.evaluate(example.expression) == example.label == value


def test_listops_are_made_up_within_limits_each_once_and_always_alike():
    examples = list(listops.made(300, seed=1, depth=3, nodes=9))
    texts = [[(x.op, x.digit) for x in postorder(example.expression)] for example in examples]
    assert max(map(len, texts)) == 9 and len(set(map(str, texts))) == 300
    assert max(depth(example.expression) for example in examples) == 3
    assert all(example.label == listops.evaluate(example.expression) for example in examples)
    assert [x.label for x in listops.made(300, seed=1, depth=3, nodes=9)] == [x.label for x in examples]
    assert {x.expression.op for x in examples} == set(listops.OPERATORS)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[MAX 2 4 ]", "expected a label from 0 to 9 and a TAB"),
        ("12\t[MAX 2 4 ]", "expected a label from 0 to 9"),
        ("4\t[MAX 2 4", r"expected '\]', received the end of the line \(1 open\)"),
        ("4\t[AVG 2 4 ]", r"one of \[MIN, \[MAX, .* received '\[AVG'"),
        ("4\t[MAX ]", r"received '\]'"),
        ("4\t2 ]", r"received '\]'"),
        ("4\t2 4", "expected one expression, received 2"),
    ],
)
def test_listops_says_what_is_wrong_with_an_expression_and_where(line, message, write):
    path = write("train.tsv", f"1\t1\n{line}\n")
    with pytest.raises(DatasetError, match=f"train.tsv:2: .*{message}"):
        list(listops.read(path))


# ---- PostgreSQL plans ----------------------------------------------------------------------------


def plan_json(*children: dict, **fields: object) -> dict:
    return {**fields, **({"Plans": list(children)} if children else {})}


SCAN = plan_json(**{"Node Type": "Seq Scan", "Relation Name": "part", "Plan Rows": 7})
JOIN = plan_json(SCAN, SCAN, **{"Node Type": "Hash Join", "Actual Total Time": 1.5})


def test_plans_read_operators_fields_and_children(write):
    (plan,) = plans.read(write("1.json", json.dumps([{"Plan": JOIN, "Execution Time": 2.0}])))
    assert plan.operator == "Hash Join"
    assert plan.fields == {"Actual Total Time": 1.5}
    assert [child.fields["Relation Name"] for child in plan.children] == ["part", "part"]
    assert plan.children[0] == plans.QueryPlan("Seq Scan", {"Relation Name": "part", "Plan Rows": 7})


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([{"Plan": JOIN}, {"Plan": SCAN}]),
        json.dumps([{"Plan": JOIN}], indent=2) + "\n\n" + json.dumps([{"Plan": SCAN}]) + "\n",
        json.dumps({"Plan": JOIN}) + json.dumps({"Plan": SCAN}),
    ],
    ids=["one list", "a document after the other", "objects without a list"],
)
def test_a_file_may_hold_several_plans(text, write):
    assert [plan.operator for plan in plans.read(write("a.json", text))] == [
        "Hash Join",
        "Seq Scan",
    ]


def test_a_folder_of_plans_is_read_in_the_order_of_numbers(write):
    for number in (10, 2, 1):
        plan = {"Node Type": "Limit", "Plan Rows": number}
        path = write(f"plans/{number}.json", json.dumps([{"Plan": plan}]))
    write("plans/README.txt", "not a plan")
    seen: list[int] = []
    rows = [plan.fields["Plan Rows"] for plan in plans.read(path.parent, seen.append)]
    assert rows == [1, 2, 10]
    assert seen[-1] == sum(file.stat().st_size for file in path.parent.glob("*.json"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('\n[{"Plan": {]', ":2: expected JSON: "),
        ('\n\n[{"Query": {}}]', ":3: expected a plan, an object with 'Node Type', received None"),
        ('[{"Plan": {"Plans": []}}]', ":1: expected a plan, .* received an object with Plans"),
        ('[{"Plan": {"Node Type": "Sort", "Plans": {}}}]', ":1: expected a plan"),
        ('[{"Plan": {"Node Type": "Sort", "Plans": [3]}}]', ":1: .* received 3 in the document"),
        ('[{"Plan": {"Node Type": ""}}]', ":1: .* received the operator ''"),
        ('[{"Plan": {"Node Type": "a.b"}}]', ":1: .* received the operator 'a.b'"),
        ('[{"Plan": {"Node Type": "Sort", "Plan Rows": "x"}}]', ":1: expected 'Plan Rows' to be a number"),
        ('[{"Plan": {"Node Type": "Sort", "Plan Rows": null}}]', ":1: .* received None in the document"),
        ('[{"Plan": {"Node Type": "Sort", "Plan Rows": true}}]', ":1: expected 'Plan Rows'"),
        ('[{"Plan": {"Node Type": "Sort", "Total Cost": -1}}]', ":1: expected 'Total Cost' .* from 0 on"),
        (
            '[{"Plan": {"Node Type": "Sort", "Total Cost": 1' + "0" * 400 + "}}]",
            ":1: expected 'Total Cost'",
        ),
        ('[{"Plan": {"Node Type": "Sort", "Total Cost": NaN}}]', ":1: expected 'Total Cost'"),
        ('[{"Plan": {"Node Type": "Sort", "Total Cost": ' + "1" * 5000 + "}}]", ":1: expected JSON: "),
        ("QUERY PLAN", ":1: expected JSON: .*\n\nHint: write some with psql -qAt"),
        ("[" * 100_000, ":1: expected a plan that Python's json module can read"),
    ],
)
def test_plans_say_what_is_wrong_with_a_file_and_where(text, message, write):
    with pytest.raises(DatasetError, match=f"(?s)1.json{message}"):
        list(plans.read(write("1.json", text)))


def test_an_empty_folder_of_plans_is_reported(tmp_path):
    with pytest.raises(DatasetError, match=r"expected \*.json files in the folder, found none"):
        plans.read(tmp_path)


# ---- CoNLL columns -------------------------------------------------------------------------------


def test_conll_separates_sentences_by_blank_lines_and_by_lone_tabs(write):
    text = "a\tO\nb\tB-x\n\nc\tO\n\t\nd\tO\n \n\n\ne\tO"
    sentences = conll.read(write("train.conll", text))
    assert [sentence.words for sentence in sentences] == [("a", "b"), ("c",), ("d",), ("e",)]


def test_conll_reads_words_that_look_like_comments_or_hold_no_break_spaces(write):
    text = f"#NFL\tO\n#\tO\na{NOT_A_SPACE}b\tB-group\n"
    (sentence,) = conll.read(write("train.conll", text))
    assert sentence == conll.TaggedSentence(("#NFL", "#", f"a{NOT_A_SPACE}b"), ("O", "O", "B-group"))


def test_conll_takes_the_first_and_the_last_of_several_columns(write):
    (sentence,) = conll.read(write("train.txt", "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n"))
    assert sentence == conll.TaggedSentence(("EU", "rejects"), ("B-ORG", "O"))


@pytest.mark.parametrize("line", ["word", "word\t", "\tO", "word\tO\t"])
def test_conll_says_where_a_word_has_no_tag(line, write):
    path = write("train.conll", f"a\tO\n{line}\n")
    with pytest.raises(DatasetError, match=r"train\.conll:2: expected a word, a TAB and a tag"):
        list(conll.read(path))


# ---- IDX -----------------------------------------------------------------------------------------


def idx_bytes(values: np.ndarray, code: int) -> bytes:
    header = struct.pack(f">HBB{values.ndim}I", 0, code, values.ndim, *values.shape)
    return header + values.astype(values.dtype.newbyteorder(">")).tobytes()


IMAGES = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
LABELS = np.array([5, 0, 4], dtype=np.uint8)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_idx_reads_images_and_labels_gzipped_or_not(pack, write):
    images = write("images", pack(idx_bytes(IMAGES, 0x08)))
    labels = write("labels", pack(idx_bytes(LABELS, 0x08)))
    seen: list[int] = []
    digits = list(idx.read(images, labels, seen.append))
    assert [digit.label for digit in digits] == [5, 0, 4]
    np.testing.assert_array_equal(np.stack([digit.image for digit in digits]), IMAGES)
    assert seen == [images.stat().st_size, images.stat().st_size + labels.stat().st_size]


@pytest.mark.parametrize(
    ("code", "dtype"),
    [(0x08, "u1"), (0x09, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")],
)
def test_idx_reads_all_element_types_in_native_byte_order(code, dtype, write):
    values = np.array([[1, 2, 3], [4, 5, 100]], dtype)
    loaded = idx.load(write("values", idx_bytes(values, code)))
    assert loaded.dtype == np.dtype(dtype)
    assert loaded.dtype.isnative
    np.testing.assert_array_equal(loaded, values)


def test_idx_reports_images_and_labels_that_do_not_belong_together(write):
    images = write("images", idx_bytes(IMAGES, 0x08))
    labels = write("labels", idx_bytes(LABELS[:2], 0x08))
    with pytest.raises(DatasetError, match="labels: expected a label for each of 3 images"):
        idx.read(images, labels)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ((np.uint8(3), 0x08), (LABELS, 0x08), r"images: expected images, received an array of shape \(\)"),
        ((LABELS, 0x08), (LABELS, 0x08), r"images: expected images, received an array of shape \(3,\)"),
        ((IMAGES[:, :0], 0x08), (LABELS, 0x08), "images: expected images"),
        ((np.full((3, 2, 2), np.nan, ">f4"), 0x0D), (LABELS, 0x08), "images: expected pixels"),
        ((IMAGES, 0x08), (LABELS.astype(">f4"), 0x0D), "labels: expected labels that are integers"),
        (
            (IMAGES, 0x08),
            (np.full(3, -1, np.int8), 0x09),
            "labels: expected labels",
        ),
    ],
)
def test_idx_reports_what_are_no_images_and_labels(images, labels, message, write):
    files = write("images", idx_bytes(*images)), write("labels", idx_bytes(*labels))
    with pytest.raises(DatasetError, match=message):
        idx.read(*files)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected the header of an IDX file, received no bytes"),
        (b"PK\x03\x04....", "expected the header of an IDX file, received 50 4b 03 04"),
        (b"\0\0\x08\x03\0\0\0\x03", "expected the header of an IDX file"),
        (idx_bytes(IMAGES, 0x08)[:-1], r"expected 12 bytes of values for shape \(3, 2, 2\)"),
        (idx_bytes(IMAGES, 0x08) + b"!", "received 13"),
        (struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 3), "received 0"),
        (gzip.compress(idx_bytes(IMAGES, 0x08), mtime=0)[:-9], "expected a whole gzip file"),
    ],
)
def test_idx_says_what_is_wrong_with_a_file(content, message, write):
    with pytest.raises(DatasetError, match=f"images: .*{message}"):
        idx.load(write("images", content))


# ---- Python's syntax trees -----------------------------------------------------------------------

SOURCE = textwrap.dedent(
    '''
    def get_total(prices):
        """Long enough to be an example."""

        def isFree(price):
            return price is None or price == 0 or price in ("free", "gratis")

        return sum(price for price in prices if not isFree(price))

    class Shop:
        async def _setPrices(self, prices, currency="EUR"):
            self.prices = {name: (price, currency) for name, price in prices.items()}

        def __init__(self, prices, currency="EUR"):
            self.prices = {name: (price, currency) for name, price in prices.items()}

    def tiny():
        pass

    def _(first, second, third):
        return [first + second, second + third, third + first, first * second * third]
    '''
)


def test_python_ast_takes_functions_methods_and_nested_functions_in_the_order_of_the_file(write):
    path = write("lib/shop.py", SOURCE)
    functions = list(python_ast.read(path.parent))
    assert [(function.name, function.word) for function in functions] == [
        ("get_total", "get"),
        ("isFree", "is"),
        ("_setPrices", "set"),
    ]
    assert [function.line for function in functions] == [2, 5, 11]
    assert {function.path for function in functions} == {"shop.py"}


def test_python_ast_trees_hold_the_names_of_the_node_types(write):
    path = write("lib/a.py", "def get_sum(a, b):\n    return [a + b, a - b]\n")
    (function,) = python_ast.read(path.parent)
    names = [node.name for node in postorder(function.tree)]
    assert names == [
        *("arg", "arg", "arguments"),
        *("Load", "Name", "Add", "Load", "Name", "BinOp"),
        *("Load", "Name", "Sub", "Load", "Name", "BinOp"),
        *("Load", "List", "Return", "FunctionDef"),
    ]


def test_python_ast_skips_files_that_do_not_parse_and_folders_of_tests(write):
    good = "def get_sum(a, b):\n    return [a + b, a - b]\n"
    write("lib/b.py", good)
    write("lib/a/c.py", good)
    write("lib/bad.py", "def get_sum(a, b:\n")
    write("lib/zero.py", b"a = '\0'\n")
    write("lib/deep.py", "a = " + "(" * 100_000)
    write("lib/deeper.py", "a = " + "-" * 100_000 + "1")
    write("lib/test/d.py", good)
    path = write("lib/site-packages/e.py", good)
    functions = python_ast.read(path.parents[1])
    assert [function.path for function in functions] == ["a/c.py", "b.py"]


def test_python_ast_is_silent_about_warnings_of_the_code_that_it_reads(write, recwarn):
    path = write("lib/a.py", "def get_sum(a, b):\n    return [a + b, a - b, '\\d' is a]\n")
    assert len(list(python_ast.read(path.parent))) == 1
    assert not recwarn.list


def test_python_ast_counts_the_bytes_of_its_files(write):
    path = write("lib/a.py", "a = 1\n")
    write("lib/b.py", "b = 22\n")
    seen: list[int] = []
    list(python_ast.read(path.parent, seen.append))
    assert seen == [6, 13]
    assert [file.name for file in python_ast.files(path.parent)] == ["a.py", "b.py"]


def test_python_ast_reports_a_folder_without_python(tmp_path):
    with pytest.raises(DatasetError, match="expected Python files, found none"):
        python_ast.read(tmp_path)


def test_python_ast_reads_the_standard_library_by_default_and_always_in_the_same_order():
    reader = python_ast.read()
    again = python_ast.read()
    first = [next(reader) for _ in range(20)]
    assert first == [next(again) for _ in range(20)]
    assert all(sum(1 for _ in postorder(f.tree)) in python_ast.SIZES for f in first)


# ---- vocabulary ----------------------------------------------------------------------------------


def test_vocabulary_numbers_words_by_frequency_then_alphabet():
    vocabulary = WordIds("bacabd")
    assert vocabulary.words == ("<unknown>", "a", "b", "c", "d")
    assert [vocabulary[word] for word in "dbz"] == [4, 2, 0]
    assert "a" in vocabulary
    assert "z" not in vocabulary


def test_vocabulary_leaves_rare_words_unknown():
    vocabulary = WordIds("bacaba", least=2)
    assert vocabulary.words == ("<unknown>", "a", "b")
    assert len(vocabulary) == 3
    assert vocabulary["c"] == 0


def test_words_without_any_root_are_a_cycle_that_is_named():
    with pytest.raises(DatasetError, match="cycle of heads, received 1 'a' -> 3 'c' -> 2 'b' -> 1 'a'"):
        tree_of(list("abc"), [2, 3, 1], DatasetError)
