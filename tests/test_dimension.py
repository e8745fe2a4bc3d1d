import pytest

from phmctl.dimension import check_divides
from phmctl.errors import DimensionError


def test_what_n_divides_passes() -> None:
    check_divides(4, in_features=512, out_features=100)


@pytest.mark.parametrize(
    ("n", "dimensions", "message"),
    [
        (3, {"in_features": 512}, "n = 3 does not divide in_features = 512; the nearest n that do are 2 and 4"),
        (8, {"a": 16, "b": 12}, "n = 8 does not divide b = 12; the nearest n that does is 4"),
        (3, {"a": 7, "b": 5}, "n = 3 does not divide a = 7 and b = 5; the nearest n that does is 1"),
        (7, {"a": 512}, "n = 7 does not divide a = 512; the nearest n that do are 4 and 8"),
        (0, {"a": 4}, "n = 0 must be a whole number of at least 1"),
        (2, {"a": 0}, "a = 0 must be at least 1"),
    ],
)
def test_what_n_does_not_divide_names_the_nearest(n: int, dimensions: dict[str, int], message: str) -> None:
    with pytest.raises(DimensionError) as error:
        check_divides(n, **dimensions)
    assert str(error.value) == message
