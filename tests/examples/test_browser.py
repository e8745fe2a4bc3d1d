"""The web page of ``examples/browser``; ``make browser-check`` opens it."""

import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "examples" / "browser"


def test_the_packages_have_exact_versions_and_no_addresses() -> None:
    package, lock = (json.loads((PAGE / name).read_text()) for name in ("package.json", "package-lock.json"))
    wanted = package["dependencies"] | package["devDependencies"]
    locked = {name: lock["packages"][f"node_modules/{name}"]["version"] for name in wanted}
    assert wanted == locked
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())
    assert not any("resolved" in entry for entry in lock["packages"].values())


def test_the_page_and_its_check_are_small() -> None:
    lines = sum(len((PAGE / name).read_text().splitlines()) for name in ("index.html", "translator.js", "check.mjs"))
    assert lines <= 250
