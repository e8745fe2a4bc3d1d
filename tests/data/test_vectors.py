"""Word vectors: the text format with its oddities."""

import numpy as np
import pytest

from phmctl.data import SPECIAL_TOKENS
from phmctl.data.prepared import read_vectors
from phmctl.errors import DataError
from tests.data.helpers import put

WORDS = [*SPECIAL_TOKENS, " dog", " Cat", " .", "."]


@pytest.mark.parametrize("name", ["v.txt", "v.txt.gz"])
def test_the_table(tmp_path, name):
    path = put(tmp_path / name, "dog 1 2", "cat 3 6", ". 5 1", "unseen 100 100", "dog 9 9")
    table, covered = read_vectors(path, WORDS)
    assert covered.tolist() == [False] * 4 + [True] * 4
    mean = [(1 + 3 + 5 + 5) / 4, (2 + 6 + 1 + 1) / 4]  # what the file lacks is an average word
    np.testing.assert_allclose(table, [[0, 0], mean, mean, mean, [1, 2], [3, 6], [5, 1], [5, 1]])
    assert table.dtype == np.float32


def test_the_cased_word_is_taken_before_the_lower_case_one(tmp_path):
    table, _ = read_vectors(put(tmp_path / "v", "cat 3.0 6.0", "Cat 7.0 8.0"), WORDS)
    assert table[5].tolist() == [7, 8]


def test_words_with_spaces_and_a_first_line_of_counts(tmp_path):
    """GloVe 840B has words like ". . ." and "sept 11": the vector is the last numbers of a line."""
    lines = ["dog 0.1 0.2", ". . . 0.5 0.6", "at name@domain.com 0.3 0.4", ". 0.7 0.8", "sept 11 1.1 1.2", "11 1.3 1.4"]
    path = put(tmp_path / "v", "7 2", *lines, "at 5 0.9 1e-3")
    table, _ = read_vectors(path, [*WORDS, " 11", " sept 11", " at 5"])
    expected = [[0.1, 0.2], [0.7, 0.8], [1.3, 1.4], [1.1, 1.2], [0.9, 1e-3]]
    np.testing.assert_allclose(table[[4, 6, 8, 9, 10]], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "row",
    [
        *(f"cat {number} 0.1" for number in ("nan", "inf", "-Infinity", "1e60", "a")),
        *("cat 0.1", "cat 0.1 0.2 0.3", "0.1 0.2 0.3 0.4", "cat -1E3 2e1 3e1"),
    ],
)
def test_invalid_rows(tmp_path, row):
    with pytest.raises(DataError, match="v, line 2:"):
        read_vectors(put(tmp_path / "v", "dog 0.1 0.2", row), WORDS)


def test_a_file_without_words_of_the_vocabulary(tmp_path):
    with pytest.raises(DataError, match=r"v .*\b8\b"):
        read_vectors(put(tmp_path / "v", "x 0.1 0.2"), WORDS)


def test_real_glove(real_data):
    path = real_data / "glove" / "glove.6B.300d.subset.derived.txt.gz"
    table, covered = read_vectors(path, [*SPECIAL_TOKENS, " the", " The", " zyzzyva"])
    assert table.shape == (7, 300)
    assert covered.tolist()[4:] == [True, True, False]
    assert table[4, 0] == np.float32(0.04656)
