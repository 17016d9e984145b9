"""``fairseq-phrase-score``: sacrebleu scores of what ``fairseq-generate`` printed, as a table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_phrase.cli import run
from fairseq_phrase.errors import UserError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fairseq-phrase-score",
        description="Score translations by sacrebleu, detokenized against raw references. A run is a "
        "folder with generate.txt (what fairseq-generate printed, with --bpe or --remove-bpe) and, if "
        "you have it, train.log (what fairseq-train printed).",
    )
    parser.add_argument("runs", nargs="+", metavar="[NAME=]DIR", help="folders of runs")
    parser.add_argument("--reference", type=Path, required=True, help="raw text, .gz accepted")
    parser.add_argument("--out", type=Path, help="also write the table here")
    return parser


def _body(argv: Sequence[str] | None) -> None:
    args = _parser().parse_args(argv)
    from fairseq_phrase.report.scores import markdown_table, score_run
    from fairseq_phrase.text import read_lines

    references = list(read_lines(args.reference))
    rows: list[Any] = []
    for argument in args.runs:
        name, _, folder = argument.rpartition("=")
        log = Path(folder) / "train.log"
        if name in [row.name for row in rows] and name:
            raise UserError(f"two runs are named '{name}'")
        output = Path(folder) / "generate.txt"
        rows.append(
            score_run(name or Path(folder).name, output, references, log if log.is_file() else None)
        )
    table = markdown_table(rows)
    if args.out is not None:
        args.out.write_text(table + "\n", encoding="utf-8")
    print(table)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    run("fairseq-phrase-score", _body, argv)


if __name__ == "__main__":
    main()
