#!/usr/bin/env bash
# The tree Transformer against the Transformer on IWSLT, with all of the training data and with fractions.
#
#   bash scripts/iwslt14_trees.sh                            German to English, with the ablations
#   bash scripts/iwslt14_trees.sh --direction en-de --seeds 1,2,3 --gpus 0,1 --jobs 2
#   bash scripts/iwslt14_trees.sh --fractions 1/16,1/8,1/4,1/2,1 --rows transformer,tree    the curve
#   bash scripts/iwslt14_trees.sh --slice 2000 --max-update 50 test the whole chain
#
# IWSLT 2014 German-English is downloaded to data/iwslt14. scripts/iwslt14.py describes the held-out set.
# No checksum is published: see scripts/download.py. The paper's other pairs (English-French) need --data.
# Constituents come from Stanza if it and its models of the source language are installed
# (pip install stanza). Otherwise they are made from a dependency parser's trees.
#
# Options of this table:
#   --direction SRC-TGT     de-en, en-de; any other with --data (de-en)
#   --fractions LIST        fractions of the training data, 1 or 1/K, separated by commas. 1/K takes one of K
#                           sentences. Each has a table. Several also have a curve (1)
#   --data DIR              text that you have: DIR/{train,dev,test}.{SRC,TGT}, .gz too
#
# With --slice and without --data, the text is the project's own synthetic corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

DIRECTION=de-en FRACTIONS=1 DATA=''
parse_options
[[ $DIRECTION =~ ^[a-z]+-[a-z]+$ ]] || die "--direction $DIRECTION: expected two languages, such as de-en"
[ -n "$DATA" ] || check_one_of "without --data, --direction" "$DIRECTION" de-en en-de
SHARES='^(1|1/[1-9][0-9]*)(,(1|1/[1-9][0-9]*))*$'
[[ $FRACTIONS =~ $SHARES ]] || die "--fractions $FRACTIONS: expected 1 or 1/K, commas between them"
SOURCE=${DIRECTION%-*} TARGET=${DIRECTION#*-}
open_table plot "iwslt14_trees.$DIRECTION" "direction=$DIRECTION data=$DATA" configs/tables/iwslt14_trees.yaml

download_iwslt14() {
    local archive=data/iwslt14/de-en.tgz split language
    download https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz "$archive"
    for split in train dev test; do
        for language in de en; do
            make_file "data/iwslt14/$split.$language" \
                python scripts/iwslt14.py "$archive" de-en "$split" "$language"
        done
    done
}

# Whether Stanza is installed, with a constituency model of the source language.
has_stanza_constituents() {
    "$PYTHON" -c '
import sys
from pathlib import Path
from stanza.resources.common import DEFAULT_MODEL_DIR
sys.exit(not Path(DEFAULT_MODEL_DIR, sys.argv[1], "constituency").is_dir())' "$SOURCE" 2>/dev/null
}

# find_constituents: set PARSER, and CONSTITUENTS to the source from which preprocessing takes them.
find_constituents() {
    CONSTITUENTS=from-dependencies PARSER=${FAIRSEQ_PHRASE_PARSER:-}
    if [ -z "$PARSER" ]; then
        if has_stanza_constituents; then PARSER=stanza:$SOURCE; else find_parser "$SOURCE"; fi
    fi
    case "$PARSER" in
        none) die "trees need a parser: FAIRSEQ_PHRASE_PARSER=stanza:$SOURCE, or spacy:MODEL" ;;
        stanza:* | ptb) CONSTITUENTS=parser ;;
    esac
}

say "Data"
VOCABULARY=10000 WHAT="IWSLT14 $DIRECTION"
if [ -n "$DATA" ]; then
    find_text own "$DATA"
    TEXT=$FOUND DEV=$FOUND/dev TEST=$FOUND/test WHAT="$DATA $DIRECTION"
elif [ -n "$SLICE" ]; then
    TEXT=$OUT/raw DEV=$OUT/raw/valid TEST=$OUT/raw/test VOCABULARY=500 WHAT="synthetic corpus $DIRECTION"
    synthetic_text "$TEXT" "$SLICE" 100
elif find_kept iwslt14; then
    TEXT=$FOUND DEV=$FOUND/dev TEST=$FOUND/test
else
    download_iwslt14
    CORPORA+=(iwslt14=data/iwslt14)
    TEXT=data/iwslt14 DEV=data/iwslt14/dev TEST=data/iwslt14/test
fi
find_constituents
CURVE=()
for FRACTION in ${FRACTIONS//,/ }; do
    PART=${FRACTION#1/} FOLDER=$OUT/fraction-${FRACTION//\//-}
    TRAIN=$TEXT/train
    if [ -n "$SLICE" ] || [ "$PART" != 1 ]; then
        TRAIN=$FOLDER/raw/train
        for language in "$SOURCE" "$TARGET"; do
            make_file "$TRAIN.$language" \
                python scripts/slice.py "$TEXT/train" "$language" ${SLICE:+$((SLICE / PART))} --every "$PART"
        done
    fi
    preprocess "$FOLDER/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" \
        --max-length 175 --vocab-size "$VOCABULARY" --joined-dictionary \
        --constituents "$CONSTITUENTS"

    say "Rows ($FOLDER)"
    # An epoch of a K-th has a K-th of an epoch's updates: checkpoints are equally many updates apart.
    train_rows "$FOLDER/data-bin" "$FOLDER/rows" "--save-interval $PART --validate-interval $PART"

    REFERENCE=$TEST.$TARGET
    [ -e "$REFERENCE" ] || [ -n "$DRY_RUN" ] || REFERENCE=$REFERENCE.gz
    report "$FOLDER/rows" "$FOLDER/report" test "$REFERENCE" numbers \
        "$WHAT, $FRACTION of the training data, constituents of $PARSER ($CONSTITUENTS)" --lowercase
    CURVE+=("$FRACTION=$FOLDER/report")
done
if [ "${#CURVE[@]}" -gt 1 ] && [ -z "$DATA_ONLY" ]; then
    say "Curve ($OUT/curve.md)"
    run python scripts/curve.py "${CURVE[@]}" --out "$OUT/curve" --caption "BLEU by training data, $WHAT"
fi
exit "$STATUS"
