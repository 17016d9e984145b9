#!/usr/bin/env bash
# The PhraseTransformer paper's table 2: part-of-speech tagging, with controls and other encoders.
#
#   bash scripts/ptb_tagging_table2.sh --seeds 1,2,3 --jobs 2           English EWT
#   bash scripts/ptb_tagging_table2.sh --data wsj --seeds 1,2,3 --gpus 0 --jobs 6
#   bash scripts/ptb_tagging_table2.sh --slice 300 --max-update 5 --rows 2   test the whole chain
#
# The paper's corpus is the Penn Treebank, which has a licence. Without it, the tags are the Penn tags (XPOS) of
# Universal Dependencies' English EWT, and the paper's numbers are not comparable. A parser makes the trees.
#
# Options of this table:
#   --data DIR              Penn Treebank, bracketed: wsj_SSNN.mrg in any folders. Sections 0-18 train, 19-21
#                           tune and 22-24 test, and rows have more updates; fewer sections, as in NLTK's
#                           sample, are split 8 : 1 : 1
#   --treebank DIR          English EWT, CoNLL-U (FAIRSEQ_PHRASE_DATA/treebanks/en_ewt, or a
#                           download)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

DATA='' TREEBANK='' SOURCE=en TARGET=tag BASELINES=transformer,relative
parse_options
check_folder --data "$DATA"
TABLE=configs/tables/ptb_tagging_table2 WHOLE='' # 1: sections after 18, as in scripts/labelled_text.py
[ ! -d "$DATA" ] || [ -z "$(find "$DATA/" '(' -name 'wsj_19*.mrg' -o -name 'wsj_2*.mrg' ')' -print -quit)" ] || WHOLE=1
open_table label,plot "ptb_tagging_table2.$([ -n "$DATA" ] && echo ptb || echo ewt)" \
    "data=$DATA treebank=$TREEBANK${WHOLE:+ whole}" "$TABLE.yaml" ${WHOLE:+"$TABLE.ptb.yaml"}

say "Data"
RAW=$OUT/raw/labels
if [ -n "$DATA" ]; then
    WHAT="Penn Treebank ($DATA)"
    [ -e "$RAW/test.en" ] || run python scripts/labelled_text.py ptb "$DATA" "$RAW"
else
    WHAT="English EWT, XPOS"
    if [ ! -e "$RAW/test.en" ]; then
        [ -n "$TREEBANK" ] || { need_corpus treebanks/en_ewt && TREEBANK=$FOUND; }
        run python scripts/labelled_text.py conllu "$TREEBANK" "$RAW" --column xpos
    fi
fi
choose_parser "$OUT/data-bin" "rows with trees"
TRAIN=$RAW/train DEV=$RAW/valid TEST=$RAW/test
slice_text
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" --labels word \
    --bpe none --source-tokenized --constituents from-dependencies

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

# Relative positions do not read a tree either, and are the strongest baseline.
report "$OUT/rows" "$OUT/report" test "$TEST.tag" \
    "Part-of-speech tagging, $WHAT (the paper's numbers: the whole Penn Treebank)" \
    --measure labels --source "$TEST.en" --known-words "$TRAIN.en"
exit "$STATUS"
