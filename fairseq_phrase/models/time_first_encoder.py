"""The rows of an encoder's output in beam search, for encoders that are not fairseq's Transformer."""

from __future__ import annotations

from typing import Any

from fairseq.models import FairseqEncoder
from torch import Tensor

_TIME_FIRST = ("encoder_out", "encoder_states")


class TimeFirstEncoder(FairseqEncoder):
    """An encoder whose states are time-first, as fairseq's are. All else in its output is batch-first."""

    def reorder_encoder_out(
        self, encoder_out: dict[str, list[Any]], new_order: Tensor
    ) -> dict[str, list[Any]]:
        """Reorder the output of :meth:`forward` for beam search.

        Args:
            encoder_out: from :meth:`forward`; not changed.
            new_order: for each new row, the index of the old row. Shape: (new rows,), int64.
        """
        return {
            name: [each.index_select(int(name in _TIME_FIRST), new_order) for each in values]
            for name, values in encoder_out.items()
        }
