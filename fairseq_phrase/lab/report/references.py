"""Test sets: their reference translations and raw sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_phrase.errors import UserError
from fairseq_phrase.text import named_path, read_lines


@dataclass(frozen=True)
class ReferenceText:
    """A test set's reference translations.

    Attributes:
        subset: the test set's name in fairseq, ``test``, ``test1``, ``valid``.
        references: the translations, raw; a list for each file.
        name: its name in tables.
        sources: the raw sentences; None if no file with them is given.
        ending: the ending of the first file's name, without digits: ``en`` of ``test.en``, ``test.en.gz``
            and ``test.en0``. It mostly is the language.
    """

    subset: str
    references: list[list[str]]
    name: str
    sources: list[str] | None = None
    ending: str = ""

    @property
    def lines(self) -> list[str]:
        """The first file's translations."""
        return self.references[0]


def read_references(
    references: Sequence[str], subset: str, sources: Sequence[str] = (), names: Sequence[str] = ()
) -> list[ReferenceText]:
    """Read the test sets that the arguments name.

    Args:
        references: ``[SUBSET=]FILE`` for each test set, its reference translations; several files of one
            test set are several translations of each sentence.
        subset: the test set's name in fairseq, for a FILE without ``SUBSET=``.
        sources: ``[SUBSET=]FILE``, the sentences of test sets.
        names: ``SUBSET=NAME``, the names of test sets in tables.

    Raises:
        UserError: a file is missing or empty, files of one test set have different numbers of lines, a
            source or a name lacks a reference, or a name also belongs to another test set.
    """
    own_names = _read_names(names)
    read_sources = _read_texts(sources, subset)
    texts = []
    endings = {name or subset: _ending(path) for name, path in map(named_path, references[::-1])}
    for name, files in _read_texts(references, subset).items():
        source = read_sources.pop(name, [])
        for lines in (*source, *files):
            if len(lines) != len(files[0]):
                kind = "source" if lines in source else "second reference"
                raise UserError(
                    f"the {kind} of the test set '{name}' has {len(lines)} lines, its reference "
                    f"{len(files[0])}"
                )
        if len(source) > 1 or any(lines in files[:at] for at, lines in enumerate(files)):
            raise UserError(
                f"two files of the test set '{name}' are its source, or the same reference: name test "
                "sets, such as --reference test=FILE --reference test1=FILE"
            )
        own_name = own_names.pop(name, name)
        own_source = source[0] if source else None
        texts.append(ReferenceText(name, files, own_name, own_source, endings[name]))
    if read_sources:
        raise UserError(
            f"--source names the test set '{min(read_sources)}', but --reference does not"
        )
    if own_names:
        raise UserError(
            f"--set-name names the test set '{min(own_names)}', but --reference does not"
        )
    if len({text.name for text in texts}) < len(texts):
        raise UserError("--set-name gives two test sets one name")
    return texts


def _read_names(arguments: Sequence[str]) -> dict[str, str]:
    """Read ``SUBSET=NAME`` arguments; names by test set."""
    names = {}
    for argument in arguments:
        subset, _, name = argument.partition("=")
        if not subset or not name:
            raise UserError(f"--set-name {argument}: expected SUBSET=NAME, such as test1=PP_3")
        names[subset] = name
    return names


def _read_texts(arguments: Sequence[str], subset: str) -> dict[str, list[list[str]]]:
    """Read ``[SUBSET=]FILE`` arguments; the lines of each file by test set, in order."""
    lines_of_sets: dict[str, list[list[str]]] = {}
    for argument in arguments:
        name, path = named_path(argument)
        lines = list(read_lines(path))
        if not lines:
            raise UserError(f"{path} is empty")
        lines_of_sets.setdefault(name or subset, []).append(lines)
    return lines_of_sets


def _ending(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lstrip(".").rstrip("0123456789")


def read_known_words(path: Path) -> set[str]:
    """Read the words of training data.

    Args:
        path: a dictionary of fairseq (a word and its count per line), or text.
    """
    lines = [line.split() for line in read_lines(path)]
    is_dictionary = all(len(line) == 2 and line[1].isdigit() for line in lines)
    return (
        {line[0] for line in lines} if is_dictionary else {word for line in lines for word in line}
    )
