r"""Write questions and logical forms as parallel files.

    python scripts/logical_forms.py geo FOLDER OUT
    python scripts/logical_forms.py atis FOLDER OUT
    python scripts/logical_forms.py scan FOLDER OUT [--split simple|length|addprim_jump]
    python scripts/logical_forms.py slog FOLDER OUT
    python scripts/logical_forms.py regex FOLDER OUT

Files may be compressed (.gz). The output is OUT/{train,valid,test}.{en,lf}, tokens separated by white
space. With --slice N, the training text has N pairs, and each of SLOG's sets 20.

geo   FOLDER has *train*.tsv and *test*.tsv: question, tab, form. Geoquery lacks a development set: its
      last 60 training questions are only used to watch the loss, and are in train as well.
atis  FOLDER has atis-logic.txt: question ||| form. The splits are drawn by a hash of the question, 8:1:1.
      The corpus names variables in several ways ($0, $v0, $x). They are numbered in each form's order.
      224 of its forms lack their last bracket, which is added.
scan  FOLDER has SCAN's *_split folders: IN: commands OUT: actions. A tenth of train is valid.
slog  FOLDER has train.tsv, dev.tsv and test.tsv (sentence, tab, form), and generalization_sets.zip, whose
      sets become OUT/test.SET.{en,lf}. Its password is in the benchmark's README.
regex FOLDER has NL-RX's src-{train,val,test}.txt and targ-{train,val,test}.txt: descriptions and regular
      expressions, line by line.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fairseq_phrase.cli.arguments import positive
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.text import read_lines

Pair = tuple[str, str]  # a question and its form, tokens separated by spaces
_TOKEN = re.compile(r"[()\[\]{},;=.?!]|[^\s()\[\]{},;=.?!]+")
_VALID_OF_GEO = 60
PASSWORD = b"SLOG"


def columns(lines: Iterable[str], path: Path, separator: str) -> Iterator[Pair]:
    """Split lines into two columns.

    Raises:
        UserError: a line has a different number of columns.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        parts = line.split(separator)
        if len(parts) < 2:
            raise UserError(
                f"{location(path, number)}: expected a question, '{separator}' and its form"
            )
        yield " ".join(parts[0].split()), " ".join(parts[1].split())


def one_file(folder: Path, pattern: str) -> Path:
    """Find the only file that matches a pattern.

    Raises:
        UserError: no file or several files match.
    """
    files = sorted({*folder.glob(pattern), *folder.glob(f"{pattern}.gz")})
    if len(files) != 1:
        raise UserError(f"{folder}: expected one file {pattern} (or .gz), found {len(files)}")
    return files[0]


def read_columns(folder: Path, pattern: str, separator: str = "\t") -> list[Pair]:
    """Read a file of two columns."""
    path = one_file(folder, pattern)
    return list(columns(read_lines(path), path, separator))


def geo(folder: Path, args: argparse.Namespace) -> dict[str, list[Pair]]:
    """Read Geoquery."""
    train, test = read_columns(folder, "*train*.tsv"), read_columns(folder, "*test*.tsv")
    return {"train": train, "valid": train[-_VALID_OF_GEO:], "test": test}


def atis(folder: Path, args: argparse.Namespace) -> dict[str, list[Pair]]:
    """Read ATIS, split by a hash of the question: no question is in two splits."""
    splits: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    completed = 0
    for question, form in read_columns(folder, "atis-logic.txt", "|||"):
        number = int(hashlib.sha256(question.encode()).hexdigest(), 16) % 10
        name = {8: "valid", 9: "test"}.get(number, "train")
        complete = closed(form)
        completed += complete != form
        splits[name].append((question, numbered_variables(complete)))
    print(f"forms that lacked closing brackets at their end (added): {completed}")
    return splits


def closed(form: str) -> str:
    """Add the closing brackets that a form lacks at its end.

    Examples:
        >>> closed("( lambda $0 e ( and ( flight $0 ) )")
        '( lambda $0 e ( and ( flight $0 ) ) )'
    """
    words = form.split()
    return " ".join(words + [")"] * (words.count("(") - words.count(")")))


def numbered_variables(form: str) -> str:
    """Name the variables of a form $0, $1, ... in the order in which they occur first.

    Different variables get different names.

    Examples:
        >>> numbered_variables("( lambda $v1 e ( exists $1 ( from $1 $v1 ) ) )")
        '( lambda $0 e ( exists $1 ( from $1 $0 ) ) )'
    """
    names: dict[str, str] = {}
    words = form.split()
    for word in words:
        if word.startswith("$"):
            names.setdefault(word, f"${len(names)}")
    return " ".join(names.get(word, word) for word in words)


def scan(folder: Path, args: argparse.Namespace) -> dict[str, list[Pair]]:
    """Read a split of SCAN."""
    pairs = {}
    for name in ("train", "test"):
        paths = sorted(folder.glob(f"**/tasks_{name}_{args.split}.txt*"))
        if len(paths) != 1:
            raise UserError(
                f"{folder}: expected one file tasks_{name}_{args.split}.txt, found {len(paths)}"
            )
        examples = []
        for number, line in enumerate(read_lines(paths[0]), start=1):
            match = re.fullmatch(r"IN: (.*) OUT: (.*)", line)
            if match is None:
                raise UserError(f"{location(paths[0], number)}: expected 'IN: … OUT: …'")
            examples.append((match[1].strip(), match[2].strip()))
        pairs[name] = examples
    valid = [pair for index, pair in enumerate(pairs["train"]) if index % 10 == 9]
    train = [pair for index, pair in enumerate(pairs["train"]) if index % 10 != 9]
    return {"train": train, "valid": valid, "test": pairs["test"]}


def slog(folder: Path, args: argparse.Namespace) -> dict[str, list[Pair]]:
    """Read SLOG and its generalization sets; a test set for each."""
    files = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
    splits = {name: tokenized(read_columns(folder, file)) for name, file in files.items()}
    by_set: dict[str, list[Pair]] = {}
    with zipfile.ZipFile(one_file(folder, "generalization_sets.zip")) as archive:
        names = [name for name in archive.namelist() if name.endswith("gen_varfreeLF.tsv")]
        if len(names) != 1:
            raise UserError(f"{archive.filename} has no gen_varfreeLF.tsv")
        text = io.TextIOWrapper(archive.open(names[0], pwd=PASSWORD), encoding="utf-8")
        for number, line in enumerate(text, start=1):
            parts = line.rstrip("\n").split("\t")
            if len(parts) != 3:
                raise UserError(
                    f"{location(Path(names[0]), number)}: expected sentence, form and set"
                )
            by_set.setdefault(parts[2], []).append((parts[0], parts[1]))
    return splits | {f"test.{name}": tokenized(pairs) for name, pairs in by_set.items()}


def regex(folder: Path, args: argparse.Namespace) -> dict[str, list[Pair]]:
    """Read NL-RX.

    Raises:
        UserError: a file is missing, or two files have different numbers of lines.
    """
    splits = {}
    for name, file_split in (("train", "train"), ("valid", "val"), ("test", "test")):
        paths = [one_file(folder, f"{side}-{file_split}.txt") for side in ("src", "targ")]
        sides = [[" ".join(line.split()) for line in read_lines(path)] for path in paths]
        if len(sides[0]) != len(sides[1]):
            raise UserError(
                f"{paths[0]} has {len(sides[0])} lines, and {paths[1]} has {len(sides[1])}"
            )
        splits[name] = list(zip(*sides, strict=True))
    return splits


def tokenized(pairs: Iterable[Pair]) -> list[Pair]:
    """Put white space between words and punctuation."""
    return [(" ".join(_TOKEN.findall(a)), " ".join(_TOKEN.findall(b))) for a, b in pairs]


def write(pairs: Iterable[Pair], prefix: Path) -> None:
    """Write the two sides."""
    with (
        open(f"{prefix}.en", "w", encoding="utf-8") as questions,
        open(f"{prefix}.lf", "w", encoding="utf-8") as forms,
    ):
        for question, form in pairs:
            print(question, file=questions)
            print(form, file=forms)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and write the files."""
    readers = {"geo": geo, "atis": atis, "scan": scan, "slog": slog, "regex": regex}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", choices=readers)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--split", default="simple", choices=("simple", "length", "addprim_jump"))
    parser.add_argument("--slice", type=positive, help="keep so many training pairs")
    args = parser.parse_args(arguments)
    try:
        splits = readers[args.corpus](args.folder, args)
    except UserError as error:
        sys.exit(f"error: {error}")
    for name in splits if args.slice else ():
        most = args.slice if name == "train" else 20 if name.startswith("test.") else None
        splits[name] = splits[name][:most]
    args.out.mkdir(parents=True, exist_ok=True)
    # The test set is written last: an interrupted run is not mistaken for a finished one.
    for name in sorted(splits, key=lambda name: name == "test"):
        write(splits[name], args.out / name)
        print(f"{name}: {len(splits[name])} pairs")


if __name__ == "__main__":
    main()
