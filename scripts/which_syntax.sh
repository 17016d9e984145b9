#!/usr/bin/env bash
# Comparison of syntax: every encoder, the same baseline, and trees without syntax as controls.
#
#   bash scripts/which_syntax.sh --seeds 1,2,3 --jobs 2                 Multi30k en-de, every row
#   bash scripts/which_syntax.sh --corpus tatoeba --seeds 1,2,3 \
#       --rows transformer,relative,phrase_tuned,relation_tree,relation_tree_linear
#   bash scripts/which_syntax.sh --corpus synthetic --trees gold --seeds 1,2,3
#   bash scripts/which_syntax.sh --slice 300 --max-update 3 --rows 2    test the whole chain
#
# Fewer than 3 seeds do not allow conclusions about the next training (docs/compare.md).
#
# Options of this table:
#   --corpus multi30k|tatoeba|synthetic
#                           (multi30k); the others are de-en
#   --direction de-en|en-de of multi30k (en-de)
#   --trees gold|parsed     of synthetic: the grammar's own trees, or a parser's (gold)
#   --train-size N          pairs of tatoeba and synthetic to train on (40000)
#   --setting small|full    sizes and updates: configs/tables/which_syntax.SETTING.yaml (small)
#   --vocab-size N          subwords of both languages together (4000; synthetic: 1000)
#   --tatoeba FILE          English, tab, German, .gz too (tatoeba/deu-eng.tsv.gz of the texts)
#   --contrastive DIR|none  minimal pairs for en-de (contrastive/ of the texts, or a download)
#   --pairs N               of each phenomenon, N minimal pairs at most, spread over its file (all)
#   --pairs-of ROW,ROW…     minimal pairs of these rows only, in a report of their own (report.minimal_pairs)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

CORPUS=multi30k DIRECTION='' TREES=gold TRAIN_SIZE=40000 SETTING=small VOCAB_SIZE=''
BASELINES=transformer,relative
TATOEBA='' CONTRASTIVE='' PAIRS='' PAIRS_OF=''
parse_options
[ "$CORPUS" != multi30k ] || DIRECTION=${DIRECTION:-en-de}
[ "$CORPUS" = multi30k ] || check_one_of "--corpus $CORPUS --direction" "${DIRECTION:=de-en}" de-en
[ -z "$TATOEBA" ] || [ -e "$TATOEBA" ] ||
    lack "--tatoeba $TATOEBA: there is no such file. It has a pair a line: English, tab, German"
[ -z "$CONTRASTIVE" ] || [ "$CONTRASTIVE" = none ] || [ -d "$CONTRASTIVE" ] ||
    lack "--contrastive $CONTRASTIVE: there is no such folder (none: no minimal pairs)"
# The synthetic corpus has few words.
[ -n "$VOCAB_SIZE" ] || { VOCAB_SIZE=4000; [ "$CORPUS" != synthetic ] || VOCAB_SIZE=1000; }
SOURCE=${DIRECTION%-*} TARGET=${DIRECTION#*-}
NAME=$CORPUS.$DIRECTION CHOICES="corpus=$CORPUS direction=$DIRECTION setting=$SETTING vocab-size=$VOCAB_SIZE"
if [ "$CORPUS" = synthetic ]; then NAME+=.$TREES CHOICES+=" trees=$TREES"; fi
if [ "$CORPUS" != multi30k ]; then CHOICES+=" train-size=$TRAIN_SIZE"; fi
open_table plot "which_syntax.$SETTING.$NAME" "$CHOICES" \
    configs/tables/which_syntax.yaml "configs/tables/which_syntax.$SETTING.yaml"
# Rows and files of minimal pairs are used after all trainings, and checked here and below before them.
[[ -z $PAIRS_OF || -n $NO_ROWS ]] || (ROWS=$PAIRS_OF rows names DATA "$OUT" >/dev/null)

# multi30k_text, tatoeba_text, synthetic_text_and_trees: set TRAIN, DEV, PARSER, and TESTS, REFERENCES to the test
# sets and their references, one for each.
multi30k_text() {
    local name SETS
    need_corpus multi30k
    MULTI30K=$FOUND
    choose_parser "$OUT/data-bin" "rows with trees"
    WHAT="Multi30k $DIRECTION" TRAIN=$MULTI30K/train DEV=$MULTI30K/val TESTS=() REFERENCES=()
    find_tests "$OUT/data-bin" "$MULTI30K" test_2016_flickr test_2017_flickr test_2017_mscoco test_2018_flickr
    for name in "${SETS[@]}"; do TESTS+=("$MULTI30K/$name") REFERENCES+=("$MULTI30K/$name.$TARGET.gz"); done
    slice_text
}

tatoeba_text() {
    local raw=$OUT/raw/tatoeba
    if [ ! -e "$raw/test.en" ]; then
        [ -n "$TATOEBA" ] || { need_corpus tatoeba && TATOEBA=$FOUND/deu-eng.tsv; }
        [[ -e $TATOEBA || $TATOEBA == *.gz ]] || TATOEBA+=.gz
        [ -e "$TATOEBA" ] || lack "$TATOEBA: there is no such file. It has a pair a line: English, tab, German"
        run python scripts/tatoeba.py "$TATOEBA" "$raw" --train "${SLICE:-$TRAIN_SIZE}"
    fi
    choose_parser "$OUT/data-bin" "rows with trees"
    WHAT="Tatoeba $DIRECTION, ${SLICE:-$TRAIN_SIZE} pairs"
    TRAIN=$raw/train DEV=$raw/valid TESTS=("$raw/test") REFERENCES=("$raw/test.$TARGET")
}

synthetic_text_and_trees() {
    local raw=$OUT/raw/synthetic
    synthetic_text "$raw" "${SLICE:-$TRAIN_SIZE}" 1000
    if [ "$TREES" = gold ]; then PARSER=conllu; else choose_parser "$OUT/data-bin" "rows with trees"; fi
    WHAT="synthetic corpus, $TREES trees, ${SLICE:-$TRAIN_SIZE} pairs"
    TRAIN=$raw/train DEV=$raw/valid TESTS=("$raw/test") REFERENCES=("$raw/test.$TARGET")
}

# find_pairs: set CONTRASTIVE to a folder of minimal pairs, or to none if there are none. They are English-German.
find_pairs() {
    if [ "$DIRECTION" != en-de ]; then CONTRASTIVE=none; fi
    [ -z "$CONTRASTIVE" ] || return 0
    FOUND=${FAIRSEQ_PHRASE_DATA:+$FAIRSEQ_PHRASE_DATA/contrastive}
    if [ -d "$FOUND" ]; then CORPORA+=("contrastive=$FOUND"); elif ! find_corpus contrastive; then
        echo "# missing: the minimal pairs cannot be downloaded, and are left out"
        FOUND=none
    fi
    CONTRASTIVE=$FOUND
}

say "Data"
case "$CORPUS" in
    multi30k) multi30k_text ;;
    tatoeba) tatoeba_text ;;
    synthetic) synthetic_text_and_trees ;;
esac
find_pairs
[[ $CONTRASTIVE = none || -n $DATA_ONLY$DRY_RUN ]] || fairseq-phrase-report --check "$OUT/rows" --out "$OUT/report" \
    --reference "test=${REFERENCES[0]}" --contrastive "$CONTRASTIVE"
TEST=${TESTS[0]} SUBSETS=test JOINED=$TEST MORE=()
for number in $(seq 1 $((${#TESTS[@]} - 1))); do
    SUBSETS+=,test$number JOINED+=,${TESTS[number]} MORE+=(--reference "test$number=${REFERENCES[number]}")
done
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$JOINED" \
    --constituents from-dependencies --joined-dictionary --vocab-size "$VOCAB_SIZE"

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

# slice_pairs: with --pairs (a slice has 20), take this number of minimal pairs of each phenomenon, evenly
# spread.
slice_pairs() {
    local folder pairs file count given=()
    [ -z "$SLICE" ] || PAIRS=${PAIRS:-20}
    [ -n "$PAIRS" ] || return 0
    pairs=$OUT/raw/contrastive.$PAIRS given=(--pairs "$CONTRASTIVE"/*/*)
    made_once "$pairs" "$pairs" "${given[@]}" || true # its files may not all be there
    for folder in "$CONTRASTIVE"/*/; do
        [ -d "$folder" ] || continue # a dry run downloads nothing
        count=$(gzip -cdf "$folder"src.en* | wc -l)
        for file in src.en tgt.correct.de tgt.incorrect.de; do
            make_file "$pairs/$(basename "$folder")/$file" python scripts/slice.py "$folder${file%.*}" \
                "${file##*.}" "$PAIRS" --every $((count > PAIRS ? (count + PAIRS / 2) / PAIRS : 1))
        done
    done
    [ -e "$pairs/made-with.json" ] || record "$pairs" "${given[@]}"
    CONTRASTIVE=$pairs
}

if [ "$CONTRASTIVE" != none ] && [ -z "$DATA_ONLY" ] && [ "$STATUS" = 0 ]; then
    say "Minimal pairs ($OUT/contrastive)"
    slice_pairs
    PAIRED=$OUT/rows
    if [ -n "$PAIRS_OF" ]; then
        PAIRED=$OUT/contrastive/rows
        run mkdir -p "$PAIRED"
        for row in ${PAIRS_OF//,/ }; do run ln -sfn "../../rows/$row" "$PAIRED/$row"; done
    fi
    [ -n "$REPORT_ONLY" ] || run python scripts/contrastive.py "$CONTRASTIVE" --data "$OUT/data-bin" --runs "$PAIRED" \
        -s "$SOURCE" -t "$TARGET" --work "$OUT/contrastive" --jobs "$JOBS"
    if [ -n "$PAIRS_OF" ]; then
        BASELINES=${BASELINES%%,*} report "$PAIRED" "$OUT/report.minimal_pairs" test "test=${REFERENCES[0]}" '' \
            "Which syntax helps: $WHAT, minimal pairs, $SETTING setting" --contrastive "$CONTRASTIVE" --test none
    else
        MORE+=(--contrastive "$CONTRASTIVE")
    fi
fi

report "$OUT/rows" "$OUT/report" test "test=${REFERENCES[0]}" '' \
    "Which syntax helps: $WHAT, $SETTING setting" "${MORE[@]}"
exit "$STATUS"
