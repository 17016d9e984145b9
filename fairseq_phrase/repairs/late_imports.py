"""Faster start of commands: rarely used imports of other libraries run at their first use.

fairseq imports scikit-learn and SciPy's statistics for the scores of two tasks. spaCy imports its
command line with its HTTP libraries. Together they take a quarter of a translating command's start.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

#: The modules of other libraries, and the modules that they import late.
_LATE = {
    "fairseq.criterions.sentence_prediction": ("sklearn", "sklearn.metrics", "scipy.stats"),
    "fairseq.tasks.audio_classification": ("sklearn", "sklearn.metrics"),
    "spacy": ("spacy.cli", "spacy.cli.info"),
}


def import_late() -> None:
    """Defer the imports in the table, for modules that are not imported yet.

    All other modules, and later imports, get the real modules.
    """
    if _FINDER not in sys.meta_path and not _LATE.keys() <= sys.modules.keys():
        sys.meta_path.insert(0, _FINDER)


@contextmanager
def same_logging() -> Iterator[None]:
    """Import without messages. Some fairseq modules make the root logger print everything; undo this."""
    root = logging.getLogger()
    handlers, level, disabled = list(root.handlers), root.level, root.manager.disable
    logging.disable(max(disabled, logging.INFO))
    try:
        yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers
        root.setLevel(level)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _LATE else None
        if spec is not None and spec.loader is not None:
            setattr(spec.loader, "exec_module", _with_late(_LATE[name], spec.loader))  # noqa: B010
        return spec


_FINDER = _Finder()


def _with_late(names: tuple[str, ...], loader: Loader) -> Callable[[ModuleType], None]:
    """Return a loader's ``exec_module`` that runs while the named modules are late."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        late = {name: LateModule(name) for name in names if name not in sys.modules}
        for name, stub in late.items():
            package, _, part = name.rpartition(".")
            if package in late:
                setattr(late[package], part, stub)
        sys.modules.update(late)
        try:
            run(module)
        finally:
            for name in late:
                del sys.modules[name]
            if _LATE.keys() <= sys.modules.keys() and _FINDER in sys.meta_path:
                sys.meta_path.remove(_FINDER)  # all are imported

    return exec_module


class LateModule(ModuleType):
    """A module whose functions import the real module when they are called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **options: Any) -> Any:
            return getattr(import_module(self.__name__), name)(*args, **options)

        return call
