"""The names of a split's files in a data directory, as fairseq finds them."""

from __future__ import annotations

import itertools
import os

from fairseq.data import indexed_dataset

__all__ = ["pair_names"]


def pair_names(
    directory: str, split: str, languages: tuple[str, str], impl: str | None, *, combine: bool
) -> list[str]:
    """Find ``split`` and, if they are combined, ``split1``, ``split2``…, under either order of languages.

    Args:
        directory: the data directory.
        split: ``train``, ``valid``….
        languages: source and target.
        impl: fairseq's ``--dataset-impl``.
        combine: whether the parts are combined.

    Returns:
        The names that are there, such as ``train.de-en``, in their order.
    """
    names = []
    for number in itertools.count():
        name = _pair_name(directory, f"{split}{number or ''}", languages, impl)
        if name is None:
            break
        names.append(name)
        if not combine:
            break
    return names


def _pair_name(
    directory: str, split: str, languages: tuple[str, str], impl: str | None
) -> str | None:
    """Find a part under either order of its languages; for the arguments see :func:`pair_names`."""
    source, target = languages
    for name in (f"{split}.{source}-{target}", f"{split}.{target}-{source}"):
        if indexed_dataset.dataset_exists(os.path.join(directory, f"{name}.{source}"), impl=impl):
            return name
    return None
