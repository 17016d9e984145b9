#!/usr/bin/env bash
# Little text and a dictionary: does structure between a sentence's words and their translations (glosses) pay?
#
#   bash scripts/low_resource.sh --seeds 1,2,3,4,5 --jobs 2             Tatoeba de-en, 3,000 pairs, Ding
#   bash scripts/low_resource.sh --train-size 1000 --seeds 1,2,3        the first 1,000 of them
#   bash scripts/low_resource.sh --direction en-tr --seeds 1,2,3        UD ATIS, gold trees, FreeDict
#   bash scripts/low_resource.sh --slice 300 --max-update 3 --rows 2    test the whole chain
#
# Glosses stand behind the sentence, and edges of a graph lead from words to their glosses. The report's columns
# "unseen" and "seen" are accuracies on content words: of the words for which the dictionary has a translation that the
# reference has too, the share for which the output has such a translation. The training text lacks unseen words.
# Dictionaries are GPL: Debian's packages trans-de-en and dict-freedict-eng-tur, which dpkg-deb unpacks.
#
# Options of this table:
#   --direction de-en|en-tr (de-en)
#   --train-size N          pairs to train on (3000)
#   --dictionary FILE       another dictionary, lines of a word, a tab and a translation
#   --vocab-size N          subwords of both languages together (2000; en-tr 1000, of so few words)
DIRECTION=de-en TRAIN_SIZE=3000 DICTIONARY='' VOCAB_SIZE=''

defaults() {
    [ -n "$VOCAB_SIZE" ] || { VOCAB_SIZE=2000; [ "$DIRECTION" != en-tr ] || VOCAB_SIZE=1000; }
}

choose() {
    [[ -z $DICTIONARY || -e $DICTIONARY ]] || lack "--dictionary $DICTIONARY: there is no such file"
    CORPUS=tatoeba WHAT='Tatoeba de-en, Ding' KIND=ding PACKED=trans-de-en_1.9-6_all.deb FILE=usr/share/trans/de-en
    if [ "$DIRECTION" = en-tr ]; then
        CORPUS=treebanks/atis_en_tr WHAT='UD ATIS en-tr, FreeDict' KIND=freedict
        PACKED=dict-freedict-eng-tur_2022.04.21-1_all.deb FILE=usr/share/dictd/freedict-eng-tur.dict.dz
    fi
    WHAT="Little text and a dictionary: $WHAT, $TRAIN_LINES pairs"
}

# The trees of Tatoeba are a parser's.
own_find_texts() {
    local split
    RAW=$OUT/raw/parsed TRAIN=$OUT/raw/parsed/train SETS=(test)
    [ ! -e "$RAW/test.$SOURCE.conllu" ] || return 0
    find_data "$CORPUS"
    if [ "$DIRECTION" = en-tr ]; then
        run python scripts/parallel_trees.py "$DATA" en tr "$RAW" --pairs "$TRAIN_LINES"
        return
    fi
    choose_parser "$OUT/data-bin" "rows with trees"
    run python scripts/tatoeba.py "$DATA/deu-eng.tsv.gz" "$RAW" --train "$TRAIN_LINES" --held-out 2000 --valid 1000
    for split in train valid test; do
        [ -n "$REPORT_ONLY" ] || run python scripts/glosses.py parse "${PARSER#spacy:}" "$RAW/$split.de" "$RAW/$split.de"
    done
}

unpack() { dpkg-deb --fsys-tarfile "$1" | tar -xO "./$2" | if [ "$KIND" = ding ]; then cat; else gzip -dc; fi; }

# The data data-bin.NAME are of the texts that scripts/glosses.py makes.
own_make_data() {
    local name text
    TRANSLATIONS=${DICTIONARY:-$OUT/raw/dictionary.tsv}
    if [[ -z $REPORT_ONLY$DICTIONARY && ! -e $TRANSLATIONS ]]; then
        need_corpus "dictionaries/$DIRECTION"
        make_file "$OUT/raw/dictionary.txt" unpack "$FOUND/$PACKED" "$FILE"
        make_file "$TRANSLATIONS" python scripts/glosses.py dictionary "$KIND" "$OUT/raw/dictionary.txt"
    fi
    make_data
    [ -z "$REPORT_ONLY" ] || return 0
    # Away from data-bin's labels, because glosses have one more.
    make_file "$OUT/raw/dict.txt" cat "$OUT/data-bin/dict.$SOURCE.txt"
    for name in entries glosses keyed shuffled other; do
        text=$OUT/raw/$name
        if ! made_once "$text/test.$TARGET" "$text" --dictionary "$TRANSLATIONS"; then
            run python scripts/glosses.py append "$RAW"/{train,valid,test}."$SOURCE" --dictionary "$TRANSLATIONS" \
                --ranked-by "$TRAIN.$TARGET" --variant "$name" --out "$text"
            record "$text" --dictionary "$TRANSLATIONS"
        fi
        preprocess "$OUT/data-bin.$name" --trainpref "$text/train" --validpref "$text/valid" --testpref "$text/test" \
            --joined-dictionary --sentencepiece-model "$OUT/data-bin/spm.model" --srcdict "$OUT/raw/dict.txt" \
            --parser "conllu:surface$([ "$name" = entries ] || echo ,enhanced)"
    done
}

own_make_reports() {
    # Kept results have the scores without the trees and the dictionary.
    [[ -n $REPORT_ONLY && ! ( -e $TEST.$SOURCE.conllu && -e $TRANSLATIONS ) ]] ||
        run python scripts/glosses.py score "$OUT/rows" "$TRAIN.$SOURCE" "$TEST.$SOURCE" \
            --reference "$TEST.$TARGET" --dictionary "$TRANSLATIONS"
    make_reports
}
. "$(dirname "$0")/run_table.sh"
