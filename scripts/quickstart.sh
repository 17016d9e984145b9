#!/usr/bin/env bash
# From nothing to translations: virtual environment, data, parsing, training, BLEU and a picture.
#
#   bash scripts/quickstart.sh          Multi30k de-en: about 20 minutes on 2 cores
#   bash scripts/quickstart.sh --fast   the synthetic corpus: about 3 minutes after the installation
#
# A PhraseTransformer (k = 2) and fairseq's own Transformer of the same size are trained side by side.
# Run it again after Ctrl-C: it goes on where it was. Settings: see scripts/common.sh, and
#   FAIRSEQ_PHRASE_PARSER   parser of the German side, spacy:MODEL or none (found or downloaded)
#   WORK                    where everything goes (runs/quickstart, runs/quickstart-fast)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

FAST=
case "${1:-}" in
    --fast) FAST=1 ;;
    '') ;;
    *) die "usage: bash scripts/quickstart.sh [--fast]" ;;
esac
WORK=${WORK:-runs/quickstart${FAST:+-fast}}
CORES=$(nproc)
ensure_environment plot
mkdir -p "$WORK"

synthetic() { # TRAIN_SIZE
    TRAIN=$WORK/raw/train VALID=$WORK/raw/valid TEST=$WORK/raw/test PARSER=conllu
    [ -e "$TEST.en" ] || fairseq-phrase-synthetic --out "$WORK/raw" --train "$1" --valid 500 --test 500
    REFERENCE=$TEST.en
}

say "Data"
if [ -n "$FAST" ]; then
    synthetic 5000
    VOCABULARY=800 EPOCHS=5
elif find_multi30k; then
    TRAIN=$MULTI30K/train VALID=$MULTI30K/val TEST=$MULTI30K/test_2016_flickr
    REFERENCE=$TEST.en.gz
    VOCABULARY=4000 EPOCHS=6
    PARSER=${FAIRSEQ_PHRASE_PARSER:-}
    [ -n "$PARSER" ] || find_parser de
    echo "Multi30k from $MULTI30K, parser $PARSER"
else
    echo "Multi30k cannot be had: using the project's own synthetic corpus"
    synthetic 29000
    VOCABULARY=1000 EPOCHS=5
fi

DATA=$WORK/data-bin
if [ ! -e "$DATA/syntax.de.json" ]; then
    say "Parsing, subwords, binarizing"
    fairseq-phrase-preprocess --source-lang de --target-lang en \
        --trainpref "$TRAIN" --validpref "$VALID" --testpref "$TEST" \
        --parser "$PARSER" --bpe sentencepiece --vocab-size "$VOCABULARY" --joined-dictionary \
        --destdir "$DATA" --workers "$CORES"
fi

say "Training, both models side by side ($WORK/*/train.log)"
write_training() { # NAME ARCHITECTURE...
    local folder=$WORK/$1
    shift
    mkdir -p "$folder"
    cat >"$folder/train.sh" <<END
export OMP_NUM_THREADS=$((CORES > 1 ? CORES / 2 : 1)) CUDA_VISIBLE_DEVICES=\${CUDA_VISIBLE_DEVICES-0}
exec fairseq-train $DATA --user-dir fairseq_phrase --task syntax_translation \\
    --arch $* --share-all-embeddings --encoder-normalize-before --decoder-normalize-before \\
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \\
    --lr 0.005 --lr-scheduler inverse_sqrt --warmup-updates 400 --dropout 0.1 \\
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \\
    --max-tokens 2048 --max-epoch $EPOCHS --seed 1 --num-workers 0 \\
    --save-dir $folder --save-interval-updates 100 --keep-interval-updates 2 --keep-last-epochs 3 \\
    --no-progress-bar --log-format simple --log-interval 10
END
}
write_training transformer "transformer \\
    --encoder-layers 3 --encoder-embed-dim 128 --encoder-ffn-embed-dim 256 --encoder-attention-heads 4 \\
    --decoder-layers 3 --decoder-embed-dim 128 --decoder-ffn-embed-dim 256 --decoder-attention-heads 4"
write_training phrase_transformer "phrase_transformer_tiny --phrase-max-length 2"
python scripts/side_by_side.py "$WORK/transformer" "$WORK/phrase_transformer" --epochs "$EPOCHS"

say "Translating the test set"
for name in transformer phrase_transformer; do
    folder=$WORK/$name
    [ -e "$folder/average.pt" ] ||
        fairseq-phrase-average "$folder" --last 3 --out "$folder/average.pt"
    if [ ! -e "$folder/generate.txt" ]; then
        fairseq-generate "$DATA" --user-dir fairseq_phrase --task syntax_translation \
            --path "$folder/average.pt" --beam 5 --batch-size 100 \
            --bpe sentencepiece --sentencepiece-model "$DATA/spm.model" >"$folder/generate.partial"
        mv "$folder/generate.partial" "$folder/generate.txt"
    fi
done

say "Result"
fairseq-phrase-score "fairseq transformer=$WORK/transformer" \
    "PhraseTransformer k=2=$WORK/phrase_transformer" \
    --reference "$REFERENCE" --out "$WORK/scores.md"
echo
echo "attention of the first test sentence:"
fairseq-phrase-plot attention "$DATA" --path "$WORK/phrase_transformer/average.pt" --index 0 \
    --out "$WORK/attention.png"
