"""``fairseq-phrase-score``: sacrebleu scores of what ``fairseq-generate`` printed, as a table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_phrase.cli import HelpFormatter, run
from fairseq_phrase.errors import UserError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        formatter_class=HelpFormatter,
        prog="fairseq-phrase-score",
        description="Score translations by sacrebleu, detokenized against raw references. A run is a "
        "folder with what fairseq-generate printed, with --bpe or --remove-bpe (generate.txt, or "
        "generate-SUBSET.txt, which its --results-path writes), and, if you have it, train.log (what "
        "fairseq-train printed). Or name the file itself.",
    )
    parser.add_argument("runs", nargs="+", metavar="[NAME=]PATH", help="folders of runs, or files")
    parser.add_argument("--reference", type=Path, required=True, help="raw text, .gz accepted")
    parser.add_argument("--subset", default="test", help="the test set's name in fairseq")
    parser.add_argument("--out", type=Path, help="also write the table here")
    return parser


def _body(argv: Sequence[str] | None) -> None:
    args = _parser().parse_args(argv)
    from fairseq_phrase.report.scores import markdown_table, score_run
    from fairseq_phrase.text import read_lines

    references = list(read_lines(args.reference))
    rows: list[Any] = []
    for argument in args.runs:
        name, _, path = argument.rpartition("=")
        output = _output_of(Path(path), args.subset)
        log = output.with_name("train.log")
        name = name or output.parent.resolve().name
        if name in [row.name for row in rows]:
            raise UserError(f"two runs are named '{name}': name one of them with NAME={path}")
        rows.append(score_run(name, output, references, log if log.is_file() else None))
    table = markdown_table(rows)
    if args.out is not None:
        args.out.write_text(table + "\n", encoding="utf-8")
    print(table)


def _output_of(path: Path, subset: str) -> Path:
    """Find what fairseq-generate printed.

    Raises:
        UserError: the folder has no such file.
    """
    if not path.is_dir():
        return path
    names = (f"generate-{subset}.txt", "generate.txt")
    found = next((path / name for name in names if (path / name).is_file()), None)
    if found is None:
        raise UserError(
            f"{path} has no translations: expected {' or '.join(names)}, what fairseq-generate printed"
        )
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    run("fairseq-phrase-score", _body, argv)


if __name__ == "__main__":
    main()
