r"""Write text and labels as parallel files, for fairseq-phrase-preprocess --labels.

    python scripts/labelled_text.py conllu TREEBANK OUT [--column upos|xpos]
    python scripts/labelled_text.py ptb TREES OUT
    python scripts/labelled_text.py conll2000 FOLDER OUT [--column chunk|pos]
    python scripts/labelled_text.py sst FOLDER OUT [--classes 5|2] [--phrases train|none]
    python scripts/labelled_text.py imdb FOLDER OUT
    python scripts/labelled_text.py probing FOLDER OUT [--task NAME]

With --slice N, the training text has N examples, at equal distances in the corpus; of IMDB, every split
has N. Files may be compressed (.gz). The output is OUT/{train,valid,test}.en, the labels in .tag (one for
each word) or .class (one for each line), and trees over these words next to the text, .en.conllu or
.en.ptb:

conllu     TREEBANK has *-train.conllu, *-dev.conllu and *-test.conllu. Words of a multi-word token are
           words. A column that is empty (_) is refused, and one that is partly empty is counted.
ptb        TREES has wsj_SSNN.mrg files, in any folders: sections 0-18, 19-21 and 22-24. If there are no
           sections after 18, as in NLTK's sample, the files are split 8 : 1 : 1 in their order.
conll2000  FOLDER has train.txt and test.txt (word, tag, chunk); the last tenth of train is valid. Chunks
           are the constituents of the trees.
sst        FOLDER has train.txt, dev.txt and test.txt, one tree per line. Trees are written without
           sentiments. With --phrases train, each phrase of a training tree is an example. With --classes
           2, neutral ones are left out.
imdb       FOLDER has train.tsv and test.tsv (label, rating, number, text), or the folders train/{pos,neg}
           and test/{pos,neg} of the Large Movie Review Dataset, one review per file; a tenth of train is
           valid. HTML's line breaks become spaces.
probing    a task of SentEval or X-Probe, as fairseq-phrase-probe reads it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_phrase.cli.arguments import positive
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.lab.probing.task_files import find_tasks
from fairseq_phrase.parsers.other_formats import refuse_other_columns, refuse_other_trees
from fairseq_phrase.syntax.brackets import (
    BYTE_ORDER_MARK,
    parse_brackets,
    tree_blocks,
    unescaped,
)
from fairseq_phrase.syntax.sentence import join_white_space
from fairseq_phrase.syntax.spellings import unescape_moses
from fairseq_phrase.text import find_text, read_lines, written_together


@dataclass(frozen=True)
class Example:
    """A line of text with its labels.

    Attributes:
        words: the texts between white space.
        labels: one for each word, or one.
        tree: the line's brackets, or its CoNLL-U rows; empty without a tree.
    """

    words: Sequence[str]
    labels: Sequence[str]
    tree: str = ""


Splits = dict[str, Iterable[Example]]
#: The numbers of multi-word tokens and empty nodes, 1-2 and 1.1.
OTHER_ROW = re.compile(r"[0-9]+[-.][0-9]+", re.ASCII)
#: The value of an empty column of CoNLL-U.
EMPTY = "_"


def conllu(folder: Path, args: argparse.Namespace) -> Splits:
    """Read a treebank; labels are parts of speech."""
    column = {"upos": 3, "xpos": 4}[args.column or "upos"]
    splits = {}
    for split, name in (("train", "train"), ("valid", "dev"), ("test", "test")):
        splits[split] = _sentences(treebank_file(folder, name), column)
    return splits


def treebank_file(folder: Path, part: str) -> Path:
    """Find the file of a part of a treebank: train, dev or test."""
    paths = sorted(folder.glob(f"*-{part}.conllu*"))
    if len(paths) != 1:
        raise UserError(f"{folder}: expected one file *-{part}.conllu or .gz, found {len(paths)}")
    return paths[0]


def _sentences(path: Path, column: int) -> Iterator[Example]:
    rows: list[list[str]] = []
    for number, line in enumerate([*read_lines(path), ""], start=1):
        line = line.removeprefix(BYTE_ORDER_MARK)
        refuse_other_columns(path, number, line)
        columns = line.split("\t")
        if line.strip() and not line.startswith("#"):
            if len(columns) != 10:
                raise UserError(
                    f"{location(path, number)}: expected 10 columns, found {len(columns)}"
                )
            if columns[0] == str(len(rows) + 1):
                rows.append(columns)
            elif not OTHER_ROW.fullmatch(columns[0]):
                expected = f"expected word {len(rows) + 1} next, found '{columns[0][:60]}'"
                raise UserError(f"{location(path, number)}: {expected}")
        elif not line.strip() and rows:
            words = [join_white_space(row[1]) or EMPTY for row in rows]
            # The parser of gold trees gets words without Moses' escapes.
            tree = [
                "\t".join([row[0], unescape_moses(word), "_", *row[3:5], "_", *row[6:8], "_", "_"])
                for row, word in zip(rows, words, strict=True)
            ]
            labels = [join_white_space(row[column]) or EMPTY for row in rows]
            yield Example(words, labels, "\n".join([*tree, ""]))
            rows = []


def ptb(folder: Path, args: argparse.Namespace) -> Splits:
    """Read the Penn Treebank's trees; labels are parts of speech."""
    paths = sorted(folder.rglob("wsj_*.mrg"), key=lambda path: path.name)
    if not paths:
        raise UserError(f"{folder} has no files wsj_*.mrg")
    sections = [int(path.name[4:6]) for path in paths]
    if max(sections) > 18:
        parts = [(0, 18), (19, 21), (22, 24)]
        files_of_splits = [
            [path for path, section in zip(paths, sections, strict=True) if low <= section <= high]
            for low, high in parts
        ]
    else:
        first, second = len(paths) * 8 // 10, len(paths) * 9 // 10
        files_of_splits = [paths[:first], paths[first:second], paths[second:]]
    return {
        split: (example for path in files for example in _trees(path))
        for split, files in zip(("train", "valid", "test"), files_of_splits, strict=True)
    }


def _trees(path: Path) -> Iterator[Example]:
    for number, tree in tree_blocks(read_lines(path)):
        refuse_other_trees(path, number, tree)
        brackets = " ".join(tree.split())
        try:
            sentence = parse_brackets(brackets)
        except ValueError as error:
            raise UserError(f"{location(path, number)}: {error}: {brackets[:80]}") from None
        if sentence.words:
            yield Example([unescaped(word) for word in sentence.words], sentence.tags, brackets)


def conll2000(folder: Path, args: argparse.Namespace) -> Splits:
    """Read columns of words, tags and chunks; labels are chunks in BIO notation, or tags."""
    column = {"pos": 1, "chunk": 2}[args.column or "chunk"]
    train = list(_columns(find_text(str(folder / "train"), "txt"), column))
    num_train = len(train) * 9 // 10
    test = _columns(find_text(str(folder / "test"), "txt"), column)
    return {"train": train[:num_train], "valid": train[num_train:], "test": test}


def _columns(path: Path, column: int) -> Iterator[Example]:
    rows: list[list[str]] = []
    for number, line in enumerate([*read_lines(path), ""], start=1):
        if line.strip():
            rows.append(line.split())
            if len(rows[-1]) != 3:
                raise UserError(
                    f"{location(path, number)}: expected word, tag and chunk: {line[:60]}"
                )
        elif rows:
            words, tags, chunks = zip(*rows, strict=True)
            labels = [row[column] for row in rows]
            yield Example(words, labels, _chunk_tree(words, tags, chunks))
            rows = []


def _chunk_tree(words: Sequence[str], tags: Sequence[str], chunks: Sequence[str]) -> str:
    """Write a sentence as a tree whose constituents are its chunks."""
    parts: list[list[str]] = []
    for word, tag, chunk in zip(words, tags, chunks, strict=True):
        leaf = f"({_bracket_free(tag)} {_bracket_free(word)})"
        mark, _, kind = chunk.partition("-")
        if mark == "I" and parts and parts[-1][0] == kind:
            parts[-1].append(leaf)
        else:
            parts.append([kind, leaf])
    return f"(S {' '.join(_constituent(kind, leaves) for kind, *leaves in parts)})"


def _constituent(kind: str, leaves: list[str]) -> str:
    return f"({kind} {' '.join(leaves)})" if kind else " ".join(leaves)


def _bracket_free(text: str) -> str:
    return text.replace("(", "-LRB-").replace(")", "-RRB-")


def sst(folder: Path, args: argparse.Namespace) -> Splits:
    """Read trees with sentiments from 0 to 4; labels are these, or 0 and 1."""
    return {
        split: _sentiments(
            find_text(str(folder / name), "txt"),
            binary=args.classes == 2,
            phrases=split == "train" and args.phrases == "train",
        )
        for split, name in (("train", "train"), ("valid", "dev"), ("test", "test"))
    }


def _sentiments(path: Path, *, binary: bool, phrases: bool) -> Iterator[Example]:
    trees: set[str] = set()
    for number, line in enumerate(read_lines(path), start=1):
        for tree in _subtrees(line) if phrases else [line]:
            match = re.match(r"\(([0-4]) ", tree)
            if match is None:
                raise UserError(
                    f"{location(path, number)}: expected a tree with labels 0 to 4: {tree[:60]}"
                )
            label = int(match[1])
            # A phrase has the same sentiment in every sentence, so one example is enough.
            if (binary and label == 2) or (phrases and tree in trees):
                continue
            if phrases:
                trees.add(tree)
            # A word such as "8 1/2", with a no-break space, would be two words of the text.
            brackets = re.sub(r"[^\S ]", "▁", re.sub(r"\([0-4] ", "(X ", tree))
            words = [unescaped(word) for word in parse_brackets(brackets).words]
            yield Example(words, [str(int(label > 2) if binary else label)], brackets)


def _subtrees(line: str) -> Iterator[str]:
    """Yield the brackets of every node, children before parents."""
    opened = []
    for place, character in enumerate(line):
        if character == "(":
            opened.append(place)
        elif character == ")" and opened:
            yield line[opened.pop() : place + 1]


def imdb(folder: Path, args: argparse.Namespace) -> Splits:
    """Read reviews; labels are pos and neg."""
    train = list(_reviews(folder, "train"))
    return {
        "train": [review for number, review in enumerate(train) if number % 10],
        "valid": train[::10],
        "test": _reviews(folder, "test"),
    }


def _reviews(folder: Path, split: str) -> Iterator[Example]:
    for label, text in imdb_reviews(folder, split):
        yield Example(text.split(), [label])


def imdb_reviews(folder: Path, split: str) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each review of train or test, without HTML's line breaks."""
    pairs = _review_files if (folder / split / "pos").is_dir() else _review_lines
    for label, text in pairs(folder / split):
        yield label, re.sub(r"<br\s*/?>", " ", text)


def _review_files(folder: Path) -> Iterator[tuple[str, str]]:
    # Files are named by number and rating, such as 12_9.txt. Positive reviews come first, as in the
    # table: if labels alternated, every tenth review would have the same label.
    for label in ("pos", "neg"):
        paths = (folder / label).glob("*.txt")
        for path in sorted(paths, key=lambda path: int(path.stem.partition("_")[0])):
            yield label, " ".join(path.read_text(encoding="utf-8").split())


def _review_lines(prefix: Path) -> Iterator[tuple[str, str]]:
    path = find_text(str(prefix), "tsv")
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t", maxsplit=3)
        if len(columns) != 4:
            raise UserError(f"{location(path, number)}: expected label, rating, number and text")
        yield columns[0], columns[3]


def probing(folder: Path, args: argparse.Namespace) -> Splits:
    """Read a probing task."""
    names = [args.task] if args.task else []
    tasks = find_tasks([folder], names)
    if len(tasks) != 1:
        raise UserError(
            f"{folder} has the tasks {', '.join(task.name for task in tasks)}: --task NAME"
        )
    (task,) = tasks
    return {
        split: (
            Example(example.text.split(), ["_".join(example.label.split())]) for example in examples
        )
        for split, examples in (("train", task.train), ("valid", task.valid), ("test", task.test))
    }


READERS = {
    "conllu": conllu, "ptb": ptb, "conll2000": conll2000,
    "sst": sst, "imdb": imdb, "probing": probing,
}  # fmt: skip
#: The suffixes of the labels and of the trees.
SUFFIXES = {
    "conllu": ("tag", "conllu"), "ptb": ("tag", "ptb"), "conll2000": ("tag", "ptb"),
    "sst": ("class", "ptb"), "imdb": ("class", ""), "probing": ("class", ""),
}  # fmt: skip


#: The splits that --slice makes smaller. All of IMDB's splits are large, and are parsed.
SLICED: dict[str, Sequence[str]] = {"imdb": ("train", "valid", "test")}


def evenly(examples: Iterable[Example], count: int) -> list[Example]:
    """Take a number of examples at equal distances, because some files are sorted by label."""
    all_examples = list(examples)
    count = min(count, len(all_examples))
    return [all_examples[index * len(all_examples) // count] for index in range(count)]


def write(splits: Splits, out: Path, language: str, label: str, tree: str, origin: str) -> None:
    """Write parallel files, and print their numbers of lines.

    Args:
        origin: the source of the labels, for messages.

    Raises:
        UserError: all words or labels of a split are empty. Nothing is written then.
    """
    suffixes = [language, label, *([f"{language}.{tree}"] if tree else [])]
    summaries = []
    with written_together(out) as folder:
        for split, examples in splits.items():
            all_examples = list(examples)
            empty = _without_labels(split, all_examples, origin)
            texts = (
                (" ".join(example.words), " ".join(example.labels), example.tree)
                for example in all_examples
            )
            columns = list(zip(*texts, strict=True)) or [()] * 3
            for suffix, lines in zip(suffixes, columns, strict=False):
                text = "".join(f"{line}\n" for line in lines)
                (folder / f"{split}.{suffix}").write_text(text, encoding="utf-8")
            summaries.append(f"{split}: {len(all_examples)} lines{empty}")
    print("\n".join(summaries))


def _without_labels(split: str, examples: Sequence[Example], origin: str) -> str:
    """Describe how many labels of a split are empty, if any are."""
    words = [word for example in examples for word in example.words]
    labels = [label for example in examples for label in example.labels]
    if words and set(words) == {EMPTY}:
        raise UserError(
            f"all {len(words)} words of {split} are {EMPTY}: a treebank without its text, which its own "
            "pages tell how to add"
        )
    count = labels.count(EMPTY)
    if count and count == len(labels):
        raise UserError(
            f"all {count} labels of {split} are {EMPTY}: {origin} is empty, choose another"
        )
    return f"; {count} of {len(labels)} labels are {EMPTY}" if count else ""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("format", choices=list(READERS))
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--column", choices=("upos", "xpos", "chunk", "pos"))
    parser.add_argument("--classes", type=int, choices=(5, 2), default=5)
    parser.add_argument("--phrases", choices=("train", "none"), default="none")
    parser.add_argument("--slice", type=positive, help="keep so many training texts")
    parser.add_argument("--task", help="the probing task")
    parser.add_argument("--language", default="en", help="suffix of the text")
    parser.add_argument("--label-suffix", help="suffix of the labels (default: tag or class)")
    args = parser.parse_args(argv)
    label, tree = SUFFIXES[args.format]
    try:
        splits = READERS[args.format](args.source, args)
        if args.slice is not None:
            for split in SLICED.get(args.format, ("train",)):
                splits[split] = evenly(splits[split], args.slice)
        column = args.column or {"conllu": "upos", "conll2000": "chunk"}.get(args.format)
        origin = f"column {column} of {args.source}" if column else str(args.source)
        write(splits, args.out, args.language, args.label_suffix or label, tree, origin)
    except KeyError as error:
        sys.exit(f"error: --column {error.args[0]} is not a column of {args.format}")
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
