"""Work that is done ahead, in a background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Raw = TypeVar("Raw")
Item = TypeVar("Item")
_END = object()


def ahead(source: Iterable[Raw], work: Callable[[Raw], Item], depth: int = 2) -> Iterator[Item]:
    """Yield what a background thread makes of items while the caller works on earlier ones.

    An error in the thread is raised here. When the iterator is closed, it waits for the work on one item:
    a process that ends while a thread is in a library's C++ code is aborted. It does not wait for the
    next item of the source, which may be input that never comes.

    Args:
        source: the items.
        work: what takes time, such as parsing.
        depth: the number of results that may wait.
    """
    waiting: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(depth)
    stopped, working = threading.Event(), threading.Lock()

    def put(item: Any, error: BaseException | None = None) -> None:
        while not stopped.is_set():
            try:
                return waiting.put((item, error), timeout=0.1)
            except queue.Full:
                continue

    def run() -> None:
        try:
            for item in source:
                with working:
                    if stopped.is_set():
                        return
                    made = work(item)
                put(made)
        except BaseException as error:
            put(_END, error)
        else:
            put(_END)

    threading.Thread(target=run, name="parsing ahead", daemon=True).start()
    try:
        while True:
            item, error = waiting.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stopped.set()
        with working:
            pass
