#!/usr/bin/env bash
# The structural-position paper's table 3: probing the encoders of translation models.
#
#   bash scripts/which_syntax.sh --seeds 1,2,3 --out runs/which_syntax       train the models first
#   bash scripts/probing_table3.sh runs/which_syntax --rows transformer,relative,structural_9 --seeds 1,2,3
#   bash scripts/probing_table3.sh runs/which_syntax --rows transformer --max-sentences 400    test the chain
#
# The first argument is the folder of a translation table from English, with data-bin/ and rows/. The report has each
# row and layer with mean and standard deviation over the seeds, the averages of surface, syntactic and semantic tasks,
# their differences from the first row with p over seeds and sentences, and a picture by layer. The paper's averages
# are printed below it.
#
# Options:
#   --rows NAMES            rows of the table, separated by commas (all that are trained)
#   --seeds NUMBERS         (1)
#   --tasks DIR             files of SentEval or X-Probe (FAIRSEQ_PHRASE_DATA/probing, or a
#                           download of X-Probe)
#   --trees DIR             Penn Treebank (*.mrg, in any folders) to make top constituents from, if DIR of --tasks
#                           has none. Without it, the sentences of the tree depth task are parsed
#   --max-sentences N       a slice: N training sentences of each task
#   --jobs N                classifiers at a time (1)
#   --probe-flags FLAGS     more flags for fairseq-phrase-probe, such as '--hidden 100 --l2 1e-5 1e-3', which has
#                           two settings of the classifier to choose from instead of nine
#   --out DIR               (probing/ in the table's folder)
#   --dry-run               print the commands; run nothing
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

TABLE='' ROWS='' SEEDS=1 TASKS='' TREES='' MAX_SENTENCES='' JOBS=1 PROBE_FLAGS='' OUT=''
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
        --dry-run) DRY_RUN=1 ;;
        --rows | --seeds | --tasks | --trees | --max-sentences | --jobs | --probe-flags | --out)
            [ $# -gt 1 ] || die "$1 needs a value"
            name=${1#--} name=${name//-/_}
            printf -v "${name^^}" %s "$2"
            shift
            ;;
        -*) die "unknown option '$1' (--help lists them)" ;;
        *) [ -z "$TABLE" ] || die "one folder of a table is expected, not also '$1'"; TABLE=$1 ;;
    esac
    shift
done
[ -n "$TABLE" ] || die "name the folder of a translation table, such as runs/which_syntax.small.multi30k.en-de"
[ -d "$TABLE/rows" ] || die "$TABLE has no rows/: train the table first"
[ -e "$TABLE/data-bin/syntax.en.json" ] ||
    die "$TABLE/data-bin has no syntax.en.json: the tasks are English, and so the table must translate from English"
[ -z "$TASKS" ] || [ -d "$TASKS" ] || die "--tasks $TASKS: there is no such folder"
OUT=${OUT:-$TABLE/probing} FILES=()
if [ -n "$TREES" ]; then
    shopt -s globstar nullglob
    FILES=("$TREES"/**/*.mrg)
    shopt -u globstar nullglob
    [ ${#FILES[@]} -gt 0 ] || die "--trees $TREES: there is no *.mrg file in it or in its folders"
fi
ensure_environment probe,plot,moses

CHECKPOINTS=() NAMES=()
CHOSEN=${ROWS:-$(cd "$TABLE/rows" && printf '%s,' *)}
for row in ${CHOSEN//,/ }; do
    for seed in ${SEEDS//,/ }; do
        path=$TABLE/rows/$row/seed$seed/average.pt
        if [ -e "$path" ]; then
            CHECKPOINTS+=("$path") NAMES+=("$row")
        elif [ -n "$ROWS" ]; then
            die "row $row, seed $seed: $path is not there; train it first"
        fi
    done
done
[ ${#CHECKPOINTS[@]} -gt 0 ] || die "$TABLE/rows has no trained row with seed $SEEDS"

# find_parser comes with the scripts of tables.
. scripts/data.sh
[ -n "$TASKS" ] || { need_corpus probing && TASKS=$FOUND; }
FOLDERS=("$TASKS") SOURCE=en WITH_PARSING=1
choose_parser none "encoders that read trees"

# make_top_constituents: the task that X-Probe lacks, from trees or from the tree depth task's sentences.
make_top_constituents() {
    local column=1 prefix=$TASKS/tree_depth.va made=(--trees "${FILES[@]}")
    # X-Probe's sentences are the first column, SentEval's the third.
    compgen -G "$prefix.txt*" >/dev/null || column=3 prefix=$TASKS/tree_depth
    [ ${#FILES[@]} -gt 0 ] || made=(-s txt --textpref "$prefix" --parser "$PARSER")
    ! made_once "$OUT/tasks/top_constituents.txt" "$OUT/tasks" "${made[@]}" || return 0
    if [ ${#FILES[@]} -gt 0 ]; then
        run fairseq-phrase-probe --make top_constituents --trees "${FILES[@]}" --out "$OUT/tasks"
        record "$OUT/tasks" "${made[@]}"
        return
    fi
    run rm -f "$OUT/raw/tree_depth.txt" "$OUT/raw/sentences.en" # perhaps of other tasks
    make_file "$OUT/raw/tree_depth.txt" python scripts/slice.py "$prefix" txt
    make_file "$OUT/raw/sentences.en" cut -f "$column" "$OUT/raw/tree_depth.txt"
    run fairseq-phrase-probe --make top_constituents --text "$OUT/raw/sentences.en" --parser "$PARSER" \
        --constituents from-dependencies --sentence-label any --out "$OUT/tasks"
    record "$OUT/tasks" "${made[@]}"
}

if ! compgen -G "$TASKS/top_constituents*.txt*" >/dev/null; then # SentEval has it, X-Probe does not
    say "Top constituents"
    make_top_constituents
    FOLDERS+=("$OUT/tasks")
fi

say "Probing ($OUT)"
# Rows may be of methods.
run fairseq-phrase-probe --path "${CHECKPOINTS[@]}" --names "${NAMES[@]}" --tasks "${FOLDERS[@]}" \
    --layer all --detokenize en --data "$TABLE/data-bin" --source-parser "$PARSER" --workers "$JOBS" \
    ${MAX_SENTENCES:+--max-sentences "$MAX_SENTENCES"} $PROBE_FLAGS --user-dir examples/methods \
    --out "$OUT"

say "Table 3 of the paper: averages of SentEval's tasks, Transformer-Base trained on WMT14 English-German"
cat <<'END'
| model                           | surface avg | syntactic avg | semantic avg |
|:--------------------------------|------------:|--------------:|-------------:|
| Transformer-Base                |       77.60 |         65.00 |        74.61 |
| + relative sequential positions |       76.50 |         64.98 |        75.03 |
| + structural positions          |       76.22 |         65.87 |        75.12 |
END
