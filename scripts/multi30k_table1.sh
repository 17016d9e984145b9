#!/usr/bin/env bash
# The PhraseTransformer paper's table 1 on Multi30k, with controls and other encoders.
#
#   bash scripts/multi30k_table1.sh                          every row of the tuned setting, one seed
#   bash scripts/multi30k_table1.sh --seeds 1,2,3 --gpus 0 --jobs 6
#   bash scripts/multi30k_table1.sh --setting paper --rows transformer,phrase_k2
#   bash scripts/multi30k_table1.sh --rows 2 --max-update 50 test the whole chain
#
# Options of this table:
#   --setting tuned|paper   sizes and learning rate: configs/tables/multi30k_table1.SETTING.yaml (tuned)
#   --direction de-en|en-de (de-en)
#   --vocab-size N          subwords of both languages together (8000)
#   --text raw|moses        moses: lower-cased text in Moses' tokens, split by --vocab-size merges of subword-nmt,
#                           as in most papers on Multi30k. BLEU is then measured on such text, and the
#                           parser sees no capital letters. raw: segmented by SentencePiece (raw)
SETTING=tuned DIRECTION=de-en VOCAB_SIZE=8000 TEXT=raw

# VARIANT and SAID are the difference of these data from the table's own: in the folder's name, and in the caption.
choose() {
    VARIANT='' SAID='' EXTRAS=plot FILES=("configs/tables/multi30k_table1.$SETTING.yaml")
    SETTINGS=${SETTINGS% text=raw}
    if [ "$TEXT" = moses ]; then
        VARIANT=.moses SAID=', lower-cased tokens of Moses' EXTRAS+=,moses FILES+=(configs/tables/multi30k_table1.moses.yaml)
    fi
    if [ "$VOCAB_SIZE" != 8000 ]; then VARIANT+=.vocab$VOCAB_SIZE SAID+=", vocabulary of $VOCAB_SIZE"; fi
    [ "$DIRECTION" = de-en ] || NUMBERS='' # the paper's are for de-en. It does not name the test set
}

own_find_texts() {
    local name language texts=$OUT/raw
    find_texts
    [ "$TEXT" = moses ] || return 0
    for name in train val "${SETS[@]}"; do
        for language in de en; do
            make_file "$texts/$name.$language" \
                python scripts/moses.py "$RAW/$name" "$language" $([ "$name" != train ] || echo "$SLICE")
        done
    done
    RAW=$texts TRAIN=$texts/train
    [ -e "$RAW/vocabulary.en" ] ||
        run subword-nmt learn-joint-bpe-and-vocab --input "$RAW/train.de" "$RAW/train.en" --output "$RAW/codes" \
            --symbols "$(num_subwords "$VOCAB_SIZE")" --write-vocabulary "$RAW/vocabulary.de" "$RAW/vocabulary.en"
}

own_make_reports() { each_report; }
. "$(dirname "$0")/run_table.sh"
