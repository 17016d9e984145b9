"""Copy what is worth keeping of a table's folder, once its script has made the report.

    python scripts/keep_results.py runs/multi30k_table1.tuned.de-en results/multi30k_table1.de-en

Checkpoints, data and the text of test sets are not copied, nor are the reports' HTML pages, which show
sentences of it. The rest is small:

    README.md                       how it was made, and the tables
    report*/, curve.*               the reports: Markdown, CSV, LaTeX, pictures; held-out losses
    configs/                        the rows
    DATA/syntax.*.json              parser, subwords, numbers of sentences
    PART/…                          the same of a part, such as translation/fraction-1-16
    settings, provenance.txt        the script's options; commands, commit, machine, versions
    runs/ROW/seedN/commands.sh      each command of the run
    runs/ROW/seedN/generate-*.txt   the translations in fairseq-generate's format, scores with 4 decimals
    runs/ROW/seedN/labels-*.txt     the labels, a line for each sentence
    logs.tar.xz                     the logs, under their own names: runs/ROW/seedN/train.log,
                                    generate-*.log, interactive-* for the speed with parsing, and
                                    the sums of the scores of minimal pairs

fairseq-phrase-report makes the report again from runs/ (`--help`): it finds the logs in the archive. To
read one: tar -xOf logs.tar.xz runs/ROW/seedN/train.log. sacrebleu scores a translation by itself:

    grep ^D- generate-test.txt | sort -V | cut -f3 | sacrebleu REFERENCE

With --archive-translations they (and labels) are in translations.tar.xz, which is small if the runs are
many and their translations alike. With --encrypt-translations PASSWORD that is in translations.zip,
encrypted with pyzipper: for test sets whose authors keep their references under a password, as correct
translations are the same. restore_results.py takes them out again.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fairseq_phrase.report.contrastive import FOLDER, shortened
from fairseq_phrase.report.kept_logs import ARCHIVE

_KEPT = (
    "settings", "provenance.txt", "configs", "*/syntax.*.json", "report*", "curve.*",
    "bleu-*.txt", "parser.txt",
)  # fmt: skip
_PARTS = ("", "*/", "*/*/")  # where a table's parts may lie
_TEXTS = {".json", ".txt", ".md", ".csv", ".tex", ".yaml", ".sh", ".log"}
_LOGS = (
    "train.log",
    "hydra_train.log",
    "generate-*.log",
    "interactive-*",
    "validate-*.txt",
    "contrastive/*.txt",
)
TRANSLATIONS, INNER = "translations.zip", "translations.tar.xz"
_PACKAGES = sysconfig.get_path("purelib")
_OUTPUTS = ("generate-*.txt", "labels-*.txt")
# Of what a command printed, what is not the test set's own text.
_OWN = {"generate": re.compile(r"(?:D-|Generate ).*"), "interactive": re.compile(r"S-\d+\t")}
# A translation's score, whose digits would be most of what is kept.
_SCORE = re.compile(r"(?<=\t)-?[\d.]+(?:e[-+]\d+)?(?=\t)")


def keep(table: Path, folder: Path, *, archived: bool = False, password: str | None = None) -> None:
    """Copy a table's results into an empty folder.

    Args:
        table: the table's folder.
        folder: the empty folder.
        archived: put translations into an archive.
        password: encrypt that with this password.

    Raises:
        SystemExit: the table has no report or no runs.
    """
    reports = [
        report
        for part in _PARTS
        for name in ("losses", "report")
        for report in sorted(table.glob(f"{part}report*/{name}.md"))
    ]
    logs = sorted(table.glob("**/seed*/train.log"))
    if not reports or not logs:
        sys.exit(f"{table} has no report of runs: let the table's script finish first")
    for pattern in _KEPT:
        for found in (found for part in _PARTS for found in table.glob(f"{part}{pattern}")):
            for source in [found] if found.is_file() else filter(Path.is_file, found.rglob("*")):
                if source.name != "report.html":
                    copy(source, folder / source.relative_to(table), table)
    for log in logs:
        run = log.parent
        parts = ["runs" if part == "rows" else part for part in run.relative_to(table).parts]
        target = folder.joinpath(*parts)
        for pattern in ("commands.sh", *_OUTPUTS, *_LOGS):
            for source in run.glob(pattern):
                copy(source, target / source.relative_to(run), table)
    if archived or password is not None:
        archive(folder, INNER, _OUTPUTS)
    if password is not None:
        encrypt(folder, password)
    archive(folder, ARCHIVE, _LOGS)
    (folder / "README.md").write_text(readme(table, folder, reports), encoding="utf-8")


def copy(source: Path, target: Path, table: Path) -> None:
    """Copy a file; in a text, paths of this machine become relative, and other people's text goes.

    A table's folder elsewhere than in the working directory becomes ``runs/NAME``, and the folder of
    installed packages, which warnings in logs name, ``site-packages``.
    Of what fairseq-generate and fairseq-interactive printed, the test set does not stay.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix not in _TEXTS:
        shutil.copy(source, target)
        return
    lines = source.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    own = _OWN.get(source.name.split("-")[0])
    if source.parent.name == FOLDER:
        short = (shortened(line.rstrip("\n")) for line in lines)
        lines = [f"{line}\n" for line in short if line is not None]
    elif own is not None and source.suffix == ".txt":
        found = [match[0] for match in map(own.match, lines) if match]
        lines = [
            _SCORE.sub(lambda score: f"{float(score[0]):.4f}", line, count=1) + "\n"
            for line in found
        ]
    here = Path.cwd()
    text = "".join(lines).replace(f"{_PACKAGES}/", "site-packages/").replace(f"{here}/", "")
    text = text.replace(str(table.resolve()), f"runs/{table.name}")
    if here.parent != here.parent.parent:
        text = text.replace(f"{here.parent}/", "../")
    target.write_text(text, encoding="utf-8")


def archive(folder: Path, name: str, patterns: Iterable[str]) -> None:
    """Move the files of all runs with such names into one archive, the same bytes for the same files."""
    found = {path for pattern in patterns for path in folder.glob(f"**/{pattern}")}
    with tarfile.open(folder / name, "w:xz", preset=9) as archived:
        # Translations of one test set are alike, and are next to one another.
        for path in sorted(found, key=lambda path: (path.name, path)):
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.size = path.stat().st_size
            with open(path, "rb") as stream:
                archived.addfile(member, stream)
            path.unlink()


def encrypt(folder: Path, password: str) -> None:
    """Move the archive of translations into an encrypted one."""
    with encrypted_archive(folder, password, "w") as archived:
        archived.write(folder / INNER, INNER)
    (folder / INNER).unlink()


def encrypted_archive(folder: Path, password: str, mode: str) -> Any:
    """Open the encrypted archive in a folder of results.

    Raises:
        SystemExit: pyzipper is not installed.
    """
    try:
        import pyzipper
    except ImportError:
        sys.exit("encrypted translations need pyzipper: pip install pyzipper")
    archived = pyzipper.AESZipFile(folder / TRANSLATIONS, mode, encryption=pyzipper.WZ_AES)
    archived.setpassword(password.encode())
    return archived


def readme(table: Path, folder: Path, reports: list[Path]) -> str:
    """Write down how results were made, and their tables."""
    provenance = folder / "provenance.txt"
    made = (
        provenance.read_text(encoding="utf-8").strip() if provenance.is_file() else "not recorded"
    )
    tables = "\n\n".join(
        f"{path.read_text(encoding='utf-8').strip()}\n\n{pictures(path.parent, table)}"
        for path in reports
    )
    return (
        f"# {table.name}\n\n"
        "How it was made. Each call of the script has a block, and continues the one before it:\n\n"
        f"```\n{made}\n```\n\n{tables}\n"
    )


def pictures(report: Path, table: Path) -> str:
    """Show a report's pictures."""
    names = {
        "by-set.png": "Exact match by test set",
        "curves.png": "Learning curves",
        "lengths.png": "Scores by sentence length",
        "confusion.png": "Confusions",
    }
    there = (name for name in names if (report / name).is_file())
    return "\n\n".join(f"![{names[name]}]({(report / name).relative_to(table)})" for name in there)


def main() -> None:
    """Keep the results of the table named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, help="the folder that the table's script wrote (--out)")
    parser.add_argument(
        "results", type=Path, help="the folder to write. It is replaced if it exists"
    )
    parser.add_argument(
        "--archive-translations",
        action="store_true",
        help=f"put translations and labels into {INNER}",
    )
    parser.add_argument(
        "--encrypt-translations",
        metavar="PASSWORD",
        help=f"put that into {TRANSLATIONS}, with this password",
    )
    args = parser.parse_args()
    if not args.table.is_dir():
        sys.exit(f"{args.table}: no such folder")
    if args.results.exists() and not (args.results / "settings").is_file():
        sys.exit(f"{args.results} has other files than a table's results; name another folder")
    args.results.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".results-", dir=args.results.parent))
    try:
        keep(
            args.table,
            made,
            archived=args.archive_translations,
            password=args.encrypt_translations,
        )
        made.chmod(0o755)
        if args.results.exists():
            shutil.rmtree(args.results)
        os.replace(made, args.results)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    print(f"wrote {args.results}")


if __name__ == "__main__":
    main()
