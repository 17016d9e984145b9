#!/usr/bin/env bash
# The tests: virtual environment, then pytest. CI also runs linters and the type checker (.ci/run).
#
#   bash scripts/test.sh [pytest's arguments]         all but the tests that are marked as slow
#   bash scripts/test.sh --all [pytest's arguments]   all, and 100 random examples instead of 15
#
# Settings: see scripts/common.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
ensure_environment test

selection=(-m "not slow")
if [ "${1:-}" = --all ]; then selection=(--hypothesis-profile thorough) && shift; fi

say "pytest"
# One thread each: the tests run in parallel, and threads that wait for each other are slow.
OMP_NUM_THREADS=1 python -m pytest --numprocesses "$(cores)" --dist worksteal --durations=30 \
    "${selection[@]}" "$@"
