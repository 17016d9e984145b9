"""Engines that parse a corpus: the same parses whoever makes them, and what they do about failures."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from fairseq_phrase.data.preprocessing.engines import EngineOptions, Job, run_jobs
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import LineParser, Unparsed
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from fairseq_phrase.parsers.whitespace import WhitespaceParser
from tests.support.hostile import LINES


@pytest.fixture
def spacy(trained_pipeline):
    return ParsingOptions(f"spacy:{trained_pipeline}", "from-dependencies")


def jobs(size=4):
    return [
        Job(number, 1 + start, LINES[start : start + size])
        for number, start in enumerate(range(0, len(LINES), size))
    ]


def parsed(options, engine):
    """Return the words and heads of each line, by job."""
    return dict(run_jobs(jobs(), partial(Parser, ParsingPipeline(options)), engine))


class Parser:
    def __init__(self, pipeline):
        self.pipeline = pipeline

    def __call__(self, job):
        return job.number, [
            (parse.words, None if parse.tree is None else parse.tree.heads.tolist())
            for parse in self.pipeline.parse(job.lines)
        ]


def test_processes_make_the_parses_that_one_makes(spacy):
    assert parsed(spacy, EngineOptions(workers=2)) == parsed(spacy, EngineOptions())


def test_ray_makes_the_parses_that_one_process_makes(spacy, ray_with_one_cpu):
    assert parsed(spacy, ray_with_one_cpu) == parsed(spacy, EngineOptions())


def test_a_ray_cluster_that_is_not_there_is_named():
    # Else half a minute: Ray waits 5 seconds longer at each of three attempts.
    soon = "import ray.util.client.worker as client\n"
    soon += "client.INITIAL_TIMEOUT_SEC = client.MAX_TIMEOUT_SEC = 0.2\n"
    ended = connecting("ray://localhost:1", soon)
    assert ended.returncode == 2
    assert "cannot connect to Ray at 'ray://localhost:1'" in ended.stderr


def test_a_ray_cluster_that_does_not_answer_is_given_up_in_time():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        ended = connecting(address, "engines.RAY_TIMEOUT = 1\n")
    assert ended.returncode == 2
    assert f"cannot connect to Ray at '{address}': no answer within 1 seconds" in ended.stderr


def connecting(address, setting):
    """Connect in another process: Ray's attempt goes on, and leaves a state in which it cannot start."""
    code = (
        "from fairseq_phrase.cli.command import CommandParser, command\n"
        "from fairseq_phrase.data.preprocessing import engines\n"
        f"{setting}"
        f"engine = engines.EngineOptions('ray', 1, '{address}')\n"
        "parse = lambda _: list(engines.run_jobs([], int, engine))\n"
        "command(lambda: CommandParser(prog='test'))(parse)([])\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def ray_with_one_cpu():
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield EngineOptions("ray", 2)
    ray.shutdown()


@dataclass
class Mortal:
    """Makes workers, of which the first die over a job, or while they load; each leaves a mark."""

    when: int | str
    times: int
    mark: Path

    def __call__(self):
        self.die_at("loading")
        return self.number

    def number(self, job):
        self.die_at(job.number)
        return job.number

    def die_at(self, moment):
        if moment == self.when and self.deaths() < self.times:
            with open(self.mark, "a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)

    def deaths(self):
        return len(self.mark.read_text()) if self.mark.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("when", [1, "loading"])
def test_ray_replaces_processes_that_die_and_needs_no_cpu_for_each(
    ray_with_one_cpu, when, tmp_path
):
    make = Mortal(when, 2, tmp_path / "mark")
    numbers = run_jobs(jobs(), make, ray_with_one_cpu)
    assert sorted(numbers) == [job.number for job in jobs()]
    assert make.deaths() == 2


@pytest.mark.slow
@pytest.mark.parametrize("when", [0, "loading"])
def test_ray_does_not_replace_processes_for_ever(ray_with_one_cpu, when, tmp_path):
    make = Mortal(when, 9, tmp_path / "mark")
    with pytest.raises(UserError, match=r"^Ray: (?s:.*)run again to go on from here$"):
        list(run_jobs(jobs(), make, ray_with_one_cpu))
    assert make.deaths() <= 6  # two jobs at a time


def test_jobs_are_read_as_they_are_needed():
    read = []
    stream = (read.append(job.number) or job for job in jobs(1))
    make = partial(Parser, ParsingPipeline(ParsingOptions()))
    next(run_jobs(stream, make, EngineOptions(workers=2)))
    assert len(read) <= 2 * 2 + 1


def test_a_worker_that_dies_costs_nothing_but_time(tmp_path):
    make = Mortal(1, 1, tmp_path / "mark")
    numbers = run_jobs(jobs(), make, EngineOptions(workers=2))
    assert sorted(numbers) == [job.number for job in jobs()]
    assert make.deaths() == 1


@pytest.mark.fast(1)
@pytest.mark.parametrize("when", [0, "loading"])
def test_processes_are_not_replaced_for_ever(when, tmp_path):
    make = Mortal(when, 9, tmp_path / "mark")
    with pytest.raises(UserError, match="died 3 times over lines 1 to 4, or while they loaded"):
        list(run_jobs(jobs(), make, EngineOptions(workers=2)))
    assert make.deaths() <= 6


class Moody(LineParser):
    """A parser that fails over some lines, with the rest of the batch or alone."""

    version, fields = "moody 1", ("words",)

    def parse(self, lines):
        for line in lines:
            if "crash" in line:
                raise RuntimeError("I cannot")
            if "leave" in line:
                sys.exit(0)
        return WhitespaceParser().parse(lines)


def test_a_line_over_which_the_parser_fails_is_lost_alone(install_parser):
    install_parser(Moody)
    parses = ParsingPipeline(ParsingOptions("of-test")).parse(["a b", "a crash", "c", "leave"])
    assert [isinstance(parse, Unparsed) for parse in parses] == [False, True, False, True]
    assert parses[3].reason == "of-test failed: SystemExit: 0"
    assert parses[1].reason == "of-test failed: RuntimeError: I cannot"
    assert parses[1].sentence.words == ["a", "crash"]
