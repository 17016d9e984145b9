"""Types of fairseq's dictionaries and tasks: what this package uses of them. fairseq itself has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Dictionary(Protocol):
    """A dictionary of tokens or labels: entries and their numbers, from 0, special symbols first.

    Attributes:
        symbols: the entries.
        indices: their numbers.
        count: how often each occurs in the training text.
        nspecial: the number of special symbols.
    """

    symbols: list[str]
    indices: dict[str, int]
    count: list[int]
    nspecial: int

    def __len__(self) -> int: ...
    def __getitem__(self, idx: int) -> str: ...
    def __contains__(self, sym: object) -> bool: ...
    def index(self, sym: str) -> int:
        """Return the number of an entry; of the unknown word if it is missing."""

    def bos(self) -> int:
        """Return the number of ``<s>``."""

    def pad(self) -> int:
        """Return the number of ``<pad>``."""

    def eos(self) -> int:
        """Return the number of ``</s>``."""

    def unk(self) -> int:
        """Return the number of ``<unk>``."""


class Task(Protocol):
    """A task: data, their dictionaries, and what fairseq builds from options."""

    cfg: Any

    @property
    def source_dictionary(self) -> Any:
        """The dictionary of source tokens."""

    @property
    def target_dictionary(self) -> Any:
        """The dictionary of target tokens or labels."""

    def max_positions(self) -> Any:
        """Return the largest lengths of source and target; None without a limit."""

    def load_dataset(self, split: str) -> None:
        """Load a split of the data."""

    def dataset(self, split: str) -> Any:
        """Return a split that was loaded."""

    def get_batch_iterator(self, dataset: Any, **options: Any) -> Any:
        """Batch a dataset."""

    def build_generator(self, models: Sequence[Any], args: Any) -> Any:
        """Build the search of translations."""
