"""Raw source lines to encoded sentences, in the same way for a corpus and for new text.

Imports neither fairseq nor torch: worker processes start quickly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from fairseq_phrase.data.store.identity import Identity, Tolerance, check_identity
from fairseq_phrase.data.store.manifest import Manifest, pipeline_entries
from fairseq_phrase.data.subwords.encoded_sentences import (
    encode_line,
    encode_sentence,
    marked_words,
)
from fairseq_phrase.data.subwords.protected_tokens import Segmenter, protected_by, separate
from fairseq_phrase.data.subwords.segmented_lines import SegmentedLine, spell
from fairseq_phrase.data.subwords.segmenters import (
    Gpt2Segmenter,
    innermost,
    load_segmenter,
    model_name,
)
from fairseq_phrase.errors import UserError, as_given
from fairseq_phrase.option_values import WHOLE_WORDS
from fairseq_phrase.parsers import (
    FileParser,
    Unparsed,
    load_parser,
    names_path,
)
from fairseq_phrase.parsers.interfaces import flat
from fairseq_phrase.parsers.pipeline import Parse, ParsingOptions, ParsingPipeline
from fairseq_phrase.syntax.sentence import EncodedSentence, ParsedSentence
from fairseq_phrase.syntax.spellings import unescape_moses

logger = logging.getLogger(__name__)


def segmenter_of(directory: str | Path, manifest: Manifest, *, target: bool = False) -> Segmenter:
    """Load the subword model of a data directory.

    Args:
        target: load the target's model.

    Raises:
        UserError: the directory lacks a subword model.
    """
    if manifest.bpe != WHOLE_WORDS and not manifest.bpe_model:
        raise UserError(
            f"{directory} has no subword model, so new text cannot be split in the same way: run "
            "fairseq-phrase-attach again with --bpe-codes or --sentencepiece-model, or for whole words "
            "with --bpe none"
        )
    bpe, model = manifest.bpe, manifest.bpe_model
    if target and manifest.target_bpe not in ("", bpe):
        bpe = manifest.target_bpe
        model = manifest.target_model or model_name(bpe)  # older data lack its name
    return load_segmenter(
        bpe, Path(directory) / model, manifest.protected,
        every_word=manifest.labelling == "word", whole_lines=manifest.whole_lines,
    )  # fmt: skip


def texts_of(directory: str | Path, manifest: Manifest, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as a file of parses spells them, without protected tokens and Moses escapes."""
    segmenter = segmenter_of(directory, manifest)
    for line in lines:
        text, _ = separate(segmenter, line)
        yield " ".join(map(unescape_moses, text.split())) if manifest.tokenized else text


class TextEncoder:
    """A parser and a subword model.

    Args:
        whole_lines: segment whole lines with SentencePiece and find the words in them, as in
            :class:`~fairseq_phrase.data.store.reader.Manifest`.
    """

    def __init__(
        self, pipeline: ParsingPipeline, segmenter: Segmenter, *, whole_lines: bool = False
    ):
        self.pipeline, self.segmenter, self.whole_lines = pipeline, segmenter, whole_lines

    @classmethod
    def from_data(
        cls,
        directory: str | Path,
        language: str,
        parser: str | None = None,
        *,
        allow: str | None = None,
        strict: bool = False,
    ) -> TextEncoder:
        """Build the encoder that made a data directory.

        Args:
            parser: the user's parser, ``spacy:MODEL``. By default it is the manifest's parser, but only
                if its name is not a path: a data directory may be untrusted, and loading a pipeline from
                a path may run code from that path.
            allow: names of entries that may differ, separated by commas.
            strict: refuse a parser that differs from the data's parser; otherwise this is a warning.

        Raises:
            UserError: the manifest is missing; its parser is not installed or is a path; or with
                ``strict``, the parser differs.
        """
        manifest = Manifest.load(directory, language)
        if parser is None and names_path(manifest.parser):
            raise UserError(
                f"{Manifest.path(directory, language)} names the parser {manifest.parser}: a parser is "
                "loaded from a path only if you name it yourself. If the files are there and you trust "
                f"them, add {as_given('source-parser', manifest.parser)}; else the path of a copy, or an "
                "installed parser"
            )
        constituents = manifest.constituents
        try:
            if parser and (constituents == "none" or "heads" not in load_parser(parser).fields):
                constituents = (
                    "parser"  # all fields of this parser; the model checks whether they are enough
                )
            pipeline = ParsingPipeline(
                ParsingOptions(parser or manifest.parser, constituents, manifest.tokenized)
            )
        except UserError as error:
            if parser:
                raise
            raise UserError(
                f"{error} ({directory} names this parser; {as_given('source-parser')} names another)"
            ) from None
        # Without trees, and with words that do not depend on the parser, parses cannot differ.
        without_parser = manifest.tokenized or manifest.whole_lines
        if pipeline.fields != ("words",) or not without_parser:
            stamp = pipeline.parser.stamp
            has_stamp = stamp and stamp == manifest.parser_stamp  # then its weights are not read
            entries = pipeline_entries(pipeline, manifest.parser_digest if has_stamp else None)
            recorded = manifest.identity(directory).only("parser")
            check_identity(recorded, Identity(entries), "use", Tolerance(allow, strict))
        segmenter = segmenter_of(directory, manifest)
        return cls(pipeline, segmenter, whole_lines=manifest.whole_lines)

    def encode_lines(
        self, lines: Sequence[str], *, constituents: bool = True
    ) -> list[EncodedSentence]:
        """Segment lines and parse them; a line that cannot be parsed gets flat trees.

        Args:
            constituents: False leaves out constituents made from dependency trees.
        """
        self._require_parser()
        parse = partial(self.pipeline.parse, constituents=constituents)
        return self._encode(lines, parse)

    def encode_parses(self, lines: Sequence[str], parses: Sequence[Parse]) -> list[EncodedSentence]:
        """Segment lines with given parses, for example from files; the trees are kept."""

        def finish(texts: Sequence[str]) -> Iterable[Parse]:
            return map(self.pipeline.finished, parses, texts)

        return self._encode(lines, finish)

    def segment_lines(self, lines: Sequence[str]) -> list[EncodedSentence]:
        """Split lines into the same words and subwords as :meth:`encode_lines`, without trees."""
        self._require_parser()
        return self._encode(lines, lambda texts: map(self.pipeline.tokenize, texts))

    def _require_parser(self) -> None:
        """Check that lines can be parsed."""
        if isinstance(self.pipeline.parser, FileParser):
            suffix = self.pipeline.parser.suffix
            raise UserError(
                f"the parser {self.pipeline.options.parser} reads the parses of a text from a file: give "
                f"fairseq-phrase-translate (or -label) FILE with FILE.{suffix}, draw a --line of the "
                "data by fairseq-phrase-plot, or name a parser for it, "
                f"{as_given('source-parser', 'spacy:MODEL')} (or none, where the model needs no tree)"
            )

    def _encode(
        self, lines: Sequence[str], parse: Callable[[Sequence[str]], Iterable[Parse]]
    ) -> list[EncodedSentence]:
        if not self.whole_lines:
            texts = [separate(self.segmenter, line) for line in lines]
            parses = parse([text for text, _ in texts])
            sentences = [
                encode_sentence(self._or_flat(parsed), self.segmenter, tokens, text)
                for parsed, (text, tokens) in zip(parses, texts, strict=True)
            ]
        else:
            segmented = self._segment_whole(lines)
            parses = parse([line.text for line in segmented])
            sentences = [
                self._fit(parsed, line) for parsed, line in zip(parses, segmented, strict=True)
            ]
        if lost := sum(sentence.lost_edges for sentence in sentences):
            logger.warning("%d edges are lost with words that have no subword", lost)
        return sentences

    def encode_sentence(self, sentence: ParsedSentence) -> EncodedSentence:
        """Segment the words of a parsed sentence; its trees are kept."""
        if not self.whole_lines:
            return encode_sentence(sentence, self.segmenter)
        text = "".join(marked_words(sentence)).replace("▁", " ").strip()
        return self._fit(sentence, *self._segment_whole([text]))

    def parse_lines(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Parse lines; a line that cannot be parsed gets flat trees."""
        self._require_parser()
        if self.whole_lines:
            lines = [line.text for line in self._segment_whole(lines)]
        else:
            lines = [separate(self.segmenter, line)[0] for line in lines]
        return list(map(self._or_flat, self.pipeline.parse(lines)))

    def _or_flat(self, parse: Parse) -> ParsedSentence:
        if isinstance(parse, Unparsed):
            logger.warning("%s: going on without its parse", parse.reason)
            return flat(parse.sentence, self.pipeline.fields)
        return parse

    def _fit(self, parse: Parse, line: SegmentedLine) -> EncodedSentence:
        sentence, problem = encode_line(parse, line, self.pipeline.fields)
        if problem is not None:
            logger.warning("%s: going on without its parse", problem)
        return sentence

    def _segment_whole(self, lines: Sequence[str]) -> list[SegmentedLine]:
        is_gpt2 = isinstance(innermost(self.segmenter), Gpt2Segmenter)
        bpe = "gpt2" if is_gpt2 else "sentencepiece"
        protected = protected_by(self.segmenter)
        return [
            spell(self.segmenter.segment_line(line), bpe, self.segmenter, protected)
            for line in lines
        ]
