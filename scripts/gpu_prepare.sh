#!/usr/bin/env bash
# Make what scripts/gpu_hour.sh needs on a machine without a network, in .whl/: wheels, and Multi30k with parses.
#
#   bash scripts/gpu_prepare.sh             where pip and the texts can be reached
#
# The machine is taken to have Python 3.12, torch, sentencepiece, sacrebleu, scipy and matplotlib.
#   MOST    MiB that may travel (45)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/data.sh
ensure_environment plot

MOST=${MOST:-45} FOLDER=.whl
mkdir -p "$FOLDER/data"

say "Wheels"
if ! compgen -G "$FOLDER/fairseq_fixed-*.whl" >/dev/null; then
    run "$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux2014_x86_64 -d "$FOLDER" \
        fairseq-fixed==0.12.3.1 bitarray hydra-core==1.3.2 omegaconf==2.3.0
    # It has no wheel, and no compiled code.
    run "$PYTHON" -m pip wheel --quiet --no-deps -w "$FOLDER" antlr4-python3-runtime==4.9.3
fi
# For its commands; the code that runs is the checkout's.
rm -f "$FOLDER"/fairseq_phrase-*.whl
run "$PYTHON" -m pip wheel --quiet --no-deps --no-build-isolation -w "$FOLDER" .

say "Data"
find_multi30k || die "Multi30k cannot be downloaded; put it into FAIRSEQ_PHRASE_DATA/multi30k"
for SOURCE in de en; do
    TARGET=$([ "$SOURCE" = de ] && echo en || echo de)
    data=$FOLDER/data/$SOURCE-$TARGET
    choose_parser "$data" "the rows with trees"
    preprocess "$data" --trainpref "$MULTI30K/train" --validpref "$MULTI30K/val" \
        --testpref "$MULTI30K/test_2016_flickr" --constituents from-dependencies --joined-dictionary \
        --vocab-size 8000
    make_file "$FOLDER/data/test.$TARGET" "$PYTHON" scripts/slice.py "$MULTI30K/test_2016_flickr" "$TARGET"
done

say "Size"
du -h --max-depth=2 "$FOLDER"
size=$(du -sm "$FOLDER" | cut -f1)
[ "$size" -le "$MOST" ] || die "$FOLDER has $size MiB, and $MOST may travel: delete $FOLDER/data/en-de, or set MOST"
echo "$size MiB of $MOST; on the machine with the GPU: bash scripts/gpu_hour.sh smoke"
