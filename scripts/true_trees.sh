#!/usr/bin/env bash
# True trees: what gold trees of natural text bring to translation, compared with a parser's trees and with controls.
#
#   bash scripts/true_trees.sh --seeds 1,2,3,4,5 --jobs 2               UD ATIS, English to Turkish, every row
#   bash scripts/true_trees.sh --direction tr-en --seeds 1,2,3,4,5      UD ATIS, Turkish to English
#   bash scripts/true_trees.sh --direction en-it --seeds 1,2,3,4,5      ParTUT, English to Italian
#   bash scripts/true_trees.sh --slice 300 --max-update 3 --rows 2      test the whole chain
#
# People annotated the trees. Every row is compared with relative positions. Every training ends by its validation loss.
#
# Options of this table:
#   --direction en-tr|tr-en|en-it
#                           (en-tr)
#   --data DIR              DIR/{train,valid,test}.LANG.conllu, .gz too, of both languages (FAIRSEQ_PHRASE_DATA/treebanks/
#                           atis_en_tr or partut_en_it, or a download)
#   --vocab-size N          subwords of both languages together (1500)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

DIRECTION=en-tr DATA='' VOCAB_SIZE=1500 BASELINES=relative
parse_options
check_folder --data "$DATA"
SOURCE=${DIRECTION%-*} TARGET=${DIRECTION#*-}
CORPUS=atis_en_tr WHAT='UD ATIS' FILES=(configs/tables/true_trees.yaml)
[ "$DIRECTION" != en-it ] || CORPUS=partut_en_it WHAT=ParTUT
[ "$DIRECTION" != en-tr ] || FILES+=(configs/tables/true_trees.en-tr.yaml)
open_table plot "true_trees.$DIRECTION" "direction=$DIRECTION data=$DATA vocab-size=$VOCAB_SIZE" "${FILES[@]}"

# parsed NAME: the data data-bin.NAME, of the same words and subwords, with the trees of PARSER. The text has its
# words at white space.
parsed() {
    preprocess "$OUT/data-bin.$1" --trainpref "$RAW/train" --validpref "$RAW/valid" --testpref "$RAW/test" \
        --constituents from-dependencies --source-tokenized --joined-dictionary \
        --sentencepiece-model "$OUT/data-bin/spm.model" --srcdict "$OUT/data-bin/dict.$SOURCE.txt"
}

say "Data"
RAW=$OUT/raw/trees
if [ ! -e "$RAW/test.$TARGET" ]; then
    find_data "treebanks/$CORPUS"
    run python scripts/parallel_trees.py "$DATA/train" "$SOURCE" "$TARGET" "$RAW/train" ${SLICE:+--pairs "$SLICE"}
    for split in valid test; do
        run python scripts/parallel_trees.py "$DATA/$split" "$SOURCE" "$TARGET" "$RAW/$split"
    done
fi
TEST=$RAW/test PARSER=conllu:surface
preprocess "$OUT/data-bin" --trainpref "$RAW/train" --validpref "$RAW/valid" --testpref "$TEST" \
    --constituents from-dependencies --joined-dictionary --vocab-size "$VOCAB_SIZE"
if [[ -z $REPORT_ONLY && ( -n $NO_ROWS || ,$ROWS, =~ _(parsed|adapted), ) ]]; then
    choose_parser "$OUT/data-bin.adapted" "rows with a parser's trees"
    parsed parsed
    # OUT/parser.txt has its scores before and after, on the end of the training trees and on the test set.
    if [ ! -e "$OUT/parser" ]; then
        run rm -f "$OUT/parser.txt" # kept results have that file without the parser
        make_file "$OUT/parser.txt" python scripts/adapt_parser.py "${PARSER#spacy:}" "$RAW/train.$SOURCE.conllu" \
            "$OUT/parser" --measure "$TEST.$SOURCE.conllu" ${SLICE:+--held-out 20}
    fi
    PARSER=spacy:$OUT/parser
    parsed adapted
fi
PARSER=conllu:surface

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

report "$OUT/rows" "$OUT/report" test "$TEST.$TARGET" "True trees: $WHAT, $DIRECTION"
exit "$STATUS"
