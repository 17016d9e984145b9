"""Print one language of a split of the IWSLT 2014 corpus, from its archive.

    python scripts/iwslt14.py ARCHIVE PAIR train|dev|test LANGUAGE

As in fairseq's examples, one of 23 sentences of the training talks is held out for development, and
dev2010, dev2012 and tst2010 to tst2012 together are the test set. The text keeps its case and is not
tokenized.
"""

from __future__ import annotations

import html
import re
import sys
import tarfile
from collections.abc import Iterator

_ABOUT_A_TALK = ("<url>", "<speaker>", "<talkid>", "<keywords>", "<reviewer", "<translator")
_TAGS = re.compile(r"</?(?:title|description|doc|transcript)\b[^>]*>")
_SEGMENT = re.compile(r'<seg id="\d+">(.*)</seg>')
_HELD_OUT = 23  # one of this number of sentences
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
    for number, line in enumerate(training_talks(lines(f"train.tags.{pair}.{language}")), start=1):
        if (number % _HELD_OUT == 0) == (split == "dev"):
            yield line


if __name__ == "__main__":
    path, *wanted = sys.argv[1:]
    try:
        with tarfile.open(path) as tar:
            for sentence in side(tar, *wanted):
                print(sentence)
    except (OSError, EOFError, tarfile.TarError) as error:
        sys.exit(f"{path}: {error}")
