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
# defaults as variables. Its function more_reports, if it has one, runs after the report.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

KNOWN='title folder extras languages baselines corpus text valid test parser report'
declare -A KEYS=([extras]=plot [baselines]='' [text]='' [valid]=valid [test]=test [parser]='' [report]='')
DATA_BINS=()

# read_keys FILE: set KEYS to the entries of table: in a YAML file. Before the installation no package can read YAML,
# so an entry is one line, without quotation marks.
read_keys() {
    local key value
    while IFS=: read -r key value; do
        [[ " $KNOWN " == *" $key "* || $key =~ ^data-bin(\.[a-z-]+)?$ ]] || die "$1: table: has no key '$key'"
        [[ $value =~ ^\ [^\"\'\>\|\[\{] ]] || die "$1: table: $key: write the value in this line, without quotation marks"
        [[ $key != data-bin* || -v KEYS[$key] ]] || DATA_BINS+=("$key")
        KEYS[$key]=${value# }
    done < <(sed -n '/^table:/,/^[^ #]/{/^ *\(#.*\)\?$/d; s/ \+#.*//; s/^  //p}' "$1")
}

# expand TEXT: set WORDS to its words, with the values of variables such as $CORPUS.
expand() {
    local index name
    read -ra WORDS <<<"$1"
    for index in "${!WORDS[@]}"; do
        while [[ ${WORDS[index]} =~ \$([A-Z_]+) ]]; do
            name=${BASH_REMATCH[1]}
            [ -v "$name" ] || die "$TABLE: there is no variable \$$name"
            WORDS[index]=${WORDS[index]/\$$name/"${!name}"}
        done
    done
}

TABLE=configs/tables/$(basename "$0" .sh).yaml DATA=''
parse_options
[ -e "$TABLE" ] || die "--table: there is no file $TABLE"
read_keys "$TABLE"
for name in title languages corpus data-bin; do
    [[ -v KEYS[$name] ]] || die "$TABLE: table: has no $name (docs/own_tables.md)"
done
expand "${KEYS[folder]:-$(basename "$TABLE" .yaml)}"
NAME=${WORDS[*]} FILES=("$TABLE") MORE=${TABLE%/*}/${WORDS[*]}.yaml
if [ -e "$MORE" ] && [ "$MORE" != "$TABLE" ]; then FILES+=("$MORE") && read_keys "$MORE"; fi
expand "${KEYS[languages]}"
SOURCE=${WORDS[0]%-*} TARGET=${WORDS[0]#*-} SETTINGS=
[[ -v NAMED_BASELINES || -z ${KEYS[baselines]} ]] || NAMED_BASELINES=${KEYS[baselines]}
BASELINES=${NAMED_BASELINES-transformer}
for name in $(print_help | sed -n '/^Options of this table:/,/^$/s/^  --\([a-z-]*\) .*/\1/p'); do
    option=${name//-/_} option=${option^^}
    SETTINGS+="${SETTINGS:+ }$name=${!option}"
done
[[ -z $DATA || -z ${KEYS[text]} || -e $DATA ]] || lack "--data $DATA: there is no such file or folder"
open_table "${KEYS[extras]}" "$NAME" "$SETTINGS" "${FILES[@]}"

say "Data"
expand "${KEYS[corpus]}"
CORPUS_NAME=${WORDS[*]} RAW=$OUT/raw/text
if [ -z "${KEYS[text]}" ]; then # the corpus is the text
    if [ -n "$DATA" ]; then find_text own "$DATA"; else need_corpus "$CORPUS_NAME"; fi
    RAW=$FOUND
elif ! made_once "$RAW/test.$SOURCE" "$RAW" --text "${KEYS[text]}"; then
    find_data "$CORPUS_NAME"
    expand "${KEYS[text]}"
    run python "${WORDS[@]}"
    record "$RAW" --text "${KEYS[text]}"
fi
TRAIN=$RAW/train DEV=$RAW/${KEYS[valid]} TEST=$RAW/${KEYS[test]} PARSER=${KEYS[parser]}
slice_text
[ -n "$PARSER" ] || choose_parser "$OUT/${DATA_BINS[-1]}" "rows with trees" # the data that are made last
for name in "${DATA_BINS[@]}"; do
    expand "${KEYS[$name]}"
    preprocess "$OUT/$name" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" "${WORDS[@]}"
done

REFERENCE=$TEST.$TARGET
[ ! -e "$REFERENCE.gz" ] || REFERENCE+=.gz
expand "${KEYS[title]}"
TITLE=${WORDS[*]}
expand "${KEYS[report]}"
# What is wrong with the report's options is said before the trainings.
[ -n "$DATA_ONLY$DRY_RUN" ] || fairseq-phrase-report --check "$OUT/rows" --out "$OUT/report" --subset test \
    --reference "$REFERENCE" "${WORDS[@]}" ${TOKENIZE:+--tokenize "$TOKENIZE"}

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

report "$OUT/rows" "$OUT/report" test "$REFERENCE" numbers "$TITLE" "${WORDS[@]}"
! declare -F more_reports >/dev/null || more_reports
exit "$STATUS"
