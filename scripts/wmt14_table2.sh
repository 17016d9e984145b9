#!/usr/bin/env bash
# The structural-position paper's table 2, WMT14 English-German, in the sizes base and big, and the tree Transformer.
#
#   bash scripts/wmt14_table2.sh --gpus 0,1,2,3 --jobs 4     all rows of the base size, a GPU each
#   bash scripts/wmt14_table2.sh --size big --gpus 0,1,2,3,4,5,6,7 --gpus-per-run 8 --precision bf16
#   bash scripts/wmt14_table2.sh --slice 2000 --max-update 50 test the whole chain
#
# The training text (Europarl v7, Common Crawl, News Commentary v9: about 4.5 million pairs) is downloaded
# from statmt.org to data/wmt14 (about 1.6 GB). The development set newstest2013 and the test set newstest2014
# come from sacrebleu. No checksums of the archives are published: see scripts/download.py.
#
# Options of this table:
#   --size base|big         configs/tables/wmt14_table2.SIZE.yaml (base)
#   --data DIR              text that you have: DIR/{train,dev,test}.{en,de}, .gz too
#   --bpe-codes FILE        DIR's text is Moses-tokenized, and is split by these codes of subword-nmt. BLEU is
#                           then measured on tokens. Without it SentencePiece learns 32,000 subwords
#   --test-set wmt14/full|wmt14
#                           sacrebleu's name of newstest2014: 3,003 sentences, or 2,737 of them (wmt14/full)
#
# With --slice, the text is FAIRSEQ_PHRASE_DATA/wmt (Moses-tokenized) if it exists. Its last lines are the
# development and test sets.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

SIZE=base DATA='' BPE_CODES='' TEST_SET=wmt14/full SOURCE=en TARGET=de
parse_options
[ -z "$BPE_CODES" ] || [ -n "$DATA" ] || die "--bpe-codes is for text that you have: --data DIR"
open_table plot,bpe "wmt14_table2.$SIZE" "size=$SIZE data=$DATA bpe-codes=$BPE_CODES test-set=$TEST_SET" \
    configs/tables/wmt14_table2.yaml "configs/tables/wmt14_table2.$SIZE.yaml"

download_wmt14() {
    local name archive language
    while read -r archive name; do
        download "https://www.statmt.org/$archive" "data/wmt14/$(basename "$archive")" || return 1
        for language in en de; do
            make_file "data/wmt14/$name.$language" \
                tar -xzOf "data/wmt14/$(basename "$archive")" --wildcards "*$name.$language"
        done
    done <<'END'
wmt13/training-parallel-europarl-v7.tgz europarl-v7.de-en
wmt13/training-parallel-commoncrawl.tgz commoncrawl.de-en
wmt14/training-parallel-nc-v9.tgz news-commentary-v9.de-en
END
    for language in en de; do
        make_file "data/wmt14/train.$language" \
            cat data/wmt14/{europarl-v7,commoncrawl,news-commentary-v9}.de-en."$language"
    done
    CORPORA+=(wmt14=data/wmt14)
    TRAIN=data/wmt14/train DEV=data/wmt14/newstest2013 TEST=data/wmt14/newstest2014.${TEST_SET//\//-}
    make_file "$DEV.en" sacrebleu --test-set wmt13 --language-pair en-de --echo src
    make_file "$DEV.de" sacrebleu --test-set wmt13 --language-pair en-de --echo ref
    make_file "$TEST.en" sacrebleu --test-set "$TEST_SET" --language-pair en-de --echo src
    make_file "$TEST.de" sacrebleu --test-set "$TEST_SET" --language-pair en-de --echo ref
}

# hold_out FOLDER: the 10,000 pairs of FOLDER, of which the last 400 are held out.
hold_out() {
    local language
    ((SLICE <= 9600)) || die "--slice $SLICE: $1 has 9,600 pairs to train on"
    for language in en de; do
        make_file "$OUT/raw/dev.$language" python scripts/slice.py "$1/slice10k" "$language" 200 --from 9600
        make_file "$OUT/raw/test.$language" python scripts/slice.py "$1/slice10k" "$language" 200 --from 9800
    done
    TRAIN=$1/slice10k DEV=$OUT/raw/dev TEST=$OUT/raw/test
}

say "Data"
TOKENIZED=()
SLICED=${FAIRSEQ_PHRASE_DATA:-../shared/data}/wmt
if [ -n "$DATA" ]; then
    find_text own "$DATA"
    TRAIN=$FOUND/train DEV=$FOUND/dev TEST=$FOUND/test
elif find_kept wmt14; then
    TRAIN=$FOUND/train DEV=$FOUND/newstest2013 TEST=$FOUND/newstest2014.${TEST_SET//\//-}
elif [ -n "$SLICE" ] && { [ -e "$SLICED/slice10k.en.gz" ] || [ -e "$OUT/raw/test.en" ]; }; then
    hold_out "$SLICED"
    TOKENIZED=(--source-tokenized --target-tokenized)
else
    download_wmt14
fi
slice_text
SUBWORDS=(--vocab-size 32000)
if [ -n "$BPE_CODES" ]; then
    TOKENIZED=(--source-tokenized --target-tokenized)
    SUBWORDS=(--bpe subword_nmt --bpe-codes "$BPE_CODES")
fi
choose_parser "$OUT/data-bin" "rows with trees"
preprocess "$OUT/data-bin" --trainpref "$TRAIN" --validpref "$DEV" --testpref "$TEST" --max-length 250 \
    "${SUBWORDS[@]}" "${TOKENIZED[@]}" --constituents from-dependencies --joined-dictionary

say "Rows ($OUT)"
train_rows "$OUT/data-bin" "$OUT/rows"

REFERENCE=$TEST.$TARGET
[ -e "$REFERENCE" ] || [ -n "$DRY_RUN" ] || REFERENCE=$REFERENCE.gz
report "$OUT/rows" "$OUT/report" test "$REFERENCE" \
    "WMT14 English-German, $(basename "$TEST"), $SIZE${TOKENIZED:+, of tokenized text}" ${TOKENIZED:+--tokenize none}
exit "$STATUS"
