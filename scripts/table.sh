# What the scripts of the papers' tables share. Source it from the project's root, after common.sh.
#
# Options of every table:
#   --rows NAMES|N          names with commas between them, or the first N of the table (all)
#   --seeds NUMBERS         (1)
#   --jobs N                trainings at a time (1)
#   --gpus NUMBERS          GPUs to share (all that there are; none: CPU)
#   --gpus-per-run N        GPUs that train one run together: update_freq is divided by N, so that the
#                           batch stays the row's (1)
#   --precision NAME        of training: fp32, fp16 or bf16 (fp32)
#   --max-epoch N           at most so many epochs; the report says so
#   --max-update N          fewer updates than the rows say; the last checkpoint is not averaged then, and
#                           the report says so
#   --average N             checkpoints to average, instead of the row's number
#   --train-flags FLAGS     more flags for fairseq-train, such as '--max-tokens 8192 --update-freq 4'
#   --generate-flags FLAGS  more flags for fairseq-generate
#   --slice N               only N sentence pairs to train on; the report says so
#   --out DIR               where everything goes (a folder in runs/)
#   --with-parsing          also translate raw text, parsing it on the fly, for the speed of that
#   --data-only             make the data and stop: on a machine with a network, for one without
#   --dry-run               print every command, run none
#
# Run a script again after Ctrl-C or a failure: what is finished is not run again. Other settings: see
# scripts/common.sh; FAIRSEQ_PHRASE_PARSER names a parser of the source, spacy:MODEL.

declare -A OPTIONS=(
    [--rows]=ROWS [--seeds]=SEEDS [--jobs]=JOBS [--gpus]=GPUS [--gpus-per-run]=GPUS_PER_RUN
    [--precision]=PRECISION [--max-epoch]=MAX_EPOCH [--max-update]=MAX_UPDATE [--average]=AVERAGE
    [--train-flags]=TRAIN_FLAGS [--generate-flags]=GENERATE_FLAGS [--slice]=SLICE [--out]=OUT
)
ROWS='' SEEDS=1 JOBS=1 GPUS=auto GPUS_PER_RUN=1 PRECISION=fp32 MAX_EPOCH='' MAX_UPDATE='' AVERAGE=''
SLICE='' OUT='' STATUS=0 TRAIN_FLAGS='' GENERATE_FLAGS='' WITH_PARSING='' DATA_ONLY='' RECORDED=''

ARGUMENTS=("$@") # the script's, for the record

# parse_options ARGUMENTS...: set the variables that OPTIONS names; a script adds its own options there.
parse_options() {
    while [ $# -gt 0 ]; do
        case "$1" in
            --dry-run) DRY=1; shift; continue ;;
            --data-only) DATA_ONLY=1; shift; continue ;;
            --with-parsing) WITH_PARSING=1; shift; continue ;;
            -h | --help) print_help; exit 0 ;;
        esac
        [ -n "${1:+${OPTIONS[$1]:-}}" ] || die "unknown option '$1' (--help says which there are)"
        [ $# -ge 2 ] || die "$1 needs a value"
        printf -v "${OPTIONS[$1]}" %s "$2"
        shift 2
    done
    check_number --jobs "$JOBS"
    check_number --gpus-per-run "$GPUS_PER_RUN"
    check_number --max-epoch "${MAX_EPOCH:-1}"
    check_number --max-update "${MAX_UPDATE:-1}"
    check_number --average "${AVERAGE:-1}"
    # Fewer updates may not be an epoch, and leave no checkpoints to average.
    [ -z "$MAX_UPDATE" ] || AVERAGE=${AVERAGE:-1}
    check_number --slice "${SLICE:-1}"
    check_one_of --precision "$PRECISION" fp32 fp16 bf16
    [[ $SEEDS =~ ^[0-9]+(,[0-9]+)*$ ]] || die "--seeds $SEEDS: expected numbers with commas between them"
}

# The comments at the top of the script and of this file.
print_help() {
    local file
    for file in "scripts/$(basename "$0")" scripts/table.sh; do
        awk '/^#!/ { next } !/^#/ { exit } { sub(/^# ?/, ""); print } END { print "" }' "$file"
    done
}

check_number() { # OPTION VALUE
    [[ $2 =~ ^[1-9][0-9]*$ ]] || die "$1 $2: expected a number, at least 1"
}

check_one_of() { # OPTION VALUE NAMES...
    local option=$1 value=$2
    shift 2
    [[ " $* " == *" $value "* && -n $value ]] || die "$option $value: expected one of $*"
}

# choose_rows FILE: make ROWS names: all that FILE has, or its first N.
choose_rows() {
    local all
    all=$(sed -n 's/^\([A-Za-z0-9_]*\):.*/\1/p' "$1" | paste -sd, -)
    ROWS=${ROWS:-$all}
    if [[ $ROWS =~ ^[1-9][0-9]*$ ]]; then ROWS=$(cut -d, -f"1-$ROWS" <<<"$all"); fi
}

# open_folder NAME SETTINGS...: set OUT, by default a folder for NAME in runs/. A folder that holds runs
# of other settings is refused: they would stand in one table.
open_folder() {
    OUT=${OUT:-runs/$1${SLICE:+.slice$SLICE}${MAX_EPOCH:+.epochs$MAX_EPOCH}${MAX_UPDATE:+.updates$MAX_UPDATE}}
    shift
    local settings="$* slice=$SLICE max-epoch=$MAX_EPOCH max-update=$MAX_UPDATE average=$AVERAGE"
    settings+=" precision=$PRECISION train-flags='$TRAIN_FLAGS' generate-flags='$GENERATE_FLAGS'"
    if [ -e "$OUT/settings" ] && [ "$(cat "$OUT/settings")" != "$settings" ]; then
        die "$OUT holds runs with $(cat "$OUT/settings"), not with $settings: name another folder with --out"
    fi
    if [ -z "$DRY" ]; then
        mkdir -p "$OUT"
        printf '%s\n' "$settings" >"$OUT/settings"
    fi
}

# pieces N: how many subwords to learn: N, but fewer from a slice.
pieces() {
    local count=$1
    if [ -n "$SLICE" ]; then
        count=$((SLICE / 2 > 500 ? SLICE / 2 : 500))
        count=$((count < $1 ? count : $1))
    fi
    echo "$count"
}

# synthetic_text FOLDER: write the project's own corpus there, SLICE pairs to train on: what a slice is
# tried on where a table's text cannot be had. Its sides are de and en.
synthetic_text() {
    [ -e "$1/test.en" ] || run fairseq-phrase-synthetic --out "$1" --train "$SLICE" --valid 100 --test 100
}

# choose_parser DATA ROWS: set PARSER, for ROWS; where the data are made already, none needs to be here.
choose_parser() {
    PARSER=${FAIRSEQ_PHRASE_PARSER:-}
    [ -n "$PARSER" ] || [ -e "$1/syntax.$SOURCE.json" ] || find_parser "$SOURCE"
    [ "$PARSER" != none ] || die "$2 need a parser: FAIRSEQ_PHRASE_PARSER=spacy:MODEL"
}

# preprocess DESTDIR ARGUMENTS...: parse, cut and binarize, unless that is done.
preprocess() {
    local destination=$1
    shift
    [ -e "$destination/syntax.$SOURCE.json" ] ||
        run fairseq-phrase-preprocess -s "$SOURCE" -t "$TARGET" --destdir "$destination" \
            --parser "$PARSER" --on-error flat --workers "$(nproc)" "$@"
}

# prepare_machine EXTRAS: the environment, and which GPUs there are.
prepare_machine() {
    ensure_environment "$1"
    if [ "$GPUS" = auto ]; then
        GPUS=
        [ -n "$DRY" ] || GPUS=$(visible_gpus)
    fi
    [ "$PRECISION" = fp32 ] || [ -n "$GPUS$DRY" ] ||
        die "--precision $PRECISION needs a GPU, and none is here or named: leave --precision out on a CPU"
}

# record: write to OUT when, how and where this is run, and copy its rows' files.
record() {
    [ -z "$DRY$RECORDED" ] || return 0
    RECORDED=1
    python scripts/provenance.py bash "scripts/$(basename "$0")" "${ARGUMENTS[@]}" >>"$OUT/provenance.txt"
    mkdir -p "$OUT/configs"
    cp "$CONFIGS"/*.yaml "$OUT/configs"
    cp "$TITLES" "$OUT/configs"
}

# train_rows DATA RUNS [FLAGS]: train ROWS of CONFIGS and translate SUBSETS, the first of which is the text
# TEST.SOURCE. STATUS is 1 if a row failed.
train_rows() {
    [ -z "$DATA_ONLY" ] || { echo "not trained (--data-only): the data are in $1"; return 0; }
    local flags="${3:-} $TRAIN_FLAGS" raw=$OUT/raw/unparsed.$SOURCE
    record
    [ -z "$WITH_PARSING" ] || make_file "$raw" python scripts/slice.py "$TEST" "$SOURCE"
    [ "$PRECISION" = fp32 ] || flags="--$PRECISION $flags"
    python scripts/run_rows.py --configs "$CONFIGS" --rows "$ROWS" --seeds "$SEEDS" --data "$1" \
        -s "$SOURCE" -t "$TARGET" --out "$2" --subsets "$SUBSETS" --jobs "$JOBS" --gpus "$GPUS" \
        --gpus-per-run "$GPUS_PER_RUN" --train-flags="$flags" --generate-flags="$GENERATE_FLAGS" \
        ${MAX_EPOCH:+--max-epoch "$MAX_EPOCH"} ${MAX_UPDATE:+--max-update "$MAX_UPDATE"} \
        ${AVERAGE:+--average "$AVERAGE"} ${WITH_PARSING:+--raw "$raw"} ${DRY:+--dry-run} || STATUS=1
}

# without_numbers: make TITLES rows without the paper's numbers, for what the paper did not measure.
without_numbers() {
    local without=$OUT/raw/rows-without-numbers.yaml
    [ "$TITLES" != "$without" ] || return 0
    make_file "$without" sed 's/, paper: [0-9.]*//' "$TITLES"
    TITLES=$without
}

# report RUNS OUT SUBSET REFERENCE ROW_FILE CAPTION [ARGUMENTS...]: the table of a test set.
report() {
    [ -z "$DATA_ONLY" ] || return 0
    local runs=$1 out=$2 subset=$3 reference=$4 rows=$5 caption=$6 compared=()
    shift 6
    caption+="${MAX_EPOCH:+, at most $MAX_EPOCH epochs}${MAX_UPDATE:+, only $MAX_UPDATE updates}${SLICE:+, only $SLICE training pairs}"
    caption+="${TRAIN_FLAGS:+, trained with $TRAIN_FLAGS}"
    if [[ ,$ROWS, == *,$BASELINE,* || -d $runs/$BASELINE ]]; then
        compared=(--baseline "$BASELINE")
    else
        echo "The baseline, row $BASELINE, is not there: the table compares with nothing."
    fi
    [ "$STATUS" = 0 ] || compared+=(--partial)
    run fairseq-phrase-report "$runs" "${compared[@]}" --rows "$rows" --subset "$subset" \
        --reference "$reference" --caption "$caption" --out "$out" "$@"
}
