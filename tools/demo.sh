#!/usr/bin/env bash
# The commands of `make demo`: from the raw text of the built-in miniature corpus to a table of parameters.
set -euo pipefail

phmctl=${PHMCTL:-phmctl}
minimum=60 # test BLEU; a lower score means that something is broken

step() {
    printf '\n$ phmctl %s\n' "$*"
    "$phmctl" "$@"
}

started=$SECONDS
step prepare-data miniature
printf '\n$ phmctl train miniature --n 4\n'
run=$("$phmctl" train miniature --n 4) # prints only the run's folder on stdout
printf '\n$ head -n 5 %s/text/test.source | phmctl decode %s\n' "$run" "$run"
translations=$(head -n 5 "$run/text/test.source" | "$phmctl" decode "$run")
paste -d '\n' <(head -n 5 "$run/text/test.source" | sed 's/^/  /') <(printf '%s\n' "$translations" | sed 's/^/  → /')
step eval "$run" --split test
step count-params miniature --n 1,2,4,8,16
printf '\nThe run is in %s (%d seconds in total).\n' "$run" "$((SECONDS - started))"

bleu=$(sed -n '/"name": "BLEU"/{n;s/.*"value": \([0-9.]*\).*/\1/p}' "$run"/results/test.*.json)
if ! awk -v bleu="$bleu" -v minimum="$minimum" 'BEGIN { exit !(bleu >= minimum) }'; then
    printf 'test BLEU is %s; it should be at least %s\n' "${bleu:-missing}" "$minimum" >&2
    exit 1
fi
