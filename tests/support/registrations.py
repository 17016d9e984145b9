"""Registrations of encoders that end with a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fairseq import models as fairseq_models
from fairseq.utils import import_user_module
from hydra.core.config_store import ConfigStore

from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.models import architectures

_REGISTRIES = [
    ENCODERS, fairseq_models.MODEL_REGISTRY, fairseq_models.MODEL_DATACLASS_REGISTRY,
    fairseq_models.ARCH_MODEL_REGISTRY, fairseq_models.ARCH_MODEL_NAME_REGISTRY,
    fairseq_models.ARCH_MODEL_INV_REGISTRY, fairseq_models.ARCH_CONFIG_REGISTRY,
    ConfigStore.instance().repo["model"],
]  # fmt: skip


@contextmanager
def registrations_undone(package: str) -> Iterator[None]:
    """Forget at the end the encoders that a package registers, and its modules."""
    entries = [dict(registry) for registry in _REGISTRIES]
    names, folders = set(architectures.BUILT), set(vars(import_user_module).get("memo", ()))
    try:
        yield
    finally:
        for registry, before in zip(_REGISTRIES, entries, strict=True):
            registry.clear()
            registry.update(before)
        architectures.BUILT.intersection_update(names)
        import_user_module.memo = folders
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]
