#!/usr/bin/env bash
# Compositional generalization: SLOG's 17 structural sets, and SCAN's splits, by exact match.
#
#   bash scripts/compositional.sh --seeds 1,2,3 --jobs 2                SLOG
#   bash scripts/compositional.sh --trees adapted --seeds 1,2,3         by a parser adapted to SLOG's training pairs
#   bash scripts/compositional.sh --corpus scan --split length --seeds 1,2,3 --gpus 0 --jobs 6
#   bash scripts/compositional.sh --slice 200 --max-update 5 --rows relative,relation   test the whole chain
#
# Every row is compared with the Transformer with relative positions. A picture shows each row's exact match by set.
#
# Options of this table:
#   --corpus slog|scan      (slog)
#   --split simple|length|addprim_jump
#                           of SCAN (simple)
#   --trees parsed|adapted  of SLOG: parsed by the parser as it is, or adapted: by a spaCy parser that is first trained
#                           further on trees of 1,500 training pairs, see scripts/slog_trees.py (parsed)
#   --data DIR              its files, see scripts/logical_forms.py (FAIRSEQ_PHRASE_DATA/slog or scan, or a download)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

CORPUS=slog SPLIT=simple TREES=parsed DATA='' SOURCE=en TARGET=lf BASELINES=relative
parse_options
[ "$CORPUS" = slog ] || [ "$TREES" = parsed ] || die "--trees adapted is for --corpus slog: other forms tell no trees"
check_folder --data "$DATA"
NAME=$CORPUS$([ "$CORPUS" = slog ] || echo ".$SPLIT")$([ "$TREES" = parsed ] || echo ".$TREES")
FILES=(configs/tables/compositional.yaml)
[ "$CORPUS" = slog ] || FILES+=(configs/tables/compositional.scan.yaml)
open_table plot,conllu "compositional.$NAME" "corpus=$CORPUS split=$SPLIT trees=$TREES data=$DATA" "${FILES[@]}"

# adapt_parser: continue the training of the spaCy pipeline PARSER on trees of the training pairs, and set
# PARSER. OUT/parser.txt has its scores on 200 sentences of each test set, before and after.
adapt_parser() {
    local trees=$OUT/raw/trees file name
    [[ $PARSER == spacy:* ]] || die "--trees adapted needs a spaCy pipeline: FAIRSEQ_PHRASE_PARSER=spacy:MODEL"
    if [ ! -e "$OUT/parser" ]; then
        run python scripts/slog_trees.py "$RAW/train" "$trees/train.conllu" --sentences 1700
        for file in "$RAW"/test*.en; do
            name=$(basename "$file" .en)
            run python scripts/slog_trees.py "${file%.en}" "$trees/$name.conllu" --sentences 200
        done
        run rm -f "$OUT/parser.txt" # kept results have that file without the parser
        make_file "$OUT/parser.txt" python scripts/adapt_parser.py "${PARSER#spacy:}" "$trees/train.conllu" \
            "$OUT/parser" --measure "$trees"/test*.conllu
    fi
    PARSER=spacy:$OUT/parser
}

say "Data"
RAW=$OUT/raw/forms
if [ ! -e "$RAW/test.en" ]; then
    find_data "$CORPUS"
    run python scripts/logical_forms.py "$CORPUS" "$DATA" "$RAW" --split "$SPLIT"
fi
choose_parser "$OUT/data-bin" "rows with trees"
[ "$TREES" = parsed ] || [ -n "$REPORT_ONLY" ] || [ -e "$OUT/data-bin/syntax.en.json" ] || adapt_parser
TRAIN=$RAW/train DEV=$RAW/valid TEST=$RAW/test
slice_text
# The test set proper, then a test set for each kind of generalization.
TESTS=$TEST SUBSETS=test MORE=() SETS=() COUNT=0
for file in "$RAW"/test.*.en; do
    [ -e "$file" ] || continue
    name=$(basename "$file" .en) COUNT=$((COUNT + 1))
    if [ -n "$SLICE" ]; then
        for language in en lf; do
            make_file "$OUT/raw/$name.$language" python scripts/slice.py "$RAW/$name" "$language" 20
        done
        file=$OUT/raw/$name.en
    fi
    TESTS+=,${file%.en} SUBSETS+=,test$COUNT SETS+=("${name#test.}")
    MORE+=(--reference "test$COUNT=${file%.en}.lf" --set-name "test$COUNT=${name#test.}")
done
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TESTS" --bpe none --copy-words 5 \
    --joined-dictionary --source-tokenized --target-tokenized --constituents from-dependencies

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

TITLE="Compositional generalization, $NAME" EXACT=(--measure exact)
[ "$CORPUS" != slog ] || EXACT+=(--form calls) # SCAN's actions have no brackets
if [ $COUNT = 0 ]; then
    report "$OUT/rows" "$OUT/report" test "$TEST.lf" "$TITLE" "${EXACT[@]}"
    SETS=("$SPLIT")
else
    # Means and differences are over the generalization sets. The test set proper has a separate report.
    report "$OUT/rows" "$OUT/report.test" test "$TEST.lf" "$TITLE, test set of the training distribution" "${EXACT[@]}"
    report "$OUT/rows" "$OUT/report" test1 "${MORE[1]}" "$TITLE, generalization sets" "${EXACT[@]}" "${MORE[@]:2}"
fi
[ -n "$DATA_ONLY" ] || run python scripts/by_set.py "$OUT/report/runs.csv" "$OUT/report/by-set.png" --sets "${SETS[@]}"
exit "$STATUS"
