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
CORPUS=multi30k DIRECTION='' TREES=gold TRAIN_SIZE=40000 SETTING=small VOCAB_SIZE=''
TATOEBA='' CONTRASTIVE='' PAIRS='' PAIRS_OF=''

choose() {
    FILES=("configs/tables/which_syntax.$SETTING.yaml")
    if [ "$CORPUS" = multi30k ]; then
        DIRECTION=${DIRECTION:-en-de} WHAT="Multi30k $DIRECTION"
    else
        check_one_of "--corpus $CORPUS --direction" "${DIRECTION:=de-en}" de-en
        FILES+=("configs/tables/which_syntax.$CORPUS.yaml") WHAT="Tatoeba $DIRECTION, $TRAIN_LINES pairs"
    fi
    NAME=$CORPUS.$DIRECTION
    # The synthetic corpus has few words.
    [ -n "$VOCAB_SIZE" ] || { VOCAB_SIZE=4000; [ "$CORPUS" != synthetic ] || VOCAB_SIZE=1000; }
    # Not all options, as in other tables: kept runs have these records, of what their corpus reads.
    SETTINGS="corpus=$CORPUS direction=$DIRECTION setting=$SETTING vocab-size=$VOCAB_SIZE"
    if [ "$CORPUS" = synthetic ]; then
        NAME+=.$TREES SETTINGS+=" trees=$TREES" WHAT="synthetic corpus, $TREES trees, $TRAIN_LINES pairs"
        [ "$TREES" = parsed ] || KEYS[parser]=conllu
    fi
    [ "$CORPUS" = multi30k ] || SETTINGS+=" train-size=$TRAIN_SIZE"
    WHAT="Which syntax helps: $WHAT"
    [ -z "$TATOEBA" ] || [ -e "$TATOEBA" ] ||
        lack "--tatoeba $TATOEBA: there is no such file. It has a pair a line: English, tab, German"
    [ -z "$CONTRASTIVE" ] || [ "$CONTRASTIVE" = none ] || [ -d "$CONTRASTIVE" ] ||
        lack "--contrastive $CONTRASTIVE: there is no such folder (none: no minimal pairs)"
}

# Also set TATOEBA and CONTRASTIVE, whose pairs are English-German; it is empty if there are no pairs.
own_find_texts() {
    # They are used after all trainings, and checked before them.
    [[ -z $PAIRS_OF || -n $NO_ROWS ]] || (ROWS=$PAIRS_OF rows names DATA "$OUT" >/dev/null)
    if [[ $CORPUS = tatoeba && -z $TATOEBA && ! -e $RAW/test.en ]]; then
        need_corpus tatoeba
        TATOEBA=$FOUND/deu-eng.tsv
        [ -e "$TATOEBA" ] || TATOEBA+=.gz
        [ -e "$TATOEBA" ] || lack "$TATOEBA: there is no such file. It has a pair a line: English, tab, German"
    fi
    [ -z "$TATOEBA" ] || TEXT_FILES=(--tatoeba "$TATOEBA")
    find_texts
    if [ "$DIRECTION" != en-de ] || [ "$CONTRASTIVE" = none ]; then
        CONTRASTIVE=''
    elif [ -z "$CONTRASTIVE" ]; then
        CONTRASTIVE=${FAIRSEQ_PHRASE_DATA:+$FAIRSEQ_PHRASE_DATA/contrastive}
        if [ -d "$CONTRASTIVE" ]; then CORPORA+=("contrastive=$CONTRASTIVE"); return; fi
        find_corpus contrastive || { FOUND='' && echo "# missing: the minimal pairs cannot be downloaded, and are left out"; }
        CONTRASTIVE=$FOUND
    fi
}

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

own_make_reports() {
    if [[ $CONTRASTIVE && $STATUS = 0 ]]; then
        say "Minimal pairs ($OUT/contrastive)"
        slice_pairs
        PAIRED=$OUT/rows
        if [ -n "$PAIRS_OF" ]; then
            PAIRED=$OUT/contrastive/rows
            run mkdir -p "$PAIRED"
            for row in ${PAIRS_OF//,/ }; do run ln -sfn "../../rows/$row" "$PAIRED/$row"; done
        fi
        [ -n "$REPORT_ONLY" ] || run python scripts/contrastive.py "$CONTRASTIVE" --data "$OUT/data-bin" \
            --runs "$PAIRED" -s "$SOURCE" -t "$TARGET" --work "$OUT/contrastive" --jobs "$JOBS"
        if [ -n "$PAIRS_OF" ]; then
            BASELINES=${BASELINES%%,*} report "$PAIRED" "$OUT/report.minimal_pairs" test "${REFERENCES[0]}" \
                "$WHAT, minimal pairs, $SETTING setting" --contrastive "$CONTRASTIVE" --test none
        fi
    fi
    [[ -z $PAIRS_OF && $STATUS = 0 ]] || CONTRASTIVE=''
    make_reports
}
. "$(dirname "$0")/run_table.sh"
