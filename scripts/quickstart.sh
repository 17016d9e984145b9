#!/usr/bin/env bash
# From nothing to translations: virtual environment, data, parsing, training, BLEU and a picture.
#
#   bash scripts/quickstart.sh          Multi30k de-en: about 20 minutes on 2 cores
#   bash scripts/quickstart.sh --fast   the synthetic corpus: about 4 minutes after the installation
#
# A PhraseTransformer (k = 2) and fairseq's own Transformer of the same size (configs/quickstart) are
# trained side by side. Run it again after Ctrl-C: it goes on where it was. Settings: see
# scripts/common.sh, and
#   FAIRSEQ_PHRASE_PARSER   parser of the German side, spacy:MODEL or none (found or downloaded)
#   WORK                    where everything goes (runs/quickstart, runs/quickstart-fast)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

FAST=
case "${1:-}" in
    --fast) FAST=1 ;;
    '') ;;
    *) die "usage: bash scripts/quickstart.sh [--fast]" ;;
esac
WORK=${WORK:-runs/quickstart${FAST:+-fast}}
ensure_environment plot
mkdir -p "$WORK"

synthetic() { # TRAIN_SIZE
    TRAIN=$WORK/raw/train VALID=$WORK/raw/valid TEST=$WORK/raw/test PARSER=conllu
    [ -e "$TEST.en" ] || fairseq-phrase-synthetic --out "$WORK/raw" --train "$1" --valid 500 --test 500
    REFERENCE=$TEST.en WHAT="Synthetic corpus"
}

say "Data"
if [ -n "$FAST" ]; then
    synthetic 5000
    VOCABULARY=800 EPOCHS=8
elif find_multi30k; then
    TRAIN=$MULTI30K/train VALID=$MULTI30K/val TEST=$MULTI30K/test_2016_flickr
    REFERENCE=$TEST.en.gz WHAT="Multi30k de-en, test_2016_flickr"
    VOCABULARY=4000 EPOCHS=6
    PARSER=${FAIRSEQ_PHRASE_PARSER:-}
    [ -n "$PARSER" ] || find_parser de
    echo "Multi30k from $MULTI30K, parser $PARSER"
else
    echo "Multi30k cannot be had: using the project's own synthetic corpus"
    synthetic 29000
    VOCABULARY=1000 EPOCHS=5
fi

DATA=$WORK/data-bin
if [ ! -e "$DATA/syntax.de.json" ]; then
    say "Parsing, subwords, binarizing"
    fairseq-phrase-preprocess --source-lang de --target-lang en \
        --trainpref "$TRAIN" --validpref "$VALID" --testpref "$TEST" \
        --parser "$PARSER" --bpe sentencepiece --vocab-size "$VOCABULARY" --joined-dictionary \
        --destdir "$DATA" --workers "$(nproc)"
fi

say "Both models side by side: training, averaging, translating ($WORK/rows/*/*/train.log)"
python scripts/run_rows.py --configs configs/quickstart --rows transformer,phrase_k2 --max-epoch "$EPOCHS" \
    --data "$DATA" -s de -t en --out "$WORK/rows" --jobs 2 --gpus "$(visible_gpus)"

say "Result"
fairseq-phrase-report "$WORK/rows" --baseline transformer --rows configs/quickstart/rows.yaml \
    --reference "$REFERENCE" --caption "$WHAT, $EPOCHS epochs" --out "$WORK/report"
echo
echo "attention of the first test sentence:"
fairseq-phrase-plot attention "$DATA" --path "$WORK/rows/phrase_k2/seed1/average.pt" --index 0 \
    --out "$WORK/attention.png"
