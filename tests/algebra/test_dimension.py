import numpy
import pytest

from phmctl.algebra.dimension import check_divides
from phmctl.errors import DimensionError


def test_n_that_divides_every_dimension_is_accepted() -> None:
    check_divides(4, in_features=512, out_features=100)


@pytest.mark.parametrize(
    ("n", "dimensions", "place"),
    [
        (3, {"in_features": 512}, r"n = 3 .*in_features = 512; .*n = 2 or 4$"),
        (8, {"a": 16, "b": 12}, r"n = 8 .*b = 12; .*n = 4$"),
        (3, {"a": 7, "b": 5}, r"n = 3 .*a = 7 and b = 5; .*n = 1$"),
        (7, {"a": 512}, r"n = 7 .*a = 512; .*n = 4 or 8$"),
        (0, {"a": 4}, "^n = 0"),
        (2, {"a": 0}, "^a = 0"),
        (True, {"a": 4}, "^n = True"),
        (2.0, {"a": 4}, r"^n = 2\.0"),
        (numpy.array([2, 2]), {"a": 4}, r"^n = array"),
    ],
)
def test_an_error_names_the_dimension_and_the_nearest_n(n: int, dimensions: dict[str, int], place: str) -> None:
    with pytest.raises(DimensionError, match=place):
        check_divides(n, **dimensions)
