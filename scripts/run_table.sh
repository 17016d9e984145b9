#!/usr/bin/env bash
# A table that its YAML file defines: text, data, rows and report.
#
#   bash scripts/run_table.sh --table configs/tables/my_table.yaml --seeds 1,2,3 --jobs 2
#   bash scripts/run_table.sh --table configs/tables/my_table.yaml --slice 300 --max-update 3    test the whole chain
#
# docs/own_tables.md explains the file's keys.
#
# Options of this table:
#   --table FILE            the YAML file
#   --data DIR              the text, instead of the table's corpus

# A script that is named after its table sources this file, with the table's own options in its comments and their
# defaults as variables. What its table does differently are functions of the script:
#   defaults                after the options are read: set those whose default depends on others
#   choose                  after their record is made: check them, set variables for the keys, add to FILES
#   own_find_texts, own_make_data, own_make_reports
#                           instead of the functions below, which they may call
#   before_data NAME        before the data data-bin or data-bin.NAME are made; it may set PARSER
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

KNOWN='title folder extras languages baselines corpus text valid test parser report'
declare -A KEYS=([extras]=plot [baselines]='' [text]='' [valid]=valid [test]=test [parser]='' [report]='')
DATA_BINS=() TEXT_FILES=()

own() { if declare -F "own_$1" >/dev/null; then "own_$1"; else "$1"; fi; }

# read_keys FILE: set KEYS to the entries of table: in a YAML file. Before the installation no package can read YAML,
# so an entry is one line, without quotation marks.
read_keys() {
    local key value
    while IFS=: read -r key value || [ -n "$key" ]; do # the last line may have no end
        [[ " $KNOWN " == *" $key "* || $key =~ ^data-bin(\.[a-z0-9_-]+)?$ ]] || die "$1: table: has no key '$key'"
        [[ $value =~ ^\ [^\"\'\>\|\[\{] ]] || die "$1: table: $key: write the value in this line, without quotation marks"
        [[ $key != data-bin* || -v KEYS[$key] ]] || DATA_BINS+=("$key")
        KEYS[$key]=${value# }
    done < <(sed -n '1s/^\xEF\xBB\xBF//; s/\r$//; /^table:/,/^[^ #]/{/^ *\(#.*\)\?$/d; s/ \+#.*//; s/^ \+//p}' "$1")
}

# expand KEY: set WORDS to its words, with the values of variables such as $CORPUS. An option whose value is an empty
# variable is left out.
expand() {
    local index name word rest
    read -ra WORDS <<<"${KEYS[$1]}"
    for index in "${!WORDS[@]}"; do
        word=${WORDS[index]} rest=${WORDS[index]} WORDS[index]=''
        while [[ $rest =~ \$([A-Z_]+)(.*)$ ]]; do # a value is not searched for variables
            name=${BASH_REMATCH[1]}
            [ -v "$name" ] || die "$TABLE: there is no variable \$$name"
            WORDS[index]+=${rest%"${BASH_REMATCH[0]}"}${!name} rest=${BASH_REMATCH[2]}
        done
        WORDS[index]+=$rest
        if [[ $word && -z ${WORDS[index]} && ${WORDS[index - 1]} == --* ]]; then unset "WORDS[index]" "WORDS[index - 1]"; fi
    done
}

# find_texts: make RAW, the folder of the texts, and set SETS to the names of the test sets in it. It may set TRAIN to a
# training text that --slice leaves as it is. TEXT_FILES are options of a table that name a file to make the texts of.
find_texts() {
    expand corpus
    CORPUS_NAME=${WORDS[*]}
    if [ -z "${KEYS[text]}" ]; then # the corpus is the text
        if [ -n "$DATA" ]; then find_text own "$DATA"; else need_corpus "$CORPUS_NAME"; fi
        RAW=$FOUND
    elif ! made_once "$RAW/${KEYS[test]%% *}.$SOURCE" "$RAW" --text "${KEYS[text]}" "${TEXT_FILES[@]}"; then
        [ "$CORPUS_NAME" = none ] || find_data "$CORPUS_NAME"
        expand text
        run python "${WORDS[@]}"
        record "$RAW" --text "${KEYS[text]}" "${TEXT_FILES[@]}"
    fi
    find_tests "$OUT/data-bin" "$RAW" ${KEYS[test]}
}

# number_tests: set REFERENCES, SUBSETS and JOINED to the files, the names in fairseq, and the prefixes of TESTS; the
# first is TEST.
number_tests() {
    local number
    TEST=${TESTS[0]} SUBSETS='' JOINED='' REFERENCES=()
    for number in "${!TESTS[@]}"; do
        REFERENCES+=("$(packed "${TESTS[number]}.$TARGET")") SUBSETS+=,test${number#0} JOINED+=,${TESTS[number]}
    done
    SUBSETS=${SUBSETS#,} JOINED=${JOINED#,}
}

is_made() { [ -e "$OUT/$1/syntax.$SOURCE.json" ]; }

# make_data: the data data-bin, and those data-bin.NAME that a row reads.
make_data() {
    local name needed=() parsed=''
    for name in "${DATA_BINS[@]}"; do
        [[ $name = data-bin || $NO_ROWS || " $DATA_OF_ROWS " == *" ${name#*.} "* ]] || continue
        needed+=("$name")
        [[ " ${KEYS[$name]}" == *\ --parser\ * ]] || { [ -n "$parsed" ] && is_made "$name"; } || parsed=$name
    done
    [ -n "$PARSER" ] || [ -z "$parsed" ] || choose_parser "$OUT/$parsed" "rows with trees"
    [ -z "$REPORT_ONLY" ] || return 0
    for name in "${needed[@]}"; do
        is_made "$name" || ! declare -F before_data >/dev/null || before_data "$name"
        expand "$name"
        preprocess "$OUT/$name" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$JOINED" "${WORDS[@]}"
    done
}

# expand_report: set TITLE, and WORDS to the options of the report, of all test sets or of the set SET.
expand_report() {
    expand title
    TITLE=${WORDS[*]}
    expand report
}

# make_reports: one report of all test sets; each_report makes one of each, with the paper's numbers in the first.
make_reports() {
    local number more=()
    for number in "${!TESTS[@]}"; do
        [ "$number" = 0 ] || more+=(--reference "test$number=${REFERENCES[number]}")
    done
    expand_report
    report "$OUT/rows" "$OUT/report" test "${REFERENCES[0]}" "$TITLE" "${WORDS[@]}" "${more[@]}"
}

each_report() {
    local number
    for number in "${!SETS[@]}"; do
        SET=${SETS[number]}
        expand_report
        report "$OUT/rows" "$OUT/report-$SET" "test${number#0}" "${REFERENCES[number]}" "$TITLE" "${WORDS[@]}"
        NUMBERS=''
    done
}

TABLE=configs/tables/$(basename "$0" .sh).yaml DATA='' SETTINGS='' FILES=()
parse_options
! declare -F defaults >/dev/null || defaults
for name in $(print_help | sed -n '/^Options of this table:/,/^$/s/^  --\([a-z-]*\) .*/\1/p'); do
    option=${name//-/_} option=${option^^}
    SETTINGS+="${SETTINGS:+ }$name=${!option}"
done
TRAIN_LINES=${SLICE:-${TRAIN_SIZE:-}} # of the training text; empty: all
! declare -F choose >/dev/null || choose
[ -e "$TABLE" ] || die "--table: there is no file $TABLE"
FILES=("$TABLE" "${FILES[@]}")
for name in "${FILES[@]}"; do read_keys "$name"; done
for name in title languages corpus data-bin; do
    [[ -v KEYS[$name] ]] || die "$TABLE: table: has no $name (docs/own_tables.md)"
done
[[ -v KEYS[folder] ]] || KEYS[folder]=$(basename "$TABLE" .yaml)
expand folder
NAME=${WORDS[*]} MORE=${TABLE%/*}/${WORDS[*]}.yaml
if [ -e "$MORE" ] && [ "$MORE" != "$TABLE" ]; then FILES+=("$MORE") && read_keys "$MORE"; fi
expand languages
[[ ${WORDS[*]} =~ ^[^-\ ]+-[^-\ ]+$ ]] || die "$TABLE: table: languages: expected two with - between them, such as de-en"
SOURCE=${WORDS[0]%-*} TARGET=${WORDS[0]#*-} PARSER=${KEYS[parser]}
[[ -v NAMED_BASELINES || -z ${KEYS[baselines]} ]] || NAMED_BASELINES=${KEYS[baselines]}
BASELINES=${NAMED_BASELINES-transformer}
name_folder "$NAME"
[[ -z $DATA || -z ${KEYS[text]} || -e $DATA || -e $OUT/raw/text/made-with.json ]] ||
    lack "$DATA: there is no such file or folder"
expand extras
open_table "${WORDS[0]}" "$NAME" "$SETTINGS" "${FILES[@]}"
for name in $DATA_OF_ROWS; do
    [[ -v KEYS[data-bin.$name] ]] || declare -F own_make_data >/dev/null ||
        die "$TABLE: a row has data: $name, and table: has no data-bin.$name (docs/own_tables.md)"
done

say "Data"
RAW=$OUT/raw/text TRAIN=''
own find_texts
DEV=$RAW/${KEYS[valid]} TESTS=("${SETS[@]/#/$RAW/}")
number_tests
if [ -z "$TRAIN" ]; then
    TRAIN=$RAW/train
    [[ ${KEYS[text]} == *\$TRAIN_LINES* ]] || slice_text
fi
own make_data

# What is wrong with the report's options is said before the trainings.
SET=${SETS[0]}
expand_report
[ -n "$DATA_ONLY$DRY_RUN" ] || fairseq-phrase-report --check "$OUT/rows" --out "$OUT/report" --subset test \
    --reference "${REFERENCES[0]}" "${WORDS[@]}" ${TOKENIZE:+--tokenize "$TOKENIZE"}

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"
[ -n "$DATA_ONLY" ] || own make_reports
exit "$STATUS"
