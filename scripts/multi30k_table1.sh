#!/usr/bin/env bash
# The PhraseTransformer paper's table 1 on Multi30k, with controls and other encoders.
#
#   bash scripts/multi30k_table1.sh                          every row of the tuned setting, one seed
#   bash scripts/multi30k_table1.sh --seeds 1,2,3 --gpus 0 --jobs 6
#   bash scripts/multi30k_table1.sh --setting paper --rows transformer,phrase_k2
#   bash scripts/multi30k_table1.sh --rows 2 --max-update 50 test the whole chain
#
# Options of this table:
#   --setting tuned|paper   sizes and learning rate: configs/tables/multi30k_table1.SETTING.yaml (tuned)
#   --direction de-en|en-de (de-en)
#   --vocab-size N          subwords of both languages together (8000)
#   --text raw|moses        moses: lower-cased text in Moses' tokens, split by --vocab-size merges of subword-nmt,
#                           as in most papers on Multi30k. BLEU is then measured on such text, and the
#                           parser sees no capital letters. raw: segmented by SentencePiece (raw)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

SETTING=tuned DIRECTION=de-en VOCAB_SIZE=8000 TEXT=raw
parse_options
SOURCE=${DIRECTION%-*} TARGET=${DIRECTION#*-}
# The difference of these data from the table's own: in the folder's name and settings, and in the
# caption.
VARIANT= SAID= CHOICES="setting=$SETTING direction=$DIRECTION vocab-size=$VOCAB_SIZE" EXTRAS=plot
if [ "$TEXT" != raw ]; then
    VARIANT+=.$TEXT SAID+=", lower-cased tokens of Moses" CHOICES+=" text=$TEXT" EXTRAS+=,moses
fi
if [ "$VOCAB_SIZE" != 8000 ]; then VARIANT+=.vocab$VOCAB_SIZE SAID+=", vocabulary of $VOCAB_SIZE"; fi
open_table "$EXTRAS" "multi30k_table1.$SETTING.$DIRECTION$VARIANT" "$CHOICES" \
    configs/tables/multi30k_table1.yaml "configs/tables/multi30k_table1.$SETTING.yaml"

# make_text SCRIPT NAME [LINES]: write a text in this table's form, by scripts/SCRIPT.py, to OUT/raw.
make_text() {
    local language
    for language in de en; do
        make_file "$OUT/raw/$2.$language" python "scripts/$1.py" "$MULTI30K/$2" "$language" ${3:+"$3"}
    done
}

# raw_text, moses_text: make the texts in FOLDER, with TRAIN for training; set their segmentation and
# BLEU's tokens.
raw_text() {
    FOLDER=$MULTI30K ENDING=.gz TRAIN=$MULTI30K/train
    SUBWORDS=(--vocab-size "$VOCAB_SIZE") MEASURED=(--lowercase)
    slice_text
}

moses_text() {
    local name codes=$OUT/raw/codes words=$OUT/raw/vocabulary
    FOLDER=$OUT/raw ENDING='' TRAIN=$OUT/raw/train
    SUBWORDS=(--bpe subword_nmt --bpe-codes "$codes" --source-tokenized --target-tokenized)
    MEASURED=(--tokenize none)
    make_text moses train "$SLICE"
    for name in val "${SETS[@]}"; do make_text moses "$name"; done
    [ -e "$words.en" ] ||
        run subword-nmt learn-joint-bpe-and-vocab --input "$TRAIN.de" "$TRAIN.en" --output "$codes" \
            --symbols "$(num_subwords "$VOCAB_SIZE")" --write-vocabulary "$words.de" "$words.en"
}

say "Data"
need_corpus multi30k
MULTI30K=$FOUND
choose_parser "$OUT/data-bin" "dependency and tree rows"
find_tests "$OUT/data-bin" "$MULTI30K" test_2016_flickr test_2017_flickr test_2018_flickr
"${TEXT}_text"
TEST=$FOLDER/${SETS[0]} SUBSETS=test TESTS=$TEST
for number in $(seq 1 $((${#SETS[@]} - 1))); do
    SUBSETS+=,test$number TESTS+=,$FOLDER/${SETS[number]}
done
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$FOLDER/val" --testpref "$TESTS" \
    --constituents from-dependencies --joined-dictionary "${SUBWORDS[@]}"

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

# The paper's numbers are for de-en. It does not name the test set. They are shown for the first one.
NUMBERS=1
[ "$DIRECTION" = de-en ] || NUMBERS=
for number in "${!SETS[@]}"; do
    name=${SETS[number]} SUBSET=test${number#0} REPORT=$OUT/report-${SETS[number]}
    report "$OUT/rows" "$REPORT" "$SUBSET" "$FOLDER/$name.$TARGET$ENDING" \
        "Multi30k $DIRECTION, $name, $SETTING setting$SAID" "${MEASURED[@]}"
    NUMBERS=
done
exit "$STATUS"
