"""A Ray cluster of several machines, all on this one: machines are lost and workers die."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from fairseq_phrase.data.preprocessing import engines
from fairseq_phrase.data.preprocessing.engines import EngineOptions, Job

JOBS = [Job(number, 1 + number, [f"line {number}"]) for number in range(40)]


@pytest.fixture
def cluster():
    """Three machines with a processor each; this process is on the first."""
    import ray
    from ray.cluster_utils import Cluster

    machines = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    for _ in range(2):
        machines.add_node(num_cpus=1)
    ray.init(address=machines.address, log_to_driver=False)
    yield machines
    ray.shutdown()
    machines.shutdown()


def make_worker(folder: Path):
    """Make a function whose results Ray keeps on the machine of its process; it waits for two others."""

    def do(job):
        begun, done = folder / "begun", folder / "done"
        (begun / str(os.getpid())).touch()
        while len(list(begun.iterdir())) < 3:
            time.sleep(0.1)
        (done / f"{job.number}").touch()
        return job.number, bytes(500_000)

    for name in ("begun", "done"):
        (folder / name).mkdir(exist_ok=True)
    return do


def test_results_of_a_lost_machine_and_jobs_of_a_killed_worker_are_done_again(cluster, tmp_path):
    make = partial(make_worker, tmp_path)
    results = engines.run_elsewhere(iter(JOBS), make, EngineOptions("ray", 3), "the worker")
    numbers = [next(results)[0] for _ in range(4)]
    # Each worker has two jobs, and a new one for each result that was taken but the last.
    while len(list((tmp_path / "done").iterdir())) < len(numbers) - 1 + 6:
        time.sleep(0.1)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    numbers += [next(results)[0] for _ in range(6)]
    workers = [int(path.name) for path in (tmp_path / "begun").iterdir()]
    os.kill(next(pid for pid in workers if Path(f"/proc/{pid}").exists()), signal.SIGKILL)
    numbers += [number for number, _ in results]
    assert sorted(numbers) == list(range(len(JOBS)))
