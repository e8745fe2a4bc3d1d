#!/usr/bin/env bash
# The demonstration behind `make demo`: the built-in miniature from raw text to a table of parameters.
set -euo pipefail

phmctl=${PHMCTL:-phmctl}
asked=60 # test BLEU; below it something is broken

step() {
    printf '\n$ phmctl %s\n' "$*"
    "$phmctl" "$@"
}

started=$SECONDS
step prepare-data miniature
printf '\n$ phmctl train miniature --n 4\n'
run=$("$phmctl" train miniature --n 4) # the run's folder is all that it prints on stdout
printf '\n$ head -n 5 %s/text/test.source | phmctl decode %s\n' "$run" "$run"
translations=$(head -n 5 "$run/text/test.source" | "$phmctl" decode "$run")
paste -d '\n' <(head -n 5 "$run/text/test.source" | sed 's/^/  /') <(printf '%s\n' "$translations" | sed 's/^/  → /')
step eval "$run" --split test
step count-params miniature --n 1,2,4,8,16
printf '\nThe run lies in %s (%d seconds in all).\n' "$run" "$((SECONDS - started))"

bleu=$(sed -n '/"name": "BLEU"/{n;s/.*"value": \([0-9.]*\).*/\1/p}' "$run"/results/test.*.json)
if ! awk -v bleu="$bleu" -v asked="$asked" 'BEGIN { exit !(bleu >= asked) }'; then
    printf 'test BLEU is %s; it should be %s or more\n' "${bleu:-missing}" "$asked" >&2
    exit 1
fi
