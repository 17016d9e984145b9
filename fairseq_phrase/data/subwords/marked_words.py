"""The words of sentences without a parse, by the marks of their subwords."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from fairseq_phrase.data.subwords.protected_tokens import JOINER


def words_by_marks(
    tokens: Sequence[str], special: Iterable[str], protected: Collection[str] = ()
) -> np.ndarray:
    """Number the words of a sentence without a parse, by the marks of its subwords.

    Args:
        special: tokens that do not belong to a word, such as the end of the sentence.
        protected: tokens without marks. White space is around them, unless a joiner is.

    Returns:
        The word of each token, from 0; -1 for special tokens. Shape: ``(tokens,)``
    """
    marks_spaces = any("▁" in token for token in tokens)
    words, word, previous = [], -1, None
    for token in tokens:
        if token in special:
            words.append(-1)
            previous = None
            continue
        # A space alone belongs to the next word.
        if previous == "▁" or JOINER in {token, previous} & {*protected}:
            goes_on = True
        elif token in protected or previous in protected:
            goes_on = False
        else:
            goes_on = not token.startswith("▁") if marks_spaces else str(previous).endswith("@@")
        word += previous is None or not goes_on
        words.append(word)
        previous = token
    return np.array(words, dtype=np.int64)
