"""Translation of raw text: :func:`load`, and the translator that it returns."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from fairseq import utils

from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.encoder_maps import SentenceAttention, sentence_attention
from fairseq_phrase.inference.factored_tokens import token_texts
from fairseq_phrase.inference.model_files import device_named, load_ensemble
from fairseq_phrase.inference.raw_lines import (
    Line,
    LineChunk,
    RawLines,
    TargetForm,
    numbered,
    parallel_lines,
    source_form,
)
from fairseq_phrase.inference.search import (
    Hypothesis,
    LinePart,
    SegmentSearch,
    joined_hypotheses,
    written_tokens,
)
from fairseq_phrase.inference.search_options import SearchOptions, check_positive
from fairseq_phrase.inference.source_sentence import SourceSentence, raw_sentence
from fairseq_phrase.methods.common.parse_batch import MADE
from fairseq_phrase.parsers.pipeline import Parse
from fairseq_phrase.repairs.commands import use_idle_cores
from fairseq_phrase.syntax.sentence import EncodedSentence, ParsedSentence

if TYPE_CHECKING:
    from fairseq_phrase.tasks.syntax_translation import SyntaxTranslationTask


def load(
    path: str | Path,
    data: str | Path | None = None,
    *,
    device: str | None = None,
    source_parser: str | None = None,
    source_tokenized: bool = False,
    target_tokenized: bool = False,
    **identity: Any,
) -> Translator:
    """Load a trained model for raw text.

    Args:
        path: a checkpoint, or a bundle of ``fairseq-phrase-export``; several, separated by ``:``, are an
            ensemble.
        data: the data directory; by default the bundle itself, or the directory recorded in the
            checkpoint.
        device: ``cpu``, ``cuda``, ``cuda:1``…; by default a GPU if there is one.
        source_parser: parse with this parser instead of the data's parser.
        source_tokenized: for data of tokenized text, input lines are already tokenized in the same way.
        target_tokenized: for data of tokenized text, leave translations tokenized.
        **identity: ``allow_difference`` and ``strict_identity``, as in fairseq's commands.

    Raises:
        UserError: a file is missing or damaged, or the model, its data and its parser do not fit.

    Example:
        ::

            model = fairseq_phrase.load("checkpoints/checkpoint_best.pt")
            model.translate(["Ein Hund läuft durch den Schnee."])
    """
    use_idle_cores()
    device_named(device)  # before models are read
    models, task = load_ensemble(str(path), data, source_parser, **identity)
    return Translator(
        models,
        task,
        device=device,
        source_tokenized=source_tokenized,
        target_tokenized=target_tokenized,
    )


class Translator:
    """Models that translate raw text. :func:`load` makes it and explains its arguments."""

    def __init__(
        self,
        models: Sequence[Any],
        task: SyntaxTranslationTask,
        *,
        device: str | None = None,
        source_tokenized: bool = False,
        target_tokenized: bool = False,
    ):
        self.device = device_named(device)
        self.models = [model.to(self.device) for model in models]
        self.task = task
        directory = utils.split_paths(task.cfg.data)[0]
        manifest = Manifest.load(directory, task.cfg.source_lang)
        self._source = source_form(manifest, task.source_dictionary, tokenized=source_tokenized)
        self._target = TargetForm(
            directory, manifest, task.cfg.target_lang, tokenized=target_tokenized
        )
        limits = utils.resolve_max_positions(
            task.max_positions(), *[model.max_positions() for model in self.models]
        )
        self._limit: int = limits[0] if isinstance(limits, tuple) else limits
        self._limit -= len(task.source_dictionary.tags)
        self._lines = RawLines(self._source, task.source_text, self._limit)

    @overload
    def translate(self, lines: str, **options: Any) -> str: ...
    @overload
    def translate(self, lines: Iterable[str], **options: Any) -> list[str]: ...

    def translate(self, lines: str | Iterable[str], **options: Any) -> str | list[str]:
        """Translate lines.

        Args:
            lines: raw lines, or one line.
            **options: options of :meth:`hypotheses`.

        Returns:
            The best translation of each line, in order; the empty text for an empty line.
        """
        if isinstance(lines, str):
            return self.translate([lines], **options)[0]
        return [hypotheses[0].text for hypotheses in self.hypotheses(lines, **options)]

    def hypotheses(
        self,
        lines: Iterable[str],
        *,
        buffer_size: int = 512,
        live: bool = False,
        target: str | Path | Iterable[str] | None = None,
        parses: Iterable[Parse] | None = None,
        **options: Any,
    ) -> Generator[list[Hypothesis], None, None]:
        """Translate lines as they arrive; the next lines are parsed while the model translates.

        Args:
            buffer_size: the largest number of lines that are sorted by length. The first chunks are
                smaller: the first lines are translated while the next ones are parsed.
            live: translate the available lines, as the next one may come only after an answer. Batches
                then depend on the time.
            target: a text for each line, or a file: its translation, which is scored, without a search.
            parses: the parse of each line, instead of the parser's
                (:func:`fairseq_phrase.inference.source_parses.find_parses`).
            **options: options of :class:`fairseq_phrase.inference.search_options.SearchOptions`.

        Yields:
            The best translations of each line, the best first.

        Raises:
            UserError: see :meth:`in_chunks`, :class:`SearchOptions` and :func:`parallel_lines`.
        """
        check_positive(buffer_size=buffer_size)
        chunks = numbered(parallel_lines(lines, target, parses), buffer_size, live=live)
        with closing(self.in_chunks(chunks, SearchOptions(**options))) as translated:
            for chunk in translated:
                yield from chunk

    def in_chunks(
        self, chunks: Iterable[tuple[int, list[Line]]], options: SearchOptions
    ) -> Generator[list[list[Hypothesis]], None, None]:
        """Translate chunks of lines; a batch has lines of one chunk only.

        Args:
            chunks: lines with the number of the first, of :func:`numbered`.

        Yields:
            For each line of a chunk, its translations.

        Raises:
            UserError: a line cannot be segmented or parsed; a given translation is longer than the models
                read, or its line is; or the decoder lacks attention for alignments.
        """
        search = SegmentSearch(self.task, self.models, self.device, self._target, options)
        for chunk in self._lines.chunks(chunks):
            segments = self._segments(chunk)
            results = iter(search.hypotheses([*chain.from_iterable(segments)]))
            yield [
                joined_hypotheses(
                    [next(results) for _ in segments_of_line], options.nbest, options.lenpen
                )
                for segments_of_line in segments
            ]

    def _segments(self, chunk: LineChunk) -> list[list[LinePart]]:
        """Return the segments of each line of a chunk, with its translation if it is given."""
        return [
            [
                LinePart(
                    sentence,
                    None if line.target is None else self._target_of(line.target, sentence, number),
                )
                for sentence in _one_if_given(line, sentences, number)
            ]
            for number, (line, sentences) in enumerate(
                zip(chunk.lines, chunk.segments, strict=True), start=chunk.first
            )
        ]

    def parse(self, lines: Iterable[str]) -> list[ParsedSentence]:
        """Parse lines with the data's parser: words, heads, relations, tags and constituents.

        Raises:
            UserError: the parser is not installed, or cannot parse raw text.
        """
        return list(
            self.task.source_text.encoder.parse_lines([self._source(line) for line in lines])
        )

    def attention(
        self, line: str | ParsedSentence, parse: ParsedSentence | None = None
    ) -> SentenceAttention:
        """Compute the encoder's attention, of every layer and head, in a raw line or a parsed sentence.

        Args:
            parse: the parse of a raw line, instead of the parser's.

        Raises:
            UserError: the encoder gives no attention maps (fairseq's own), or there are several models.
        """
        if len(self.models) > 1:
            raise UserError("an ensemble has no single attention: load one of its models")
        if isinstance(line, str):
            sentence = raw_sentence(self.task, self._source(line), parse)
        else:
            sentence = SourceSentence.from_raw(
                self.task.source_text.encoder.encode_sentence(line), self.task
            )
        return sentence_attention(self.models[0], sentence.to(self.device))

    def inputs(self, lines: Iterable[str]) -> dict[str, torch.Tensor]:
        """Segment and parse lines, none of them empty, for an exported model of transformers.

        Returns:
            ``input_ids`` and ``attention_mask`` of shape ``(batch, tokens)``, in the order of the lines,
            and the fields of the parse that the model needs (``src_words``…), see
            :func:`fairseq_phrase.data.batches.source_batches.collate_parses`.
        """
        net_input = self.task.source_text.batch(self._lines.encode(list(lines)))["net_input"]
        tokens = net_input.pop("src_tokens")
        del net_input["src_lengths"]
        padding = self.task.source_dictionary.pad()
        # transformers repeats and moves rows, but does not repeat or move the collater's results.
        parse = {name: value for name, value in net_input.items() if not name.startswith(MADE)}
        inputs = {"input_ids": tokens, "attention_mask": tokens.ne(padding).long(), **parse}
        return {name: value.to(self.device) for name, value in inputs.items()}

    def tokens(self, lines: Iterable[str]) -> list[list[str]]:
        """Segment and parse lines, none of them empty, for an exported model of CTranslate2.

        Returns:
            The tokens of each line, each followed by its labels if the model has source factors.

        Raises:
            UserError: a line cannot be segmented or parsed, or a token with labels contains ``￨``.
        """
        return token_texts(self.task, self.models[0], self._lines.encode(list(lines)))

    def texts(
        self, tokens: Sequence[torch.Tensor | Sequence[str]], lines: Sequence[str] | None = None
    ) -> list[str]:
        """Join the tokens of translations to text.

        Args:
            tokens: indices of the target, of shape ``(tokens,)`` each, whose special tokens are left out;
                or CTranslate2's tokens.
            lines: the raw lines that were translated; all have the same number of translations, one after
                the other. A model that copies needs them: their unknown words fill the slots of the
                translations.

        Raises:
            UserError: a translation has a slot for a word, and no lines were given; or the number of
                translations is not a multiple of the number of lines.
        """
        dictionary = self.task.target_dictionary
        padding = dictionary.pad()
        indices = (
            row if isinstance(row, torch.Tensor) else torch.tensor([*map(dictionary.index, row)])
            for row in tokens
        )
        rows = [row[row != padding].int().cpu() for row in indices]
        words: list[Sequence[str]] = [()] * len(rows)
        if lines is None:
            if any(dictionary.has_slot(row.tolist()) for row in rows):
                raise UserError(
                    "texts: the model has copied words, so give the lines that were translated: "
                    "texts(tokens, lines)"
                )
        elif not lines or len(rows) % len(lines):
            raise UserError(f"texts: {len(rows)} translations of {len(lines)} lines")
        else:
            count = len(rows) // len(lines)
            encoded = self._lines.encode(list(lines))
            words = [
                self.task.source_text.numbered(sentence)[1]
                for sentence in encoded
                for _ in range(count)
            ]
        pairs = zip(rows, words, strict=True)
        return [
            self._target.text(written_tokens(dictionary, row, source_words))
            for row, source_words in pairs
        ]

    def score(self, source: str, target: str) -> float:
        """Return the mean log probability (base 2) of a translation's subwords and its end.

        Args:
            source: a raw line.
            target: its translation, a raw line.

        Raises:
            UserError: the source is empty, or the source or the target is too long.
        """
        ((best,),) = self.hypotheses([source], target=[target])
        if best.score is None:
            raise UserError("score: the source is empty")
        return best.score

    def _target_of(self, text: str, sentence: EncodedSentence, number: int) -> torch.Tensor:
        """Return the target's indices of a line's translation, with its end."""
        slots = self.task.source_text.numbered(sentence)[1]
        tokens: torch.Tensor = self.task.target_dictionary.encode_target(
            self._target.subwords(text), slots
        )
        if len(tokens) > self._limit:
            raise UserError(
                f"the translation of line {number} has {len(tokens)} subwords, and the model takes "
                f"{self._limit}"
            )
        return tokens


def _one_if_given(
    line: Line, segments: Sequence[EncodedSentence], number: int
) -> Sequence[EncodedSentence]:
    """Check that a line with a given translation has one segment; returns the segments."""
    if line.target is not None and len(segments) > 1:
        raise UserError(
            f"line {number} is longer than the model reads, and its segments are translated one by one: "
            "divide it and its translation into lines"
        )
    return segments
