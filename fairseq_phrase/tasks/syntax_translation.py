"""Translation with the parses of the source sentences: ``--task syntax_translation``."""

import logging
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Optional

from fairseq import utils
from fairseq.data import ConcatDataset
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig

from fairseq_phrase.checkpoints.pretrained import PretrainedOptions
from fairseq_phrase.data.batches.source_batches import SourceBatcher, add_structure
from fairseq_phrase.data.batches.syntax_dataset import (
    CopiedDataset,
    LongestSideOrder,
    SyntaxDataset,
)
from fairseq_phrase.data.batches.tree_sources import Trees
from fairseq_phrase.data.store.copied_words import CopiedWords, copied_path, slot
from fairseq_phrase.data.store.data_directory import (
    pair_names,
    read_label_dictionary,
    refuse_unknown_words,
)
from fairseq_phrase.data.store.identity import Entry, Identity
from fairseq_phrase.data.store.layout import PREPROCESS
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import MakeStructure
from fairseq_phrase.methods.copying.copying_decoder import CopyingDecoder
from fairseq_phrase.methods.encoder_method import option
from fairseq_phrase.methods.losses.added_losses import CoverageCriterion, check_layers
from fairseq_phrase.methods.losses.tree_losses import LossSetting, TreeLossOptions, wanted_losses
from fairseq_phrase.methods.model_parts import decoder_of
from fairseq_phrase.models.source_factors import HookedEnsemble, SourceFactors, leave_out_unknown
from fairseq_phrase.tasks.beam_search import (
    FastGenerator,
    FastGeneratorWithAlignment,
    log_search,
    obstacle,
)
from fairseq_phrase.tasks.fairseq_interactive import RawTextTask
from fairseq_phrase.tasks.identity_task import IdentifiedTask, IdentityOptions
from fairseq_phrase.tasks.language_tags import LanguageTagOptions, LanguageTagTask
from fairseq_phrase.tasks.update import UpdateOptions
from fairseq_phrase.tasks.validation_bleu import ValidationBleuOptions, ValidationBleuTask

#: The choices of ``--batch-order``.
BATCH_ORDERS = ("source", "longest-side")


@dataclass
class SyntaxTranslationConfig(
    IdentityOptions, UpdateOptions, PretrainedOptions, LanguageTagOptions, TreeLossOptions,
    ValidationBleuOptions, TranslationConfig,
):  # fmt: skip
    """Options of fairseq's translation task and of parses."""

    left_pad_source: bool = option(False, "pad the source on the left")
    # fmt: off
    truncate_source: bool = option(False,
        "truncate sources to --max-source-positions", identity="may")
    source_parser: Optional[str] = option(None,  # noqa: UP045 - fairseq reads this type
        "parser for raw text in fairseq-interactive (spacy:MODEL, none); by default "
        "the one that made the data, if its name is not a path")
    tree_source: Optional[str] = option(None,  # noqa: UP045 - fairseq reads this type
        "dependency trees in training and translation: the parse, or as a control linear "
        "(each word's head is the next), random (by --tree-seed and the sentence) or shuffled (the "
        "parse of another training sentence of about the same length); by default the "
        "checkpoint's, else parse")
    tree_seed: Optional[int] = option(None,  # noqa: UP045 - fairseq reads this type
        "seed of --tree-source random and shuffled; by default the checkpoint's, else 1")
    coverage: float = option(0.0,
        "weight λ of a loss of attending again to the same source words, Σ min(weight, sum "
        "of the weights before), which is added to the criterion's loss; 1 is usual")
    source_factors: Optional[str] = option(None,  # noqa: UP045 - fairseq reads this type
        "labels of words whose embeddings are added to those of tokens, in any encoder: "
        "parse fields (tags, deprels, …) and subwords (whether a subword is the beginning, the "
        "inside, the end or all of its word), commas between them; by default the checkpoint's")
    batch_order: ChoiceEnum(BATCH_ORDERS) = option("source",  # type: ignore[valid-type]
        "order in which training pairs are put into batches: by the length of the source, then of the "
        "target, as fairseq; or by the longer of both, then target, then source, which makes fewer "
        "batches of --max-tokens")


logger = logging.getLogger(__name__)


@register_task("syntax_translation", dataclass=SyntaxTranslationConfig)
class SyntaxTranslationTask(IdentifiedTask, LanguageTagTask, RawTextTask, ValidationBleuTask):
    """fairseq's translation task whose batches carry the parses that the model asks for.

    A model that needs parses calls :meth:`require_parses` when it is built. Other models can train with a
    plain fairseq data directory.
    """

    cfg: SyntaxTranslationConfig

    def __init__(self, cfg: SyntaxTranslationConfig, src_dict: Any, tgt_dict: Any):
        super().__init__(cfg, src_dict, tgt_dict)
        self._labels = cache(partial(read_label_dictionary, self._directory, cfg.source_lang))
        self._trees = Trees(cfg.tree_source, cfg.tree_seed, src_dict, self._training_heads)
        self.source_text = SourceBatcher(
            src_dict,
            self._labels,
            self._source_encoder,
            self._trees,
            left_pad=cfg.left_pad_source,
        )
        self._fields_of_loss: set[str] = set()
        self._given_factors = self._factors = SourceFactors.of(cfg.source_factors)
        self._copies = False
        self._tree_losses = wanted_losses(cfg)
        self._loss_settings: dict[str, LossSetting] = {}

    def require_parses(
        self, fields: Sequence[str], for_model: bool = True, needer: str = "this model"
    ) -> None:
        """Add parses to every later batch.

        Args:
            fields: names in :data:`fairseq_phrase.syntax.fields.FIELDS`.
            for_model: whether the model reads them, from ``net_input``. False for a criterion, which
                works with any architecture: the tensors are in ``sample["parse"]``, by field.
            needer: what reads them, in the message about missing ones.
        """
        needed = self.source_text.fields if for_model else self._fields_of_loss
        if for_model:
            self._trees.are_read |= "heads" in fields
        self._check_fields({*fields, *self._fields_of_loss, *self.source_text.fields}, needer)
        needed.update({"words", *fields})

    def require_structure(self, key: str, make: MakeStructure) -> None:
        """Compute tensors from the parses of every later batch, in the processes that collate."""
        add_structure(self.source_text.structures, key, make)

    def _check_fields(self, fields: Collection[str], needer: str) -> None:
        read = self._trees.fields_to_read(fields)
        needed = set(fields) if self._trees.need_parses else read
        for directory in utils.split_paths(self.cfg.data):
            Manifest.load(directory, self.cfg.source_lang).require(needed, directory, needer)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build a model, and find the layers of the losses that teach trees."""
        model = super().build_model(cfg, from_checkpoint)
        if from_checkpoint:  # other models of an ensemble may read parses
            for module in (model, model.encoder):
                module.register_forward_pre_hook(leave_out_unknown, with_kwargs=True)
        self._copies = isinstance(decoder_of(model), CopyingDecoder)
        if self.cfg.coverage:
            check_layers(model)
        for loss in self._tree_losses:
            self._loss_settings[loss.option] = loss.setting_for(self.cfg, model)
        return model

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the criterion, with the losses added that the options ask for.

        Raises:
            UserError: a data directory lacks the trees of a loss, or the weight of coverage is negative.
        """
        criterion = super().build_criterion(cfg, from_checkpoint)
        if self.cfg.coverage < 0:
            raise UserError(f"--coverage {self.cfg.coverage}: expected 0 or more")
        if self.cfg.coverage:
            criterion = CoverageCriterion.over(criterion, self.cfg.coverage)
        for loss in self._tree_losses:
            setting = self._loss_settings[loss.option]
            loss.check_source(self.cfg.tree_source)
            self.require_parses([loss.field], for_model=False, needer=loss.flag())
            criterion = loss.over(criterion, loss.weight_in(self.cfg), setting)
        return criterion

    def extend(self, model: Any, trained: Identity | None) -> None:
        """Add source factors, of the options or else of the checkpoint."""
        self._factors = self._given_factors
        if trained is not None and self.cfg.source_factors is None:
            self._factors = SourceFactors.recorded(trained)
        if self._factors.names:
            self.require_parses(self._factors.fields)
            self._factors.add_to(model, lambda field: len(self.label_dictionary(field)))

    def _training_heads(self) -> ParseStore:
        """Read the heads of the training sentences, which ``--tree-source shuffled`` exchanges."""
        names = self._pair_names(self._directory, self.cfg.train_subset, combine=False)
        if not names:
            raise UserError(
                f"{self._directory} has no {self.cfg.train_subset} split, whose parses "
                "--tree-source shuffled gives to other sentences"
            )
        return ParseStore(self._directory, names[0], self.cfg.source_lang, {"heads"})

    def own_entries(self) -> dict[str, Entry]:
        """Return the entries of the task's options, and of the trees if models read trees."""
        trees = self._trees.entries() if self._trees.are_read else {}
        return {**super().own_entries(), **trees, **self._factors.entries()}

    def restore(self, trained: Identity, *, in_ensemble: bool) -> None:
        """Use the source of trees of a checkpoint's model, unless an option sets the source."""
        self._trees.restore(trained, in_ensemble=in_ensemble)

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a split, with its parses if the model asked for them, and its words to copy.

        Raises:
            UserError: the parses are missing or belong to another text, or the model copies and cannot
                learn the target's unknown words, or the dictionary has slots for unknown words and
                the data lack the words.
        """
        self._load_with_copies(split, epoch, combine, **kwargs)
        # fairseq orders padded lengths (--num-batch-buckets) by the longer of both already.
        if (
            self.cfg.batch_order == "longest-side"
            and split == self.cfg.train_subset
            and self.datasets[split].buckets is None
        ):
            self.datasets[split] = LongestSideOrder(self.datasets[split])

    def _load_with_copies(self, split: str, epoch: int, combine: bool, **kwargs: Any) -> None:
        self._load_with_parses(split, epoch, combine, **kwargs)
        directory = self.directory_of(split, epoch)
        source, target = self.cfg.source_lang, self.cfg.target_lang
        names = self._pair_names(directory, split, combine)
        if not self.target_dictionary.slots:
            # Words of older data in this directory may remain.
            if split == self.cfg.train_subset and self._copies:
                for name in names:
                    refuse_unknown_words(
                        os.path.join(directory, f"{name}.{target}"), self.target_dictionary
                    )
            return
        texts = [os.path.join(directory, f"{name}.{source}") for name in names]
        self._check_copied_words(texts)
        self.datasets[split] = CopiedDataset(
            self.datasets[split], self._combined([*map(CopiedWords, texts)]), directory
        )

    def _check_copied_words(self, texts: Sequence[str]) -> None:
        """Check that source texts have their words to copy, because the dictionary has slots for them."""
        for text in texts:
            if not CopiedWords.exist(text):
                source, target = self.cfg.source_lang, self.cfg.target_lang
                raise UserError(
                    f"{text} has no words to copy ({copied_path(text)}.idx is missing), but the target "
                    f"dictionary has slots ({slot(1)}, …), which only such words fill: run "
                    f"{PREPROCESS} for its text with --source-lang {source} --target-lang {target} "
                    f"--joined-dictionary --copy-words {self.target_dictionary.slots}, and with "
                    "--srcdict for the dictionary of a trained model"
                )

    def _load_with_parses(self, split: str, epoch: int, combine: bool, **kwargs: Any) -> None:
        super().load_dataset(split, epoch, combine, **kwargs)
        self.datasets[split] = self._pairs(self.datasets[split])
        fields = self.source_text.fields | self._fields_of_loss
        is_training = split == self.cfg.train_subset
        directory = self.directory_of(split, epoch)
        if not fields:
            return
        parses = self._load_parses(directory, split, combine, fields)
        dataset = self.datasets[split] = SyntaxDataset(
            self.datasets[split], parses, self.kept_subwords,
            self._trees if "heads" in fields else None,
            is_pool=is_training and directory == self._directory and isinstance(parses, ParseStore),
            of_loss=frozenset(self._fields_of_loss), inputs=frozenset(self.source_text.fields),
            structures=self.source_text.structures,
        )  # fmt: skip
        if lost := dataset.lost():
            logger.warning(
                "%s: --truncate-source truncates %d sources to %d subwords; lost: %s",
                *(split, lost.pop("sources"), self.kept_subwords),
                ", ".join(f"{count} {name}" for name, count in lost.items()) or "text alone",
            )

    def _load_parses(self, directory: str, split: str, combine: bool, fields: set[str]) -> Any:
        """Load the parses of ``split`` and of ``split1``, ``split2``…, as fairseq combines them."""
        read = self._trees.fields_to_read(fields) if "heads" in fields else fields
        return self._combined(
            [
                ParseStore(directory, name, self.cfg.source_lang, read)
                for name in self._pair_names(directory, split, combine)
            ]
        )

    def _combined(self, parts: list[Any]) -> Any:
        """Join data of several splits, as fairseq combines them."""
        if len(parts) == 1:
            return parts[0]
        return ConcatDataset(parts, [self.cfg.upsample_primary] + [1] * (len(parts) - 1))

    def _pair_names(self, directory: str, split: str, combine: bool) -> list[str]:
        """Find ``split`` and, if they are combined, ``split1``, ``split2``…."""
        languages = self.cfg.source_lang, self.cfg.target_lang
        return pair_names(directory, split, languages, self.cfg.dataset_impl, combine=combine)

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Batch a dataset; :mod:`fairseq_phrase.repairs` keeps all sentences outside training."""
        if "grouped_shuffling" not in kwargs:
            # fairseq caches batches without limit: training's batches differ in each epoch, and batches
            # of raw lines are not needed again.
            splits = (name for name, split in self.datasets.items() if split is dataset)
            if next(splits, self.cfg.train_subset) == self.cfg.train_subset:
                kwargs["disable_iterator_cache"] = True
        return super().get_batch_iterator(dataset, *args, **kwargs)

    def build_generator(
        self,
        models: Sequence[Any],
        args: Any,
        seq_gen_cls: Any = None,
        extra_gen_cls_kwargs: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Build the search; each model of an ensemble gets only the inputs that it accepts.

        A hypothesis begins and ends with the target language's tag. The search is :class:`FastGenerator`,
        or fairseq's own where that one lacks what models or arguments ask for.

        Raises:
            UserError: constraints of a model with tags, which fairseq's search also finds after ``</s>``.
        """
        if self.cfg.langs and getattr(args, "constraints", None):
            raise UserError(
                "--langs cannot be combined with fairseq's --constraints, which may come after a "
                "sentence's end"
            )
        end = {"eos": self.target_dictionary.end} if self.cfg.langs else {}
        extra = {**(extra_gen_cls_kwargs or {}), **end}
        if seq_gen_cls is None and not getattr(args, "score_reference", False):
            reason = obstacle(models, {**extra, "beam_size": getattr(args, "beam", 5)})
            log_search(reason)
            if reason is None and getattr(args, "print_alignment", False):
                seq_gen_cls = FastGeneratorWithAlignment
                extra["print_alignment"] = args.print_alignment
            elif reason is None:
                seq_gen_cls = FastGenerator
        generator = super().build_generator(models, args, seq_gen_cls, extra, **kwargs)
        if hasattr(generator, "model"):  # a scorer of references has none
            generator.model = HookedEnsemble(models)
        return generator
