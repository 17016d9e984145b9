# Options of every table:
#   --rows NAMES|N          names separated by commas, or the first N rows of the table (all)
#   --seeds NUMBERS         (1)
#   --jobs N                trainings at a time (1)
#   --gpus NUMBERS          GPUs to share (all GPUs of the machine; without one, the CPU)
#   --gpus-per-run N        GPUs that train one run together. update_freq is divided by N, so that the
#                           batch stays the row's (1)
#   --precision fp32|fp16|bf16
#                           precision of training; the latter two need a GPU. A folder may have rows of several; the
#                           report notes it (that of the folder's first rows, or fp32)
#   --max-epoch N           at most N epochs. The report notes it
#   --max-update N          at most N updates. The report notes it. Tables that average checkpoints then
#                           use the last one
#   --average N             number of checkpoints to average, instead of the row's; there is one for each epoch.
#                           Tables whose rows have best_checkpoint_metric use their best checkpoint, and have no
#                           such option
#   --train-flags FLAGS     more flags for fairseq-train, such as '--max-tokens 8192 --update-freq 4'
#   --generate-flags FLAGS  more flags for fairseq-generate
#   --slice N               train on N sentence pairs only. The report notes it
#   --out DIR               the folder for everything (a folder in runs/)
#   --with-parsing          also translate raw text, to measure the speed with parsing. Other tables than those
#                           of translation have no such step
#   --tokenize NAME         sacrebleu's tokenizer for BLEU in reports (that of the target language)
#   --data-only             make the data and stop, for a machine without a network or the corpora
#   --baselines ROWS        rows that all others are compared with, a report for each (the table's)
#   --report-only           make the test sets and the report of the runs that are there; parse and train nothing
#   --dry-run               print every command; run, download and install nothing
#
# Run a script again after Ctrl-C or a failure. Finished commands are not repeated. Other settings are in
# scripts/common.sh. FAIRSEQ_PHRASE_PARSER names a parser of the source, spacy:MODEL.

# Shared code of the scripts of tables. Source it after scripts/common.sh. docs/own_tables.md shows how to add
# a table. A line in the comments at a script's top, or here, that begins with three spaces and two dashes
# declares an option. --max-update N sets MAX_UPDATE to a number, --size base|big sets SIZE to one of these names, and
# --dry-run sets DRY_RUN to 1.
. scripts/data.sh

ROWS='' SEEDS=1 JOBS=1 GPUS=auto GPUS_PER_RUN=1 PRECISION='' MAX_EPOCH='' MAX_UPDATE='' AVERAGE=''
TRAIN_FLAGS='' GENERATE_FLAGS='' SLICE='' OUT='' WITH_PARSING='' DATA_ONLY='' REPORT_ONLY='' TOKENIZE=''
SUBSETS=test BASELINES=transformer STATUS=0 RECORDED='' NO_ROWS='' NUMBERS=1

print_help() {
    awk 'FNR == 1 { on = 1; if (NR > 1) print "" } /^#!/ { next } !/^#/ { on = 0 }
        on { sub(/^# ?/, ""); print }' "$SCRIPT" scripts/table.sh
}

# parse_options: set the variables of the script's options.
parse_options() {
    local option described kind name value
    set -- "${ARGUMENTS[@]}"
    while [ $# -gt 0 ]; do
        option=$1 value=1
        if [ "$option" = -h ] || [ "$option" = --help ]; then print_help; exit 0; fi
        [[ $option =~ ^--[a-z-]+$ ]] && described=$(print_help | grep -- "^  $option ") ||
            die "unknown option '$option' (--help lists them)"
        shift
        if [[ $described =~ ^\ \ $option\ ([A-Za-z][^ ]*) ]]; then
            [ $# -gt 0 ] || die "$option needs a value"
            kind=${BASH_REMATCH[1]} value=$1
            if [ "$kind" = N ]; then check_number "$option" "$value"; fi
            if [[ $kind =~ ^[a-z0-9/_-]+(\|[a-z0-9/_-]+)+$ ]]; then check_one_of "$option" "$value" ${kind//|/ }; fi
            shift
        fi
        name=${option#--} name=${name//-/_}
        printf -v "${name^^}" %s "$value"
        [ "$option" != --baselines ] || NAMED_BASELINES=$value
    done
    [[ $SEEDS =~ ^[0-9]+(,[0-9]+)*$ ]] || die "--seeds $SEEDS: expected numbers with commas between them"
    # Fewer updates may be less than an epoch, without checkpoints to average.
    [ -z "$MAX_UPDATE" ] || AVERAGE=${AVERAGE:-1}
}

check_number() { # OPTION VALUE
    [[ ${2:-1} =~ ^[1-9][0-9]*$ ]] || die "$1 $2: expected a number, at least 1"
}

check_one_of() { # OPTION VALUE NAMES...
    [[ -n $2 && " ${*:3} " == *" $2 "* ]] || die "$1 $2: expected one of ${*:3}"
}

check_folder() { # OPTION FOLDER, which may be empty; a dry run needs none
    [ -z "$2" ] || [ -d "$2" ] || lack "$1 $2: there is no such folder"
}

# name_folder NAME: set OUT, by default a folder for NAME in runs/.
name_folder() {
    OUT=${OUT:-runs/$1${SLICE:+.slice$SLICE}${MAX_EPOCH:+.epochs$MAX_EPOCH}${MAX_UPDATE:+.updates$MAX_UPDATE}}
}

# kept_settings: print the settings with which the files in OUT were made.
kept_settings() {
    [[ ! -f $OUT/settings || -z $(find "$OUT" -mindepth 1 ! -name settings -print -quit) ]] || cat "$OUT/settings"
}

# open_table EXTRAS NAME SETTINGS FILES...: prepare the environment, check the options, make ROWS names of
# rows in FILES, DATA_OF_ROWS the names in their data:, and set OUT by name_folder. A folder with runs of other
# settings is refused, because one table would mix them. Only their precision may differ, because a machine may
# lack a GPU.
open_table() {
    local settings="$3 slice=$SLICE max-epoch=$MAX_EPOCH max-update=$MAX_UPDATE average=$AVERAGE" there first=''
    settings+=" precision=FIRST train-flags='$TRAIN_FLAGS' generate-flags='$GENERATE_FLAGS'"
    FILES=("${@:4}")
    name_folder "$2"
    [ -z "$REPORT_ONLY" ] || [ -n "$(find "$OUT/" -path '*/seed*/train.log' -print -quit 2>/dev/null)" ] ||
        lack "$OUT has no runs to report: leave --report-only out to train them, or name their folder with --out"
    there=$(kept_settings)
    [[ ! $there =~ \ precision=([a-z0-9]+)\  ]] || first=${BASH_REMATCH[1]}
    PRECISION=${PRECISION:-${first:-fp32}} first=${first:-$PRECISION}
    settings=${settings/precision=FIRST/precision=$first}
    ensure_environment "$1"
    # Before the installation, a dry run cannot read YAML, and prints the command that reads it.
    if [ -n "$DRY_RUN" ] && ! "$PYTHON" -c 'import omegaconf, tqdm' 2>/dev/null; then NO_ROWS=1; fi
    [ -n "$NO_ROWS" ] || ROWS=$(rows names DATA "$OUT")
    DATA_OF_ROWS=${ROWS#"${ROWS%% *}"} ROWS=${ROWS%% *}
    if [ -n "$there" ] && [ "$there" != "$settings" ]; then
        die "$OUT holds runs with $there, not with $settings: name another folder with --out"
    fi
    [ "$PRECISION" = "$first" ] || echo "The first runs of $OUT are trained in $first, new ones in $PRECISION."
    [ -n "$DRY_RUN" ] || { mkdir -p "$OUT" && printf '%s\n' "$settings" >"$OUT/settings"; }
}

# rows ACTION DATA RUNS [TRAIN_FLAGS]: scripts/table.py on this table's rows. It also checks what only reports read,
# because they are made after all trainings: the baselines that the user or the table names (a default may be missing),
# and the tokenizer.
rows() {
    local dry=$DRY_RUN$DATA_ONLY$REPORT_ONLY
    local command=("$PYTHON" scripts/table.py "$1" "${FILES[@]}" --rows "$ROWS"
        --seeds "$SEEDS" --data "$2" --out "$3" -s "$SOURCE" -t "$TARGET" --subsets "$SUBSETS" --jobs "$JOBS"
        --gpus "$GPUS" --gpus-per-run "$GPUS_PER_RUN" --precision "$PRECISION"
        --train-flags="${4:-} $TRAIN_FLAGS" --generate-flags="$GENERATE_FLAGS"
        ${MAX_EPOCH:+--max-epoch "$MAX_EPOCH"} ${MAX_UPDATE:+--max-update "$MAX_UPDATE"}
        ${AVERAGE:+--average "$AVERAGE"} ${WITH_PARSING:+--raw "$OUT/raw/unparsed.$SOURCE" ${PARSER:+--parser "$PARSER"}}
        ${NAMED_BASELINES+--baselines "$NAMED_BASELINES"} ${TOKENIZE:+--tokenize "$TOKENIZE"} ${dry:+--dry-run})
    [ -n "$NO_ROWS" ] || { "${command[@]}"; return; }
    echo "# This prints the commands of the rows, with a Python that has omegaconf and tqdm:"
    run "${command[@]}"
}

# train_rows DATA RUNS [FLAGS]: train ROWS, and translate SUBSETS, the first of which is the text TEST.SOURCE.
# STATUS is 1 if a row failed.
train_rows() {
    [ -z "$DATA_ONLY" ] || { keep_texts; echo "not trained (--data-only): the data are in $1"; return 0; }
    [ -z "$REPORT_ONLY" ] || return 0
    [ -z "$WITH_PARSING" ] ||
        make_file "$OUT/raw/unparsed.$SOURCE" python scripts/slice.py "$TEST" "$SOURCE"
    if [ -z "$DRY_RUN$RECORDED" ]; then
        RECORDED=1
        python scripts/provenance.py bash "$SCRIPT" "${ARGUMENTS[@]}" >>"$OUT/provenance.txt"
        mkdir -p "$OUT/configs" && cp "${FILES[@]}" "$OUT/configs"
    fi
    rows run "$@" || STATUS=1
}

# report RUNS OUT SUBSET REFERENCE CAPTION [ARGUMENTS...]: the table of a test set, with the paper's numbers if NUMBERS
# is not empty. Each of BASELINES is compared with: the first in OUT, the others in OUT.ROW.
report() {
    [ -z "$DATA_ONLY" ] || return 0
    local runs=$1 caption=$5 titles=rows without='' compared out baseline
    caption+="${MAX_EPOCH:+, at most $MAX_EPOCH epochs}${MAX_UPDATE:+, only $MAX_UPDATE updates}"
    caption+="${SLICE:+, only $SLICE training pairs}${TRAIN_FLAGS:+, trained with $TRAIN_FLAGS}"
    [ -n "$NUMBERS" ] || titles=rows-without-numbers without=--without-numbers
    titles=$OUT/configs/$titles.yaml
    [ -n "$DRY_RUN" ] || rm -f "$titles"
    make_file "$titles" python scripts/table.py titles "${FILES[@]}" ${without:+"$without"}
    for baseline in ${BASELINES//,/ }; do
        out=$2 compared=(--baseline "$baseline")
        [ "$baseline" = "${BASELINES%%,*}" ] || out+=.$baseline
        say "Report ($out)"
        if [[ -z $NO_ROWS && ! -d $runs/$baseline && ( -n $REPORT_ONLY || ,$ROWS, != *,$baseline,* ) ]]; then
            if [ "$out" != "$2" ]; then echo "Row $baseline is missing: no report compares with it." && continue; fi
            echo "The baseline, row $baseline, is missing: the table compares with nothing."
            compared=()
        fi
        [ "$STATUS" = 0 ] || compared+=(--partial)
        run fairseq-phrase-report "$runs" "${compared[@]}" --rows "$titles" --subset "$3" \
            --reference "$4" --caption "$caption" --out "$out" "${@:6}" ${TOKENIZE:+--tokenize "$TOKENIZE"}
    done
}
