"""Alignments of the words of training sentences, for fairseq's loss of guided alignment."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from fairseq.data import LanguagePairDataset
from torch import Tensor

from fairseq_phrase.data.subwords.protected_tokens import JOINER
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.text import LineFile


class WordAlignments:
    """Pairs of aligned subwords: all subword pairs of the aligned words in a file.

    Args:
        path: one line per sentence pair, in the Pharaoh format, ``0-0 1-2``: words of the source and of
            the target, from 0. The marks of subwords show their words.
        protected: the data's protected tokens.

    Raises:
        UserError: the file is missing, or has more or fewer lines.
    """

    def __init__(
        self, path: Path, pairs: LanguagePairDataset, protected: Collection[str] = ()
    ) -> None:
        self._path, self._pairs, self._lines = path, pairs, LineFile(path)
        self._protected = protected
        if len(self._lines) != len(pairs):
            raise UserError(
                f"{path} has {len(self._lines)} lines, and the training data {len(pairs)} sentence pairs "
                "(preprocessing may have left some out): expected a line for each pair"
            )

    def __getitem__(self, index: int) -> Tensor:
        """Return the pairs of a sentence, one after the other. Shape: ``(2 * pairs,)``, int64.

        Raises:
            UserError: the line is not in this format, or names words that the sentences lack.
        """
        pairs = self._pairs
        sides = [
            words_by_marks(
                [dictionary[token] for token in tokens.tolist()[:-1]], (), self._protected
            )
            for tokens, dictionary in (
                (pairs.src[index], pairs.src_dict),
                (pairs.tgt[index], pairs.tgt_dict),
            )
        ]
        links: list[tuple[int, int]] = []
        for pair in self._lines[index].split():
            try:
                source, target = (
                    (words == int(word)).nonzero()[0].tolist()
                    for words, word in zip(sides, pair.split("-"), strict=True)
                )
            except ValueError:
                source = target = []
            if not source or not target:
                counts = " and ".join(str(words.max(initial=-1) + 1) for words in sides)
                raise UserError(
                    f"{location(self._path, index + 1)}: '{pair}' is not a pair of words, from 0: the "
                    f"sentences have {counts} words"
                )
            links += [
                (source_token, target_token) for source_token in source for target_token in target
            ]
        return torch.tensor(links, dtype=torch.long).view(-1)


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
