# What the scripts share. Source it from a script at the project's root.
# Settings, all optional:
#   PYTHON                  interpreter to build the virtual environment with (python3, 3.10-3.12)
#   FAIRSEQ_PHRASE_VENV     where the virtual environment goes (.venv)
#   FAIRSEQ_PHRASE_READY    1: all is installed where PATH finds it; install nothing
#   TORCH                   what to install where no torch is found (torch==2.13.0)
#   FAIRSEQ_PHRASE_DATA     folder of data sets, such as multi30k/

PYTHON=${PYTHON:-python3}
VENV=${FAIRSEQ_PHRASE_VENV:-.venv}
TORCH=${TORCH:-torch==2.13.0}

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# run COMMAND...: run it; where DRY is set, print it instead.
DRY=
run() {
    [ -n "$DRY" ] || { "$@"; return; }
    printf '%q ' "$@"
    echo
}

# make_file FILE COMMAND...: write what the command prints to FILE, unless that is there.
make_file() {
    local file=$1
    shift
    [ ! -e "$file" ] || return 0
    [ -z "$DRY" ] || { echo "$(run "$@")>$file"; return; }
    mkdir -p "$(dirname "$file")"
    "$@" >"$file.partial" && mv "$file.partial" "$file"
}

# ensure_environment EXTRAS: a virtual environment with this project and fairseq in it. A torch that
# $PYTHON already has stays in use; otherwise one is installed.
ensure_environment() {
    local extras=$1 stamp active
    if [ -n "${FAIRSEQ_PHRASE_READY:-}" ]; then
        command -v fairseq-train >/dev/null && command -v fairseq-phrase-preprocess >/dev/null ||
            die "FAIRSEQ_PHRASE_READY is set, but PATH finds no fairseq-train or fairseq-phrase-preprocess"
        export PYTHONWARNINGS=ignore
        return
    fi
    # An active virtual environment that has a torch is used as it is.
    active=$("$PYTHON" -c 'import sys; print(sys.prefix if sys.prefix != sys.base_prefix else "")')
    if [ -n "$active" ] && [ -z "${FAIRSEQ_PHRASE_VENV:-}" ] && "$PYTHON" -c 'import torch' 2>/dev/null; then
        VENV=$active
    fi
    stamp="$VENV/.installed-$extras-$(cat setup.py pyproject.toml | cksum | cut -d' ' -f1)"
    if [ ! -e "$stamp" ]; then
        say "Setting up $VENV (once; about 5 minutes where fairseq must be compiled)"
        "$PYTHON" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' ||
            die "$PYTHON is not Python 3.10, 3.11 or 3.12: install one and set PYTHON=python3.11"
        "$PYTHON" -c 'import ensurepip' 2>/dev/null ||
            die "$PYTHON cannot make virtual environments: sudo apt-get install python3-venv"
        local site=()
        if "$PYTHON" -c 'import torch' 2>/dev/null; then site=(--system-site-packages); fi
        [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "${site[@]}" "$VENV"
        local pip=("$VENV/bin/python" -m pip install --progress-bar on)
        "${pip[@]}" --quiet --upgrade pip
        "$VENV/bin/python" -c 'import torch' 2>/dev/null || "${pip[@]}" "$TORCH"
        "${pip[@]}" --quiet 'cython>=3' 'numpy>=2.0.2' 'setuptools>=64' wheel
        if ! "$VENV/bin/python" -c 'import importlib.metadata as m; m.version("fairseq-fixed")' 2>/dev/null; then
            if ! "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then
                command -v g++ >/dev/null || die "fairseq is compiled here: sudo apt-get install g++"
                "$VENV/bin/python" -c 'import os, sysconfig, sys
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
                    die "fairseq is compiled here: sudo apt-get install python3-dev"
            fi
            say "Installing fairseq (compiles for about two minutes on Python 3.10 and 3.11)"
            # Without build isolation, or pip fetches a second torch to build with.
            "${pip[@]}" --no-build-isolation 'fairseq-fixed==0.12.3.1'
        fi
        "${pip[@]}" --no-build-isolation --editable ".[$extras]"
        touch "$stamp"
    fi
    PATH="$(cd "$VENV/bin" && pwd):$PATH"
    # Without the deprecation notes of fairseq's own dependencies.
    export PATH PYTHONWARNINGS=ignore
}

# visible_gpus: print the numbers of the GPUs that torch sees, commas between them.
visible_gpus() { python -c 'import torch; print(*range(torch.cuda.device_count()), sep=",")'; }

# download URL FILE [SHA256]: see scripts/download.py.
download() { [ -e "$2" ] || run python scripts/download.py "$@"; }

# find_multi30k: set MULTI30K to a folder with the raw Multi30k corpus, downloading it if need be.
find_multi30k() {
    local folder
    for folder in "${FAIRSEQ_PHRASE_DATA:+$FAIRSEQ_PHRASE_DATA/multi30k}" ../shared/data/multi30k data/multi30k; do
        if [ -n "$folder" ] && [ -e "$folder/train.de.gz" ] && [ -e "$folder/test_2016_flickr.en.gz" ]; then
            MULTI30K=$folder
            return 0
        fi
    done
    local base=https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw name sum
    while read -r sum name; do
        download "$base/$name" "data/multi30k/$name" "$sum" || return 1
    done <scripts/multi30k.sha256
    MULTI30K=data/multi30k
}

# find_parser LANGUAGE: set PARSER to a spaCy pipeline for --parser, or to none.
find_parser() {
    local language=$1 folder package
    for folder in "../shared/parsers/$language"_*; do
        if [ -d "$folder" ]; then PARSER="spacy:$folder"; return; fi
    done
    package="${language}_core_news_sm"
    [[ $language != en && $language != zh ]] || package=${language}_core_web_sm
    if python -c "import $package" 2>/dev/null ||
        run python -m spacy download "$package" 2>/dev/null; then
        PARSER="spacy:$package"
    else
        echo "no spaCy pipeline for '$language' could be had: going on without a parser"
        PARSER=none
    fi
}
