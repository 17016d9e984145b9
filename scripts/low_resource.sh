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
#   --vocab-size N          subwords of both languages together (2000)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

DIRECTION=de-en TRAIN_SIZE=3000 DICTIONARY='' VOCAB_SIZE=2000 BASELINES=sentence,glosses,edges_shuffled DATA=''
parse_options
[[ -z $DICTIONARY || -e $DICTIONARY ]] || lack "--dictionary $DICTIONARY: there is no such file"
SOURCE=${DIRECTION%-*} TARGET=${DIRECTION#*-}
open_table plot "low_resource.$DIRECTION.$TRAIN_SIZE" \
    "direction=$DIRECTION train-size=$TRAIN_SIZE dictionary=$DICTIONARY vocab-size=$VOCAB_SIZE" \
    configs/tables/low_resource.yaml
RAW=$OUT/raw TEXT=$OUT/raw/parsed WORDS=${DICTIONARY:-$OUT/raw/dictionary.tsv} PAIRS=${SLICE:-$TRAIN_SIZE}
WHAT='Tatoeba de-en, Ding' KIND=ding PACKED=trans-de-en_1.9-6_all.deb FILE=usr/share/trans/de-en
if [ "$DIRECTION" = en-tr ]; then
    WHAT='UD ATIS en-tr, FreeDict' KIND=freedict PACKED=dict-freedict-eng-tur_2022.04.21-1_all.deb
    FILE=usr/share/dictd/freedict-eng-tur.dict.dz
fi

# tatoeba, treebank: write {train,valid,test}.{SOURCE,TARGET} to TEXT, with trees of SOURCE.
tatoeba() {
    local split
    find_data tatoeba
    choose_parser "$OUT/data-bin" "rows with trees"
    run python scripts/tatoeba.py "$DATA/deu-eng.tsv.gz" "$TEXT" --train "$PAIRS" --held-out 2000 --valid 1000
    for split in train valid test; do
        [ -n "$REPORT_ONLY" ] || run python scripts/glosses.py parse "${PARSER#spacy:}" "$TEXT/$split.de" "$TEXT/$split.de"
    done
}

treebank() {
    local split
    find_data treebanks/atis_en_tr
    for split in train valid test; do
        run python scripts/parallel_trees.py "$DATA/$split" en tr "$TEXT/$split" \
            $([ "$split" != train ] || echo "--pairs $PAIRS")
    done
}

unpack() { dpkg-deb --fsys-tarfile "$1" | tar -xO "./$2" | if [ "$KIND" = ding ]; then cat; else gzip -dc; fi; }

# with_glosses NAME: the data data-bin.NAME, of the texts that scripts/glosses.py makes.
with_glosses() {
    [[ -n $REPORT_ONLY || -e $RAW/$1/test.$TARGET ]] ||
        run python scripts/glosses.py append "$TEXT"/{train,valid,test}."$SOURCE" --dictionary "$WORDS" \
            --ranked-by "$TEXT/train.$TARGET" --variant "$1" --out "$RAW/$1"
    preprocess "$OUT/data-bin.$1" --trainpref "$RAW/$1/train" --validpref "$RAW/$1/valid" --testpref "$RAW/$1/test" \
        --joined-dictionary --sentencepiece-model "$OUT/data-bin/spm.model" --srcdict "$RAW/dict.txt"
}

say "Data"
if [ ! -e "$TEXT/test.$SOURCE.conllu" ]; then if [ "$DIRECTION" = de-en ]; then tatoeba; else treebank; fi; fi
if [[ -z $DICTIONARY$REPORT_ONLY && ! -e $WORDS ]]; then
    need_corpus "dictionaries/$DIRECTION"
    make_file "$RAW/dictionary.txt" unpack "$FOUND/$PACKED" "$FILE"
    make_file "$WORDS" python scripts/glosses.py dictionary "$KIND" "$RAW/dictionary.txt"
fi
PARSER=conllu:surface
preprocess "$OUT/data-bin" --trainpref "$TEXT/train" --validpref "$TEXT/valid" --testpref "$TEXT/test" \
    --joined-dictionary --vocab-size "$VOCAB_SIZE"
# Away from data-bin's labels, because glosses have one more.
[ -n "$REPORT_ONLY" ] || make_file "$RAW/dict.txt" cat "$OUT/data-bin/dict.$SOURCE.txt"
with_glosses entries
PARSER=conllu:surface,enhanced
for NAME in glosses keyed shuffled other; do with_glosses "$NAME"; done

say "Rows ($OUT)"
TEST=$TEXT/test
train_rows "$OUT/data-bin" "$OUT/rows"

# Kept results have the scores without the trees.
[[ -n $DATA_ONLY || -n $REPORT_ONLY && ! -e $TEST.$SOURCE.conllu ]] || run python scripts/glosses.py score "$OUT/rows" \
    "$TEXT/train.$SOURCE" "$TEST.$SOURCE" --reference "$TEST.$TARGET" --dictionary "$WORDS"
report "$OUT/rows" "$OUT/report" test "$TEST.$TARGET" "Little text and a dictionary: $WHAT, $PAIRS pairs" \
    --metric file:unseen=unseen-SUBSET.txt --metric file:seen=seen-SUBSET.txt
exit "$STATUS"
