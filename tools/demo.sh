#!/usr/bin/env bash
# The commands of `make demo`: from the raw text of the built-in miniature corpus to a comparison of two models.
set -euo pipefail

phmctl=${PHMCTL:-phmctl}
minimum=60 # test BLEU of the PHM model; a lower score means that something is broken

shown() { printf '\n$ %s %s\n' "$phmctl" "$*"; }
step() {
    shown "$@"
    "$phmctl" "$@"
}
train() { # writes nothing but the run's folder to stdout
    shown train miniature "$@" >&2
    "$phmctl" train miniature "$@"
}

started=$SECONDS
printf 'A PHM model (n = 4) and its dense twin are trained in turn, 1,800 steps each.\n'
printf 'All steps take 10 minutes on two idle cores, 25 on a busy machine; after 50 steps the training tells its time.\n'
step prepare-data miniature
run=$(train --n 4)
dense=$(train --n 1)

printf '\n$ head -n 5 %s/text/test.source | %s decode %s\n' "$run" "$phmctl" "$run"
translations=$(head -n 5 "$run/text/test.source" | "$phmctl" decode "$run")
paste -d '\n' <(head -n 5 "$run/text/test.source" | sed 's/^/  /') <(printf '%s\n' "$translations" | sed 's/^/  → /')
step compare "$run" "$dense" --eval
step count-params miniature --n 1,4
small=$run/exports/small
step export "$run" --to safetensors --quantize int8 --with-text --output "$small" --force

bleu=$(sed -n '/"name": "BLEU"/{n;s/.*"value": \([0-9.]*\).*/\1/p;q}' "$run"/results/test.*.json)
if ! awk -v bleu="$bleu" -v minimum="$minimum" 'BEGIN { exit !(bleu >= minimum) }'; then
    printf 'test BLEU is %s; it should be at least %s\n' "${bleu:-missing}" "$minimum" >&2
    exit 1
fi

cat <<END

Done in $(((SECONDS - started + 59) / 60)) minutes. The runs are $run and $dense. Go on with:
  echo "Der kleine Hund wandert zum Hafen." | $phmctl decode $run
  $phmctl eval $small    # the small file scores like the run; plain.py in it needs torch and safetensors alone
  $phmctl prepare-data talks --recipe miniature --train FILE.tsv --split 1000,1000    # your own pairs
END
