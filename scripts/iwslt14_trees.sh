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
#   --text raw|authors      authors: what the authors' repository (nxphi47/tree_transformer) trains on, and its updates
#                           (configs/tables/iwslt14_trees.authors.yaml): the lower-cased Moses tokens of
#                           fairseq's prepare-iwslt14.sh, 10,000 merges of subword-nmt. BLEU is then measured on such
#                           text. FAIRSEQ_PHRASE_PARSER=corenlp reads CoreNLP's trees beside it. raw: 10,000
#                           subwords of SentencePiece (raw)
#   --data DIR              text that you have: DIR/{train,dev,test}.{SRC,TGT}, .gz too
#
# With --slice and without --data, the text is the project's own synthetic corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

DIRECTION=de-en FRACTIONS=1 TEXT=raw DATA=''
parse_options
[[ $DIRECTION =~ ^[a-z]+-[a-z]+$ ]] || die "--direction $DIRECTION: expected two languages, such as de-en"
[ -n "$DATA" ] || check_one_of "without --data, --direction" "$DIRECTION" de-en en-de
SHARES='^(1|1/[1-9][0-9]*)(,(1|1/[1-9][0-9]*))*$'
[[ $FRACTIONS =~ $SHARES ]] || die "--fractions $FRACTIONS: expected 1 or 1/K, commas between them"
SOURCE=${DIRECTION%-*} TARGET=${DIRECTION#*-}
VARIANT= CHOICES="direction=$DIRECTION data=$DATA" EXTRAS=plot SETTINGS_OF=()
if [ "$TEXT" != raw ]; then
    [ -z "$DATA" ] || die "--text $TEXT and --data: the text that you have stays as it is"
    VARIANT=.$TEXT CHOICES+=" text=$TEXT" EXTRAS+=,moses SETTINGS_OF=("configs/tables/iwslt14_trees.$TEXT.yaml")
fi
open_table "$EXTRAS" "iwslt14_trees.$DIRECTION$VARIANT" "$CHOICES" configs/tables/iwslt14_trees.yaml "${SETTINGS_OF[@]}"

download_iwslt14() {
    download https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz "$ARCHIVE"
}

raw_iwslt14() {
    local split language
    download_iwslt14
    for split in train dev test; do
        for language in de en; do
            make_file "data/iwslt14/$split.$language" \
                python scripts/iwslt14.py "$ARCHIVE" de-en "$split" "$language"
        done
    done
}

# authors_text: make their text, of a slice from the synthetic corpus, and set its segmentation and BLEU's tokens.
authors_text() {
    local split language codes=$OUT/raw/codes
    WHAT+=", lower-cased tokens of Moses" MEASURED=(--tokenize none)
    SUBWORDS=(--bpe subword_nmt --bpe-codes "$codes" --source-tokenized --target-tokenized)
    if [ -n "$SLICE" ]; then
        for split in train valid test; do
            for language in de en; do
                make_file "$OUT/raw/moses/$split.$language" python scripts/moses.py "$CORPUS/$split" "$language"
            done
        done
        CORPUS=$OUT/raw/moses DEV=$OUT/raw/moses/valid TEST=$OUT/raw/moses/test
    else
        CORPUS=$OUT/raw DEV=$OUT/raw/dev TEST=$OUT/raw/test
        [ -e "$TEST.en" ] || { download_iwslt14; run python scripts/iwslt14.py "$ARCHIVE" de-en moses "$OUT/raw"; }
    fi
    [ -e "$codes" ] || run subword-nmt learn-joint-bpe-and-vocab --input "$CORPUS/train.de" "$CORPUS/train.en" \
        --output "$codes" --symbols "$(num_subwords 10000)" --write-vocabulary "$codes.de" "$codes.en"
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
    if [ -z "$PARSER$REPORT_ONLY" ]; then
        if has_stanza_constituents; then PARSER=stanza:$SOURCE; else find_parser "$SOURCE"; fi
    fi
    case "$PARSER" in
        none) die "trees need a parser: FAIRSEQ_PHRASE_PARSER=stanza:$SOURCE, or spacy:MODEL" ;;
        stanza:* | ptb | corenlp*) CONSTITUENTS=parser ;;
    esac
}

# name_trees DATA: print for the caption whose constituents the data have.
name_trees() {
    if [ -e "$1/syntax.$SOURCE.json" ]; then
        sed -n 's/^  "parser": "\(.*\)",$/, trees of \1/p; s/^  "constituents": "\(.*\)",$/, constituents \1/p' \
            "$1/syntax.$SOURCE.json" | tr -d '\n'
    elif [ -z "$REPORT_ONLY" ]; then
        echo ", trees of $PARSER, constituents $CONSTITUENTS"
    fi
}

say "Data"
ARCHIVE=data/iwslt14/de-en.tgz WHAT="IWSLT14 $DIRECTION"
SUBWORDS=(--max-length 175 --vocab-size 10000) MEASURED=(--lowercase)
if [ -n "$DATA" ]; then
    find_text own "$DATA"
    CORPUS=$FOUND DEV=$FOUND/dev TEST=$FOUND/test WHAT="$DATA $DIRECTION"
elif [ -n "$SLICE" ]; then
    CORPUS=$OUT/raw DEV=$OUT/raw/valid TEST=$OUT/raw/test WHAT="synthetic corpus $DIRECTION"
    SUBWORDS=(--max-length 175 --vocab-size 500)
    synthetic_text "$CORPUS" "$SLICE" 100
elif [ "$TEXT" = raw ] && find_kept iwslt14; then
    CORPUS=$FOUND DEV=$FOUND/dev TEST=$FOUND/test
elif [ "$TEXT" = raw ]; then
    raw_iwslt14
    CORPORA+=(iwslt14=data/iwslt14)
    CORPUS=data/iwslt14 DEV=data/iwslt14/dev TEST=data/iwslt14/test
fi
[ "$TEXT" = raw ] || authors_text
find_constituents
CURVE=()
for FRACTION in ${FRACTIONS//,/ }; do
    PART=${FRACTION#1/} FOLDER=$OUT/fraction-${FRACTION//\//-}
    TRAIN=$CORPUS/train
    if [ -n "$SLICE" ] || [ "$PART" != 1 ]; then
        TRAIN=$FOLDER/raw/train
        for language in "$SOURCE" "$TARGET"; do
            make_file "$TRAIN.$language" \
                python scripts/slice.py "$CORPUS/train" "$language" ${SLICE:+$((SLICE / PART))} --every "$PART"
        done
    fi
    preprocess "$FOLDER/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" \
        "${SUBWORDS[@]}" --joined-dictionary --constituents "$CONSTITUENTS"

    say "Rows ($FOLDER)"
    # An epoch of a K-th has a K-th of an epoch's updates: checkpoints are equally many updates apart.
    train_rows "$FOLDER/data-bin" "$FOLDER/rows" "--save-interval $PART --validate-interval $PART"

    report "$FOLDER/rows" "$FOLDER/report" test "$(packed "$TEST.$TARGET")" \
        "$WHAT, $FRACTION of the training data$(name_trees "$FOLDER/data-bin")" "${MEASURED[@]}"
    CURVE+=("$FRACTION=$FOLDER/report")
done
if [ "${#CURVE[@]}" -gt 1 ] && [ -z "$DATA_ONLY" ]; then
    say "Curve ($OUT/curve.md)"
    run python scripts/curve.py "${CURVE[@]}" --out "$OUT/curve" --caption "BLEU by training data, $WHAT"
fi
exit "$STATUS"
