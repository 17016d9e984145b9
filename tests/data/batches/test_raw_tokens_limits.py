"""Raw lines that are refused before they are translated."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fairseq_phrase.data.batches.raw_tokens import SourceDictionary
from fairseq_phrase.data.store.copied_words import slot
from fairseq_phrase.errors import UserError
from fairseq_phrase.tasks.syntax_translation import SyntaxTranslationTask


def make_task(*entries):
    """A task whose subword model splits words into letters, with a dictionary of some."""
    task = SyntaxTranslationTask.__new__(SyntaxTranslationTask)
    task.src_dict = SourceDictionary()
    for entry in ("▁", "d", "e", "r", *entries):
        task.src_dict.add_symbol(entry)
    task._segmenter = SimpleNamespace(segment_word=list)
    return task


def check(task, line):
    tokens = task.src_dict.encode_line(line, add_if_not_exist=False)
    task._check_segmentation([line], [tokens], lambda text: text)


@pytest.mark.parametrize("slots", [(), (slot(1), slot(2))], ids=["unknown", "slots"])
def test_a_raw_line_is_refused_also_where_its_unknown_words_have_slots(slots):
    with pytest.raises(UserError, match=r"'der' is unknown; .* splits it into '▁ d e r': use"):
        check(make_task(*slots), "der")


@pytest.mark.parametrize(
    "line", ["▁ d e r", "▁ x", "x"], ids=["known", "segmented", "unknown letter"]
)
def test_other_lines_with_places_are_translated(line):
    check(make_task(slot(1)), line)
