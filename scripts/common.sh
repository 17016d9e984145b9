# What the scripts share. Source it from a script at the project's root.
# Settings, all optional:
#   PYTHON                  interpreter to build the virtual environment with (python3, 3.10-3.12)
#   FAIRSEQ_PHRASE_VENV     where the virtual environment goes (.venv)
#   TORCH                   what to install where no torch is found (torch==2.13.0)
#   FAIRSEQ_PHRASE_DATA     folder of data sets, such as multi30k/

PYTHON=${PYTHON:-python3}
VENV=${FAIRSEQ_PHRASE_VENV:-.venv}
TORCH=${TORCH:-torch==2.13.0}

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# ensure_environment EXTRAS: a virtual environment with this project and fairseq in it. A torch that
# $PYTHON already has stays in use; otherwise one is installed.
ensure_environment() {
    local extras=$1 stamp active
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

# download URL FILE SHA256: resumes where it was cut off, and checks what came.
download() {
    local url=$1 file=$2 sum=$3
    if [ ! -e "$file" ]; then
        mkdir -p "$(dirname "$file")"
        python - "$url" "$file" "$sum" <<'PYTHON_END'
import hashlib, os, sys, urllib.error, urllib.request
from tqdm import tqdm

url, file, expected = sys.argv[1:]
partial = file + ".partial"
have = os.path.getsize(partial) if os.path.exists(partial) else 0
request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        mode = "ab" if answer.status == 206 else "wb"
        size = answer.length
        with open(partial, mode) as out, tqdm(total=size, unit="B", unit_scale=True, desc=os.path.basename(file)) as bar:
            while block := answer.read(1 << 16):
                out.write(block)
                bar.update(len(block))
except (urllib.error.URLError, TimeoutError, OSError) as error:
    sys.exit(f"cannot download {url}: {error}")
found = hashlib.sha256(open(partial, "rb").read()).hexdigest()
if found != expected:
    os.remove(partial)
    sys.exit(f"{url} is not what it was (sha256 {found}, expected {expected})")
os.replace(partial, file)
PYTHON_END
    fi
}

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
    [ "$language" = en ] && package=en_core_web_sm
    if python -c "import $package" 2>/dev/null || python -m spacy download "$package" 2>/dev/null; then
        PARSER="spacy:$package"
    else
        echo "no spaCy pipeline for '$language' could be had: going on without a parser"
        PARSER=none
    fi
}
