#!/usr/bin/env bash
# All of a release but its publication, from the last commit: sdist and wheel, their checks, and the wheel in a
# new environment, from a synthetic corpus to a translation.
#
#   bash scripts/release_check.sh          before a release
#   bash scripts/release_check.sh v0.1.0   also that version, changelog and this tag fit
#
# Afterwards .release/ has dist/ (sdist and wheel), without_fairseq/ (a wheel for GitHub), the text of the release (notes.md) and results.tar.gz.
# Settings: PYTHON and TORCH, see scripts/common.sh; RELEASE, another folder than .release.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
(($# < 2)) && [[ ${1:-v} == v* ]] || die "expected no argument or a tag such as v0.1.0"
git rev-parse HEAD >/dev/null 2>&1 || die "a release is made in a clone of the git repository"
choose_python
unset PYTHONPATH LD_PRELOAD FAIRSEQ_PHRASE_READY
WORK=$PWD/.release
[ -z "${RELEASE:-}" ] || WORK=$(realpath -m "$RELEASE")
rm -rf "$WORK"
mkdir -p "$WORK/source"
git archive HEAD | tar -x -C "$WORK/source"

say "Version and changelog"
"$PYTHON" "$WORK/source/scripts/release_notes.py" "$@" >"$WORK/notes.md"
wc -w "$WORK/notes.md"

say "Build"
"$PYTHON" -m venv "$WORK/tools"
"$WORK/tools/bin/python" -m pip install --quiet build twine
"$WORK/tools/bin/python" -m build --outdir "$WORK/dist" "$WORK/source" >"$WORK/build.log" 2>&1 || { cat "$WORK/build.log"; exit 1; }
"$WORK/tools/bin/python" -m build --wheel --outdir "$WORK/without_fairseq" "$WORK/source/without_fairseq" >>"$WORK/build.log" 2>&1 ||
    { cat "$WORK/build.log"; exit 1; }
"$WORK/tools/bin/twine" check --strict "$WORK"/dist/* "$WORK"/without_fairseq/*
git archive --format=tar.gz --output="$WORK/results.tar.gz" HEAD results

say "The sdist has every tracked file, except outputs of kept runs"
sort >"$WORK/tracked" < <(git ls-tree -r --name-only HEAD | grep -vE '^results/.*/(outputs\.tar\.xz|translations\.zip)$')
sort >"$WORK/packed" < <(tar -tzf "$WORK"/dist/*.tar.gz | sed 's,^[^/]*/,,' |
    grep -vE '/$|^$|^(PKG-INFO|setup\.cfg|fairseq_phrase\.egg-info/.*)$')
diff "$WORK/tracked" "$WORK/packed" || die "lines with < are missing in the sdist: see MANIFEST.in"
wc -l <"$WORK/packed"

say "The wheel in a new environment, by the Dockerfile and $("$PYTHON" --version)"
"$PYTHON" -m venv "$WORK/environment"
python() { "$WORK/environment/bin/python" "$@"; }
python -m pip install --quiet --upgrade pip
python -m pip install --quiet "$TORCH" # which the Dockerfile's line finds
while read -r line; do
    PATH=$WORK/environment/bin:$PATH PIP_QUIET=1 bash -euc "${line//\/wheels/"$WORK"/dist}" </dev/null
done < <(sed -n 's/^RUN //p' "$WORK/source/Dockerfile")

mkdir "$WORK/empty"
cd "$WORK/empty"
PATH=$WORK/environment/bin:$PATH OMP_NUM_THREADS=1 # the machine may be busy
export OMP_NUM_THREADS
fairseq-phrase --version --verbose
commands=$(fairseq-phrase | grep -oE '^fairseq-phrase-[a-z]+')
for command in $commands; do "$command" --help >/dev/null; done
wc -w <<<"$commands"
fairseq-phrase-synthetic --out corpus --train 600 --valid 50 --test 50
fairseq-phrase-preprocess -s de -t en --trainpref corpus/train --validpref corpus/valid --testpref corpus/test \
    --parser conllu --joined-dictionary --vocab-size 200 --destdir data
fairseq-train data --user-dir fairseq_phrase --task syntax_translation --arch relation_transformer_tiny \
    --relation-bias both --encoder-normalize-before --decoder-normalize-before --share-all-embeddings \
    --optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt --warmup-updates 50 --max-tokens 1000 --max-update 100 \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --log-format simple --cpu \
    --no-epoch-checkpoints --save-dir checkpoints >train.log 2>&1 || { cat train.log; exit 1; }
fairseq-phrase-export checkpoints/checkpoint_last.pt data bundle
fairseq-phrase-translate bundle corpus/test.de --out test.en
[ "$(wc -l <test.en)" = 50 ] && grep -q '[a-z]' test.en || die "the wheel's translation has no words, or not 50 lines"
head -n 2 test.en

# A pip of its own; the rest as a user types it (docs/tutorials/huggingface.md), with the wheel's path.
say "The wheel without fairseq in a new environment, and the code of its pages"
"$PYTHON" -m venv "$WORK/without"
python() { "$WORK/without/bin/python" "$@"; }
python -m pip install --quiet "$TORCH"
python -m pip install --quiet "$(echo "$WORK"/without_fairseq/*.whl)[transformers]"
for package in fairseq hydra omegaconf torchaudio; do
    python -c "import $package" 2>/dev/null && die "the wheel without fairseq installs $package"
done
python -m pip check
python -m pip install --quiet pytest pytest-timeout hypothesis conllu
cd "$WORK/source"
rm -r fairseq_phrase # the tests are of the wheel
python -m pytest -q tests/commands/test_huggingface_example.py \
    tests/parsers/test_{conllu,parsers,pipeline}.py tests/syntax/test_tree_arrays.py \
    tests/huggingface/test_huggingface_training.py tests/methods/common/test_tree_positions.py
say "Ready: dist/, notes.md and results.tar.gz in $WORK"
