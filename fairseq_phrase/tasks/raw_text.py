"""Raw text in a translation task: fairseq-interactive and the hub interface parse it on the fly."""

from typing import Any

import torch
from fairseq import utils
from fairseq.tasks.translation import TranslationTask

from fairseq_phrase.batch import tokenizers as encoders
from fairseq_phrase.batch.copied_dataset import RawCopiedDataset, write_back
from fairseq_phrase.batch.raw_input import RawInput
from fairseq_phrase.batch.raw_lines import SourceEncoder
from fairseq_phrase.batch.raw_parses import RawDataset, RawParses, check_cut
from fairseq_phrase.batch.raw_tokens import RawTokens, SourceDictionary, plain, rows_of
from fairseq_phrase.batch.syntax_dataset import Parse, collate_parses
from fairseq_phrase.compat import use_idle_cores
from fairseq_phrase.syntax.encoding import EncodedSentence
from fairseq_phrase.syntax.sentence import ParsedSentence


class RawTextTask(TranslationTask):
    """fairseq's translation task, which cuts and parses raw lines as its data were.

    A subclass sets ``_raw_parses``, whose ``fields`` are those that the models asked for.

    Args:
        cfg: fairseq's options with ``source_parser`` and ``strict_identity``.
        src_dict: the source dictionary, from :meth:`load_dictionary`.
        tgt_dict: the target dictionary.
    """

    _raw_parses: RawParses

    def __init__(self, cfg: Any, src_dict: Any, tgt_dict: Any):
        super().__init__(cfg, src_dict, tgt_dict)
        self._source_encoder: SourceEncoder | None = None
        self._raw_input = RawInput(self._directory, cfg.source_lang, src_dict)
        self._cuts_as_parsed = False
        encoders.use_data_of(self._directory, cfg.source_lang, cfg.source_parser)

    @classmethod
    def load_dictionary(cls, filename: str) -> SourceDictionary:
        """Load a dictionary; its token indices of raw lines carry the lines."""
        return SourceDictionary.load(filename)

    @property
    def _fields(self) -> set[str]:
        """The fields of parses that batches carry."""
        return self._raw_parses.fields

    @property
    def _directory(self) -> str:
        return utils.split_paths(self.cfg.data)[0]

    def _configured(self, args: Any) -> Any:
        """Give ``--tokenizer syntax`` and ``--bpe syntax`` this task's data directory."""
        if getattr(args, "_name", None) == "syntax" and not args.syntax_data:
            args.syntax_data, args.syntax_lang = self._directory, self.cfg.source_lang
            args.syntax_parser = args.syntax_parser or self.cfg.source_parser
        return args

    def _is_own(self, args: Any) -> bool:
        """Tell whether a tokenizer or BPE cuts lines in the same way as this task."""
        source = self._directory, self.cfg.source_lang, self.cfg.source_parser
        return getattr(args, "_name", None) == "syntax" and (
            (args.syntax_data, args.syntax_lang, args.syntax_parser) == source
        )

    def build_tokenizer(self, args: Any) -> Any:
        """Build the tokenizer of raw lines."""
        # With these two, a line is cut into the subwords of its parse, so it is not cut twice.
        self._cuts_as_parsed = self._is_own(self._configured(args))
        return super().build_tokenizer(args)

    def build_bpe(self, args: Any) -> Any:
        """Build the subword segmentation of raw lines."""
        self._cuts_as_parsed = self._cuts_as_parsed and self._is_own(self._configured(args))
        return super().build_bpe(args)

    def get_interactive_tokens_and_lengths(self, lines: list[str], encode_fn: Any) -> tuple:
        """Encode raw lines and, if the model asked for parses, parse them together.

        Raises:
            UserError: ``encode_fn`` makes other words and subwords than the parser, or does not cut raw
                text, or a line is not UTF-8.
        """
        if not self._raw_input.lines_read:
            use_idle_cores()
        lines = self._raw_input.cleaned(lines)
        if not self._fields:
            tokens, lengths = super().get_interactive_tokens_and_lengths(lines, encode_fn)
            self._raw_input.check_is_cut(lines, tokens, encode_fn)
            return tokens, lengths
        tokens = self._raw_parses.tokens_of(lines)
        if not self._cuts_as_parsed:
            cut, _ = super().get_interactive_tokens_and_lengths(lines, encode_fn)
            for line, parsed, own in zip(lines, tokens, cut, strict=True):
                check_cut(line, own, parsed)
        return tokens, [sentence.numel() for sentence in tokens]

    @property
    def needs_parses(self) -> bool:
        """Whether the models read any field of a parse."""
        return bool(self._fields)

    @property
    def needs_trees(self) -> bool:
        """Whether the models read more of a parse than which subwords are one word.

        Trees of ``--tree-source`` linear, random and shuffled are none of the parse.

        Raises:
            UserError: see :attr:`RawParses.fields_to_parse`.
        """
        return not self._raw_parses.fields_to_parse <= {"words"}

    def encode_lines(self, lines: list[str], *, trees: bool = True) -> list[EncodedSentence]:
        """Parse raw lines and cut them into subwords, as preprocessing did.

        Args:
            lines: raw text.
            trees: False cuts the lines into the same subwords without parsing them, which is faster.

        Raises:
            UserError: the parser that made the data is not installed, or cannot parse raw text.
        """
        return self._encoder.parse(lines) if trees else self._encoder.cut(lines)

    def parse_lines(self, lines: list[str]) -> list[ParsedSentence]:
        """Parse raw lines into words and trees, whether or not the model asked for them.

        Raises:
            UserError: as :meth:`encode_lines`.
        """
        return self._encoder.parsed(lines)

    def encode_parsed(self, sentence: ParsedSentence) -> EncodedSentence:
        """Cut the words of a parsed sentence into subwords; its trees are kept."""
        return self._encoder.encode(sentence)

    def tokens_of_parsed(self, sentence: ParsedSentence) -> torch.Tensor:
        """Return the token indices of a parsed sentence. They carry its trees to the model.

        Returns:
            Shape: ``(tokens,)``, with the end of sentence.

        Raises:
            UserError: the trees lack a field that the models need.
        """
        return self._raw_parses.tokens_of_encoded(self.encode_parsed(sentence))

    def parse_of(self, sentence: EncodedSentence) -> Parse:
        """Return the parse of a raw sentence, with the fields that the model asked for.

        Raises:
            UserError: the parser did not make one of the fields.
        """
        return self._raw_parses.parse_of(sentence)

    @property
    def _encoder(self) -> SourceEncoder:
        if self._source_encoder is None:
            self._source_encoder = SourceEncoder.of_data(
                self._directory,
                self.cfg.source_lang,
                self.cfg.source_parser,
                strict=self.cfg.strict_identity,
            )
        return self._source_encoder

    def build_dataset_for_inference(
        self, src_tokens: list[torch.Tensor], src_lengths: list[int], **kwargs: Any
    ) -> Any:
        """Build the dataset of raw sentences, padded as in training."""
        dataset = super().build_dataset_for_inference(
            [plain(tokens) for tokens in src_tokens], src_lengths, **kwargs
        )
        dataset.left_pad_source = self.cfg.left_pad_source
        if self._fields:
            dataset = RawDataset(dataset, self._raw_parses.of_tokens(src_tokens))
        words = [
            tokens.words[0]
            for tokens in src_tokens
            if isinstance(tokens, RawTokens) and tokens.words
        ]
        return RawCopiedDataset(dataset, words) if words else dataset

    def inference_step(
        self, generator: Any, models: Any, sample: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Generate, and write copied words into what is generated.

        ``fairseq-interactive`` keeps only the tokens, which carry the parses and the words.
        """
        net_input = sample["net_input"]
        tokens = net_input["src_tokens"]
        net_input = {**net_input, "src_tokens": plain(tokens)}
        if self._fields and "src_words" not in net_input:
            rows = rows_of(tokens, self.source_dictionary.pad())
            parses = self._raw_parses.of_tokens(rows)
            batch = collate_parses(net_input["src_tokens"], parses, self.source_dictionary)
            net_input |= {name: value.to(tokens.device) for name, value in batch.items()}
        generated = super().inference_step(
            generator, models, {**sample, "net_input": net_input}, *args, **kwargs
        )
        words = sample.get("copied") or getattr(tokens, "words", ())
        if words:
            write_back(sample, generated, words)
        return generated
