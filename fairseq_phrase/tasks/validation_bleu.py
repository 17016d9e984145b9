"""BLEU in training (``--eval-bleu``) with the tokenizer of the target language."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.tasks.translation import TranslationTask

from fairseq_phrase.methods.encoder_method import option

logger = logging.getLogger(__name__)


@dataclass
class ValidationBleuOptions(FairseqDataclass):
    """Options of BLEU in training."""

    eval_bleu_tokenize: Optional[str] = option(None,  # noqa: UP045 - fairseq reads this type
        "sacrebleu's tokenizer for --eval-bleu, such as zh; by default that of sacrebleu's command for "
        "the target language")  # fmt: skip


class ValidationBleuTask(TranslationTask):
    """A translation task whose BLEU in training has the tokenizer of the target language.

    fairseq uses 13a for every language, which treats a Chinese sentence as one word.
    """

    @cached_property
    def _bleu_tokenizer(self) -> str:
        from fairseq_phrase.metrics.tokenizers import check_tokenizer, tokenizer_of

        option = self.cfg.eval_bleu_tokenize
        if option is not None:
            return check_tokenizer(option, "--eval-bleu-tokenize")
        tokenizer, note = tokenizer_of(self.cfg.target_lang)
        if note:
            logger.warning(note)
        return tokenizer

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build a model; for a training, log how BLEU is computed."""
        if self.cfg.eval_bleu and not self.cfg.eval_tokenized_bleu and not from_checkpoint:
            from fairseq_phrase.metrics.translation import bleu_metric

            metric = bleu_metric([""], tokenizer=self._bleu_tokenizer)
            logger.info(f"--eval-bleu: {metric.get_signature()}")
        return super().build_model(cfg, from_checkpoint)

    def _inference_with_bleu(self, generator: Any, sample: Any, model: Any) -> Any:
        with _tokenized_by(self._bleu_tokenizer):
            return super()._inference_with_bleu(generator, sample, model)


@contextmanager
def _tokenized_by(tokenizer: str) -> Iterator[None]:
    """Let ``sacrebleu.corpus_bleu``, which fairseq calls without a tokenizer, use this tokenizer."""
    import sacrebleu

    original = sacrebleu.corpus_bleu
    sacrebleu.corpus_bleu = partial(original, tokenize=tokenizer)
    try:
        yield
    finally:
        sacrebleu.corpus_bleu = original
