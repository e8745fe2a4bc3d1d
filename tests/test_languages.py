import pytest

from phmctl.languages import is_code, language


@pytest.mark.parametrize(
    ("codes", "shortest"),
    [
        (("zh", "ZH", "zh-TW", "zh_Hans", "zho", "zho_Hant", "chi", "cmn"), "zh"),
        (("ja", "jpn"), "ja"),
        (("en", "en-GB", "EN"), "en"),
    ],
)
def test_the_codes_of_a_language(codes: tuple[object, ...], shortest: str) -> None:
    assert {language(code) for code in codes} == {shortest}


def test_the_form_of_a_code() -> None:
    assert all(map(is_code, ("de", "pt-BR", "zh_Hans", "zho-Hant-TW", "EN")))
    assert not any(map(is_code, ("german", "d", "de en", "zh_", "")))
