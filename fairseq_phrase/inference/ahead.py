"""Work that is done ahead, in a background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
_END = object()


def ahead(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """Yield items that a background thread computes while the caller works on earlier ones.

    An error in the thread is raised here. The thread ends with the iterator; if it waits for input at
    that time, it does not keep the process alive.

    Args:
        items: an iterator that takes time, such as one that reads and parses.
        depth: the number of items that may wait.
    """
    waiting: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: Any, error: BaseException | None = None) -> None:
        while not stopped.is_set():
            try:
                return waiting.put((item, error), timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(item)
                if stopped.is_set():
                    return
        except BaseException as error:
            put(_END, error)
        else:
            put(_END)

    threading.Thread(target=work, name="parsing ahead", daemon=True).start()
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
