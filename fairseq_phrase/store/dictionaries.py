"""fairseq's dictionaries, of text and of labels."""

from __future__ import annotations

from collections import deque
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
