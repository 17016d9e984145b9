"""Workers of torch's data loaders, in the process of the tests."""

from __future__ import annotations

import os

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Iterator


def end_at_once() -> None:
    """From here on, an iterator that nobody uses ends its workers by a signal.

    A garbage collection closes their queues before torch tells them to end. So torch would wait for each,
    for five seconds, in whichever test the collection happens.
    """
    Iterator.__del__ = end  # type: ignore[method-assign]


def end(iterator: Iterator) -> None:
    """End an iterator's workers, unless this is a fork of the process that started them."""
    for worker in vars(iterator).get("_workers", ()):
        if worker._parent_pid == os.getpid():
            worker.terminate()
    iterator._shutdown_workers()
