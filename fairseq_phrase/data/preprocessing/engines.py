"""Engines that do jobs: this process, processes on this machine, or actors of a Ray cluster.

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
        workers: number of processes or actors; 1 uses this process.
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
    """Do jobs in processes. If a process dies, restart with the lost jobs."""
    lost: list[Job] = []
    deaths: Counter[int | None] = Counter()
    while True:
        loaded = multiprocessing.get_context("spawn").Event()
        try:
            yield from _in_pool(jobs, lost, make, workers, loaded)
            return
        except BrokenProcessPool:
            if not loaded.is_set():
                raise _death(None) from None
            for job in lost:
                _count_death(deaths, job)


def _count_death(deaths: Counter[int | None], job: Job | None) -> None:
    """Count that a worker died during a job or while loading."""
    number = None if job is None else job.number
    deaths[number] += 1
    if deaths[number] > _DEATHS:
        raise _death(job) from None


def _death(job: Job | None) -> UserError:
    """Make the error for processes that died over a job, or while loading."""
    where = "while they loaded the parser and the subword model (the reason is above, or memory ran out)"
    if job is not None:
        last = job.first_line + len(job.lines) - 1
        where = f"{_DEATHS + 1} times over lines {job.first_line} to {last} (out of memory?)"
    return UserError(
        f"processes died {where}: run again to go on from here, with fewer --workers if memory is short"
    )


def _in_pool(
    jobs: Iterator[Job], lost: list[Job], make: _Make[Result], workers: int, loaded: Any
) -> Iterator[Result]:
    """Do jobs in one pool of processes.

    Args:
        lost: jobs to do first; if the pool breaks, the jobs that it did not finish.
        loaded: an event that is set once a process is loaded.
    """
    # Spawned, not forked: forking a process in which libraries have started threads may deadlock.
    context = multiprocessing.get_context("spawn")
    running: dict[Future[Result], Job] = {}
    pool = ProcessPoolExecutor(workers, context, _start_process, (make, loaded))
    try:
        while True:
            while len(running) < _JOBS_PER_WORKER * workers:
                # The pool may be broken, so a job counts as lost until it is running.
                if not lost:
                    lost += islice(jobs, 1)
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
        lost[:0] = sorted(running.values(), key=lambda job: job.number)
        raise
    finally:
        pool.shutdown(wait=not running, cancel_futures=True)


_do_job: Callable[[Job], Any]


def _start_process(make: _Make[Any], loaded: Any) -> None:
    """Load the function that does jobs, once per process; end when the parent process ends."""
    global _do_job
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _do_job = make()
    loaded.set()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(job: Job) -> Any:
    return _do_job(job)


# Ray


class _Actor:
    def load(self, make: _Make[Any]) -> None:
        self._do = make()

    def do(self, job: Job) -> Any:
        return self._do(job)


class _Actors:
    """Ray actors, each with a parser.

    Only a loaded actor gets jobs; an actor that waits for a CPU does not hold any back. If an
    actor dies, for example because its machine is lost, it is replaced, and its jobs go to the first
    free actor. So do jobs that it had done, if their results were lost with its machine.
    """

    def __init__(self, ray: Any, make: _Make[Any], engine: EngineOptions) -> None:
        self._ray, self._make = ray, make
        self._remote: Any = ray.remote(num_cpus=1)(_Actor)
        self._actors: list[Any] = []
        # For each awaited answer, the actor and its job; None instead of a job while it loads.
        self._running: dict[Any, tuple[Any, Job | None]] = {}
        self._free: list[Any] = []  # an actor once for each additional job that it can take
        self._lost: list[Job] = []
        self._deaths: Counter[int | None] = Counter()
        for _ in range(engine.workers):
            self._start()

    def results(self, jobs: Iterator[Job]) -> Iterator[Any]:
        """Do all jobs."""
        while True:
            while self._free and (job := self._lost.pop(0) if self._lost else next(jobs, None)):
                actor = self._free.pop(0)
                self._running[actor.do.remote(job)] = actor, job
            at_work = any(job for _, job in self._running.values())
            if self._free and not at_work:
                return
            timeout = None if at_work else RAY_TIMEOUT
            ready, _ = self._ray.wait(list(self._running), timeout=timeout)
            if not ready:
                logger.warning("no worker of Ray is ready yet: does `ray status` show a free one?")
                continue
            actor, job = self._running[ready[0]]
            try:
                result = self._ray.get(ready[0])
            except self._ray.exceptions.RayActorError as error:
                if error.actor_init_failed:  # such as a machine that lacks this package
                    raise
                self._replace(actor)
                continue
            except self._ray.exceptions.ObjectLostError:  # the result was on a machine that is lost
                self._replace(actor)
                continue
            del self._running[ready[0]]
            if job is None:
                self._deaths.pop(None, None)
                self._free += [actor] * _JOBS_PER_WORKER
            else:
                self._free.append(actor)
                yield result

    def kill(self) -> None:
        """End all actors."""
        for actor in self._actors:
            self._ray.kill(actor)

    def _start(self) -> None:
        actor = self._remote.remote()
        self._actors.append(actor)
        self._running[actor.load.remote(self._make)] = actor, None

    def _replace(self, dead: Any) -> None:
        self._ray.kill(dead)  # it may only be out of reach
        awaited = [answer for answer, (actor, _) in self._running.items() if actor == dead]
        # The first job was running; the others were queued.
        undone = [self._running.pop(answer)[1] for answer in awaited]
        _count_death(self._deaths, undone[0])
        self._lost += filter(None, undone)
        self._free = [actor for actor in self._free if actor != dead]
        self._actors.remove(dead)
        self._start()


def _on_ray(jobs: Iterator[Job], make: _Make[Result], engine: EngineOptions) -> Iterator[Result]:
    with optional_packages("Ray is not installed", "'ray[client]'"):
        import ray
    was_running = ray.is_initialized()
    if not was_running:
        _start_ray(ray, engine)
    actors = _Actors(ray, make, engine)
    try:
        yield from actors.results(jobs)
    except ray.exceptions.RayTaskError as error:
        raise (
            error.cause if isinstance(error.cause, UserError) else UserError(str(error))
        ) from None
    except ray.exceptions.RayError as error:
        raise UserError(f"Ray: {error}; run again to go on from here") from None
    finally:
        actors.kill()
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
