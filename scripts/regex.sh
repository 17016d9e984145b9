#!/usr/bin/env bash
# Descriptions to regular expressions, NL-RX: exact match, and equality of languages.
#
#   bash scripts/regex.sh --seeds 1,2,3 --jobs 2                        made-up sentences
#   bash scripts/regex.sh --corpus turk --seeds 1,2,3 --jobs 2          paraphrases by people
#   bash scripts/regex.sh --slice 100 --max-update 5 --rows 2           test the whole chain
#
# greenery compares the languages, each pair for a few seconds at most.
#
# Options of this table:
#   --corpus synth|turk     (synth)
#   --data DIR              its files, see scripts/logical_forms.py (FAIRSEQ_PHRASE_DATA/regex/CORPUS, or a
#                           download)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

CORPUS=synth DATA='' SOURCE=en TARGET=lf BASELINES=none PARSER=none
parse_options
check_one_of --corpus "$CORPUS" synth turk
check_folder --data "$DATA"
open_table plot,forms "regex.$CORPUS" "corpus=$CORPUS data=$DATA" configs/tables/regex.yaml

say "Data"
RAW=$OUT/raw/forms
if [ ! -e "$RAW/test.en" ]; then
    find_data "regex/$CORPUS"
    run python scripts/logical_forms.py regex "$DATA" "$RAW"
fi
TRAIN=$RAW/train DEV=$RAW/valid TEST=$RAW/test
slice_text
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" --bpe none \
    --copy-words 5 --joined-dictionary --source-tokenized --target-tokenized

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

report "$OUT/rows" "$OUT/report" test "$TEST.lf" '' "Regular expressions, NL-RX $CORPUS" --measure exact --form regex
exit "$STATUS"
