#!/usr/bin/env bash
# The commands of `make demo`: from the raw text of the built-in miniature corpus to a comparison of three models.
set -euo pipefail

phmctl=${PHMCTL:-phmctl}
minimum=75 # test BLEU of PHM and of its dense twin; a lower score means that something is broken
size=(--set model.width=52 --set model.feed_forward=208) # a dense model with as many weights as the PHM model

shown() { printf '\n$ %s %s\n' "$phmctl" "$*"; }
step() {
    shown "$@"
    "$phmctl" "$@"
}
bleu() { sed -n '/"name": "BLEU"/{n;s/.*"value": \([0-9.]*\).*/\1/p;q}' "$1"/results/test.*.json; }
run_of() { awk -v label="$1" 'index($0, label) == 1 { print $NF }' "$2"; } # the folder, from the table of a sweep

started=$SECONDS
tables=$(mktemp -d)
trap 'rm -r "$tables"' EXIT
step prepare-data miniature
printf '\nThree models are trained at once: PHM (n = 4), its dense twin, and a dense model of the size of PHM.\n'
shown sweep miniature --n 4,1 --jobs 3
shown sweep miniature --n 1 "${size[@]}" --jobs 3
"$phmctl" sweep miniature --n 1 "${size[@]}" --jobs 3 >"$tables/small" 2> >(sed 's/^all values/small/' >&2) &
small_sweep=$!
trap 'kill -TERM $small_sweep' INT # a shell lets its background commands ignore Ctrl-C
"$phmctl" sweep miniature --n 4,1 --jobs 3 >"$tables/twins" || { wait; exit 1; }
wait $small_sweep
run=$(run_of n=4 "$tables/twins")
dense=$(run_of n=1 "$tables/twins")
small=$(run_of all "$tables/small")

step compare "$run" "$dense" "$small" --baseline "$dense" --eval
awk -v phm="$(bleu "$run")" -v dense="$(bleu "$dense")" -v small="$(bleu "$small")" '
    function beside(other) { return sprintf("%.1f BLEU %s", phm < other ? other - phm : phm - other, phm < other ? "below" : "above") }
    BEGIN {
        printf "\nPHM has a quarter of the weights of its dense twin: it scores %s the twin, ", beside(dense)
        printf "and %s a dense model of its own size. ", beside(small)
        if (phm < dense) print "At this size PHM still loses to the large model."
        else print "It loses nothing to the large model."
    }'
printf '\n$ head -n 5 %s/text/test.source | %s decode %s\n' "$run" "$phmctl" "$run"
translations=$(head -n 5 "$run/text/test.source" | "$phmctl" decode "$run")
paste -d '\n' <(head -n 5 "$run/text/test.source" | sed 's/^/  /') <(printf '%s\n' "$translations" | sed 's/^/  → /')
file=$run/exports/small
step export "$run" --to safetensors --quantize int8 --with-text --output "$file" --force

for each in "$run" "$dense"; do
    if ! awk -v bleu="$(bleu "$each")" -v minimum="$minimum" 'BEGIN { exit !(bleu >= minimum) }'; then
        printf '%s: test BLEU is %s; it should be at least %s\n' "$each" "$(bleu "$each")" "$minimum" >&2
        exit 1
    fi
done

cat <<END

Done in $(((SECONDS - started + 59) / 60)) minutes. The runs are $run, $dense and $small. Go on with:
  echo "Der kleine Hund wandert zum Hafen." | $phmctl decode $run
  $phmctl eval $file    # the small file scores like the run; plain.py in it needs torch and safetensors alone
  $phmctl prepare-data talks --recipe miniature --train FILE.tsv --split 1000,1000    # your own pairs
END
