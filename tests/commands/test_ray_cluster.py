"""A Ray cluster of several machines, all on this one: machines are lost and workers die."""

from __future__ import annotations

import os
import signal
import socket
import threading
from functools import partial

import pytest

from fairseq_phrase.data.preprocessing.engines import EngineOptions, Job, run_jobs

JOBS = [Job(number, 1 + number, [f"line {number}"]) for number in range(20)]


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


def make_worker(address):
    """Make a function that asks before each job, and whose results Ray keeps on its machine."""

    def do(job):
        with socket.create_connection(address) as gate:
            gate.sendall(f"{job.number} {os.getpid()} {os.getppid()}".encode())
            gate.shutdown(socket.SHUT_WR)
            gate.recv(1)
        return job.number, bytes(500_000)

    return do


class Gate:
    """Lets three workers do one job, and holds them at the next until it is opened.

    Attributes:
        address: where workers ask.
        machines: the process of each worker's machine, by the number of its first job.
        workers: the workers' processes.
        is_reached: set once the first jobs are done and the next ones wait.
    """

    def __init__(self):
        self._server = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.address = self._server.getsockname()
        self.machines, self.workers = {}, []
        self.is_reached, self._is_open = threading.Event(), threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def open(self):
        self._is_open.set()

    def _asked(self):
        connection, _ = self._server.accept()
        return [int(part) for part in connection.makefile().read().split()], connection

    def _serve(self):
        first = [self._asked() for _ in range(3)]
        for (number, worker, machine), _ in first:
            self.machines[number] = machine
            self.workers.append(worker)
        for _, connection in first:
            connection.close()
        second = [self._asked() for _ in range(3)]
        self.is_reached.set()
        self._is_open.wait()
        for _, connection in second:
            connection.close()
        while True:
            self._asked()[1].close()


@pytest.mark.slow
def test_results_of_a_lost_machine_and_jobs_of_a_killed_worker_are_done_again(cluster):
    gate = Gate()
    make = partial(make_worker, gate.address)
    results = run_jobs(JOBS, make, EngineOptions("ray", 6))
    numbers = [next(results)[0]]
    gate.is_reached.wait()
    waiting = {machine for number, machine in gate.machines.items() if number not in numbers}
    lost = next(
        node
        for node in cluster.worker_nodes
        if node.all_processes["raylet"][0].process.pid in waiting
    )
    machine = lost.all_processes["raylet"][0].process.pid
    cluster.remove_node(lost, allow_graceful=False)
    gate.open()
    numbers.append(next(results)[0])
    workers = zip(gate.machines.values(), gate.workers, strict=True)
    os.kill(
        next(worker for machine_of_worker, worker in workers if machine_of_worker != machine),
        signal.SIGKILL,
    )
    numbers += [number for number, _ in results]
    assert sorted(numbers) == list(range(len(JOBS)))
