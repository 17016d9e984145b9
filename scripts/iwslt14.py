"""Print one language of a split of the IWSLT 2014 corpus, from its archive.

    python scripts/iwslt14.py ARCHIVE PAIR train|dev|test LANGUAGE
    python scripts/iwslt14.py ARCHIVE PAIR moses FOLDER       writes FOLDER/{train,dev,test}.LANGUAGE

As in fairseq's examples, one of 23 sentences of the training talks is held out for development, and
dev2010, dev2012 and tst2010 to tst2012 together are the test set. The text keeps its case and is not
tokenized. ``moses`` makes the text of fairseq's ``prepare-iwslt14.sh``: lower-cased tokens of Moses; of
the training talks only pairs of 1 to 175 tokens, at most 1.5 times as many on one side as on the other.
"""

from __future__ import annotations

import html
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from fairseq_phrase.data.store.outputs import write_atomically

T = TypeVar("T")

_ABOUT_A_TALK = ("<url>", "<speaker>", "<talkid>", "<keywords>", "<reviewer", "<translator")
_TAGS = re.compile(r"</?(?:title|description|doc|transcript)\b[^>]*>")
_SEGMENT = re.compile(r'<seg id="\d+">(.*)</seg>')
_HELD_OUT = 23  # one of this number of sentences
_MOST_TOKENS, _MOST_RATIO = 175, 1.5
_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def training_talks(lines: Iterator[str]) -> Iterator[str]:
    """Yield the sentences of ``train.tags``; both sides have tags in the same lines."""
    for line in lines:
        if not line.lstrip().startswith(_ABOUT_A_TALK):
            yield _TAGS.sub("", line).strip()


def segments(lines: Iterator[str]) -> Iterator[str]:
    """Yield the sentences of a test set's XML."""
    for line in lines:
        if match := _SEGMENT.search(line):
            yield html.unescape(match[1]).strip()


def side(archive: tarfile.TarFile, pair: str, split: str, language: str) -> Iterator[str]:
    """Yield the sentences of a split's side.

    Raises:
        SystemExit: the archive lacks this text.
    """

    def lines(name: str) -> Iterator[str]:
        try:
            stream = archive.extractfile(f"{pair}/{name}")
        except KeyError:
            sys.exit(f"{archive.name} has no {pair}/{name}")
        assert stream is not None, "a file"
        return (line.decode("utf-8").rstrip("\r\n") for line in stream)

    if split == "test":
        for name in _TESTS:
            yield from segments(lines(f"IWSLT14.{name}.{pair}.{language}.xml"))
        return
    talks = training_talks(lines(f"train.tags.{pair}.{language}"))
    yield from talks if split == "talks" else part(talks, split)


def part(sentences: Iterator[T], split: str) -> Iterator[T]:
    """Yield the sentences, or pairs, of the training talks that belong to ``train`` or ``dev``."""
    for number, sentence in enumerate(sentences, start=1):
        if (number % _HELD_OUT == 0) == (split == "dev"):
            yield sentence


def is_kept(pair: Sequence[str]) -> bool:
    """Whether a pair of tokenized sentences has the lengths that ``prepare-iwslt14.sh`` keeps."""
    short, long = sorted(len(sentence.split()) for sentence in pair)
    return short >= 1 and long <= min(_MOST_TOKENS, _MOST_RATIO * short)


def write_moses(archive: tarfile.TarFile, pair: str, folder: Path) -> None:
    """Write the text of ``prepare-iwslt14.sh`` before its subwords."""
    from sacremoses import MosesTokenizer

    languages = pair.split("-")

    def tokenized(split: str) -> Iterator[tuple[str, ...]]:
        tokenizers = [MosesTokenizer(language) for language in languages]
        sides = (side(archive, pair, split, language) for language in languages)
        for sentences in tqdm(zip(*sides, strict=True), f"tokens of {split}", unit="pair"):
            if split == "test":
                sentences = [sentence.replace("’", "'") for sentence in sentences]
            yield tuple(
                tokenizer.tokenize(sentence, return_str=True).lower()
                for tokenizer, sentence in zip(tokenizers, sentences, strict=True)
            )

    talks = [sentences for sentences in tokenized("talks") if is_kept(sentences)]
    texts = {"train": part(iter(talks), "train"), "dev": part(iter(talks), "dev")}
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in {**texts, "test": tokenized("test")}.items():
        for language, sentences in zip(languages, zip(*pairs, strict=True), strict=True):
            text = "".join(f"{sentence}\n" for sentence in sentences)
            write_atomically(folder / f"{split}.{language}", text.encode())


if __name__ == "__main__":
    path, *wanted = sys.argv[1:]
    try:
        with tarfile.open(path) as tar:
            if wanted[1] == "moses":
                write_moses(tar, wanted[0], Path(wanted[2]))
                sys.exit()
            for sentence in side(tar, *wanted):
                print(sentence)
    except ModuleNotFoundError:
        sys.exit("Moses' tokens need sacremoses: pip install sacremoses")
    except (OSError, EOFError, tarfile.TarError) as error:
        sys.exit(f"{path}: {error}")
