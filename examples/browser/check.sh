#!/usr/bin/env bash
# `make browser-check`: train on the miniature, export to ONNX, and compare the page's translations of 100 sentences with
# those of decode. Then compare what search.html shows with Python's embeddings. `check.sh SCREENSHOT` also writes a picture.
set -euo pipefail

phmctl=${PHMCTL:-phmctl}
python=${PYTHON:-python3}
export CHROMIUM=${CHROMIUM:-chromium}
for program in node npm "$CHROMIUM"; do
    if ! command -v "$program" > /dev/null; then
        printf 'browser-check needs %s; on Debian: apt install nodejs npm chromium\n' "$program" >&2
        exit 2
    fi
done
CHROMIUM=$(command -v "$CHROMIUM")

page=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$page" && npm ci --ignore-scripts --silent && npm run --silent copy)
"$phmctl" prepare-data miniature --data "$work/data"
run=$("$phmctl" train miniature --n 4 --steps 300 --data "$work/data" --runs "$work/runs")
head -n 100 "$run/text/test.source" > "$work/source"
"$phmctl" export "$run" --to onnx -o "$work/onnx"
"$phmctl" decode "$run" --beam 1 < "$work/source" > "$work/expected"
node "$page/check.mjs" "$work/onnx" "$work/source" "$work/expected" "$@"
"$python" "$page/check_search.py" "$work/minilm" "$work/similarities"
node "$page/check_search.mjs" "$work/minilm" "$work/similarities"
