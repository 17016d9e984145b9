"""fairseq's dictionaries, of text and of labels."""

from __future__ import annotations

import io
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

    # read_lines names a line that is not UTF-8; the file may be a pipe, which is read once.
    text = io.StringIO("".join(f"{line}\n" for line in read_lines(path)))
    try:
        return Dictionary.load(text)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{path} is not a fairseq dictionary: {error}") from None
