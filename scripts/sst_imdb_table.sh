#!/usr/bin/env bash
# Classification with trees: SST-5, SST-2 and IMDB.
#
#   bash scripts/sst_imdb_table.sh --task sst5 --seeds 1,2,3 --jobs 2
#   bash scripts/sst_imdb_table.sh --task imdb --seeds 1,2,3 --gpus 0 --jobs 4
#   bash scripts/sst_imdb_table.sh --task sst2 --slice 300 --max-update 5 --rows 2   test the whole chain
#
# SST has its own trees. All phrases of the training trees are examples. IMDB's documents are parsed; the sentences
# of a document are trees under one root. Reviews longer than 1,000 subwords are left out of training and
# validation. Longer test reviews are truncated to 1,024 tokens (truncate_source): each has a label.
#
# Options of this table:
#   --task sst5|sst2|imdb   (sst5)
#   --phrases train|none    SST: train on all phrases, or on sentences only (train)
#   --data DIR              train.txt, dev.txt and test.txt of SST, or train.tsv and test.tsv of IMDB, .gz too
#                           (FAIRSEQ_PHRASE_DATA/sst or imdb)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

TASK=sst5 PHRASES=train DATA='' SOURCE=en TARGET=class BASELINES=transformer,transformer_relative
parse_options
check_folder --data "$DATA"
open_table label,plot "sst_imdb_table.$TASK" "task=$TASK phrases=$PHRASES data=$DATA" \
    configs/tables/sst_imdb_table.yaml "configs/tables/sst_imdb_table.$TASK.yaml"

say "Data"
RAW=$OUT/raw/labels SEGMENTATION=(--labels sentence) OWN_TREES=()
if [ "$TASK" = imdb ]; then
    WHAT="IMDB, reviews truncated to 1,024 tokens"
    if [ ! -e "$RAW/test.en" ]; then
        find_data imdb
        run python scripts/labelled_text.py imdb "$DATA" "$RAW" ${SLICE:+--slice "$SLICE"}
    fi
    choose_parser "$OUT/data-bin" "rows with trees"
    SEGMENTATION+=(--constituents from-dependencies --vocab-size 8000 --max-length 1000)
else
    WHAT="SST-${TASK#sst}, $([ "$PHRASES" = train ] && echo "all phrases" || echo "sentences") in training"
    if [ ! -e "$RAW/test.en" ]; then
        find_data sst
        run python scripts/labelled_text.py sst "$DATA" "$RAW" --classes "${TASK#sst}" --phrases "$PHRASES"
    fi
    # The treebank's own trees fit its text. If one did not, a flat tree would hide it.
    PARSER=ptb OWN_TREES=(--on-error stop)
    SEGMENTATION+=(--source-tokenized --bpe none --min-count 2)
fi
TRAIN=$RAW/train DEV=$RAW/valid TEST=$RAW/test
if [ "$TASK" != imdb ]; then
    slice_text
    [ -z "$SLICE" ] || make_file "$TRAIN.en.ptb" python scripts/slice.py "$RAW/train" en.ptb "$SLICE"
fi
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" "${SEGMENTATION[@]}" "${OWN_TREES[@]}"

say "Rows ($OUT)"
CHOSEN=$ROWS
if [ "$TASK" != imdb ] && [[ ,$ROWS, == *,structural,* ]]; then
    # SST's trees lack dependencies. This row gets a parser's dependencies.
    choose_parser "$OUT/data-bin.dependencies" "the row structural"
    preprocess "$OUT/data-bin.dependencies" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" \
        --tgtdict "$OUT/data-bin/dict.class.txt" "${SEGMENTATION[@]}"
    ROWS=structural
    train_rows "$OUT/data-bin.dependencies" "$OUT/rows"
    ROWS=,$CHOSEN, ROWS=${ROWS/,structural,/,} ROWS=${ROWS#,} ROWS=${ROWS%,}
fi
[ -z "$ROWS" ] || train_rows "$OUT/data-bin" "$OUT/rows"
ROWS=$CHOSEN

report "$OUT/rows" "$OUT/report" test "$TEST.class" numbers "Classification, $WHAT" --measure labels \
    --source "$TEST.en"
exit "$STATUS"
