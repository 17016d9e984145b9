"""fairseq's dictionaries, of text and of labels."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_phrase.errors import UserError
from fairseq_phrase.text import read_lines

if TYPE_CHECKING:
    from fairseq.data import Dictionary


def load_dictionary(path: Path) -> Dictionary:
    """Load a fairseq dictionary.

    Raises:
        UserError: it is missing or malformed.
    """
    # fairseq takes seconds to import: wrong arguments do not wait for it.
    from fairseq.data import Dictionary

    deque(read_lines(path), maxlen=0)  # names the line that is not UTF-8, if one is not
    try:
        return Dictionary.load(str(path))
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{path} is not a fairseq dictionary: {error}") from None


def check_same_dictionary(directories: Sequence[str | Path], language: str, option: str) -> None:
    """Check that data directories have the same dictionary, because fairseq reads only the first one's.

    Args:
        directories: the data directories, ``data1:data2`` as a list. Others than the first may lack it.
        language: the language, or the suffix of the labels.
        option: the option that reuses a dictionary, ``--srcdict`` or ``--tgtdict``.

    Raises:
        UserError: a dictionary has other entries than the first one, or has them in another order.
    """
    first, *others = (Path(directory) / f"dict.{language}.txt" for directory in directories)
    there = [file for file in others if file.is_file()]
    symbols = load_dictionary(first).symbols if there else []
    for file in there:
        if load_dictionary(file).symbols != symbols:
            raise UserError(
                f"{file} is not the dictionary {first}: make both directories with one dictionary "
                f"({option} {first})"
            )
