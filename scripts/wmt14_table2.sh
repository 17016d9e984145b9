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
# With --slice and without --data, the text is the project's own synthetic corpus.
SIZE=base BPE_CODES='' TEST_SET=wmt14/full

choose() {
    [ -z "$BPE_CODES" ] || [ -n "$DATA" ] || die "--bpe-codes is for text that you have: --data DIR"
    SAID=''
    [ -z "$BPE_CODES" ] || FILES+=(configs/tables/wmt14_table2.tokenized.yaml) SAID=', of tokenized text'
}

own_find_texts() {
    SETS=(test)
    if [ -n "$DATA" ]; then
        find_text own "$DATA"
        RAW=$FOUND KEYS[valid]=dev
    elif [ -n "$SLICE" ]; then
        RAW=$OUT/raw TRAIN=$OUT/raw/train
        synthetic_text "$RAW" "$SLICE" 100
    else
        SETS=("newstest2014.${TEST_SET//\//-}") KEYS[valid]=newstest2013
        if find_kept wmt14; then RAW=$FOUND; else download_wmt14; fi
    fi
}

download_wmt14() {
    local name archive language
    RAW=data/wmt14
    CORPORA+=("wmt14=$RAW")
    while read -r archive name; do
        download "https://www.statmt.org/$archive" "$RAW/$(basename "$archive")" || return 1
        for language in en de; do
            make_file "$RAW/$name.$language" tar -xzOf "$RAW/$(basename "$archive")" --wildcards "*$name.$language"
        done
    done <<'END'
wmt13/training-parallel-europarl-v7.tgz europarl-v7.de-en
wmt13/training-parallel-commoncrawl.tgz commoncrawl.de-en
wmt14/training-parallel-nc-v9.tgz news-commentary-v9.de-en
END
    for language in en de; do
        make_file "$RAW/train.$language" cat "$RAW"/{europarl-v7,commoncrawl,news-commentary-v9}.de-en."$language"
        name=src
        [ "$language" = en ] || name=ref
        make_file "$RAW/newstest2013.$language" sacrebleu --test-set wmt13 --language-pair en-de --echo "$name"
        make_file "$RAW/${SETS[0]}.$language" sacrebleu --test-set "$TEST_SET" --language-pair en-de --echo "$name"
    done
}
. "$(dirname "$0")/run_table.sh"
