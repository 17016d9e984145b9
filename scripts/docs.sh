#!/usr/bin/env bash
# Build the documentation site into site/. A broken link is an error.
#
#   bash scripts/docs.sh            build
#   bash scripts/docs.sh --serve    build, and show it at http://127.0.0.1:8000 while files are edited
#
# The packages go into a separate virtual environment, DOCS_VENV (.docs-venv). The site does not need
# torch.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${DOCS_VENV:-.docs-venv}
[ -x "$venv/bin/mkdocs" ] || {
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --requirement docs/requirements.txt
}
case "${1:-}" in
    --serve) "$venv/bin/mkdocs" serve --strict ;;
    '') NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict && echo "wrote site/index.html" ;;
    *) echo "error: unknown option '$1' (--serve, or none)" >&2; exit 2 ;;
esac
