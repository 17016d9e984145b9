#!/usr/bin/env bash
# From nothing to translations: virtual environment, data, parsing, training, BLEU and a picture.
#
#   bash scripts/quickstart.sh          Multi30k de-en: about 20 minutes on 2 cores
#   bash scripts/quickstart.sh --fast   the synthetic corpus: about 4 minutes after the installation
#
# A PhraseTransformer (k = 2) and fairseq's own Transformer of the same size (configs/tables/quickstart.yaml) are
# trained side by side.
#
# Options of this table:
#   --fast                  a small synthetic corpus instead of Multi30k
#
# FAIRSEQ_PHRASE_PARSER may also be none. WORK is another name of --out (runs/quickstart, runs/quickstart-fast).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

FAST='' SOURCE=de TARGET=en JOBS=2 OUT=${WORK:-}
parse_options
OUT=${OUT:-runs/quickstart${FAST:+-fast}} MAX_EPOCH=${MAX_EPOCH:-$((FAST ? 8 : 6))}
open_table plot quickstart "fast=$FAST" configs/tables/quickstart.yaml

say "Data"
if [ -z "$FAST" ] && find_multi30k; then
    TRAIN=$MULTI30K/train DEV=$MULTI30K/val TEST=$MULTI30K/test_2016_flickr VOCABULARY=4000
    REFERENCE=$TEST.en.gz WHAT="Multi30k de-en, test_2016_flickr"
    PARSER=${FAIRSEQ_PHRASE_PARSER:-}
    [ -n "$PARSER" ] || find_parser de
    echo "Multi30k from $MULTI30K, parser $PARSER"
else
    [ -n "$FAST" ] || echo "Multi30k cannot be downloaded: using the project's own synthetic corpus"
    TRAIN=$OUT/synthetic/train DEV=$OUT/synthetic/valid TEST=$OUT/synthetic/test VOCABULARY=800 PARSER=conllu
    REFERENCE=$TEST.en WHAT="Synthetic corpus"
    synthetic_text "$OUT/synthetic" $((FAST ? 5000 : 29000)) 500
fi
slice_text
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" \
    --bpe sentencepiece --vocab-size "$(pieces "$VOCABULARY")" --joined-dictionary

say "Both models side by side: training, averaging, translating ($OUT/rows/*/*/train.log)"
train_rows "$OUT/data-bin" "$OUT/rows"

say "Result"
report "$OUT/rows" "$OUT/report" test "$REFERENCE" '' "$WHAT"
if [ -z "$DATA_ONLY" ] && [[ ,$ROWS, == *,phrase_k2,* ]]; then
    echo
    echo "attention of the first test sentence:"
    run fairseq-phrase-plot attention "$OUT/data-bin" --path "$OUT/rows/phrase_k2/seed${SEEDS%%,*}/average.pt" \
        --line 1 --out "$OUT/attention.png"
fi
exit "$STATUS"
