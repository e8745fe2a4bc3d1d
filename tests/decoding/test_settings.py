import pytest

from phmctl.decoding.translator import change_decoding
from phmctl.errors import RecipeError
from phmctl.recipe.schema import DecodingSection


def test_none_leaves_a_setting() -> None:
    assert change_decoding(DecodingSection(beam=7), beam=None, alpha=0.0) == DecodingSection(beam=7, alpha=0.0)


@pytest.mark.parametrize(
    ("change", "message"), [({"beam": 0}, "--beam 0"), ({"batch_tokens": -1}, "--batch-tokens -1")]
)
def test_a_value_out_of_range_names_its_option(change: dict, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        change_decoding(DecodingSection(), **change)


def test_float32_by_name_is_float32() -> None:
    half = change_decoding(DecodingSection(), precision="bfloat16")
    assert half != DecodingSection() == change_decoding(half, precision="float32")
