"""Translation with the parses of the source sentences: ``--task syntax_translation``."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import torch
from fairseq import utils
from fairseq.data import ConcatDataset, Dictionary, indexed_dataset
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_phrase.batch import tokenizers as encoders
from fairseq_phrase.batch.raw_lines import SourceEncoder
from fairseq_phrase.batch.syntax_dataset import Parse, SyntaxDataset, collate_parses
from fairseq_phrase.compat import leave_out_unknown_inputs
from fairseq_phrase.errors import UserError
from fairseq_phrase.store.fields import LABEL_FILES
from fairseq_phrase.store.manifest import Manifest
from fairseq_phrase.store.reader import ParseStore
from fairseq_phrase.syntax.encoding import EncodedSentence


@dataclass
class SyntaxTranslationConfig(TranslationConfig):
    """Options of fairseq's translation task, and those of parses."""

    left_pad_source: bool = field(default=False, metadata={"help": "pad the source on the left"})
    source_parser: Optional[str] = field(  # noqa: UP045 - fairseq reads this type
        default=None,
        metadata={
            "help": "parser for raw text in fairseq-interactive (spacy:MODEL, none); by default "
            "the one that made the data"
        },
    )


@register_task("syntax_translation", dataclass=SyntaxTranslationConfig)
class SyntaxTranslationTask(TranslationTask):
    """fairseq's translation task whose batches carry the parses that the model asks for.

    A model that needs parses calls :meth:`require_parses` when it is built; one that needs none trains
    from a plain fairseq data directory.
    """

    cfg: SyntaxTranslationConfig

    def __init__(self, cfg: SyntaxTranslationConfig, src_dict: Any, tgt_dict: Any):
        super().__init__(cfg, src_dict, tgt_dict)
        self._fields: set[str] = set()
        self._source_encoder: SourceEncoder | None = None
        self._constituent_dictionary: Dictionary | None = None
        # Parses of raw lines on their way through fairseq-interactive, by their token indices.
        self._raw_parses: dict[tuple[int, ...], Parse] = {}
        encoders.use_data_of(self._directory, cfg.source_lang, cfg.source_parser)

    @property
    def _directory(self) -> str:
        return utils.split_paths(self.cfg.data)[0]

    def require_parses(self, fields: Sequence[str]) -> None:
        """Carry parses in every batch from now on.

        Args:
            fields: what the model needs, ``words`` and perhaps ``heads`` or ``spans``.

        Raises:
            UserError: the data directory has no such parses.
        """
        Manifest.load(self._directory, self.cfg.source_lang).require(set(fields), self._directory)
        self._fields |= {"words", *fields}

    @property
    def constituent_dictionary(self) -> Dictionary:
        """The constituents' labels, ``dict.constituent.txt``.

        Raises:
            UserError: the data directory has none.
        """
        if self._constituent_dictionary is None:
            path = os.path.join(self._directory, LABEL_FILES["spans"])
            if not os.path.isfile(path):
                raise UserError(f"{path} is missing: run fairseq-phrase-preprocess again")
            self._constituent_dictionary = Dictionary.load(path)
        return self._constituent_dictionary

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a split, with its parses if the model asked for them.

        Raises:
            UserError: the parses are missing or belong to another text.
        """
        super().load_dataset(split, epoch, combine, **kwargs)
        if self._fields:
            paths = utils.split_paths(self.cfg.data)
            directory = (
                paths[(epoch - 1) % len(paths)] if split == self.cfg.train_subset else paths[0]
            )
            self.datasets[split] = SyntaxDataset(
                self.datasets[split],
                self._load_parses(directory, split, combine),
                self.cfg.max_source_positions - 1 if self.cfg.truncate_source else None,
            )

    def _load_parses(self, directory: str, split: str, combine: bool) -> Any:
        """Load the parses of ``split`` and of ``split1``, ``split2``…, as fairseq combines them."""
        stores = []
        for number in itertools.count():
            name = self._pair_name(directory, f"{split}{number or ''}")
            if name is None:
                break
            stores.append(ParseStore(directory, name, self.cfg.source_lang, self._fields))
            if not combine:
                break
        if len(stores) == 1:
            return stores[0]
        return ConcatDataset(stores, [self.cfg.upsample_primary] + [1] * (len(stores) - 1))

    def _pair_name(self, directory: str, split: str) -> str | None:
        """Find a split under either order of its languages, as fairseq does."""
        source, target = self.cfg.source_lang, self.cfg.target_lang
        for name in (f"{split}.{source}-{target}", f"{split}.{target}-{source}"):
            path = os.path.join(directory, f"{name}.{source}")
            if indexed_dataset.dataset_exists(path, impl=self.cfg.dataset_impl):
                return name
        return None

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Batch a dataset; outside training, no sentence is lost.

        fairseq 0.12.3 drops the last batch of a dataset where its size is no multiple of
        ``--required-batch-size-multiple`` (8 by default), in ``fairseq-generate`` too. Training keeps
        that. The split does not tell training from evaluation (``--gen-subset train``), but of all
        callers the trainer alone says how to shuffle groups of batches, for its training data.
        """
        if "grouped_shuffling" not in kwargs:
            kwargs["required_batch_size_multiple"] = 1
            # A dataset that is trained on as well has its own batches in fairseq's cache.
            if dataset is self.datasets.get(self.cfg.train_subset):
                kwargs["disable_iterator_cache"] = True
        return super().get_batch_iterator(dataset, *args, **kwargs)

    def build_generator(self, models: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Build fairseq's generator; each model of an ensemble takes the inputs that it knows."""
        if self._fields and len(models) > 1:
            for model in models:
                leave_out_unknown_inputs(model)
                leave_out_unknown_inputs(model.encoder)
        return super().build_generator(models, *args, **kwargs)

    # Raw text: fairseq-interactive and the hub interface.

    def _configured(self, args: Any) -> Any:
        """Tell ``--tokenizer syntax`` and ``--bpe syntax`` where this task's data are."""
        if getattr(args, "_name", None) == "syntax" and not args.syntax_data:
            args.syntax_data, args.syntax_lang = self._directory, self.cfg.source_lang
            args.syntax_parser = args.syntax_parser or self.cfg.source_parser
        return args

    def build_tokenizer(self, args: Any) -> Any:
        """Build the tokenizer of raw lines."""
        return super().build_tokenizer(self._configured(args))

    def build_bpe(self, args: Any) -> Any:
        """Build the subword segmentation of raw lines."""
        return super().build_bpe(self._configured(args))

    def get_interactive_tokens_and_lengths(self, lines: list[str], encode_fn: Any) -> tuple:
        """Encode raw lines and, if the model asked for heads, parse them together.

        Raises:
            UserError: ``encode_fn`` does not make the words and subwords that the parser does.
        """
        tokens, lengths = super().get_interactive_tokens_and_lengths(lines, encode_fn)
        if self._fields:
            self._raw_parses.clear()
            for line, ids, sentence in zip(lines, tokens, self.encode_lines(lines), strict=True):
                if self._indices(sentence) != tuple(ids.tolist()):
                    raise UserError(
                        f"'{line[:60]}' was cut into other subwords than its parse: use --tokenizer "
                        "syntax --bpe syntax"
                    )
                self._remember(sentence)
        return tokens, lengths

    def encode_lines(self, lines: list[str]) -> list[EncodedSentence]:
        """Parse raw lines and cut them into subwords, as preprocessing did.

        Raises:
            UserError: the parser that made the data is not installed, or cannot parse raw text.
        """
        return self._encoder.parse(lines)

    @property
    def _encoder(self) -> SourceEncoder:
        if self._source_encoder is None:
            self._source_encoder = SourceEncoder.of_data(
                self._directory, self.cfg.source_lang, self.cfg.source_parser
            )
        return self._source_encoder

    def _indices(self, sentence: EncodedSentence) -> tuple[int, ...]:
        dictionary = self.source_dictionary
        return (*map(dictionary.index, sentence.pieces), dictionary.eos())

    def _remember(self, sentence: EncodedSentence) -> None:
        parse = {name: getattr(sentence, name) for name in self._fields}
        for name, kind in (("heads", "dependency"), ("spans", "constituency")):
            if name in parse and parse[name] is None:
                raise UserError(
                    f"this model needs {kind} trees and the data's parser makes none of raw text: "
                    "name one with --source-parser spacy:MODEL or stanza:LANG"
                )
        if "spans" in parse:
            numbers = map(self.constituent_dictionary.index, sentence.span_labels)
            parse["spans"] = np.column_stack([parse["spans"], np.fromiter(numbers, np.int64)])
        self._raw_parses[self._indices(sentence)] = parse

    def _raw_parse(self, ids: tuple[int, ...]) -> Parse:
        """Return the parse of token indices; parse their line anew where it is not at hand.

        Raises:
            UserError: neither the line nor its text can be had back from the indices.
        """
        if ids not in self._raw_parses:
            (sentence,) = self.encode_lines([self._line_of(ids)])
            if self._indices(sentence) != ids:
                raise UserError(
                    "a sentence came without its parse, and its text cannot be had back from its "
                    "subwords: use --tokenizer syntax --bpe syntax"
                )
            self._remember(sentence)
        return self._raw_parses[ids]

    def _line_of(self, ids: tuple[int, ...]) -> str:
        """Find the raw line of token indices; spell their subwords where it was not cut here."""
        pieces = tuple(self.source_dictionary[index] for index in ids[:-1])
        recent = encoders.recent_lines()
        if self.source_dictionary.unk() not in ids:
            return recent.get(pieces) or self._encoder.text_of(list(pieces))
        index = self.source_dictionary.index
        for own, line in reversed(recent.items()):
            if len(own) == len(pieces) and (*map(index, own), ids[-1]) == ids:
                return line
        return self._encoder.text_of(list(pieces))

    def build_dataset_for_inference(
        self, src_tokens: list[torch.Tensor], src_lengths: list[int], **kwargs: Any
    ) -> Any:
        """Build the dataset of raw sentences, padded as in training."""
        dataset = super().build_dataset_for_inference(src_tokens, src_lengths, **kwargs)
        dataset.left_pad_source = self.cfg.left_pad_source
        if not self._fields:
            return dataset
        return SyntaxDataset(dataset, [self._raw_parse(tuple(ids.tolist())) for ids in src_tokens])

    def inference_step(
        self, generator: Any, models: Any, sample: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Generate; ``fairseq-interactive`` keeps only the tokens, so the parse comes back here."""
        net_input = sample["net_input"]
        if self._fields and "src_words" not in net_input:
            tokens, padding = net_input["src_tokens"], self.source_dictionary.pad()
            rows = tokens.cpu().numpy()
            parses = [self._raw_parse(tuple(row[row != padding].tolist())) for row in rows]
            batch = collate_parses(tokens, parses, self.source_dictionary)
            sample = {
                **sample,
                "net_input": {
                    **net_input,
                    **{name: value.to(tokens.device) for name, value in batch.items()},
                },
            }
        return super().inference_step(generator, models, sample, *args, **kwargs)
