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
DIRECTION=en-tr VOCAB_SIZE=1500

choose() {
    CORPUS=atis_en_tr WHAT='True trees: UD ATIS'
    [ "$DIRECTION" != en-it ] || CORPUS=partut_en_it WHAT='True trees: ParTUT'
}

# The adapted parser is also measured on the test set.
before_data() {
    [ "$1" != data-bin.adapted ] || adapt_parser "$TRAIN.$SOURCE.conllu" --measure "$TEST.$SOURCE.conllu"
}
. "$(dirname "$0")/run_table.sh"
