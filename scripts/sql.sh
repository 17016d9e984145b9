#!/usr/bin/env bash
# Questions to SQL, WikiSQL: aggregate, column and conditions as one sequence, with copying and without.
#
#   bash scripts/sql.sh --seeds 1,2,3 --jobs 2
#   bash scripts/sql.sh --slice 100 --max-update 5 --rows 2             test the whole chain
#
# The source is the question and the names of the table's columns (scripts/wikisql.py).
#
# Options of this table:
#   --data FILE             text2sql-data's wikisql.json, .bz2 too (that of
#                           FAIRSEQ_PHRASE_DATA/wikisql, or a download)
#   --train-size N          questions to train on (10000)
#   --test-size N           questions to test on (1000)
#   --copy-words N          places for words that training has less than five times (15)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

DATA=''
TRAIN_SIZE=10000 TEST_SIZE=1000 COPY_WORDS=15 SOURCE=en TARGET=sql BASELINES=additive PARSER=none
parse_options
for name in TRAIN_SIZE TEST_SIZE COPY_WORDS; do check_number "$name"; done
[ -z "$DATA" ] || [ -e "$DATA" ] || lack "--data $DATA: there is no such file"
open_table plot,forms "sql.$TRAIN_SIZE" \
    "data=$DATA train-size=$TRAIN_SIZE test-size=$TEST_SIZE copy-words=$COPY_WORDS" configs/tables/sql.yaml

say "Data"
RAW=$OUT/raw/queries
if [ ! -e "$RAW/test.en" ]; then
    [ -n "$DATA" ] || { need_corpus wikisql && DATA=$FOUND/wikisql.json.bz2; }
    run python scripts/wikisql.py "$DATA" "$RAW" --train "$TRAIN_SIZE" --held-out "$TEST_SIZE"
fi
TRAIN=$RAW/train DEV=$RAW/valid TEST=$RAW/test
slice_text
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" --bpe none --min-count 5 \
    --copy-words "$COPY_WORDS" --joined-dictionary --source-tokenized --target-tokenized

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

report "$OUT/rows" "$OUT/report" test "$TEST.sql" '' "WikiSQL, $TRAIN_SIZE training questions" --measure exact --form sql
exit "$STATUS"
