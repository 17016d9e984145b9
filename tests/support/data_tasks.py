"""The translation task over a data directory, in the tests' own process."""

from __future__ import annotations

from fairseq_phrase.tasks.syntax_translation import SyntaxTranslationConfig, SyntaxTranslationTask


def make_task(data, **options) -> SyntaxTranslationTask:
    defaults = {"train_subset": "train", "dataset_impl": "mmap", "required_seq_len_multiple": 1}
    cfg = SyntaxTranslationConfig(data=str(data), **{**defaults, **options})
    return SyntaxTranslationTask.setup_task(cfg)


def batches(task, split: str, **options):
    iterator = task.get_batch_iterator(
        task.dataset(split), max_tokens=500, max_positions=task.max_positions(), **options
    )
    return list(iterator.next_epoch_itr(shuffle=False))
