"""One recording with the same NumPy weights gives the same answers on every backend."""

from __future__ import annotations

import numpy as np
import pytest

from multifold import MismatchError
from multifold_bench import same_answers


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    return same_answers.reference()


def test_answers_equal_the_reference(backend: str, reference: dict[str, np.ndarray]) -> None:
    got = same_answers.answers(backend)
    assert len(got) == (2 if backend == "numpy" else len(reference))
    same_answers.compare(got, reference)


def test_a_wrong_answer_is_found(reference: dict[str, np.ndarray]) -> None:
    wrong = {name: (x + 1e-3).astype(np.float32) for name, x in reference.items()}
    with pytest.raises(MismatchError, match="binary: values"):
        same_answers.compare(wrong, reference)


def test_answers_travel_through_files(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    same_answers.main(["--backend", "numpy", "--out", str(tmp_path)])
    same_answers.main(["--compare", str(tmp_path)])
    assert capsys.readouterr().out.startswith("numpy: 2 arrays")
