"""Translation of raw text: :func:`load`, and the translator that it returns."""

from __future__ import annotations

import math
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, overload

import torch
from fairseq import utils
from fairseq.data import data_utils
from fairseq.token_generation_constraints import pack_constraints

from fairseq_phrase.compat.commands import use_idle_cores
from fairseq_phrase.data.batches.word_alignments import words_by_marks
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.errors import UserError, as_given
from fairseq_phrase.inference.constraints import (
    ConstrainedSearch,
    Given,
    Glossary,
    Line,
    LinePart,
    Requirements,
    TextPerLine,
    word_translations,
)
from fairseq_phrase.inference.factored_tokens import token_texts
from fairseq_phrase.inference.model_files import device_named, load_ensemble
from fairseq_phrase.inference.raw_lines import RawLines, TargetForm, numbered, source_form
from fairseq_phrase.inference.sampling import SamplingBySentence, seed_of
from fairseq_phrase.modules.parse_batch import MADE
from fairseq_phrase.parsers.pipeline import Parse
from fairseq_phrase.syntax.sentence import EncodedSentence, ParsedSentence
from fairseq_phrase.visualization.encoder_maps import SentenceAttention, sentence_attention
from fairseq_phrase.visualization.source_sentence import SourceSentence, raw_sentence

#: fairseq-generate's default of ``--max-tokens``.
_MAX_TOKENS = 12000


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
    models, task = load_ensemble(str(path), data, source_parser, **identity)
    return Translator(
        models,
        task,
        device=device,
        source_tokenized=source_tokenized,
        target_tokenized=target_tokenized,
    )


@dataclass(frozen=True)
class Hypothesis:
    """A translation of one line.

    Attributes:
        score: the mean log probability (base 2) of its subwords and its end, as ``fairseq-generate``
            prints it; for a long line in segments, the mean over all subwords; None for an empty line.
        tokens: the number of its subwords, with the end of each sentence.
        alignment: pairs of aligned words of the line and of the translation, from 0, in ascending order;
            empty unless it was requested. Words are separated by spaces; in tokenized data they are
            tokens.
        words: the numbers of words of the line and of the translation, with an alignment.
    """

    text: str
    score: float | None = None
    tokens: int = 0
    alignment: Sequence[tuple[int, int]] = ()
    words: tuple[int, int] = (0, 0)


class Translator:
    """Models that translate raw text. :func:`load` makes it and explains its arguments."""

    def __init__(
        self,
        models: Sequence[Any],
        task: Any,
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
            **options: options of :meth:`hypotheses`; constraints and prefix of one line may be a text.

        Returns:
            The best translation of each line, in order; the empty text for an empty line.
        """
        if isinstance(lines, str):
            for name in {"constraints", "prefix"} & options.keys():
                if isinstance(options[name], str):
                    options[name] = [options[name]]
            return self.translate([lines], **options)[0]
        return [found[0].text for found in self.hypotheses(lines, **options)]

    def hypotheses(
        self,
        lines: Iterable[str],
        *,
        buffer_size: int = 512,
        live: bool = False,
        constraints: TextPerLine | None = None,
        prefix: TextPerLine | None = None,
        target: TextPerLine | None = None,
        parses: Iterable[Parse] | None = None,
        **options: Any,
    ) -> Generator[list[Hypothesis], None, None]:
        """Translate lines as they arrive; the next lines are parsed while the model translates.

        Args:
            buffer_size: the largest number of lines that are sorted by length. The first chunks are
                smaller: the first lines are translated while the next ones are parsed.
            live: translate the available lines, as the next one may come only after an answer. Batches
                then depend on the time.
            constraints: a text for each line, or a file: texts that its translation must have, in any
                order, separated by tabs.
            prefix: a text for each line, or a file: the beginning of its translation.
            target: a text for each line, or a file: its translation, which is scored, without a search.
            parses: the parse of each line, instead of the parser's
                (:func:`fairseq_phrase.inference.source_parses.read_parses`).
            **options: options of :meth:`in_chunks`.

        Yields:
            The best translations of each line, the best first.

        Raises:
            UserError: see :meth:`in_chunks`, or there are more or fewer texts than lines.
        """
        given = Given(constraints, prefix, target)
        chunks = numbered(given.lines(lines, parses), buffer_size, live=live)
        with closing(self.in_chunks(chunks, given, **options)) as found:
            for chunk in found:
                yield from chunk

    def in_chunks(
        self,
        chunks: Iterable[tuple[int, list[Line]]],
        given: Given,
        *,
        beam: int | None = None,
        nbest: int = 1,
        lenpen: float = 1.0,
        batch_size: int = 32,
        sampling: bool = False,
        sampling_topk: int | None = None,
        seed: int = 1,
        mbr: str | None = None,
        glossary: str | Path | Mapping[str, str] | None = None,
        alignments: bool = False,
        replace_unk: bool | str | Path | Mapping[str, str] = False,
    ) -> Generator[list[list[Hypothesis]], None, None]:
        """Translate chunks of lines; a batch has lines of one chunk only.

        Args:
            chunks: lines with the number of the first, of :func:`numbered`.
            beam: the beam's size, by default 5; with ``sampling`` ``nbest``.
            nbest: the number of translations of each line; at most ``beam``.
            lenpen: scores are divided by the length to this power.
            batch_size: the largest number of sentences in a batch.
            sampling: draw each subword by its probability, instead of a search for the best.
            sampling_topk: draw from this number of most probable subwords.
            seed: the seed of sampling. The draws for a line depend only on the seed, the line and the
                line's number.
            mbr: choose the one of ``nbest`` samples with the most expected utility by this metric
                (:class:`fairseq_phrase.inference.minimum_risk.MinimumRisk`).
            glossary: translations of terms, or a file of lines ``source<tab>target``. The translation of
                a line with a term, as whole words, contains the target.
            alignments: align each translation's words with the line's words to which the decoder attends
                most.
            replace_unk: replace an unknown word by the source word that the decoder attends to most, or
                by that word's translation. The value has translations of words, or is a file of lines
                with a word and its translation.

        Yields:
            For each line of a chunk, its translations; with ``mbr`` the chosen one.

        Raises:
            UserError: there are more translations than beams; two options contradict each other; a line
                cannot be segmented or parsed; a required text is longer than a translation or unknown to
                the target dictionary; or the decoder lacks attention for alignments.
        """
        beam = beam or (nbest if sampling else 5)
        if not 1 <= nbest <= beam:
            raise UserError(f"nbest {nbest}: expected 1 to the number of beams, {beam}")
        if sampling_topk is not None and not sampling:
            raise UserError("sampling_topk goes with sampling")
        choose = self._choice(mbr, nbest if sampling else 0)
        if sampling and (given.has_constraints or glossary is not None):
            raise UserError("constraints and a glossary need a search: leave sampling or them out")
        entries = len(self.task.target_dictionary)
        if (given.has_constraints or glossary is not None) and 2 * beam >= entries:
            raise UserError(
                f"{as_given('beam', str(beam))}: with constraints or a glossary, at most half as many as "
                f"the target dictionary has entries: give {(entries - 1) // 2} or fewer"
            )
        search = _Search(
            self.task, self.models, beam=beam, lenpen=lenpen, sampling=sampling,
            sampling_topk=sampling_topk or -1,
        )  # fmt: skip
        if replace_unk is not False:
            search.unknown = {} if replace_unk is True else word_translations(replace_unk)
        search.alignments = alignments
        terms = None
        if glossary is not None:
            encoder = self.task.source_text.encoder
            terms = Glossary(
                glossary, encoder.segment_terms, encoder.segmenter.join, self._demanded
            )
        demands = Requirements(given, self._demanded, self._target_of, terms)
        source = self.task.source_text
        for chunk in self._lines.chunks(chunks):
            pieces = [
                demands.pieces(
                    line, number, sentences, lambda one: source.numbered(one)[1], search.longest
                )
                for number, (line, sentences) in enumerate(
                    zip(chunk.lines, chunk.pieces, strict=True), start=chunk.first
                )
            ]
            if sampling:
                pieces = [
                    [one._replace(seed=seed_of(seed, number, n)) for n, one in enumerate(own)]
                    for number, own in enumerate(pieces, start=chunk.first)
                ]
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                found = iter(self._generated(search, [*chain.from_iterable(pieces)], batch_size))
            joined = (
                joined_hypotheses([next(found) for _ in own], nbest, lenpen) for own in pieces
            )
            yield [choose(line.text, each) for line, each in zip(chunk.lines, joined, strict=True)]

    def _choice(
        self, mbr: str | None, samples: int
    ) -> Callable[[str, list[Hypothesis]], list[Hypothesis]]:
        """Return the function that chooses among a line's hypotheses; by default it keeps all.

        Args:
            samples: their number, 0 without sampling.
        """
        if mbr is None:
            return lambda line, hypotheses: hypotheses
        if samples < 2:
            raise UserError(
                f"{as_given('mbr', mbr)} chooses among samples: give {as_given('sampling')} and 2 or "
                f"more of {as_given('nbest')}"
            )
        from fairseq_phrase.inference.minimum_risk import MinimumRisk

        risk = MinimumRisk(mbr, self.task.cfg.target_lang)
        return lambda line, hypotheses: [
            hypotheses[risk.choose(line, [one.text for one in hypotheses])]
        ]

    def translate_parsed(self, sentence: ParsedSentence, *, beam: int = 5) -> str:
        """Translate a sentence with given trees, such as a sentence of :meth:`parse` with edited heads.

        Raises:
            UserError: the trees lack a field that the model reads, or the sentence is too long.
        """
        encoded = self.task.source_text.encoder.encode(sentence)
        if (count := len(encoded.pieces) + 1) > self._limit:
            raise UserError(f"the sentence has {count} subwords, and the model takes {self._limit}")
        search = _Search(self.task, self.models, beam=beam, lenpen=1.0)
        return self._generated(search, [LinePart(encoded)], 1)[0][0].text

    def parse(self, lines: Iterable[str]) -> list[ParsedSentence]:
        """Parse lines with the data's parser: words, heads, relations, tags and constituents.

        Raises:
            UserError: the parser is not installed, or cannot parse raw text.
        """
        return list(self.task.source_text.encoder.parsed([self._source(line) for line in lines]))

    def attention(self, line: str | ParsedSentence) -> SentenceAttention:
        """Compute the encoder's attention, of every layer and head, in a raw line or a parsed sentence.

        Raises:
            UserError: the encoder gives no attention maps (fairseq's own), or there are several models.
        """
        if len(self.models) > 1:
            raise UserError("an ensemble has no single attention: load one of its models")
        if isinstance(line, str):
            sentence = raw_sentence(self.task, self._source(line))
        else:
            sentence = SourceSentence.from_raw(
                self.task.source_text.encoder.encode(line), self.task
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
        found = {"input_ids": tokens, "attention_mask": tokens.ne(padding).long(), **parse}
        return {name: value.to(self.device) for name, value in found.items()}

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
            each = len(rows) // len(lines)
            encoded = self._lines.encode(list(lines))
            words = [self.task.source_text.numbered(one)[1] for one in encoded for _ in range(each)]
        pairs = zip(rows, words, strict=True)
        return [self._target.text(self._pieces(row, own)) for row, own in pairs]

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

    def _on_device(self, sample: dict[str, Any]) -> dict[str, Any]:
        return dict(utils.apply_to_sample(lambda value: value.to(self.device), sample))

    @torch.inference_mode()
    def _generated(
        self, search: _Search, pieces: Sequence[LinePart], size: int
    ) -> list[list[Hypothesis]]:
        """Translate segments, or score their targets; returns the hypotheses of each, the best first.

        In one batch all segments have constraints or none, and all have a prefix or none: otherwise
        fairseq's search for some of them would differ. In sampling they also share the largest length,
        which a draw may reach.
        """
        found: dict[int, list[Hypothesis]] = {}
        kinds: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        for index, piece in enumerate(pieces):
            length = len(piece.prefix)
            kind = "constrained" if piece.constraints else "plain"
            if piece.target is not None:
                kind = "given"
            most = longest_target(len(piece.sentence.pieces) + 1) if search.sampling else 0
            kinds[kind, length if piece.constraints else min(length, 1), most].append(index)
        source = self.task.source_text
        for (kind, prefix, _), own in kinds.items():
            sentences = [pieces[index].sentence for index in own]
            generator = search.generator(kind)
            for batch, sample in source.batches(sentences, _MAX_TOKENS, size):
                chosen = [pieces[own[index]] for index in batch]
                generator.max_len_b = longest_target(sample["net_input"]["src_tokens"].size(1))
                given: dict[str, torch.Tensor] = {}
                if kind == "given":
                    self._add_targets(sample, [piece.target for piece in chosen])
                if prefix:
                    padding = self.task.target_dictionary.pad()
                    prefixes = [piece.prefix for piece in chosen]
                    given["prefix_tokens"] = data_utils.collate_tokens(prefixes, padding)
                if search.sampling and kind == "plain":
                    generator.search.begin([piece.seed for piece in chosen], self.device)
                if kind == "constrained":
                    generator.search.prefix = prefix
                    given["constraints"] = pack_constraints([piece.constraints for piece in chosen])
                sample = self._on_device(sample)
                generated = generator.generate(self.models, sample, **self._on_device(given))
                is_token = sample["net_input"]["src_tokens"].ne(self.task.source_dictionary.pad())
                rows = zip(batch, chosen, generated, sample["copied"], is_token, strict=True)
                for index, piece, hypotheses, words, columns in rows:
                    if kind == "given":
                        # fairseq's scorer returns the mean, whatever the power of the length.
                        length = len(hypotheses[0]["tokens"])
                        hypotheses[0]["score"] *= length ** (1 - search.lenpen)
                        if hypotheses[0]["attention"] is not None:
                            hypotheses[0]["attention"] = hypotheses[0]["attention"].t()
                    found[own[index]] = [
                        self._hypothesis(one, piece.sentence, words, search, columns)
                        for one in hypotheses
                    ]
        return [found[index] for index in range(len(pieces))]

    def _add_targets(self, sample: dict[str, Any], targets: Sequence[Any]) -> None:
        dictionary = self.task.target_dictionary
        collate = partial(data_utils.collate_tokens, targets, dictionary.pad(), dictionary.end)
        sample["target"] = collate()
        sample["net_input"]["prev_output_tokens"] = collate(move_eos_to_beginning=True)

    def _target_of(self, text: str, slots: Sequence[str], where: str) -> torch.Tensor:
        tokens: torch.Tensor = self.task.target_dictionary.encode_target(
            self._target.subwords(text), slots
        )
        if len(tokens) > self._limit:
            raise UserError(
                f"{where}: the target has {len(tokens)} subwords, and the model takes {self._limit}"
            )
        return tokens

    def _demanded(self, text: str, slots: Sequence[str], where: str) -> torch.Tensor:
        """Return the indices of a required text, without the end of sentence."""
        dictionary = self.task.target_dictionary
        pieces = self._target.subwords(text)
        tokens: torch.Tensor = dictionary.encode_target(pieces, slots)
        tokens = tokens[: len(pieces.split())]
        for piece, token in zip(pieces.split(), tokens.tolist(), strict=True):
            if token == dictionary.unk():
                raise UserError(
                    f"{where}: the target dictionary lacks '{piece}' of '{text.strip()}'"
                )
        return tokens

    def _hypothesis(
        self,
        generated: dict[str, Any],
        sentence: EncodedSentence,
        words: Sequence[str],
        search: _Search,
        is_token: torch.Tensor,
    ) -> Hypothesis:
        """Make the hypothesis from fairseq's output for a sentence.

        Args:
            words: the sentence's words that have slots.
            is_token: which of the batch's columns are tokens of the sentence. Shape: ``(columns,)``
        """
        tokens = generated["tokens"].int().cpu()
        pieces = self._pieces(tokens, words)
        score = base_2(generated["score"])
        if search.unknown is None and not search.alignments:
            return Hypothesis(self._target.text(pieces), score, len(tokens))
        attention = generated["attention"]  # (source, target)
        if attention is None or not attention.numel():
            raise UserError(
                "alignments and replaced unknown words need a decoder with attention, and "
                f"{type(self.models[0].decoder).__name__} returns no weights"
            )
        # Without the ends of sentence.
        target = self.task.target_dictionary
        count = len(tokens) - 1 - len(target.tags)
        weights = attention[: len(is_token)][is_token][: len(sentence.pieces), :count]
        attended, parts = weights.argmax(0).tolist(), pieces.split(" ") if pieces else []
        if search.unknown is not None:
            for index, source in enumerate(attended):
                if tokens[index] == self.task.target_dictionary.unk():
                    known = self._known(sentence, source, search.unknown)
                    has_space = index and parts[index - 1] == "▁"
                    parts[index] = known.removeprefix("▁") if has_space else known
        text, aligned, counts = self._target.text(" ".join(parts)), set[tuple[int, int]](), (0, 0)
        if search.alignments:
            sources, targets = (
                words_by_marks(side, ()).tolist() for side in (sentence.pieces, parts)
            )
            aligned = {(sources[source], targets[n]) for n, source in enumerate(attended)}
            counts = max(sources) + 1, max(targets, default=-1) + 1
        return Hypothesis(text, score, len(tokens), sorted(aligned), counts)

    def _known(self, sentence: EncodedSentence, piece: int, terms: Mapping[str, str]) -> str:
        """Return the replacement of an unknown word: a word of the segment, or its translation."""
        words = sentence.words.tolist()
        own = [
            one for one, word in zip(sentence.pieces, words, strict=True) if word == words[piece]
        ]
        text = self._target.join(" ".join(own))
        return ("▁" if own[0].startswith("▁") else "") + terms.get(text, text)

    def _pieces(self, tokens: torch.Tensor, words: Sequence[str]) -> str:
        dictionary = self.task.target_dictionary
        pieces: str = dictionary.string(
            tokens, extra_symbols_to_ignore={dictionary.pad(), *dictionary.tags}
        )
        return dictionary.written(pieces, words) if words else pieces


class _Search:
    """fairseq's generators of an ensemble.

    Attributes:
        unknown: translations of words that replace unknown ones; None to replace none.
        lenpen: scores are divided by the length to this power.
    """

    def __init__(self, task: Any, models: Sequence[Any], **options: Any) -> None:
        self._task, self._models, self._options = task, models, options
        self.sampling = options.get("sampling", False)
        self.lenpen: float = options["lenpen"]
        self.generator, self.alignments = cache(self._generator), False
        self.unknown: Mapping[str, str] | None = None

    def _generator(self, kind: str) -> Any:
        """Build the generator of ``plain`` or ``constrained`` sentences, or of ``given`` targets."""
        options = Namespace(score_reference=kind == "given", **self._options)
        generator = self._task.build_generator(self._models, options)
        if self.sampling and kind != "given":
            generator.search = SamplingBySentence(
                self._task.target_dictionary, options.sampling_topk
            )
        if kind == "constrained":
            generator.search = ConstrainedSearch(self._task.target_dictionary)
        return generator

    def longest(self, sentence: EncodedSentence) -> int:
        """Return the largest number of subwords of a sentence's translation."""
        most: int = self.generator("plain").max_len - 1
        return min(longest_target(len(sentence.pieces) + 1), most)


def longest_target(source: int) -> int:
    """Return the largest number of subwords of a translation.

    ``fairseq-generate`` ends every translation after 200 subwords, in the middle of a long one.
    """
    return max(200, 2 * source)


def joined_hypotheses(
    pieces: list[list[Hypothesis]], nbest: int, lenpen: float = 1.0
) -> list[Hypothesis]:  # fmt: skip
    """Join the hypotheses of a line's segments: the best of each, then the second best, and so on.

    The score is the whole translation's: the sum of its log probabilities, divided by its length to the
    power of ``lenpen``.

    A search with constraints may find fewer hypotheses than beams; the last one is then repeated.
    """
    if not pieces:
        return [Hypothesis("")] * nbest
    if len(pieces) == 1 and len(pieces[0]) >= nbest:
        return pieces[0][:nbest]
    hypotheses = []
    for rank in range(nbest):
        parts = [found[min(rank, len(found) - 1)] for found in pieces]
        tokens = sum(part.tokens for part in parts)
        total = sum((part.score or 0.0) * part.tokens**lenpen for part in parts)
        score = total / tokens**lenpen
        alignment, words = [], (0, 0)
        for part in parts:
            alignment += [
                (words[0] + source, words[1] + target) for source, target in part.alignment
            ]
            words = words[0] + part.words[0], words[1] + part.words[1]
        text = " ".join(part.text for part in parts)
        hypotheses.append(Hypothesis(text, score, tokens, alignment, words))
    return hypotheses


def base_2(score: Any) -> float:
    """Convert a natural logarithm to base 2, as fairseq does before it prints."""
    return float(score) / math.log(2)
