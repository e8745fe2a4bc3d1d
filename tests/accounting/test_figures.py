import pytest

from phmctl.accounting.figures import agrees, value_of


@pytest.mark.parametrize(
    ("figure", "count", "expected"),
    [
        ("44M", 44_499_999, True),
        ("44M", 44_500_001, False),
        ("5.5M", 5_538_816, True),
        ("5.5M", 5_560_000, False),
        ("721K", 721_200, True),
        ("29,421,568", 29_421_568, True),
        ("29,421,568", 29_421_569, False),
    ],
)
def test_agreement_is_rounding_to_the_printed_digits(figure, count, expected):
    assert agrees(figure, count) is expected


@pytest.mark.parametrize(("figure", "value"), [("5.5M", 5.5e6), ("721K", 721e3), ("29,421,568", 29_421_568)])
def test_the_value_of_a_figure(figure, value):
    assert value_of(figure) == value


@pytest.mark.parametrize(
    ("figure", "count", "expected"),
    [
        ("400K", 395_520, True),
        ("400K", 394_999, False),
        ("100K", 98_304, True),
        ("100K", 104_999, True),
        ("100K", 105_001, False),
    ],
)
def test_a_figure_may_be_rounded_further_than_its_digits_show(figure, count, expected):
    assert agrees(figure, count, 10_000) is expected
    assert not agrees(figure, count)
