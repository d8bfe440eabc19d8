"""Data sets of a few examples, written into a folder in the formats of the real ones."""

from __future__ import annotations

import json

import numpy as np

SST = ["(3 (2 It) (4 (2 's) (3 lovely)))", "(1 (2 No) (1 way))", "(2 (3 lovely) (1 way))"]
SST += ["(0 (2 it) (0 No))"]
CONLL = "Near\tO\nSonmarg\tB-place\n\nIt\tO\nis\tO\nin\tO\nNew\tB-place\nYork\tI-place\n\nIt\tO\nis\tO\n\n"
LISTOPS = "4\t( ( ( ( [MAX 2 ) 4 ) 1 ) ] )\n3\t( ( ( [MIN 3 ) 9 ) ] )\n2\t( ( ( [LAST 1 ) 2 ) ] )\n"
SNLI = [
    ("neutral", "( a ( tall man ) )", "( a man )"),
    ("entailment", "( a man )", "( a man )"),
    ("contradiction", "( no man )", "( a ( tall man ) )"),
]
PLAN = {
    "Node Type": "Limit",
    "Plan Rows": 5,
    "Total Cost": 900.0,
    "Actual Total Time": 20.5,
    "Plans": [
        {
            "Node Type": "Seq Scan",
            "Parent Relationship": "Outer",
            "Total Cost": 300.0,
            "Actual Total Time": 4.0,
        }
    ],
}


def sst(folder):
    for part in ("train", "dev", "test"):
        (folder / f"{part}.txt").write_text("\n".join(SST))
    return folder


def sick(folder):
    texts = {"a.toks": "dogs bark\na dog\ndogs", "a.parents": "2 0\n2 0\n0"}
    texts |= {"b.toks": "silence\na dog barks\ndogs", "b.parents": "0\n2 3 0\n0", "sim.txt": "1.5\n4\n5"}
    for part in ("train", "dev", "test"):
        (folder / part).mkdir()
        for name, text in texts.items():
            (folder / part / name).write_text(text)
    return folder


def conll(folder):
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        (folder / name).write_text(CONLL * 2)
    return folder


def listops(folder):
    (folder / "all.tsv").write_text(LISTOPS * 3)
    return folder / "all.tsv"


def snli(folder):
    rows = [
        {"gold_label": label, "sentence1_binary_parse": left, "sentence2_binary_parse": right}
        for label, left, right in SNLI
    ]
    for part in ("train", "dev", "test"):
        (folder / f"snli_1.0_{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def plans(folder):
    for number in range(4):
        (folder / f"{number}.json").write_text(json.dumps([{"Plan": PLAN}]))
    return folder


def digits(folder):
    counts = {"train": 20, "t10k": 4}
    for part, count in counts.items():
        pixels = np.arange(count * 4) % 7
        labels = np.arange(count) % 3
        for kind, values, shape in (("images", pixels, (count, 2, 2)), ("labels", labels, (count,))):
            head = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
            name = f"{part}-{kind}-idx{len(shape)}-ubyte"
            (folder / name).write_bytes(head + values.astype("u1").tobytes())
    return folder


WRITE = {
    "sst": sst,
    "sick": sick,
    "tagging": conll,
    "segmentation": conll,
    "listops": listops,
    "snli": snli,
    "plans": plans,
    "digits": digits,
}
"""What writes the data of each task."""
