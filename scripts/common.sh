# Shared code of all scripts: messages, dry runs and the environment. Source it from the project's root.
# Settings, all optional:
#   PYTHON                  interpreter to use, or to build the virtual environment with: Python 3.10 to 3.13
#                           (python3, or else the first of python3.12, 3.13, 3.11 and 3.10 in PATH)
#   FAIRSEQ_PHRASE_VENV     where the virtual environment goes (.venv)
#   FAIRSEQ_PHRASE_READY    1: PATH has all needed commands; install nothing
#   TORCH                   the requirement to install if torch is missing (torch==2.13.0)
#   FAIRSEQ_PHRASE_MKL      as-it-is: leave MKL as it is on an AMD processor; intel: see use_intel_kernels
#   FAIRSEQ_PHRASE_DATA     folder of corpora, such as multi30k/ (../shared/data, else data/ with downloads)

GIVEN_PYTHON=${PYTHON:-} PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-torch==2.13.0}
SCRIPT=scripts/$(basename "$0") ARGUMENTS=("$@") ENVIRONMENT=
for name in "${!FAIRSEQ_PHRASE_@}"; do ENVIRONMENT+="$name=$(printf %q "${!name}") "; done

# A locale decides what [A-Z] and ${name^^} mean: a Turkish I is in no range.
export LC_ALL=C.UTF-8

((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || {
    echo "error: this is bash $BASH_VERSION; the scripts need Linux and bash 4.4 or later" >&2
    exit 1
}

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
# nproc alone prints OMP_NUM_THREADS if it is set, as clusters do.
cores() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }
trap 'printf "\nStopped. What is finished is kept; to go on from there:\n    %sbash %s\n" \
    "$ENVIRONMENT" "$SCRIPT${ARGUMENTS:+$(printf " %q" "${ARGUMENTS[@]}")}" >&2; exit 130' INT

# In a log, progress bars write one line per minute.
[ -t 2 ] || export TQDM_MININTERVAL=${TQDM_MININTERVAL:-60} TQDM_MAXINTERVAL=${TQDM_MAXINTERVAL:-60}

# run COMMAND...: run it; in a dry run, print it instead.
DRY_RUN=
run() {
    [ -n "$DRY_RUN" ] || { "$@"; return; }
    printf '%q ' "$@"
    echo
}

# make_file FILE COMMAND...: write the command's output to FILE, unless the file exists.
make_file() {
    local file=$1
    shift
    [ ! -e "$file" ] || return 0
    [ -z "$DRY_RUN" ] || { echo "$(run "$@")>$(printf %q "$file")"; return; }
    mkdir -p "$(dirname "$file")"
    "$@" >"$file.$$.partial" && mv -f "$file.$$.partial" "$file" # scripts may share a folder
}

# step TITLE COMMAND...: run it and print only the title; in a dry run, print the command.
step() {
    [ -n "$DRY_RUN" ] || echo "- $1"
    run "${@:2}"
}

# ensure_environment EXTRAS [FURTHER]: let PATH find fairseq's and this project's commands, and the
# packages of EXTRAS. The user's environment is used if it is complete, and never changed. Otherwise a
# virtual environment is made, with FURTHER extras; a dry run prints how.
OWN_ENVIRONMENT= # 1: it was made here, and parsers may be installed into it
ENSURED=
ensure_environment() {
    [ -z "$ENSURED" ] || return 0
    ENSURED=1
    find_environment "$@"
    use_intel_kernels
}

find_environment() {
    local venv=${FAIRSEQ_PHRASE_VENV:-.venv} prefix
    # Hide the deprecation notes of fairseq's dependencies. Use this checkout, not another installed version.
    export PYTHONWARNINGS=ignore PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
    if [ -n "${FAIRSEQ_PHRASE_READY:-}" ]; then
        command -v fairseq-train >/dev/null && command -v fairseq-phrase-preprocess >/dev/null ||
            die "FAIRSEQ_PHRASE_READY is set, but PATH finds no fairseq-train or fairseq-phrase-preprocess"
        PYTHON=python3
        return
    fi
    prefix=$("$PYTHON" -c 'import sys; print(sys.prefix)' 2>/dev/null) || [ -z "$GIVEN_PYTHON" ] ||
        die "PYTHON=$PYTHON cannot be run"
    if [ -n "${FAIRSEQ_PHRASE_VENV:-}" ] || ! use_environment "$prefix" "$1"; then
        use_environment "$venv" "$1" || make_environment "$venv" "$1${2:+,$2}"
    fi
}

# use_intel_kernels: let MKL compute on an AMD processor as on Intel's, which makes a training step 1.1 to
# 1.3 times as fast, with AVX-512 1.5 times (fairseq_phrase/repairs/mkl.py). An environment that was made
# here loads it at every start, also for the user's own commands. FAIRSEQ_PHRASE_MKL=intel loads it on any
# processor, for this script.
use_intel_kernels() {
    local library mkl=("$PYTHON" -m fairseq_phrase.repairs.mkl)
    [ -z "$DRY_RUN" ] || return 0
    [ -z "$OWN_ENVIRONMENT" ] || [ -n "${FAIRSEQ_PHRASE_MKL:-}" ] || "${mkl[@]}" --install || true
    library=$("${mkl[@]}") || exit 1
    [ -n "$library" ] || return 0
    export LD_PRELOAD=$library${LD_PRELOAD:+:$LD_PRELOAD}
    echo "MKL computes as on Intel (FAIRSEQ_PHRASE_MKL=as-it-is leaves it as it is)."
}

# use_environment PREFIX EXTRAS: use an environment that was not made here, if it has all packages. Fails
# if another environment may be made.
use_environment() {
    local venv=${FAIRSEQ_PHRASE_VENV:-.venv} lacking torch="'$TORCH' "
    [ -x "$1/bin/python3" ] || return
    if [ "$1" -ef "$venv" ] && compgen -G "$1/.installed*" >/dev/null; then return 1; fi
    lacking=$("$1/bin/python3" -I scripts/lacking.py "$2")
    if [ -z "$lacking" ]; then
        PATH=$(cd "$1/bin" && pwd):$PATH PYTHON=python3
    elif [ ! -e "$1/pyvenv.cfg" ]; then
        return 1 # a system's Python
    elif [ -n "$DRY_RUN" ]; then
        echo "# The virtual environment $1 lacks $lacking; nothing is installed into it."
    else
        if "$1/bin/python3" -c 'import torch' 2>/dev/null; then torch=; fi
        die "the virtual environment $1 lacks $lacking, and nothing is installed into it. Either install them:
    $1/bin/python -m pip install $torch'setuptools>=77' setuptools-scm wheel
    READTHEDOCS=1 $1/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation 'fairseq-fixed==0.12.3.1'
    $1/bin/python -m pip install --no-build-isolation --editable '.[$2]'
    $1/bin/python scripts/link_package.py
or let an environment be made in another folder: FAIRSEQ_PHRASE_VENV=.venv-scripts bash $SCRIPT"
    fi
}

# choose_python: set PYTHON to a suitable interpreter. An interpreter that the user names is not replaced.
choose_python() {
    local candidate
    for candidate in "$PYTHON" ${GIVEN_PYTHON:-python3.12 python3.13 python3.11 python3.10}; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            PYTHON=$candidate
            return
        fi
    done
    candidate=$("$PYTHON" --version 2>/dev/null) || candidate=missing
    die "Python 3.10 to 3.13 is needed, and $PYTHON is $candidate. Install one:
    sudo apt-get install python3 python3-venv                                 Debian 12 and 13, Ubuntu 22.04 and 24.04
    uv python install 3.12                                             elsewhere; or pyenv install 3.12
and name it, for example:
    PYTHON=\$(uv python find 3.12) bash $SCRIPT"
}

# make_environment FOLDER EXTRAS: a virtual environment with this project and fairseq in it. A torch that
# $PYTHON already has stays in use; otherwise one is installed.
make_environment() {
    local python=$1/bin/python site=() stamp
    stamp="$1/.installed-$2-$(cat setup.py pyproject.toml | cksum | cut -d' ' -f1)"
    if [ ! -e "$stamp" ]; then
        choose_python
        say "Setting up $1 (once: about 2 minutes)"
        "$PYTHON" -c 'import ensurepip' 2>/dev/null ||
            die "$PYTHON cannot make virtual environments: sudo apt-get install python3-venv"
        if "$PYTHON" -c 'import torch' 2>/dev/null; then site=(--system-site-packages); fi
        [ -x "$python" ] || step "a virtual environment" "$PYTHON" -m venv "${site[@]}" "$1"
        run touch "$1/.installed" # made here, though not complete yet
        step pip "$python" -m pip install --quiet --upgrade pip
        [ -n "${site[*]}" ] || "$python" -c 'import torch' 2>/dev/null ||
            step "$TORCH" "$python" -m pip install --quiet "$TORCH"
        # seqeval is built with setuptools-scm.
        step "what fairseq is built with" "$python" -m pip install --quiet 'setuptools>=77' setuptools-scm wheel
        # With READTHEDOCS, fairseq's setup.py compiles nothing (docs/compat.md); for Python 3.12, pip takes
        # PyPI's compiled wheel. pip must not keep this wheel: other projects would get it from pip's cache
        # instead of a compiled one. With build isolation, pip would download a second torch to build with.
        step fairseq env READTHEDOCS=1 "$python" -m pip install --quiet --no-cache-dir --no-deps \
            --no-build-isolation 'fairseq-fixed==0.12.3.1'
        step "this project and its packages" \
            "$python" -m pip install --quiet --no-build-isolation --editable ".[$2]"
        # fairseq installs torchaudio, for speech. If it is built for another torch, transformers cannot
        # be imported.
        [ ! -x "$python" ] || "$python" -c 'import torchaudio' 2>/dev/null ||
            run "$python" -m pip uninstall --quiet --yes torchaudio
        run "$python" scripts/link_package.py
        run touch "$stamp"
    fi
    OWN_ENVIRONMENT=1
    [ ! -d "$1/bin" ] || PATH=$(cd "$1/bin" && pwd):$PATH PYTHON=python3
}
