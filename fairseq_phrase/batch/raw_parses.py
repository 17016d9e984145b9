"""The parses of raw source lines, found from fairseq's token indices and the data they carry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from fairseq.data import Dictionary

from fairseq_phrase.batch.numbered_parse import numbered_parse
from fairseq_phrase.batch.raw_lines import SourceEncoder
from fairseq_phrase.batch.raw_tokens import Origin, RawTokens, SourceDictionary
from fairseq_phrase.batch.syntax_dataset import Parse, SyntaxDataset
from fairseq_phrase.batch.tree_sources import Trees
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.encoding import EncodedSentence


class RawParses:
    """Parses raw lines, and finds the parse of token indices.

    Args:
        dictionary: the source dictionary.
        labels: a function that returns the dictionary of a parse field's labels.
        encoder: a function that returns the encoder, which cuts and parses lines.
        trees: the sources of heads; by default the parser's heads are used.

    Attributes:
        fields: the fields of a parse that the models need.
    """

    def __init__(
        self,
        dictionary: SourceDictionary,
        labels: Callable[[str], Dictionary],
        encoder: Callable[[], SourceEncoder],
        trees: Trees | None = None,
    ):
        self._dictionary, self._labels, self._encoder = dictionary, labels, encoder
        self._trees = trees or Trees()
        self.fields: set[str] = set()

    @property
    def fields_to_parse(self) -> set[str]:
        """The fields that a parser must make: heads of trees without syntax need no parser.

        Raises:
            UserError: the trees are controls, and another field would reveal the parse.
        """
        return self._trees.fields_to_read(self.fields) if "heads" in self.fields else self.fields

    def tokens_of(self, lines: Sequence[str]) -> list[RawTokens]:
        """Parse lines as a batch; return their token indices, which carry the parses.

        Raises:
            UserError: the data's parser is not installed or does not make the fields that models need.
        """
        return [self.tokens_of_encoded(sentence) for sentence in self._encoder().parse(lines)]

    def tokens_of_encoded(self, sentence: EncodedSentence) -> RawTokens:
        """Return the token indices of a parsed sentence, which carry the parse.

        Raises:
            UserError: the parse lacks a field that models need.
        """
        pieces, words = self._dictionary.numbered(sentence.pieces)
        copied = [words] if self._dictionary.places else ()
        return RawTokens.of(torch.tensor(self._indices(pieces)), [self.parse_of(sentence)], copied)

    def of_tokens(self, sentences: Sequence[torch.Tensor]) -> list[Parse]:
        """Return the parse of each sentence's token indices.

        Lines that are not parsed yet are parsed as a batch. Indices that carry nothing are first joined
        to text.

        Args:
            sentences: token indices, without padding. Shape: ``(tokens,)`` each.

        Raises:
            UserError: a sentence carries nothing and cannot be joined to text, or its line was cut into
                other subwords than its parse.
        """
        origins = list(map(self._origin, sentences))
        lines = {place: line for place, line in enumerate(origins) if isinstance(line, str)}
        parsed = self.tokens_of([*lines.values()]) if lines else []
        for (place, line), tokens in zip(lines.items(), parsed, strict=True):
            check_cut(line, sentences[place], tokens)
            origins[place] = tokens.origins[0]
        return [origin for origin in origins if not isinstance(origin, str)]

    def _origin(self, tokens: torch.Tensor) -> Origin:
        """Return the data that a sentence carries; if it carries none, its text."""
        return (
            tokens.origins[0]
            if isinstance(tokens, RawTokens) and tokens.origins
            else self._spelled(tokens.tolist())
        )

    def _indices(self, pieces: Sequence[str]) -> list[int]:
        return [*map(self._dictionary.index, pieces), self._dictionary.eos()]

    def parse_of(self, sentence: EncodedSentence) -> Parse:
        """Return the fields of a sentence's parse that the models need.

        Raises:
            UserError: the parser did not make them.
        """
        parse = numbered_parse(sentence, self.fields_to_parse, self._labels)
        if "heads" not in self.fields:
            return parse
        pieces, _ = self._dictionary.numbered(sentence.pieces)
        return self._trees(parse, self._indices(pieces))

    def _spelled(self, indices: Sequence[int]) -> str:
        """Join the subwords of a sentence that carries no line.

        Raises:
            UserError: the sentence has unknown subwords.
        """
        if self._dictionary.unk() in indices or self._dictionary.has_place(indices):
            raise UserError(
                "a sentence with unknown subwords came without its line, so it cannot be parsed: use "
                "--tokenizer syntax --bpe syntax, and pass the tokens on unchanged"
            )
        return self._encoder().text_of([self._dictionary[index] for index in indices[:-1]])


def check_cut(line: str, cut: torch.Tensor, parsed: torch.Tensor) -> None:
    """Check that a line was cut into the subwords of its parse.

    Args:
        line: the line.
        cut: its token indices. Shape: ``(tokens,)``.
        parsed: those of its parse.

    Raises:
        UserError: they differ.
    """
    if cut.tolist() != parsed.tolist():
        raise UserError(
            f"'{line[:60]}' was cut into other subwords than its parse: use --tokenizer syntax --bpe "
            "syntax"
        )


class RawDataset(SyntaxDataset):
    """A dataset of raw sentences. The ``src_tokens`` of its batches carry the parses.

    ``fairseq-interactive`` keeps only ``src_tokens`` and the lengths of a batch.
    """

    def collater(self, samples: Sequence[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """Make the batch of :class:`SyntaxDataset`, with tokens that carry the parses."""
        batch = super().collater(samples, **kwargs)
        if batch:
            by_id = {sample["id"]: sample["parse"] for sample in samples}
            tokens = batch["net_input"]["src_tokens"]
            parses = [by_id[index] for index in batch["id"].tolist()]
            batch["net_input"]["src_tokens"] = RawTokens.of(tokens, parses)
        return batch
