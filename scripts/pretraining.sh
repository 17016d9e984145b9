#!/usr/bin/env bash
# Pre-training on captions, then translation, tagging and classification from the encoders.
#
#   bash scripts/pretraining.sh --seeds 1,2,3 --jobs 2               everything, Multi30k en-de
#   bash scripts/pretraining.sh --part objectives                    the held-out losses alone
#   bash scripts/pretraining.sh --text documents --seeds 1,2,3       on reviews and a treebank's text
#   bash scripts/pretraining.sh --slice 400 --max-update 3           test the whole chain
#
# The objectives come first: the other parts start from their checkpoints of seed 1.
#
# Options of this table:
#   --part all|objectives|translation|tagging|sst
#                           (all)
#   --direction en-de|de-en of translation. Text and captions are in its source language (en-de)
#   --fractions LIST        shares of the pairs of translation, such as 1/16,1/4,1 (1/16,1/4,1)
#   --text captions|documents
#                           documents: IMDB's reviews and English EWT, with a row for pairs of sentences, without
#                           translation (captions)
#   --reviews N             reviews to train on (5000)
#   --captions DIR          more captions, train.*.LANG.gz (FAIRSEQ_PHRASE_DATA/captions, or
#                           a download)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/table.sh

PART=all DIRECTION=en-de FRACTIONS=1/16,1/4,1 BASELINES=none,xl_none TEXT=captions REVIEWS=5000
CAPTIONS=''
parse_options
PARTS='objectives translation tagging sst'
[[ $FRACTIONS =~ ^(1|1/[1-9][0-9]*)(,(1|1/[1-9][0-9]*))*$ ]] ||
    die "--fractions $FRACTIONS: expected 1 or 1/K, commas between them"
[ "$PART" != all ] || [ "$DIRECTION" = en-de ] || PARTS='objectives translation'
[ "$PART" != all ] || [ "$TEXT" = captions ] || PARTS='objectives tagging sst'
[ "$PART" = all ] || PARTS=$PART
[[ $PART != all || $ROWS =~ ^[0-9]*$ ]] || die "--rows $ROWS: every part has other rows: name one with --part"
SOURCE=${DIRECTION%-*} TARGET=${DIRECTION#*-} CHOSEN=$ROWS
[[ $DIRECTION = en-de || ! $PARTS$TEXT =~ tagging|sst|documents ]] ||
    die "--part $PART --text $TEXT: the texts are English: --direction en-de"
[[ $TEXT = captions || $PARTS != translation ]] || die "--part translation: use --text captions"
NAME=pretraining.$DIRECTION SETTINGS="direction=$DIRECTION captions=$CAPTIONS"
if [ "$TEXT" = documents ]; then NAME=pretraining.documents SETTINGS="text=documents reviews=$REVIEWS"; fi

# files_of PART: set FILES to the files that define its rows.
files_of() {
    local tables=configs/tables/pretraining labels=''
    [[ $1 =~ objectives|translation ]] || labels=.labels
    FILES=("$tables.yaml" ${labels:+"$tables$labels.yaml"} "$tables.$1.yaml")
    [ "$TEXT" = captions ] || FILES+=("$tables.documents$labels.yaml")
}

files_of "${PARTS%% *}"
open_table label,plot "$NAME" "$SETTINGS" "${FILES[@]}"

# use_table PART: from now on, ROWS are this part's rows.
use_table() {
    files_of "$1"
    ROWS=$CHOSEN
    [ -n "$NO_ROWS" ] || ROWS=$(rows names DATA "$OUT")
}

# captions: write the text of captions to ALL, and set SUBWORDS to the subwords of the whole parallel
# text.
captions() {
    local texts found=() file split
    need_corpus multi30k
    MULTI30K=$FOUND
    TRAIN=$MULTI30K/train DEV=$MULTI30K/val TEST=$MULTI30K/test_2016_flickr
    slice_text
    [ -n "$REPORT_ONLY" ] || [ -e "$WHOLE/dict.$TARGET.txt" ] ||
        run fairseq-phrase-preprocess -s "$SOURCE" -t "$TARGET" --destdir "$WHOLE" --parser none --trainpref "$TRAIN" \
            --validpref "$DEV" --testpref "$TEST" --joined-dictionary --vocab-size "$(num_subwords 8000)" \
            --normal-form nmt_nfkc
    [ -n "$REPORT_ONLY" ] || check_kept "$WHOLE"
    SUBWORDS=(--sentencepiece-model "$WHOLE/spm.model" --srcdict "$WHOLE/dict.$SOURCE.txt")
    MAKE_SUBWORDS=("${SUBWORDS[@]}")
    [[ -n $CAPTIONS$SLICE || -e $ALL/train.$SOURCE ]] || { need_corpus captions && CAPTIONS=$FOUND; }
    shopt -s nullglob
    texts=("$TRAIN.$SOURCE" "$TRAIN.$SOURCE.gz")
    [ -n "$SLICE" ] || texts+=("$CAPTIONS"/train.*."$SOURCE" "$CAPTIONS"/train.*."$SOURCE".gz)
    shopt -u nullglob
    for file in "${texts[@]}"; do if [ -e "$file" ] || [ -n "$DRY_RUN" ]; then found+=("$file"); fi; done
    make_file "$ALL/train.$SOURCE" gzip -dcf "${found[@]}"
    for split in valid test; do
        file=$DEV
        [ "$split" = valid ] || file=$TEST
        make_file "$ALL/$split.$SOURCE" python scripts/slice.py "$file" "$SOURCE"
    done
}

# documents: write the text of documents to ALL, and set SUBWORDS to its own subwords.
documents() {
    local imdb
    TEST=$ALL/test
    if [ ! -e "$ALL/test.en" ]; then
        need_corpus imdb
        imdb=$FOUND
        need_corpus treebanks/en_ewt
        run python scripts/documents.py "$ALL" --imdb "$imdb" --treebank "$FOUND" --reviews "$REVIEWS" \
            ${SLICE:+--slice "$SLICE"}
    fi
    SUBWORDS=(--sentencepiece-model "$OUT/text/spm.model" --srcdict "$OUT/text/dict.en.txt")
    MAKE_SUBWORDS=(--vocab-size "$(num_subwords 8000)" --normal-form nmt_nfkc)
}

say "Data"
ALL=$OUT/raw/text WHOLE=$OUT/pairs
"$TEXT"
choose_parser "$OUT/text" "masks of phrases"
[ -n "$REPORT_ONLY" ] || [ -e "$OUT/text/syntax.$SOURCE.json" ] ||
    run fairseq-phrase-preprocess -s "$SOURCE" --only-source --destdir "$OUT/text" --trainpref "$ALL/train" \
        --validpref "$ALL/valid" --testpref "$ALL/test" --parser "$PARSER" --constituents from-dependencies \
        --on-error flat --workers "$(cores)" "${MAKE_SUBWORDS[@]}"
[ -n "$REPORT_ONLY" ] || check_kept "$OUT/text"
PRETRAINED=$OUT/objectives
export PRETRAINED

objectives() {
    train_rows "$OUT/text" "$OUT/objectives"
    [ -n "$DATA_ONLY$REPORT_ONLY" ] || run python scripts/pretraining_losses.py "$OUT/objectives" --data "$OUT/text" \
        --rows "${FILES[@]}" --out "$OUT/report-objectives"
}

# with_subwords DATA PREF_TRAIN PREF_VALID PREF_TEST OPTIONS...: data with the subwords of pre-training.
with_subwords() {
    PARSER=none preprocess "$1" --trainpref "$2" --validpref "$3" --testpref "$4" "${SUBWORDS[@]}" "${@:5}"
}

translation() {
    local fraction part folder train language curve=()
    for fraction in ${FRACTIONS//,/ }; do
        part=${fraction#1/} folder=$OUT/translation/fraction-${fraction//\//-} train=$TRAIN
        if [ "$part" != 1 ]; then
            train=$folder/raw/train
            for language in "$SOURCE" "$TARGET"; do
                make_file "$train.$language" python scripts/slice.py "$TRAIN" "$language" --every "$part"
            done
        fi
        with_subwords "$folder/data-bin" "$train" "$DEV" "$TEST" --tgtdict "$WHOLE/dict.$TARGET.txt"
        # An epoch of a K-th has a K-th of an epoch's updates.
        train_rows "$folder/data-bin" "$folder/rows" "--save-interval $part --validate-interval $part"
        report "$folder/rows" "$folder/report" test "$(packed "$TEST.$TARGET")" \
            "From pre-trained encoders, Multi30k $DIRECTION, $fraction of the pairs"
        curve+=("$fraction=$folder/report")
    done
    [ ${#curve[@]} = 1 ] || [ -n "$DATA_ONLY" ] || [ "$STATUS" != 0 ] ||
        run python scripts/curve.py "${curve[@]}" --out "$OUT/translation/curve"
}

# labelled NAME SUFFIX LABELS CAPTION READER CORPUS OPTIONS...: make data of labels, train and report.
labelled() {
    local raw=$OUT/$1/raw known=() TARGET=$2 GENERATE_FLAGS=''  # they belong to translation
    if [ ! -e "$raw/test.en" ]; then
        need_corpus "$6"
        run python scripts/labelled_text.py "$5" "$FOUND" "$raw" "${@:7}" ${SLICE:+--slice "$SLICE"}
    fi
    with_subwords "$OUT/$1/data-bin" "$raw/train" "$raw/valid" "$raw/test" --labels "$3"
    train_rows "$OUT/$1/data-bin" "$OUT/$1/rows"
    [ "$3" = sentence ] || known=(--known-words "$raw/train.en")
    report "$OUT/$1/rows" "$OUT/$1/report" test "$raw/test.$2" "$4" --measure labels \
        --source "$raw/test.en" "${known[@]}"
}

tagging() {
    labelled tagging tag word "Tagging of English EWT from pre-trained encoders" \
        conllu treebanks/en_ewt --column xpos
}

sst() {
    labelled sst class sentence "SST-2 from pre-trained encoders" sst sst --classes 2 --phrases none
}

for NAME in $PARTS; do use_table "$NAME"; done # names what is wrong for a later part before the first one trains
for NAME in $PARTS; do
    say "Part $NAME ($OUT)"
    use_table "$NAME"
    "$NAME"
done
exit "$STATUS"
