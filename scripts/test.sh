#!/usr/bin/env bash
# Everything for the tests: virtual environment, linters, type checker, tests.
#
#   bash scripts/test.sh [pytest's arguments]
#
# Settings: see scripts/common.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
ensure_environment dev

say "ruff"
ruff check .
ruff format --check .
say "mypy"
mypy
say "pytest"
# One thread each: the tests run side by side, and threads that wait for one another are slow.
OMP_NUM_THREADS=1 python -m pytest --numprocesses "$(nproc)" --dist loadfile "$@"
