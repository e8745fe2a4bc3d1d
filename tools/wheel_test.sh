#!/usr/bin/env bash
# Build the wheel, install it into an empty folder, and use it from there, without the checkout. The dependencies come
# from the interpreter PYTHON; no network is needed if the build backend is installed.
set -euo pipefail

python=$(realpath -s "${PYTHON:-python3}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir "$work/wheel" .
"$python" -m pip --disable-pip-version-check install --quiet --no-deps --no-index --target "$work/site" "$work"/wheel/*.whl
mkdir "$work/elsewhere"
cd "$work/elsewhere"
export PYTHONPATH="$work/site"
"$python" - <<'PYTHON'
from pathlib import Path

import phmctl
from phmctl.shipped import read_miniature
from phmctl.data.card import load_card
from phmctl.recipe.loading import load_recipe
from phmctl.shipped import shipped_names

site = Path(phmctl.__file__).resolve().parents[1]
if site == Path.cwd() or (site / "pyproject.toml").exists():
    raise SystemExit(f"imported the checkout at {site}, not the wheel")
recipes = [load_recipe(name) for name in shipped_names("recipes")]
cards = [load_card(name) for name in shipped_names("cards")]
pairs = read_miniature()["train"]
pages = [Path(phmctl.__file__).with_name(part) / "page.html" for part in ("serving", "results")]
if not recipes or not cards or len(pairs) != 8000 or not all(page.is_file() for page in pages):
    raise SystemExit("the wheel lacks recipes, cards, the miniature or a page")
print(f"wheel: {len(recipes)} recipes, {len(cards)} cards, the miniature")
PYTHON
"$work/site/bin/phmctl" count-params miniature --n 1,4
