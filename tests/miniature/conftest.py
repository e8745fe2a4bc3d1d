import pytest

from phmctl.miniature import generate


@pytest.fixture(scope="session")
def miniature() -> dict[str, list[tuple[str, str]]]:
    return generate()
