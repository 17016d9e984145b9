#!/usr/bin/env bash
# Chunking on CoNLL-2000: F1 of spans, and phrases from a chunker.
#
#   bash scripts/chunking.sh --seeds 1,2,3 --jobs 2
#   bash scripts/chunking.sh --slice 300 --max-update 5 --rows 2        test the whole chain
#
# The row phrase_chunks takes phrases from a parser's constituents, not from the labels to predict.
#
# Options of this table:
#   --data DIR              train.txt and test.txt of CoNLL-2000, .gz too (FAIRSEQ_PHRASE_DATA/conll2000,
#                           or a download)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

DATA='' SOURCE=en TARGET=tag BASELINES=transformer,relative
parse_options
check_folder --data "$DATA"
open_table label,plot chunking "data=$DATA" configs/tables/chunking.yaml

say "Data"
RAW=$OUT/raw/labels
if [ ! -e "$RAW/test.en" ]; then
    find_data conll2000
    run python scripts/labelled_text.py conll2000 "$DATA" "$RAW"
fi
choose_parser "$OUT/data-bin" "rows with trees"
TRAIN=$RAW/train DEV=$RAW/valid TEST=$RAW/test
slice_text
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" --labels word \
    --bpe none --source-tokenized --constituents from-dependencies

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

# Relative positions do not read a tree either, and are the strongest baseline.
report "$OUT/rows" "$OUT/report" test "$TEST.tag" '' "Chunking, CoNLL-2000" \
    --measure spans --source "$TEST.en" --known-words "$TRAIN.en"
exit "$STATUS"
