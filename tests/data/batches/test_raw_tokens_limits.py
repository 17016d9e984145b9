"""Raw lines that are refused before they are translated."""

from __future__ import annotations

import pytest

from fairseq_phrase.data.store.copied_words import slot
from fairseq_phrase.errors import UserError
from tests.support.data_tasks import make_task


def encode(data, line, slots=()):
    """Encode a line as fairseq-interactive does without --bpe."""
    task = make_task(data)
    for entry in slots:
        task.source_dictionary.add_symbol(entry)
    return task.get_interactive_tokens_and_lengths([line], lambda text: text)


@pytest.mark.parametrize("slots", [(), (slot(1), slot(2))], ids=["unknown", "slots"])
def test_a_raw_line_is_refused_also_where_its_unknown_words_have_slots(data_directory, slots):
    with pytest.raises(UserError, match=r"'schläft' is unknown; .* splits it into '▁.*': use"):
        encode(data_directory, "schläft", slots)


@pytest.mark.parametrize("line", ["▁ e", "▁ ☃", "☃"], ids=["known", "segmented", "unknown letter"])
def test_other_lines_with_slots_are_translated(data_directory, line):
    encode(data_directory, line, [slot(1)])
