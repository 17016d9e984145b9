"""Copy a table's results from its folder, after its script has made the report.

    python scripts/keep_results.py runs/quickstart results/quickstart.mine

Checkpoints, data and the text of test sets are not kept, nor the files that score_results.py can make
again (HTML, LaTeX and most pictures):

    TABLE/README.md                 how it was made, and its reports
    TABLE/report*/report.csv        the reports' numbers; runs.csv has each run's numbers, once
    TABLE/onset.csv                 when trainings began to learn (scripts/onset.py)
    TABLE/settings, provenance.txt  the script's options; commands, commits, machines, versions
    TABLE/DATA/syntax.*.json        parser, subwords, numbers of sentences
    TABLE/outputs.tar.xz            the outputs of its runs; files of one name and number of lines are
                                    interleaved, line by line, because many runs have similar ones:
      configs/                      the rows
      runs/ROW/seedN/               commands.sh, key.json without parses, train.log, generate-*.log,
                                    interactive-*; generate-*.txt, translations as fairseq-generate
                                    prints them, but without scores; labels-*.txt; the sums of the scores
                                    of minimal pairs

restore_results.py takes a table out of the archive again.

--encrypt PASSWORD puts translations into TABLE/translations.zip, encrypted with pyzipper: for test sets
whose authors protect their references by a password, because correct translations equal them.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairseq_phrase.lab.report.contrastive import FOLDER, shortened

ARCHIVE, ENCRYPTED, INNER = "outputs.tar.xz", "translations.zip", "translations.tar.xz"
_PARTS = ("", "*/", "*/*/")  # where a table's parts may be
_KEPT = (
    "settings", "provenance.txt", "parser.txt", "bleu-*.txt", "*/syntax.*.json", "report*/*.csv",
    "report*/losses.md", "onset.csv",
)  # fmt: skip
_TEXTS = {".json", ".txt", ".md", ".csv", ".yaml", ".sh", ".log"}
_TRANSLATIONS = ("generate-*.txt", "labels-*.txt")
_RUN = (
    "commands.sh",
    "key.json",
    "train.log",
    "hydra_train.log",
    "generate-*.log",
    "interactive-*",
    "validate-*.txt",
    "*seen-*.txt",
    "contrastive/*.txt",
    *_TRANSLATIONS,
)
# same_data.py compares parses, and a user can accept others for rows that read none.
_PARSES = re.compile(r"DATA/(?:(?:[\w-]+\.){4}bin|dict\..+)")
# As large as all outputs of a table: many runs have similar outputs for one sentence.
_FILTERS = [
    {
        "id": lzma.FILTER_LZMA2,
        "preset": 9 | lzma.PRESET_EXTREME,
        "dict_size": 128 << 20,
        "lc": 4,
        "pb": 0,
    }
]
# The repository's folder, if a run was trained in another copy of it.
_ELSEWHERE = re.compile(r"(?<=checkpoint to )/\S+?/(?=runs/)")
# Folders of this machine that warnings in logs name, and what they are called instead.
_FOLDERS = {sysconfig.get_path("purelib"): "site-packages", sysconfig.get_path("stdlib"): "python"}
_HYPOTHESIS = re.compile(r"D-(\d+)\t\S*\t(.*)")
# Redundant numbers in a log: ppl follows from nll_loss, ups from wps, wall from the times.
_AGAIN = re.compile(r", (?:ppl|ups|wall)=[^,]*")


def keep(
    table: Path, folder: Path, *, pictures: tuple[str, ...] = (), password: str | None = None
) -> dict[str, bytes]:
    """Copy a table's results into an empty folder.

    Args:
        table: the table's folder.
        folder: the empty folder, named for the table, in the folder of all results.
        pictures: the pictures to keep, by their paths in the table's folder.
        password: encrypt the translations with this password.

    Returns:
        The files for the archive, by their names.

    Raises:
        SystemExit: the table lacks a report, runs or a picture.
    """
    reports = [
        report
        for part in _PARTS
        for name in ("report*/losses", "report*/report", "curve", "onset")
        for report in sorted(table.glob(f"{part}{name}.md"))
    ]
    logs = sorted(table.glob("**/seed*/train.log"))
    if not reports or not logs:
        sys.exit(f"{table} has no report of runs: let the table's script finish first")
    for path in {
        path_found
        for part in _PARTS
        for pattern in _KEPT
        for path_found in table.glob(part + pattern)
    }:
        if not repeats(path):
            write(folder / path.relative_to(table), clean(path, table))
    for name in pictures:
        if not (table / name).is_file():
            sys.exit(f"{table} has no {name}")
        write(folder / name, (table / name).read_bytes())
    files = {
        path.relative_to(table).as_posix(): clean(path, table)
        for part in _PARTS
        for path in table.glob(f"{part}configs/*.yaml")
    }
    for log in logs:
        parts = ["runs" if part == "rows" else part for part in log.parent.relative_to(table).parts]
        for path in (path for pattern in _RUN for path in log.parent.glob(pattern)):
            name = path.relative_to(log.parent).as_posix()
            files["/".join([*parts, name])] = clean(path, table)
    if password is not None:
        outputs = {
            name for name in files if any(Path(name).match(pattern) for pattern in _TRANSLATIONS)
        }
        encrypt({name: files.pop(name) for name in sorted(outputs)}, folder / ENCRYPTED, password)
    write(folder / "README.md", readme(folder, table, reports, pictures).encode())
    return files


def repeats(path: Path) -> bool:
    """Return whether a file has the runs of a report that compares with another row, report.ROW."""
    first = path.parent.with_name(path.parent.name.partition(".")[0]) / "runs.csv"
    is_other = path.name == "runs.csv" and path != first and first.is_file()
    return is_other and path.read_bytes() == first.read_bytes()


def write(path: Path, content: bytes) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def clean(source: Path, table: Path) -> bytes:
    """Read a file; in a text, paths of this machine become relative, and other people's text is removed.

    A table's folder outside the working directory becomes ``runs/NAME``, the folder of installed packages
    ``site-packages``, and that of Python's own modules ``python``. Translations are sorted, and lack
    scores. The test set is removed from the output of fairseq-generate and fairseq-interactive.
    """
    if source.suffix not in _TEXTS:
        return source.read_bytes()
    lines = source.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    kind = source.name.split("-")[0]
    if source.name == "provenance.txt":
        lines = [with_known_commit(line) for line in lines]
    elif source.name == "key.json":
        key = json.loads("".join(lines)).items()
        lines = [json.dumps({name: value for name, value in key if not _PARSES.fullmatch(name)})]
    elif source.parent.name == FOLDER:
        short = (shortened(line.rstrip("\n")) for line in lines)
        lines = [f"{line}\n" for line in short if line is not None]
    elif kind == "generate" and source.suffix == ".txt":
        matches = [match for match in map(_HYPOTHESIS.match, lines) if match]
        matches.sort(key=lambda match: int(match[1]))
        summary = [line for line in lines if line.startswith("Generate ")]
        lines = [*(f"D-{match[1]}\tnan\t{match[2]}\n" for match in matches), *summary]
    elif kind == "train.log":
        lines = [thinned(line) for line in lines]
    elif kind == "interactive" and source.suffix == ".txt":
        lines = [f"{match[0]}\n" for line in lines if (match := re.match(r"S-\d+\t", line))]
    working_folder = Path.cwd()
    text = "".join(lines)
    for folder, name in _FOLDERS.items():
        text = text.replace(f"{folder}/", f"{name}/")
    text = text.replace(f"{working_folder}/", "").replace(
        str(table.resolve()), f"runs/{table.name}"
    )
    text = _ELSEWHERE.sub("", text)
    if working_folder.parent != working_folder.parent.parent:
        text = text.replace(f"{working_folder.parent}/", "../")
    return text.encode()


def thinned(line: str) -> str:
    """Remove redundant numbers from a line of a training log."""
    return _AGAIN.sub("", line.rstrip("\n")) + "\n" if "| train_inner |" in line else line


def with_known_commit(line: str) -> str:
    """Mark in the provenance a commit that this repository lacks."""
    match = re.match(r"commit: ([0-9a-f]{40})\b", line)
    if match is None or "not in this repository" in line:
        return line
    command = ["git", "merge-base", "--is-ancestor", match[1], "HEAD"]
    is_known = subprocess.run(command, capture_output=True).returncode == 0
    return line if is_known else f"{match[0]} (not in this repository){line[match.end() :]}"


def read_archive(archive: Path) -> dict[str, bytes]:
    """Return the files in an archive, by their names.

    Raises:
        SystemExit: the archive is damaged, or has links or names that lead out of a folder.
    """
    foreign = f"{archive} is not an archive of keep_results.py: it has"
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:xz") as stream:
            for member in stream:
                content = stream.extractfile(member) if member.isfile() else None
                if content is None:
                    sys.exit(f"{foreign} a link or a folder, {member.name!r}")
                for name, text in separated(content.read()).items():
                    if {"", ".."} & set(name.split("/")):
                        sys.exit(f"{foreign} a file {name!r}")
                    files[name] = text
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
        sys.exit(f"{archive} is not a whole archive: {error}")
    return files


def write_archive(files: Mapping[str, bytes], archive: Path) -> None:
    """Write an archive; the same bytes for the same files."""
    partial = archive.with_name(f".{archive.name}.partial")
    try:
        with (
            lzma.open(partial, "wb", filters=_FILTERS) as compressed,
            tarfile.open(fileobj=compressed, mode="w") as archived,
        ):
            for name, content in side_by_side(files):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archived.addfile(member, io.BytesIO(content))
        os.replace(partial, archive)
    finally:
        partial.unlink(missing_ok=True)


def side_by_side(files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Join files of one name and number of lines: many runs have similar outputs for one sentence.

    Yields:
        The name and the number of lines; the files' names, an empty line, then their first lines, their
        second lines, and so on.
    """
    alike: dict[tuple[str, int], list[str]] = {}
    for name in sorted(files):
        alike.setdefault((Path(name).name, files[name].count(b"\n")), []).append(name)
    for (name, count), names in sorted(alike.items()):
        # The text after the last newline, mostly empty, is one more line.
        lines = zip(*(files[name].split(b"\n") for name in names), strict=True)
        joined = [line.encode() for line in names] + [b""] + [line for row in lines for line in row]
        yield f"{name}/{count}", b"\n".join(joined)


def separated(joined: bytes) -> dict[str, bytes]:
    """Undo :func:`side_by_side` for one of its files."""
    names, content = joined.split(b"\n\n", 1)
    lines, texts = content.split(b"\n"), names.decode().split("\n")
    return {name: b"\n".join(lines[i :: len(texts)]) for i, name in enumerate(texts)}


def encrypt(files: Mapping[str, bytes], path: Path, password: str) -> None:
    """Write translations into an encrypted archive."""
    with tempfile.TemporaryDirectory() as folder:
        write_archive(files, Path(folder, INNER))
        with encrypted(path, password, "w") as archived:
            archived.write(Path(folder, INNER), INNER)


def encrypted(path: Path, password: str, mode: str) -> Any:
    """Open an encrypted archive.

    Raises:
        SystemExit: pyzipper is not installed.
    """
    try:
        import pyzipper
    except ImportError:
        sys.exit("encrypted translations need pyzipper: pip install pyzipper")
    archived = pyzipper.AESZipFile(path, mode, encryption=pyzipper.WZ_AES)
    archived.setpassword(password.encode())
    return archived


def readme(folder: Path, table: Path, reports: list[Path], pictures: tuple[str, ...]) -> str:
    """Write how results were made, and their reports."""
    origin = (
        "How it was made: [provenance.txt](provenance.txt). Each call of the script has a block there, "
        "and continues the one before it."
        if (folder / "provenance.txt").is_file()
        else "How it was made is not recorded."
    )
    images = [f"![{Path(name).stem}]({name})" for name in pictures]
    tables = [compact(path.read_text(encoding="utf-8").strip()) for path in reports]
    return "\n\n".join([f"# {folder.name}", origin, *tables, *images]) + "\n"


def compact(text: str) -> str:
    """Remove the padding of Markdown tables; wide tables are mostly padding."""
    return re.sub(r"(?<=\|) +| +(?=\|)", " ", re.sub(r"(?<=\|)-+(?=\|)", "---", text))


def replace_table(table: Path, results: Path, **options: Any) -> None:
    """Keep a table, and replace its earlier results.

    Args:
        table: the table's folder.
        results: the folder to write.
        **options: as for :func:`keep`.

    Raises:
        SystemExit: the folder is not a folder of results, or the table cannot be kept.
    """
    # The folder of a table's runs has settings, too.
    are_results = all((results / name).is_file() for name in ("settings", ARCHIVE))
    if results.exists() and not are_results:
        sys.exit(f"{results} has other files than a table's results; name another folder")
    results.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".results-", dir=results.parent) as temporary:
        folder = Path(temporary, results.name)
        folder.mkdir()
        files, archive = keep(table, folder, **options), results / ARCHIVE
        if archive.is_file() and read_archive(archive) == files:  # compressed once
            shutil.copy(archive, folder / ARCHIVE)
        else:
            write_archive(files, folder / ARCHIVE)
        if results.exists():
            shutil.rmtree(results)
        os.replace(folder, results)


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
        "--picture", action="append", default=[], metavar="FILE",
        help="also keep this picture, such as report/by-set.png",
    )  # fmt: skip
    parser.add_argument(
        "--encrypt",
        metavar="PASSWORD",
        help=f"put translations into {ENCRYPTED}, with this password",
    )
    args = parser.parse_args()
    if not args.table.is_dir():
        sys.exit(f"{args.table}: no such folder")
    replace_table(args.table, args.results, pictures=tuple(args.picture), password=args.encrypt)
    print(f"wrote {args.results}")


if __name__ == "__main__":
    main()
