"""The end of a command: Python's last garbage collection without what imports have made.

When Python ends, it frees the cycles among all objects of all modules, which takes 0.6 to 1.3 seconds
after torch and fairseq. The operating system frees the memory anyway.

Where a training stops within an epoch, fairseq's thread may be making further batches. Python ends such
threads at their next turn; within torch, C++ then aborts the process ("terminate called without an active
exception"), although the checkpoint is written.
"""

import atexit
import gc
import sys
import threading
import time
from contextlib import suppress
from queue import Empty

_MOST_SECONDS = 10  # for a thread's last batch


def end_quickly() -> None:
    """Exempt from the last collection, at the end of the process, everything that is still in use.

    What is unreachable by then is collected before, so that a forgotten file in a cycle is written. All
    else ends as usual: exit status, streams, threads, workers, and the functions of ``atexit``.
    """
    atexit.unregister(_exempt)
    atexit.register(_exempt)


def _stop_making_batches() -> None:
    if (iterators := sys.modules.get("fairseq.data.iterators")) is None:
        return
    until = time.monotonic() + _MOST_SECONDS
    for thread in threading.enumerate():
        if not isinstance(thread, iterators.BackgroundConsumer):
            continue
        thread._max_len = 0  # it ends after the batch that it is making, if its queue has room
        while thread.is_alive() and time.monotonic() < until:
            with suppress(Empty):
                thread._queue.get(timeout=0.01)


def _exempt() -> None:
    _stop_making_batches()
    # An unreachable iterator of torch's data loader waits 5 s for each of its workers: the collection
    # closes its queues before it tells them to end. With this flag torch leaves them to multiprocessing,
    # which ends them after this function, as without a collection.
    if (loading := sys.modules.get("torch.utils.data._utils")) is not None:
        loading._set_python_exit_flag()
    gc.collect()
    gc.freeze()
