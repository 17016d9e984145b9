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

choose() {
    [ -n "$DATA$SLICE" ] ||
        { lack "--data DIR: the LDC's text cannot be downloaded (--help says what DIR holds)" && DATA=DIR; }
    LANGUAGES=zh-en VOCABULARY=32000 WHAT=$(basename "$DATA")
    [ -n "$DATA" ] || LANGUAGES=de-en VOCABULARY=500 WHAT=synthetic
    compgen -G "${OUT:-runs/nist_zh_en_table1*}/corpora/own" >/dev/null || [ "$DATA" = DIR ] || check_folder --data "$DATA"
}

# The development set is a test set, too. Of a set with several references, OUT/raw has the first.
own_find_texts() {
    local file name reference
    SETS=(dev)
    if [ -n "$DATA" ]; then
        find_text own "$DATA"
        DATA=$FOUND
        for file in "$DATA"/test*."$SOURCE" "$DATA"/test*."$SOURCE".gz; do
            [ ! -e "$file" ] || SETS+=("$(basename "${file%.gz}" ".$SOURCE")")
        done
    else
        DATA=$OUT/synthetic SETS=(valid test)
        synthetic_text "$DATA" "$SLICE" 100
    fi
    for name in "${SETS[@]}"; do
        reference=$TARGET
        [ ! -e "$DATA/$name.${TARGET}0" ] || reference=${TARGET}0
        make_file "$OUT/raw/$name.$SOURCE" python scripts/slice.py "$DATA/$name" "$SOURCE"
        make_file "$OUT/raw/$name.$TARGET" python scripts/slice.py "$DATA/$name" "$reference"
    done
    KEYS[valid]=${SETS[0]} RAW=$OUT/raw TRAIN=$DATA/train
    slice_text
}

# all_references: BLEU of every run against all references of the sets that have several.
all_references() {
    local number file hypotheses
    for number in "${!SETS[@]}"; do
        [ -e "$DATA/${SETS[number]}.${TARGET}1" ] || continue
        for file in "$OUT"/rows/*/seed*/"generate-test${number#0}.txt"; do
            hypotheses=${file%.txt}.hypotheses
            sed -n 's/^D-//p' "$file" | sort -n | cut -f3- >"$hypotheses"
            printf '%s\t%s\t' "${SETS[number]}" "${file#"$OUT/rows/"}"
            sacrebleu "$DATA/${SETS[number]}.$TARGET"[0-9] --input "$hypotheses" --metrics bleu --format text \
                ${TOKENIZE:+--tokenize "$TOKENIZE"}
        done
    done
}

own_make_reports() {
    each_report
    [ -n "$DRY_RUN" ] || ! compgen -G "$DATA/*.${TARGET}1" >/dev/null ||
        all_references | tee "$OUT/bleu-of-all-references.txt"
}
. "$(dirname "$0")/run_table.sh"
