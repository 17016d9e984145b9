#!/usr/bin/env bash
# The structural-position paper's table 1: nine models on NIST Chinese-English.
#
#   bash scripts/nist_zh_en_table1.sh --data /corpora/nist --gpus 0,1,2 --jobs 3
#   bash scripts/nist_zh_en_table1.sh --slice 2000 --max-update 50 test the whole chain
#
# The text is licensed by the LDC and cannot be downloaded. OUT has sentences of it, so OUT may not be
# distributed either. The paper does not name its LDC training corpora. NIST 2002 is its development set,
# on which table 1 is measured. NIST 2003 to 2006 are its test sets.
#
# Options of this table:
#   --data DIR              DIR/train.{zh,en}, DIR/dev.{zh,en} and, if you have them, test sets
#                           DIR/test*.{zh,en}, .gz too. A set with several references has the files
#                           NAME.en0, NAME.en1, … (not .gz) instead of NAME.en
#
# Chinese text may be segmented or not, because the parser makes its own words. The parser is spaCy's
# zh_core_web_sm, or FAIRSEQ_PHRASE_PARSER=stanza:zh-hans.
# The report's BLEU uses the first reference. The paper's uses four. BLEU against all references is in
# OUT/bleu-of-all-references.txt, computed by sacrebleu.
#
# With --slice and without --data, the text is the project's own synthetic corpus, with German for Chinese.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

DATA='' BASELINES=table1_4 SOURCE=zh TARGET=en
parse_options
[ -n "$DATA$SLICE" ] ||
    { lack "--data DIR: the LDC's text cannot be downloaded (--help says what DIR holds)" && DATA=DIR; }
compgen -G "${OUT:-runs/nist_zh_en_table1*}/corpora/own" >/dev/null || [ "$DATA" = DIR ] || check_folder --data "$DATA"
open_table plot nist_zh_en_table1 "data=$DATA" configs/tables/nist_zh_en_table1.yaml

# find_sets: set SETS to the names of the development and test sets of DATA, the former first.
find_sets() {
    local file
    SETS=(dev)
    for file in "$DATA"/test*."$SOURCE" "$DATA"/test*."$SOURCE".gz; do
        [ ! -e "$file" ] || SETS+=("$(basename "${file%.gz}" ".$SOURCE")")
    done
}

# one_reference SET: make OUT/raw/SET, with the first of several references.
one_reference() {
    local reference=$TARGET
    [ ! -e "$DATA/$1.${TARGET}0" ] || reference=${TARGET}0
    make_file "$OUT/raw/$1.$SOURCE" python scripts/slice.py "$DATA/$1" "$SOURCE"
    make_file "$OUT/raw/$1.$TARGET" python scripts/slice.py "$DATA/$1" "$reference"
}

# all_references: BLEU of every run against all references of the sets that have several.
all_references() {
    local number file hypotheses
    for number in "${!SETS[@]}"; do
        [ -e "$DATA/${SETS[number]}.${TARGET}1" ] || continue
        for file in "$OUT"/rows/*/seed*/"generate-$(subset "$number").txt"; do
            hypotheses=${file%.txt}.hypotheses
            sed -n 's/^D-//p' "$file" | sort -n | cut -f3- >"$hypotheses"
            printf '%s\t%s\t' "${SETS[number]}" "${file#"$OUT/rows/"}"
            sacrebleu "$DATA/${SETS[number]}.$TARGET"[0-9] --input "$hypotheses" --metrics bleu --format text \
                ${TOKENIZE:+--tokenize "$TOKENIZE"}
        done
    done
}

subset() { [ "$1" = 0 ] && echo test || echo "test$1"; }

say "Data"
VOCABULARY=32000
if [ -n "$DATA" ]; then
    WHAT=$(basename "$DATA")
    find_text own "$DATA"
    DATA=$FOUND
    find_sets
else
    SOURCE=de DATA=$OUT/synthetic WHAT=synthetic VOCABULARY=500 SETS=(valid test)
    synthetic_text "$DATA" "$SLICE" 100
fi
TESTS='' SUBSETS=''
for number in "${!SETS[@]}"; do
    one_reference "${SETS[number]}"
    TESTS+=,$OUT/raw/${SETS[number]} SUBSETS+=,$(subset "$number")
done
TESTS=${TESTS#,} SUBSETS=${SUBSETS#,}
TRAIN=$DATA/train DEV=$OUT/raw/${SETS[0]} TEST=$OUT/raw/${SETS[0]}
slice_text
choose_parser "$OUT/data-bin" "structural rows"
# The development set is a test set too, and test sets keep every line.
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TESTS" \
    --max-length 250 --vocab-size "$VOCABULARY" --constituents none

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

NUMBERS=1 # the paper's are for the development set
for number in "${!SETS[@]}"; do
    name=${SETS[number]}
    report "$OUT/rows" "$OUT/report-$name" "$(subset "$number")" "$OUT/raw/$name.$TARGET" \
        "$WHAT $SOURCE-$TARGET, $name, first reference"
    NUMBERS=
done
if [ -z "$DRY_RUN$DATA_ONLY" ] && compgen -G "$DATA/*.${TARGET}1" >/dev/null; then
    all_references | tee "$OUT/bleu-of-all-references.txt"
fi
exit "$STATUS"
