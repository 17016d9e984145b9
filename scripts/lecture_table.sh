#!/usr/bin/env bash
# The effect of attention: recurrent models with and without it, and Transformers, on Multi30k de-en.
#
#   bash scripts/lecture_table.sh --seeds 1,2,3 --jobs 2
#   bash scripts/lecture_table.sh --slice 300 --max-update 3 --rows none,dot     test the whole chain
#
# The report has BLEU by the source's length as a picture (lengths.png), and the rates of repeated n-grams.
#
# Options of this table:
#   --direction de-en|en-de (de-en)
#   --vocab-size N          subwords of both languages together (4000)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

DIRECTION=de-en VOCAB_SIZE=4000 BASELINES=none PARSER=none
parse_options
check_number VOCAB_SIZE
check_one_of --direction "$DIRECTION" de-en en-de
SOURCE=${DIRECTION%-*} TARGET=${DIRECTION#*-}
open_table plot "lecture_table.$DIRECTION" "direction=$DIRECTION vocab-size=$VOCAB_SIZE" \
    configs/tables/lecture_table.yaml

say "Data"
need_corpus multi30k
MULTI30K=$FOUND
TRAIN=$MULTI30K/train TEST=$MULTI30K/test_2016_flickr
slice_text
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$MULTI30K/val" --testpref "$TEST" \
    --joined-dictionary --vocab-size "$(pieces "$VOCAB_SIZE")"

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

report "$OUT/rows" "$OUT/report" test "$TEST.$TARGET.gz" '' "Recurrent models and Transformers, Multi30k $DIRECTION" \
    --source "$TEST.$SOURCE.gz" --repetition
exit "$STATUS"
