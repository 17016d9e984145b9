#!/usr/bin/env bash
# Semantic parsing: questions to logical forms, with attention, with copying, and with trees.
#
#   bash scripts/semantic_parsing.sh --seeds 1,2,3 --jobs 2             Geoquery
#   bash scripts/semantic_parsing.sh --corpus atis --seeds 1,2,3 --gpus 0 --jobs 6
#   bash scripts/semantic_parsing.sh --slice 100 --max-update 5 --rows 2        test the whole chain
#
# The score is exact match of forms, next to the lecture's numbers. A form is well-formed if its brackets
# match and its predicates occur in training.
#
# Options of this table:
#   --corpus geo|atis       (geo)
#   --data DIR              its files, see scripts/logical_forms.py (FAIRSEQ_PHRASE_DATA/geo or atis, or a download)
#   --copy-words N          places for rare words, in the data of the rows that copy (20)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

CORPUS=geo DATA='' COPY_WORDS=20 SOURCE=en TARGET=lf BASELINES=additive
parse_options
check_one_of --corpus "$CORPUS" geo atis
check_number COPY_WORDS
check_folder --data "$DATA"
open_table plot "semantic_parsing.$CORPUS" "corpus=$CORPUS data=$DATA copy-words=$COPY_WORDS" \
    configs/tables/semantic_parsing.yaml "configs/tables/semantic_parsing.$CORPUS.yaml"

say "Data"
RAW=$OUT/raw/forms
if [ ! -e "$RAW/test.en" ]; then
    find_data "$CORPUS"
    run python scripts/logical_forms.py "$CORPUS" "$DATA" "$RAW"
fi
choose_parser "$OUT/data-bin.without-places" "rows with trees" # which is made last
TRAIN=$RAW/train DEV=$RAW/valid TEST=$RAW/test
slice_text
files() { # DIR OPTIONS...
    preprocess "$1" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" --bpe none --joined-dictionary \
        --source-tokenized --target-tokenized --constituents from-dependencies "${@:2}"
}
# A name that occurs in one training pair occurs in its question and in its form. Rows that copy learn to
# copy it, instead of the word itself. Rows that do not copy learn the word.
files "$OUT/data-bin" --min-count 3 --copy-words "$COPY_WORDS"
files "$OUT/data-bin.without-places" --min-count 2

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

FORM=calls
[ "$CORPUS" = geo ] || FORM=lambda
report "$OUT/rows" "$OUT/report" test "$TEST.lf" numbers "Semantic parsing, $CORPUS" --measure exact \
    --form "$FORM" --known-forms "$RAW/train.lf"
exit "$STATUS"
