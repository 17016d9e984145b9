#!/usr/bin/env bash
# The PhraseTransformer paper's table 1 on Multi30k, with controls and the other two encoders.
#
#   bash scripts/multi30k_table1.sh                          every row of the tuned setting, one seed
#   bash scripts/multi30k_table1.sh --seeds 1,2,3 --gpus 0 --jobs 6
#   bash scripts/multi30k_table1.sh --setting paper --rows transformer,phrase_k2
#   bash scripts/multi30k_table1.sh --rows 2 --max-update 50 a look at whether all works
#
#   --setting tuned|paper   configs/multi30k_table1/SETTING (tuned)
#   --direction de-en|en-de (de-en)
#   --rows NAMES|N          names with commas between them, or the first N of the table (all)
#   --seeds NUMBERS         (1)
#   --jobs N                trainings at a time (1)
#   --gpus NUMBERS          GPUs to share (all that there are; none: CPU)
#   --max-update N          fewer updates than the rows say; the report says so
#   --slice N               only the first N sentence pairs of the training set
#   --out DIR               where everything goes (runs/multi30k_table1.SETTING.DIRECTION)
#   --dry-run               print every command, run none
#
# Run it again after Ctrl-C or a failure: what is finished is not run again. Other settings: see
# scripts/common.sh; FAIRSEQ_PHRASE_PARSER names a parser of the source, spacy:MODEL.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

ROWS=transformer,linear_k2,linear_k3,phrase_k2,phrase_k3
ROWS+=,transformer_equal_parameters,sigma_without_phrases,phrase_k2_all,dependency_k2,dependency_k3
ROWS+=,structural_4,structural_5,structural_6,structural_7,structural_8,structural_9,tree
SETTING=tuned DIRECTION=de-en SEEDS=1 JOBS=1 GPUS=auto MAX_UPDATE='' SLICE='' OUT='' DRY=''
while [ $# -gt 0 ]; do
    case "$1" in
        --dry-run) DRY=--dry-run; shift; continue ;;
        --setting | --direction | --rows | --seeds | --jobs | --gpus | --max-update | --slice | --out) ;;
        *) die "unknown option $1 (the first lines of $0 say which there are)" ;;
    esac
    [ $# -ge 2 ] || die "$1 needs a value"
    case "$1" in
        --setting) SETTING=$2 ;;
        --direction) DIRECTION=$2 ;;
        --rows)
            if [[ $2 =~ ^[0-9]+$ ]]; then ROWS=$(cut -d, -f"1-$2" <<<"$ROWS"); else ROWS=$2; fi ;;
        --seeds) SEEDS=$2 ;;
        --jobs) JOBS=$2 ;;
        --gpus) GPUS=$2 ;;
        --max-update) MAX_UPDATE=$2 ;;
        --slice) SLICE=$2 ;;
        --out) OUT=$2 ;;
    esac
    shift 2
done
CONFIGS=configs/multi30k_table1/$SETTING
[ -d "$CONFIGS" ] || die "--setting $SETTING: expected one of $(ls configs/multi30k_table1 | xargs)"
[[ $DIRECTION == de-en || $DIRECTION == en-de ]] || die "--direction $DIRECTION: expected de-en or en-de"
SOURCE=${DIRECTION%-*} TARGET=${DIRECTION#*-}
OUT=${OUT:-runs/multi30k_table1.$SETTING.$DIRECTION${SLICE:+.slice$SLICE}}
DATA=$OUT/data-bin
ensure_environment plot

say "Data"
find_multi30k || die "Multi30k cannot be had; put it into FAIRSEQ_PHRASE_DATA/multi30k"
PARSER=${FAIRSEQ_PHRASE_PARSER:-}
[ -n "$PARSER" ] || find_parser "$SOURCE"
[ "$PARSER" != none ] || die "dependency and tree rows need a parser: FAIRSEQ_PHRASE_PARSER=spacy:MODEL"
TRAIN=$MULTI30K/train
if [ -n "$SLICE" ]; then
    TRAIN=$OUT/raw/train
    mkdir -p "$OUT/raw"
    for language in de en; do
        python scripts/slice.py "$MULTI30K/train" "$language" "$SLICE" >"$TRAIN.$language"
    done
fi
SUBSETS=test TESTS=$MULTI30K/test_2016_flickr
for name in test_2017_flickr test_2018_flickr; do
    if [ -e "$MULTI30K/$name.de.gz" ] && [ -e "$MULTI30K/$name.en.gz" ]; then
        SUBSETS+=,test$(tr -cd , <<<"$SUBSETS," | wc -c) TESTS+=,$MULTI30K/$name
    fi
done
if [ ! -e "$DATA/syntax.$SOURCE.json" ]; then
    VOCABULARY=8000
    # A slice has fewer pieces to learn.
    [ -z "$SLICE" ] || VOCABULARY=$((SLICE < 8000 ? (SLICE < 2000 ? 1000 : SLICE / 2) : 8000))
    fairseq-phrase-preprocess -s "$SOURCE" -t "$TARGET" \
        --trainpref "$TRAIN" --validpref "$MULTI30K/val" --testpref "$TESTS" \
        --parser "$PARSER" --constituents from-dependencies --on-error flat \
        --vocab-size "$VOCABULARY" --joined-dictionary --destdir "$DATA" --workers "$(nproc)"
fi

say "Rows ($OUT)"
if [ "$GPUS" = auto ]; then
    GPUS=$(python -c 'import torch; print(",".join(map(str, range(torch.cuda.device_count()))))')
fi
STATUS=0
python scripts/run_rows.py --configs "$CONFIGS" --rows "$ROWS" --seeds "$SEEDS" --data "$DATA" \
    -s "$SOURCE" -t "$TARGET" --out "$OUT/rows" --subsets "$SUBSETS" --jobs "$JOBS" --gpus "$GPUS" \
    ${MAX_UPDATE:+--max-update "$MAX_UPDATE"} $DRY || STATUS=$?
[ -z "$DRY" ] || exit "$STATUS"

say "Report ($OUT/report)"
PARTIAL=
[ "$STATUS" = 0 ] || PARTIAL=--partial
fairseq-phrase-report "$OUT/rows" --baseline transformer --rows configs/multi30k_table1/rows.yaml \
    --reference "$MULTI30K/test_2016_flickr.$TARGET.gz" --lowercase $PARTIAL \
    --caption "Multi30k $DIRECTION, test_2016_flickr, $SETTING setting${MAX_UPDATE:+, only $MAX_UPDATE updates}${SLICE:+, only $SLICE training pairs}" \
    --out "$OUT/report"
exit "$STATUS"
