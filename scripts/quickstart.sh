#!/usr/bin/env bash
# All steps to translations: virtual environment, data, parsing, training, BLEU, and the models' attention.
#
#   bash scripts/quickstart.sh          Multi30k de-en, two epochs
#   bash scripts/quickstart.sh --full   six epochs
#   bash scripts/quickstart.sh --fast   a small synthetic corpus
#
# README.md tells how long they took. Once the trainings have begun, how long they take here is printed.
#
# Three models of the same size are trained (configs/tables/quickstart.yaml): fairseq's Transformer, an encoder that
# reads the tree, and the PhraseTransformer. Trees of Multi30k come from a spaCy pipeline. The synthetic
# corpus has gold trees.
#
# If Multi30k or a parser is unavailable, a synthetic corpus of its size replaces it, in another folder.
#
# Options of this table:
#   --full                  six epochs instead of two, and the average of the last three checkpoints
#   --fast                  a small synthetic corpus instead of Multi30k
#
# WORK is another name of --out (runs/quickstart, runs/quickstart-synthetic; with -full or -fast after it).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

# Three jobs share two cores until nearly the end. Two jobs leave a core idle for a third of the time.
FAST='' FULL='' CORPUS='' SOURCE=de TARGET=en JOBS=3 ROWS=transformer,relation,phrase OUT=${WORK:-}
parse_options
[[ -z $FAST || -z $FULL ]] || die "--fast and --full: choose one"
SIZE=${FAST:+fast}${FULL:+full}
ensure_environment plot demo
BEGAN=$SECONDS

# stage NUMBER TITLE: the heading of a part, and the time so far.
stage() {
    local passed=$((SECONDS - BEGAN))
    say "$1 of 4: $2"
    printf 'Since the start: %d:%02d\n' $((passed / 60)) $((passed % 60))
}

say "Text"
if [ -z "$FAST" ]; then
    OUT=${OUT:-runs/quickstart${FULL:+-full}} find_corpus multi30k || {
        CORPUS=-synthetic
        echo "Multi30k cannot be downloaded. To use files that you have: FAIRSEQ_PHRASE_DATA=FOLDER bash $SCRIPT"
        echo "FOLDER/multi30k then has {train,val,test_2016_flickr}.{de,en}, also as .gz."
    }
    PARSER=${FAIRSEQ_PHRASE_PARSER:-}
    [ -n "$CORPUS$PARSER$REPORT_ONLY" ] || find_parser de
    [ "$PARSER" != none ] || CORPUS=-synthetic
else
    CORPUS=-fast
fi
OUT=${OUT:-runs/quickstart$CORPUS${FULL:+-full}}
open_table plot quickstart "corpus=${CORPUS:-multi30k}${FULL:+ full}" configs/tables/quickstart.yaml \
    ${SIZE:+configs/tables/quickstart.$SIZE.yaml}

stage 1 Data
if [ -z "$CORPUS" ]; then
    TRAIN=$FOUND/train DEV=$FOUND/val TEST=$FOUND/test_2016_flickr VOCABULARY=4000
    REFERENCE=$(packed "$TEST.en") WHAT="Multi30k de-en, test_2016_flickr"
    echo "Multi30k from $FOUND, parser $PARSER"
else
    [ -n "$FAST" ] || echo "The project's own synthetic corpus takes the place of Multi30k, with its own trees"
    TRAIN=$OUT/synthetic/train DEV=$OUT/synthetic/valid TEST=$OUT/synthetic/test VOCABULARY=800 PARSER=conllu
    REFERENCE=$TEST.en WHAT="Synthetic corpus"
    synthetic_text "$OUT/synthetic" "${SLICE:-$((FAST ? 5000 : 29000))}" 500
fi
[ -n "$CORPUS" ] || slice_text # the synthetic corpus has its size, and trees beside the text
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" \
    --constituents from-dependencies --vocab-size "$VOCABULARY" --joined-dictionary

stage 2 "Three models: training, averaging, translating ($OUT/rows/*/*/train.log)"
train_rows "$OUT/data-bin" "$OUT/rows"

stage 3 Result
report "$OUT/rows" "$OUT/report" test "$REFERENCE" "$WHAT"

# show_sentence LINE: a test sentence, its tree, each model's translation, and attention as a picture.
show_sentence() {
    local row seed=seed${SEEDS%%,*}
    run fairseq-phrase-inspect "$OUT/data-bin" --subset test --line "$1"
    for row in ${ROWS//,/ }; do
        [ -z "$DRY_RUN" ] || continue
        printf '%-14s %s\n' "$row:" "$(grep "^D-$(($1 - 1))"$'\t' "$OUT/rows/$row/$seed/generate-test.txt" | cut -f3)"
    done
    for row in relation phrase; do
        [[ ,$ROWS, == *,$row,* ]] || continue
        run fairseq-phrase-plot attention "$OUT/data-bin" --path "$OUT/rows/$row/$seed/average.pt" --line "$1" \
            --out "$OUT/attention-$row.png"
    done
}

# say_next: print the next commands. The synthetic corpus lacks a parser, and the PhraseTransformer does
# not need one.
say_next() {
    local row data checkpoint rows='relation phrase transformer' parser=$PARSER sentence='Ein Hund läuft durch den Schnee.'
    [ -z "$CORPUS" ] || { rows='phrase transformer' parser=none sentence='Der Student sieht den Hund.'; }
    for row in $rows; do
        [[ ,$ROWS, == *,$row,* ]] && break
    done
    checkpoint=$(printf %q "$OUT/rows/$row/seed${SEEDS%%,*}/average.pt")
    data=$(printf %q "$OUT/data-bin")
    parser=$(printf %q "$parser")
    echo
    [ -z "$OWN_ENVIRONMENT" ] || cat <<END
The commands are in an environment of this project:
    . $(printf %q "${FAIRSEQ_PHRASE_VENV:-.venv}")/bin/activate
END
    cat <<END
Translate a sentence of your own:
    echo '$sentence' | fairseq-phrase-translate $data --path $checkpoint --source-parser $parser
END
    "$PYTHON" -c 'import fastapi, uvicorn' 2>/dev/null || cat <<END
The next command needs two more packages:
    python -m pip install fastapi uvicorn
END
    cat <<END
See in a browser what the model attends to$([ "$row" = relation ] && echo ", and change the tree"):
    fairseq-phrase-demo $row=$checkpoint --data $data --source-parser $parser
The report: $OUT/report/report.html. The documentation: README.md, docs/usage.md
END
}

if [ -z "$DATA_ONLY$REPORT_ONLY" ] && [ "$STATUS" = 0 ] && [[ ,$ROWS, == *,transformer,* ]]; then
    stage 4 "A sentence, and pictures"
    show_sentence 1
    [ -n "$DRY_RUN" ] || say_next
fi
exit "$STATUS"
