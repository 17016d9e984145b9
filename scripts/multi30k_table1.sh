#!/usr/bin/env bash
# The PhraseTransformer paper's table 1 on Multi30k, with controls and the other two encoders.
#
#   bash scripts/multi30k_table1.sh                          every row of the tuned setting, one seed
#   bash scripts/multi30k_table1.sh --seeds 1,2,3 --gpus 0 --jobs 6
#   bash scripts/multi30k_table1.sh --setting paper --rows transformer,phrase_k2
#   bash scripts/multi30k_table1.sh --rows 2 --max-update 50 a look at whether all works
#
# Options of this table:
#   --setting tuned|paper   configs/multi30k_table1/SETTING (tuned)
#   --direction de-en|en-de (de-en)
#   --vocab-size N          SentencePiece's, of both languages together (8000)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

SETTING=tuned DIRECTION=de-en VOCABULARY=8000 BASELINE=transformer
OPTIONS+=([--setting]=SETTING [--direction]=DIRECTION [--vocab-size]=VOCABULARY)
parse_options "$@"
check_number --vocab-size "$VOCABULARY"
check_one_of --setting "$SETTING" tuned paper
check_one_of --direction "$DIRECTION" de-en en-de
SOURCE=${DIRECTION%-*} TARGET=${DIRECTION#*-}
CONFIGS=configs/multi30k_table1/$SETTING TITLES=configs/multi30k_table1/rows.yaml
choose_rows "$TITLES"
CUT= # what tells this vocabulary from the table's own
[ "$VOCABULARY" = 8000 ] || CUT=$VOCABULARY
prepare_machine plot
open_folder "multi30k_table1.$SETTING.$DIRECTION${CUT:+.vocab$CUT}" "setting=$SETTING direction=$DIRECTION vocab-size=$VOCABULARY"

say "Data"
find_multi30k || die "Multi30k cannot be had; put it into FAIRSEQ_PHRASE_DATA/multi30k"
choose_parser "$OUT/data-bin" "dependency and tree rows"
TRAIN=$MULTI30K/train TEST=$MULTI30K/test_2016_flickr
if [ -n "$SLICE" ]; then
    TRAIN=$OUT/raw/train
    for language in de en; do
        make_file "$TRAIN.$language" python scripts/slice.py "$MULTI30K/train" "$language" "$SLICE"
    done
fi
SUBSETS=test TESTS=$TEST SETS=(test_2016_flickr)
for name in test_2017_flickr test_2018_flickr; do
    if [ -e "$MULTI30K/$name.de.gz" ] && [ -e "$MULTI30K/$name.en.gz" ]; then
        SUBSETS+=,test${#SETS[@]} TESTS+=,$MULTI30K/$name SETS+=("$name")
    fi
done
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$MULTI30K/val" --testpref "$TESTS" \
    --constituents from-dependencies --vocab-size "$(pieces "$VOCABULARY")" --joined-dictionary

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

# The paper's numbers are of de-en; of which test set it does not say.
[ "$DIRECTION" = de-en ] || without_numbers
for number in "${!SETS[@]}"; do
    name=${SETS[number]} SUBSET=test${number#0} REPORT=$OUT/report-${SETS[number]}
    say "Report ($REPORT)"
    [ "$number" != 1 ] || without_numbers
    report "$OUT/rows" "$REPORT" "$SUBSET" "$MULTI30K/$name.$TARGET.gz" "$TITLES" \
        "Multi30k $DIRECTION, $name, $SETTING setting${CUT:+, vocabulary of $CUT}" --lowercase
done
exit "$STATUS"
