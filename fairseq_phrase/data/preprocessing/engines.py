"""Engines that do jobs: this process, processes on this machine, or those of a Ray cluster.

Every engine takes jobs (numbered lists of lines) and returns each job's result in any order. Results do
not depend on the engine. Imports neither fairseq nor torch: workers start quickly.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from fairseq_phrase.cores import num_cores
from fairseq_phrase.errors import UserError
from fairseq_phrase.optional_packages import optional_packages

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
#: Makes a function that does jobs.
_Make = Callable[[], Callable[["Job"], Result]]
#: A worker takes seconds to load a parser, and a process half a second to start.
LINES_PER_PARSER, LINES_PER_PROCESS = 2_000, 5_000
_JOBS_PER_WORKER = 2  # running or queued
_DEATHS = 2  # number of workers that may die during one job
#: Seconds to connect to a Ray cluster. Ray itself tries for a quarter of an hour.
RAY_TIMEOUT = 30.0


class Job(NamedTuple):
    """Lines to be parsed and segmented.

    Attributes:
        number: the job's number, from 0.
        first_line: the number of its first line in the text, from 1.
        parses: for each language, the lines' parses that are read from a file.
    """

    number: int
    first_line: int
    lines: list[Any]
    parses: Sequence[Sequence[Any]] = ()


@dataclass(frozen=True)
class EngineOptions:
    """Which engine to use.

    Attributes:
        name: one of :data:`fairseq_phrase.option_values.ENGINES`.
        workers: number of processes; 1 uses this process, but for Ray.
        ray_address: the cluster's address; None starts Ray on this machine.
    """

    name: str = "processes"
    workers: int = 1
    ray_address: str | None = None

    @property
    def is_this_process(self) -> bool:
        """Whether this process does all jobs, one after another."""
        return self.name == "processes" and self.workers == 1

    def for_lines(self, lines: int, *, parses: bool) -> EngineOptions:
        """Return the engine for a text, without workers that take longer to start than they save.

        Args:
            parses: whether workers parse, and do not only segment, for which other machines are too far.
        """
        most = max(1, lines // (LINES_PER_PARSER if parses else LINES_PER_PROCESS))
        if self.name == "ray" and not parses:
            return EngineOptions(workers=min(self.workers, num_cores(), most))
        return replace(self, workers=min(self.workers, most))


def run_jobs(jobs: Iterable[Job], make: _Make[Result], engine: EngineOptions) -> Iterator[Result]:
    """Do all jobs, in any order; this process does them in their order.

    Args:
        make: makes a function that does jobs, in each process; pickled for other processes.
    """
    if engine.is_this_process:
        return map(make(), jobs)
    if engine.name == "ray":
        return _on_ray(iter(jobs), make, engine)
    return _in_processes(iter(jobs), make, engine.workers)


# Processes of this machine


def _in_processes(jobs: Iterator[Job], make: _Make[Result], workers: int) -> Iterator[Result]:
    """Do jobs in processes. If one dies, the pool is broken, and a new one begins with the lost jobs."""
    # Spawned, not forked: forking a process in which libraries have started threads may deadlock.
    context = multiprocessing.get_context("spawn")
    lost: list[Job] = []
    deaths: Counter[int] = Counter()
    while True:
        running: dict[Future[Result], Job] = {}
        pool = ProcessPoolExecutor(workers, context, _start_process, (make,))
        try:
            while True:
                while len(running) < _JOBS_PER_WORKER * workers:
                    # The pool may be broken, so a job counts as lost until it is running.
                    lost = lost or list(islice(jobs, 1))
                    if not lost:
                        break
                    future = pool.submit(_do, lost[0])
                    running[future] = lost.pop(0)
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    del running[future]
                    yield result
        except BrokenProcessPool:
            lost = sorted([*running.values(), *lost], key=lambda job: job.number)
            deaths.update(job.number for job in running.values())
            for job in lost:
                if deaths[job.number] > _DEATHS:
                    last = job.first_line + len(job.lines) - 1
                    raise UserError(
                        f"processes died {_DEATHS + 1} times over lines {job.first_line} to {last}, or "
                        "while they loaded the parser and the subword model (the reason is above, or "
                        "memory ran out): run again to go on from here, perhaps with fewer --workers"
                    ) from None
        finally:
            pool.shutdown(wait=not running, cancel_futures=True)


_do_job: Callable[[Job], Any]


def _start_process(make: _Make[Any]) -> None:
    """Load the function that does jobs, once per process; end when the parent process ends."""
    global _do_job
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _do_job = make()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(job: Job) -> Any:
    return _do_job(job)


# Ray


_loaded: dict[str, Callable[[Job], Any]] = {}


def _do_on_ray(run: str, make: _Make[Any], job: Job) -> Any:
    """Do a job in a process of Ray, which Ray uses for many jobs: it loads what it needs once a run."""
    if run not in _loaded:
        _loaded.clear()
        _loaded[run] = make()
    return _loaded[run](job)


def _on_ray(jobs: Iterator[Job], make: _Make[Result], engine: EngineOptions) -> Iterator[Result]:
    """Do jobs as tasks of Ray. It runs those again whose process, machine or result is lost."""
    with optional_packages("Ray is not installed", "'ray[client]'"):
        import ray
    was_running = ray.is_initialized()
    if not was_running:
        _start_ray(ray, engine)
    do = ray.remote(num_cpus=1, max_retries=_DEATHS)(_do_on_ray)
    run, running, has_result = uuid4().hex, list[Any](), False
    try:
        shared = ray.put(make)
        while True:
            running += [
                do.remote(run, shared, job) for job in islice(jobs, engine.workers - len(running))
            ]
            if not running:
                return
            done, running = ray.wait(running, timeout=None if has_result else RAY_TIMEOUT)
            if not done:
                logger.warning("Ray has no result yet: does `ray status` show free CPUs?")
            has_result = has_result or bool(done)
            yield from ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise (
            error.cause if isinstance(error.cause, UserError) else UserError(str(error))
        ) from None
    except ray.exceptions.RayError as error:
        raise UserError(f"Ray: {error}; run again to go on from here") from None
    finally:
        for task in running:
            ray.cancel(task, force=True)
        if not was_running:
            ray.shutdown()


def _start_ray(ray: Any, engine: EngineOptions) -> None:
    """Start Ray on this machine, or connect to a Ray cluster."""
    if engine.ray_address is None:
        try:
            ray.init(num_cpus=engine.workers, include_dashboard=False, log_to_driver=False)
        # Ray raises Exception itself if its processes are slow to start.
        except Exception as error:
            raise UserError(f"cannot start Ray: {error}") from None
        return
    failures: list[Exception] = []

    def connect() -> None:
        try:
            # Outside the main thread Ray warns that it does not handle SIGTERM.
            ray.init(address=engine.ray_address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            failures.append(error)

    # Connect in a thread, because some of Ray's attempts cannot be interrupted. It ends with the process.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(RAY_TIMEOUT)
    if thread.is_alive():
        failures.append(ConnectionError(f"no answer within {RAY_TIMEOUT:.0f} seconds"))
    if failures:
        raise UserError(
            f"cannot connect to Ray at '{engine.ray_address}': {failures[0]}; check the address, or "
            "leave --ray-address out to start Ray on this machine"
        )
