"""Pre-training on text of one language with its parses: ``--task syntax_pretraining``."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Optional

from fairseq import utils
from fairseq.data import Dictionary, data_utils
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import SAMPLE_BREAK_MODE_CHOICES
from omegaconf import II, MISSING

from fairseq_phrase.data.batches.objectives import (
    MASK_UNITS,
    Causal,
    MakeSource,
    Masking,
    Masks,
    Permuted,
)
from fairseq_phrase.data.batches.pretraining_dataset import PretrainingDataset
from fairseq_phrase.data.batches.source_batches import add_structure
from fairseq_phrase.data.batches.text_blocks import SegmentPairs, TextBlocks
from fairseq_phrase.data.store.data_directory import read_label_dictionary
from fairseq_phrase.data.store.dictionaries import load_dictionary
from fairseq_phrase.data.store.identity import MASK
from fairseq_phrase.data.store.manifest import Manifest, languages_in
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import MakeStructure
from fairseq_phrase.methods.encoder_method import declare, option
from fairseq_phrase.models.pretrainer import Objective
from fairseq_phrase.syntax.constituency import ROOT_LABEL
from fairseq_phrase.tasks.identity_task import IdentifiedTask, IdentityOptions
from fairseq_phrase.tasks.update import UpdateOptions

logger = logging.getLogger(__name__)


@declare(identity="may")  # other samples, other losses
@dataclass
class SyntaxPretrainingConfig(IdentityOptions, UpdateOptions):
    """Options of text and masks; several are from fairseq's ``masked_lm``."""

    # fmt: off
    data: str = option(MISSING,
        "data directories of fairseq-phrase-preprocess --only-source, colons between them; "
        "each epoch of training reads one")
    source_lang: Optional[str] = option(None,  # noqa: UP045 - fairseq reads this type
        "the language; by default that of the data", argparse_alias="-s")
    sample_break_mode: SAMPLE_BREAK_MODE_CHOICES = option("eos",
        "a sample is a sentence (eos), or up to --tokens-per-sample tokens of whole "
        "sentences (complete), of one document (complete_doc), or split anywhere (none)")
    tokens_per_sample: int = option(512, "largest number of tokens in a sample, without eos mode")
    mask_prob: float = option(0.15, "part of the subwords that are predicted")
    mask_unit: ChoiceEnum(list(MASK_UNITS)) = option("subword",  # type: ignore[valid-type]
        "what is masked: subwords, whole words, or whole constituents, drawn until "
        "--mask-prob is reached")
    source_factors: Optional[str] = option(None,  # noqa: UP045 - fairseq reads this type
        "refused: see the options of translation and labelling")
    seed: int = II("common.seed")
    train_subset: str = II("dataset.train_subset")


@register_task("syntax_pretraining", dataclass=SyntaxPretrainingConfig)
class SyntaxPretrainingTask(IdentifiedTask):
    """Text of one language; the model defines its objective and the parses that it needs.

    The dictionary has ``<mask>`` after its last entry, as in fairseq's ``masked_lm``.
    """

    cfg: SyntaxPretrainingConfig
    can_start = False

    def __init__(self, cfg: SyntaxPretrainingConfig, dictionary: Dictionary):
        super().__init__(cfg)
        assert cfg.source_lang is not None
        self.dictionary, self._language = dictionary, cfg.source_lang
        self._mask = dictionary.add_symbol(MASK)
        self._directories = utils.split_paths(cfg.data)
        self._labels = cache(partial(read_label_dictionary, self._directories[0], self._language))
        self._fields: set[str] = set()
        self._structures: dict[str, MakeStructure] = {}
        self._fields_of_loss: set[str] = set()
        self._objective: Objective | None = None
        self._masking = Masking(str(cfg.mask_unit), cfg.mask_prob)

    @classmethod
    def setup_task(cls, cfg: SyntaxPretrainingConfig, **kwargs: Any) -> "SyntaxPretrainingTask":
        """Load the dictionary.

        Raises:
            UserError: the data are missing or not monolingual, or factors are requested.
        """
        if cfg.source_factors is not None:
            raise UserError(
                f"--source-factors {cfg.source_factors}: --task syntax_pretraining has no factors, "
                "because masks and query streams have no labels; give them to the training that starts "
                "from the pre-trained encoder"
            )
        directories = utils.split_paths(cfg.data)
        if cfg.source_lang is None:
            cfg.source_lang = _language_of(directories[0])
        files = [Path(directory) / f"dict.{cfg.source_lang}.txt" for directory in directories]
        for file in files:
            if not file.is_file():
                raise UserError(f"{file} is not there: {_MAKE}")
        return cls(cfg, load_dictionary(files[0]))

    @property
    def source_dictionary(self) -> Dictionary:
        """The dictionary, with ``<mask>``."""
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        """The same dictionary."""
        return self.dictionary

    def max_positions(self) -> None:
        """Return None: the model limits the length."""
        return None

    def require_parses(self, fields: Sequence[str], for_model: bool = True) -> None:
        """Add parses to every later batch; see ``SyntaxTranslationTask.require_parses``."""
        self._check_fields({"words", *fields})
        (self._fields if for_model else self._fields_of_loss).update({"words", *fields})

    def require_structure(self, key: str, make: MakeStructure) -> None:
        """Make tensors of the parses of every batch; see ``SyntaxTranslationTask``."""
        add_structure(self._structures, key, make)

    def require_objective(self, objective: Objective) -> None:
        """Set the objective of all later samples.

        Raises:
            UserError: the data lack the parses that its masks need.
        """
        self._objective = objective
        if objective.name == "masked":
            self._check_fields(self._masking.fields)
        elif self._masking.unit != "subword":
            raise UserError(
                f"--mask-unit {self._masking.unit}: --objective {objective.name} masks nothing"
            )

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the criterion.

        Raises:
            UserError: the criterion does not fit the objective.
        """
        name = getattr(cfg, "_name", None) or getattr(cfg, "criterion", None)
        if self._objective is not None:
            if self._objective.next_sentence and name != "next_sentence":
                raise UserError(f"--next-sentence: use --criterion next_sentence, not {name}")
            if name == "next_sentence" and not self._objective.next_sentence:
                raise UserError(
                    "--criterion next_sentence predicts pairs of segments: "
                    + (
                        "--objective causal has none: use --criterion cross_entropy"
                        if self._objective.name == "causal"
                        else "it needs --next-sentence; without pairs use --criterion masked_lm"
                    )
                )
            if self._objective.name != "causal" and name not in ("masked_lm", "next_sentence"):
                raise UserError(
                    f"--objective {self._objective.name} predicts some of the tokens: use --criterion "
                    f"masked_lm, not {name}"
                )
        return super().build_criterion(cfg, from_checkpoint)

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a split, with the parses that the model and the masks need.

        Raises:
            UserError: the text or its parses are missing, or do not fit the objective.
        """
        directory = self.directory_of(split, epoch)
        path = str(Path(directory) / f"{split}.{self._language}")
        text = data_utils.load_indexed_dataset(path, self.dictionary)
        if text is None:
            raise UserError(f"{path}.bin is not there: {_MAKE}")
        objective = self._objective
        if objective is None:
            raise UserError("--task syntax_pretraining: use --arch pretrainer")
        fields = self._fields | self._fields_of_loss
        fields |= self._masking.fields if objective.name == "masked" else set()
        break_mode = str(self.cfg.sample_break_mode)
        if break_mode in ("none", "complete") and (fields or objective.next_sentence):
            raise UserError(
                f"--sample-break-mode {break_mode} crosses the boundaries of sentences or documents, and "
                f"{'parses' if fields else '--next-sentence'} need them: use eos or complete_doc"
            )
        parses = ParseStore(directory, split, self._language, fields) if fields else None
        root = self._labels("spans").index(ROOT_LABEL) if "spans" in fields else 0
        tokens = self.cfg.tokens_per_sample
        if objective.next_sentence:
            tokens = (tokens - 1) // 2  # one for <s>
        blocks: Any = TextBlocks(
            text, self.dictionary, tokens, break_mode, parses, root, objective.memory
        )
        if objective.next_sentence:
            blocks = SegmentPairs(blocks, text, self.dictionary.bos(), path)
        self.datasets[split] = PretrainingDataset(
            blocks, self._source(objective), self.dictionary, seed=self.cfg.seed,
            inputs=self._fields, of_loss=self._fields_of_loss, shuffle=split == self.cfg.train_subset,
            structures=self._structures,
        )  # fmt: skip

    def _source(self, objective: Objective) -> MakeSource:
        """Make the object that gives samples their source and target."""
        if objective.name == "causal":
            return Causal(self.dictionary, objective.backward)
        if objective.name == "permutation":
            return Permuted(self.dictionary)
        return Masks(self._masking, mask=self._mask, dictionary=self.dictionary)

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Batch a dataset, with new workers in each epoch."""
        iterator = super().get_batch_iterator(dataset, *args, **kwargs)
        # Workers that fairseq keeps across epochs would not know the epoch.
        iterator.reuse_dataloader = False
        return iterator

    def _check_fields(self, fields: Collection[str]) -> None:
        for directory in self._directories:
            if fields:
                Manifest.load(directory, self._language).require(set(fields), directory)


_MAKE = "make the data with fairseq-phrase-preprocess --only-source"


def _language_of(directory: str) -> str:
    languages = languages_in(directory)
    if len(languages) == 1:
        return languages[0]
    if not languages:
        raise UserError(f"{directory} is not a data directory with parses: {_MAKE}")
    raise UserError(f"{directory} has {' and '.join(languages)}: name one with --source-lang")
