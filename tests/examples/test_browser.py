"""The web page of ``examples/browser``; ``make browser-check`` opens it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tokenizers import normalizers

PAGE = Path(__file__).parents[2] / "examples" / "browser"


def test_the_packages_have_exact_versions_and_no_addresses() -> None:
    package, lock = (json.loads((PAGE / name).read_text()) for name in ("package.json", "package-lock.json"))
    wanted = package["dependencies"] | package["devDependencies"]
    locked = {name: lock["packages"][f"node_modules/{name}"]["version"] for name in wanted}
    assert wanted == locked
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())
    assert not any("resolved" in entry for entry in lock["packages"].values())


def test_the_page_lower_cases_as_the_tokenizers_of_python_do() -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    [function] = re.findall(r"^const lowercase = .*$", (PAGE / "translator.js").read_text(), re.MULTILINE)
    texts = ["ΟΔΟΣ", "ΣΊΣΥΦΟΣ ΣΑΣ.", "İstanbul ÄÖÜ ẞ", "𐐀 Ǆ"]
    program = f"{function}; console.log(JSON.stringify({json.dumps(texts)}.map(lowercase)))"
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [normalizers.Lowercase().normalize_str(text) for text in texts]
