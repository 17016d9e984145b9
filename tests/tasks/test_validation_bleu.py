"""BLEU in training (--eval-bleu)."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import sacrebleu
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationTask

from fairseq_phrase.errors import UserError
from fairseq_phrase.tasks.validation_bleu import ValidationBleuTask

REFERENCE, HYPOTHESIS = "我昨天看见一只黑色的狗。", "我昨天看见一只白色的狗。"


class Task(ValidationBleuTask):
    """A task whose search finds HYPOTHESIS."""

    def __init__(self, **cfg):
        self.cfg = SimpleNamespace(
            eval_bleu_remove_bpe="sentencepiece", eval_bleu_print_samples=False,
            eval_tokenized_bleu=False, **{"eval_bleu_tokenize": None, **cfg},
        )  # fmt: skip
        self.tgt_dict, self.tokenizer = Dictionary(), None
        for character in REFERENCE + HYPOTHESIS:
            self.tgt_dict.add_symbol(character)

    def tokens(self, text):
        return self.tgt_dict.encode_line(" ".join(text), add_if_not_exist=False).long()

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        return [[{"tokens": self.tokens(HYPOTHESIS)}]]

    def bleu(self) -> float:
        sample = {"target": self.tokens(REFERENCE)[None]}
        return self._inference_with_bleu(None, sample, None).score


def test_bleu_in_training_is_of_the_target_languages_tokenizer():
    original = sacrebleu.corpus_bleu
    expected = original([HYPOTHESIS], [[REFERENCE]], tokenize="zh").score
    assert expected > 50
    assert Task(target_lang="zh").bleu() == pytest.approx(expected)
    assert Task(target_lang="en").bleu() == 0.0
    assert Task(target_lang="en", eval_bleu_tokenize="char").bleu() == pytest.approx(expected)
    assert sacrebleu.corpus_bleu is original


def test_a_tokenizer_for_training_that_sacrebleu_lacks_is_named():
    with pytest.raises(UserError, match="--eval-bleu-tokenize nothing: expected one of 13a, "):
        Task(target_lang="zh", eval_bleu_tokenize="nothing").bleu()


def test_only_a_training_logs_its_tokenizer(monkeypatch, caplog):
    """A model that was trained with --eval-bleu is used without the message."""
    monkeypatch.setattr(TranslationTask, "build_model", lambda self, cfg, from_checkpoint: "model")
    task = Task(target_lang="zh", eval_bleu=True)
    with caplog.at_level(logging.INFO):
        assert task.build_model(None, from_checkpoint=True) == "model"
        assert not caplog.messages
        assert task.build_model(None) == "model"
    assert any(text.startswith("--eval-bleu: nrefs:1|") for text in caplog.messages)
