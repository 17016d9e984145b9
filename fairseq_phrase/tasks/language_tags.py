"""mBART's language tags, as in fairseq's ``translation_from_pretrained_bart``."""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.data import AppendTokenDataset, LanguagePairDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks.translation import TranslationTask

from fairseq_phrase.errors import UserError


@dataclass
class LanguageTagOptions(FairseqDataclass):
    """Options of language tags."""

    langs: Optional[str] = field(  # noqa: UP045 - fairseq reads this type
        default=None,
        metadata={
            "help": "languages of an mBART, in its order, commas between them: sources end with "
            "'</s> [SOURCE_LANG]', and translations begin with '[TARGET_LANG]'",
            "part": "source",
        },
    )


class LanguageTagTask(TranslationTask):
    """A task whose sentences end with ``</s>`` and the tag of their language, with ``--langs``.

    Raises:
        UserError: a language of the data is not in ``--langs``, or another option needs ``</s>`` at the
            end.
    """

    def __init__(self, cfg: Any, src_dict: Any, tgt_dict: Any) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        if not cfg.langs:
            return
        tags = [f"[{language}]" for language in cfg.langs.split(",")]
        for dictionary, language in ((src_dict, cfg.source_lang), (tgt_dict, cfg.target_lang)):
            if f"[{language}]" not in tags:
                raise UserError(
                    f"--langs {cfg.langs}: '{language}', a language of the data, is missing"
                )
            for symbol in (*tags, "<mask>"):
                dictionary.add_symbol(symbol)
            dictionary.added = tags
            dictionary.tags = (dictionary.index(f"[{language}]"),)
        if cfg.num_batch_buckets or cfg.eval_bleu:
            raise UserError("--langs cannot be combined with --num-batch-buckets or --eval-bleu")

    def _pairs(self, pairs: LanguagePairDataset) -> LanguagePairDataset:
        """Add the tags to sentence pairs."""
        if not self.cfg.langs:
            return pairs
        source = AppendTokenDataset(pairs.src, *self.source_dictionary.tags)
        target, sizes = None, None
        if pairs.tgt is not None:
            target = AppendTokenDataset(pairs.tgt, *self.target_dictionary.tags)
            sizes = target.sizes
        return LanguagePairDataset(
            source, source.sizes, pairs.src_dict, target, sizes, pairs.tgt_dict,
            left_pad_source=pairs.left_pad_source, left_pad_target=pairs.left_pad_target,
            align_dataset=pairs.align_dataset, eos=self.target_dictionary.end,
            shuffle=pairs.shuffle, pad_to_multiple=pairs.pad_to_multiple,
        )  # fmt: skip
