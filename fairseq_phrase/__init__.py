"""Syntax-aware encoders for fairseq, used with ``--user-dir fairseq_phrase``.

:func:`load` loads a trained model for raw text. :func:`register` registers all tasks, models and encoders
with fairseq.

An import changes nothing, and importing this package imports no other module. So
``fairseq_phrase.syntax`` needs only NumPy, and the attention of ``fairseq_phrase.methods`` only torch.
"""

from importlib import import_module
from os.path import realpath
from typing import Any

__version__ = "0.1.0"


class _Folders(list[str]):
    """The package's folder; it contains every path that leads to it.

    For a user directory whose package is already imported, fairseq only checks whether the folder is in
    ``__path__``. It does not import tasks and models, and nothing is patched. If a link leads to the
    folder, fairseq ends with an ImportError. This class therefore registers and patches when it is asked.
    """

    def __contains__(self, folder: object) -> bool:
        if realpath(str(folder)) not in map(realpath, self):
            return False
        import_module("fairseq_phrase.tasks.user_directory")
        import_module("fairseq_phrase.checkpoints.loading").register()
        return True


__path__ = _Folders(__path__)
_WHERE = {"load": "inference.translator", "register": "checkpoints.loading"}


def __getattr__(name: str) -> Any:
    """Import :func:`load` or :func:`register` at the first access."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    late = import_module("fairseq_phrase.repairs.late_imports")
    late.import_late()
    needed = import_module("fairseq_phrase.optional_packages").fairseq_needed
    with needed(f"{__name__}.{name}"), late.same_logging():
        return getattr(import_module(f"fairseq_phrase.{_WHERE[name]}"), name)
