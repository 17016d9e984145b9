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
CORPUS=slog SPLIT='' TREES=parsed

defaults() { CHOSEN_SPLIT=$SPLIT SPLIT=${SPLIT:-simple}; }

choose() {
    WHAT=$CORPUS
    [ "$CORPUS" = slog ] || WHAT+=.$SPLIT FILES+=(configs/tables/compositional.scan.yaml)
    [ "$TREES" = parsed ] || WHAT+=.$TREES
    [[ $CORPUS = scan || -z $CHOSEN_SPLIT ]] || die "--split $SPLIT is for --corpus scan"
    [ "$CORPUS.$TREES" != scan.adapted ] || die "--trees adapted is for --corpus slog: other forms tell no trees"
}

# The test set proper, then a test set for each kind of generalization.
own_find_texts() {
    local file
    find_texts
    for file in "$RAW"/test.*.en; do
        [ ! -e "$file" ] || SETS+=("$(basename "$file" .en)")
    done
}

# With --trees adapted, the parser learns trees of the training pairs, and is measured on 200 sentences of each test set.
before_data() {
    local trees=$OUT/raw/trees file name
    [ "$TREES" = adapted ] || return 0
    [[ $PARSER == spacy:* ]] || die "--trees adapted needs a spaCy pipeline: FAIRSEQ_PHRASE_PARSER=spacy:MODEL"
    for file in "$RAW"/{train,test*}.en; do
        name=$(basename "$file" .en)
        [ -e "$OUT/parser" ] || run python scripts/slog_trees.py "${file%.en}" "$trees/$name.conllu" \
            --sentences "$([ "$name" = train ] && echo 1700 || echo 200)"
    done
    adapt_parser "$trees/train.conllu" --measure "$trees"/test*.conllu
}

# Means and differences are over the generalization sets. The test set proper has a separate report.
own_make_reports() {
    local number more=() names=("${SETS[@]#test.}")
    if [ ${#SETS[@]} = 1 ]; then
        make_reports
        names+=("$SPLIT")
    else
        report "$OUT/rows" "$OUT/report.test" test "${REFERENCES[0]}" \
            "$TITLE, test set of the training distribution" "${WORDS[@]}"
        for number in $(seq 1 $((${#SETS[@]} - 1))); do
            more+=(--reference "test$number=${REFERENCES[number]}" --set-name "test$number=${names[number]}")
        done
        report "$OUT/rows" "$OUT/report" test1 "${more[1]}" "$TITLE, generalization sets" "${WORDS[@]}" "${more[@]:2}"
    fi
    run python scripts/by_set.py "$OUT/report/runs.csv" "$OUT/report/by-set.png" --sets "${names[@]:1}"
}
. "$(dirname "$0")/run_table.sh"
