#!/usr/bin/env bash
# The demonstration behind `make demo`: the built-in miniature from raw text to a table of parameters.
set -euo pipefail

phmctl=${PHMCTL:-phmctl}
runs=runs/miniature/phm-n4

step() {
    printf '\n$ phmctl %s\n' "$*"
    "$phmctl" "$@"
}

started=$SECONDS
step prepare-data miniature
step train miniature --n 4
run=$(ls -d "$runs"/v* | sort -V | tail -n 1)
printf '\n$ head -n 5 %s/text/test.source | phmctl decode %s\n' "$run" "$run"
head -n 5 "$run/text/test.source" | "$phmctl" decode "$run"
step decode "$run" --split test
step eval "$run" --split test
step count-params miniature --n 1,2,4,8,16
printf '\nThe run lies in %s (%d seconds in all).\n' "$run" "$((SECONDS - started))"
