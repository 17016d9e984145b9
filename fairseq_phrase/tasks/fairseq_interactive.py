"""Raw text in fairseq's own commands: adapters of ``fairseq-interactive`` and the hub interface.

They segment a line by a tokenizer and a BPE, and pass on strings and tensors. Both use
:class:`~fairseq_phrase.data.batches.source_batches.SourceBatcher`.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, cast

import torch
from fairseq import utils
from fairseq.data.encoders import register_bpe, register_tokenizer
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig, OmegaConf

from fairseq_phrase.data.batches.raw_tokens import (
    LINE,
    RawDataset,
    RawTokens,
    SourceDictionary,
    plain_tensor,
    unpadded,
    write_back,
)
from fairseq_phrase.data.batches.source_batches import SourceBatcher
from fairseq_phrase.data.store.data_directory import languages_in_names
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.subwords.protected_tokens import Segmenter
from fairseq_phrase.data.subwords.text_encoder import TextEncoder, segmenter_of
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import to_device
from fairseq_phrase.methods.encoder_method import option
from fairseq_phrase.repairs.commands import use_idle_cores
from fairseq_phrase.repairs.inference import truncated_tokens
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.syntax.sentence import EncodedSentence

_BOM = "\N{BYTE ORDER MARK}"
# The marks of text that is already segmented by SentencePiece or by subword-nmt.
_MARKS = ("▁", "@@ ")


@dataclass
class SyntaxBPEConfig(FairseqDataclass):
    """Options of the tokenizer and the BPE: the data directory and the parser."""

    # fmt: off
    syntax_data: Optional[str] = option(None,  # noqa: UP045 - fairseq reads this type
        "data directory with syntax.LANG.json; by default the task's own")
    syntax_lang: Optional[str] = option(None,  # noqa: UP045 - fairseq reads this type
        "the parsed language; by default the task's source")
    syntax_parser: Optional[str] = option(None,  # noqa: UP045 - fairseq reads this type
        "split text into words with this parser; by default with the task's --source-parser")


def _source_of(cfg: SyntaxBPEConfig) -> tuple[str, str, str | None]:
    """Return the data directory, the language and the parser of ``--bpe syntax``.

    The hub interface builds a BPE from the configuration only, whose root has the task's options.
    """
    root: Any = cfg._get_root() if isinstance(cfg, DictConfig) else OmegaConf.create()
    data = cfg.syntax_data or OmegaConf.select(root, "task.data")
    if not data:
        raise UserError(
            "--tokenizer syntax and --bpe syntax need --task syntax_translation, or --syntax-data DIR"
        )
    directory = utils.split_paths(data)[0]
    language = cfg.syntax_lang or OmegaConf.select(root, "task.source_lang")
    parser = cfg.syntax_parser
    if not cfg.syntax_data:
        parser = parser or OmegaConf.select(root, "task.source_parser")
    return directory, language or languages_in_names(directory)[0], parser


@register_tokenizer("syntax", dataclass=SyntaxBPEConfig)
class SyntaxTokenizer:
    """Returns lines unchanged: :class:`SyntaxBPE` segments words and subwords."""

    def __init__(self, cfg: SyntaxBPEConfig) -> None:
        pass

    def encode(self, x: str) -> str:
        """Return the line."""
        return x

    def decode(self, x: str) -> str:
        """Return the text."""
        return x


@register_bpe("syntax", dataclass=SyntaxBPEConfig)
class SyntaxBPE:
    """Segments a raw line into words and subwords as in preprocessing; joins subwords to text."""

    def __init__(self, cfg: SyntaxBPEConfig) -> None:
        self._source = _source_of(cfg)

    @functools.cached_property
    def _encoder(self) -> TextEncoder:
        return TextEncoder.from_data(*self._source)

    @functools.cached_property
    def _segmenter(self) -> Segmenter:
        directory, language, _ = self._source
        return segmenter_of(directory, Manifest.load(directory, language), target=True)

    def encode(self, x: str) -> str:
        """Segment a line into subwords, separated by spaces; the line follows after :data:`LINE`."""
        (sentence,) = self._encoder.segment_lines([x])
        return f"{' '.join(sentence.subwords)}{LINE}{x}"

    def decode(self, x: str) -> str:
        """Join subwords to text."""
        return self._segmenter.join(x)


class RawTextTask(TranslationTask):
    """fairseq's translation task, which segments and parses raw lines in the same way as its data.

    Attributes:
        source_text: makes batches of raw text. A subclass sets it.
    """

    source_text: SourceBatcher

    def __init__(self, cfg: Any, src_dict: Any, tgt_dict: Any) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        self._lines_read = 0
        self._segments_as_data = False

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """Find the languages of the data, and load their dictionaries.

        Raises:
            UserError: there is no such data directory, or its files do not name two languages.
        """
        directory = utils.split_paths(cfg.data)[0]
        languages = (cfg.source_lang, cfg.target_lang)
        if None in languages or not Path(directory).is_dir():
            cfg.source_lang, cfg.target_lang = languages_in_names(directory)
        return super().setup_task(cfg, **kwargs)

    @classmethod
    def load_dictionary(cls, filename: str) -> SourceDictionary:
        """Load a dictionary; its token indices of raw lines carry the lines.

        Raises:
            UserError: the data lack a dictionary of this language.
        """
        path = Path(filename)
        if path.parent.is_dir() and not path.is_file():
            labels = {field.label_file for field in FIELDS.values()}
            names = (file.name for file in path.parent.glob("dict.*.txt"))
            there = sorted(name.split(".")[1] for name in names if name not in labels)
            languages = ", ".join(there) or "no language"
            raise UserError(
                f"{filename} is missing; {path.parent} has dictionaries of {languages}: "
                "name the languages of the data with --source-lang and --target-lang (task.source_lang "
                "and task.target_lang of fairseq-hydra-train)"
            )
        dictionary: SourceDictionary = SourceDictionary.load(filename)
        return dictionary

    @property
    def _directory(self) -> str:
        return str(utils.split_paths(self.cfg.data)[0])

    @property
    def kept_subwords(self) -> int | None:
        """The number of subwords of a source that are read, without its end; None for all."""
        return self.cfg.max_source_positions - 1 if self.cfg.truncate_source else None

    def _source_encoder(self) -> TextEncoder:
        return TextEncoder.from_data(
            self._directory,
            self.cfg.source_lang,
            self.cfg.source_parser,
            allow=self.cfg.allow_difference,
            strict=self.cfg.strict_identity,
        )

    def build_bpe(self, args: Any) -> Any:
        """Build the subword segmentation of raw lines."""
        bpe = super().build_bpe(args)
        segmentation = self._directory, self.cfg.source_lang, self.cfg.source_parser
        # A line is then not segmented twice.
        self._segments_as_data = isinstance(bpe, SyntaxBPE) and bpe._source == segmentation
        return bpe

    def get_interactive_tokens_and_lengths(
        self, lines: list[str], encode_fn: Callable[[str], str]
    ) -> tuple[list[torch.Tensor], list[int]]:
        """Encode raw lines, and parse them together if the models read trees."""
        if not self._lines_read:
            use_idle_cores()
        lines = self._cleaned(lines)
        if not self._segments_as_data and not self.source_text.fields:
            tokens, lengths = super().get_interactive_tokens_and_lengths(lines, encode_fn)
            self._check_segmentation(lines, tokens, encode_fn)
            return tokens, lengths
        tokens = list(map(self._tokens_of, self.source_text.encode(lines)))
        if not self._segments_as_data:
            segmented, _ = super().get_interactive_tokens_and_lengths(lines, encode_fn)
            for line, data_tokens, bpe_tokens in zip(lines, tokens, segmented, strict=True):
                _check_same(line, self._truncated(bpe_tokens), data_tokens)
        return tokens, list(map(len, tokens))

    def _truncated(self, tokens: torch.Tensor) -> torch.Tensor:
        """Truncate a source if ``--truncate-source`` is set. Shape: ``(tokens,)``."""
        if self.kept_subwords is None:
            return tokens
        truncated = truncated_tokens(plain_tensor(tokens), self.kept_subwords + 1)
        if not isinstance(tokens, RawTokens):
            return truncated
        return RawTokens.of(truncated, tokens.origins, tokens.words)

    def _tokens_of(self, sentence: EncodedSentence) -> RawTokens:
        indices, words = self.source_text.numbered(sentence, self.kept_subwords)
        copied = [words] if self.source_dictionary.slots else ()
        return RawTokens.of(torch.tensor(indices), [sentence], copied)

    def build_dataset_for_inference(
        self, src_tokens: list[torch.Tensor], src_lengths: list[int], **kwargs: Any
    ) -> RawDataset:
        """Build the dataset of raw sentences, padded as in training."""
        has_fields = bool(self.source_text.fields)
        tokens = self._encoded(src_tokens) if has_fields else [*map(self._truncated, src_tokens)]
        return RawDataset(
            tokens, list(map(len, tokens)), self.source_dictionary, tgt_dict=self.target_dictionary,
            left_pad_source=self.cfg.left_pad_source, **kwargs,
        )  # fmt: skip

    def _encoded(self, rows: Sequence[torch.Tensor]) -> list[RawTokens]:
        """Attach sentences to token indices; indices that carry lines are encoded together.

        Args:
            rows: Shape: ``(tokens,)`` each. Rows that carry nothing are joined to text.
        """
        origins = [
            row.origins if isinstance(row, RawTokens) and row.origins else [self._spelled(row)]
            for row in rows
        ]
        lines = [line for (line,) in origins if isinstance(line, str)]
        encoded = iter(self.source_text.encode(lines) if lines else [])
        raw_tokens = []
        for row, (origin,) in zip(rows, origins, strict=True):
            tokens = self._tokens_of(next(encoded) if isinstance(origin, str) else origin)
            if isinstance(origin, str):
                _check_same(origin, self._truncated(row), tokens)
            raw_tokens.append(tokens)
        return raw_tokens

    def inference_step(
        self, generator: Any, models: Any, sample: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Generate, and insert copied words into the hypotheses.

        ``fairseq-interactive`` keeps only the tokens, which carry the sentences and the words.
        """
        net_input = sample["net_input"]
        tokens = net_input["src_tokens"]
        net_input = {**net_input, "src_tokens": plain_tensor(tokens)}
        if self.source_text.fields and "src_words" not in net_input:
            rows = self._encoded(unpadded(tokens, self.source_dictionary.pad()))
            sentences = [cast(EncodedSentence, row.origins[0]) for row in rows]
            parses = self.source_text.parses(plain_tensor(tokens), sentences, self.kept_subwords)
            net_input |= to_device(parses, tokens.device)
        generated = super().inference_step(
            generator, models, {**sample, "net_input": net_input}, *args, **kwargs
        )
        words = sample.get("copied") or (tokens.words if isinstance(tokens, RawTokens) else ())
        if words:
            write_back(sample, generated, words)
        return generated

    def _cleaned(self, lines: Sequence[str]) -> list[str]:
        """Return lines without the byte order mark at the start of a file."""
        for number, line in enumerate(lines, start=self._lines_read + 1):
            if not line.isascii() and any("\ud800" <= character <= "\udfff" for character in line):
                raise UserError(f"line {number} of the input is not UTF-8: {line[:60]!a}")
        self._lines_read += len(lines)
        return [line.removeprefix(_BOM).lstrip() for line in lines]

    def _check_segmentation(
        self, lines: Sequence[str], tokens: Sequence[torch.Tensor], encode: Callable[[str], str]
    ) -> None:
        """Check that lines are already segmented if the data have no subword model.

        Args:
            tokens: the indices of each line. Shape: ``(tokens,)``.
            encode: the function with which fairseq segmented the lines.
        """
        dictionary = self.source_dictionary
        unknown = dictionary.unk()
        for line, indices in zip(lines, tokens, strict=True):
            has_unknown = unknown in indices or dictionary.has_slot(indices.tolist())
            if not has_unknown or self._segmenter is None:
                continue
            text = encode(line).partition(LINE)[0]
            if any(mark in text for mark in _MARKS):
                continue
            for word in text.split():
                if dictionary.index(word) != unknown:
                    continue
                subwords = self._segmenter.segment_word("▁" + word)
                if unknown not in map(dictionary.index, subwords):
                    raise UserError(
                        f"'{line[:60]}' is raw text, and its word '{word}' is unknown; the data's own "
                        f"subword model splits it into '{' '.join(subwords)}': use --tokenizer syntax "
                        "--bpe syntax (they are for raw text, not for text that is split into subwords "
                        "already)"
                    )

    @functools.cached_property
    def _segmenter(self) -> Segmenter | None:
        """The data's subword model, or None."""
        if not Manifest.path(self._directory, self.cfg.source_lang).is_file():
            return None
        manifest = Manifest.load(self._directory, self.cfg.source_lang)
        return segmenter_of(self._directory, manifest) if manifest.bpe_model else None

    def _spelled(self, tokens: torch.Tensor) -> str:
        """Join the subwords of a sentence that does not carry its line."""
        indices, dictionary = tokens.tolist(), self.source_dictionary
        if dictionary.unk() in indices or dictionary.has_slot(indices):
            raise UserError(
                "a sentence with unknown subwords came without its line, so it cannot be parsed: use "
                "--tokenizer syntax --bpe syntax, and pass the tokens on unchanged"
            )
        subwords = [dictionary[index] for index in indices[:-1]]
        return self.source_text.encoder.segmenter.join(" ".join(subwords))


def _check_same(line: str, segmented: torch.Tensor, parse_tokens: torch.Tensor) -> None:
    """Check that a line was segmented into the subwords of its parse.

    Args:
        segmented: its token indices. Shape: ``(tokens,)``.
    """
    if segmented.tolist() != parse_tokens.tolist():
        raise UserError(
            f"'{line[:60]}' was split into other subwords than its parse: use --tokenizer syntax --bpe "
            "syntax"
        )
