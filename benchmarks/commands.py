r"""CPU seconds and seconds of commands, which run in turns.

Each command is a line of the shell, so environments and checkouts are compared as well. The first is the
reference. Columns: CPU seconds of the command and its processes, the reference's divided by them, and
seconds by the clock.

Examples:
    python benchmarks/commands.py "python -c 'import fairseq'" \
        'fairseq-phrase-translate DATA --path CHECKPOINT --device cpu one_line.txt'
    python benchmarks/commands.py 'PYTHONPATH=. fairseq-phrase-translate BUNDLE one_line.txt' \
        'PYTHONPATH=../before fairseq-phrase-translate BUNDLE one_line.txt'
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from measuring import Turns, add_out, describe_machine, progress, report, rotated, run_command

from fairseq_phrase.text import markdown_table


def run_line(line: str) -> tuple[float, float]:
    """Run a command; return its CPU seconds and its seconds by the clock."""
    begin = time.perf_counter()
    process = subprocess.Popen(["bash", "-c", line], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{line} ended with status {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - begin


def compare(options: argparse.Namespace) -> None:
    """Run the commands in turns and print the table."""
    cpu, clocks = Turns(), Turns()
    for number in progress(range(options.rounds), unit="round"):
        times = {
            way: run_line(options.commands[way]) for way in rotated(len(options.commands), number)
        }
        cpu.rows.append([times[way][0] for way in sorted(times)])
        clocks.rows.append([times[way][1] for way in sorted(times)])
    lines = [
        [line, f"{cpu.median(way):.2f}", f"{cpu.speed(way):.3f}", f"{clocks.median(way):.2f}"]
        for way, line in enumerate(options.commands)
    ]
    conditions = f"{describe_machine('cpu')}, median of {options.rounds} runs each, in turns"
    headings = ["command", "CPU s", "measured", "s"]
    report(conditions, markdown_table(headings, lines, texts=1), options.out)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("commands", metavar="COMMAND", nargs="+", help="a line of the shell")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each command")
    add_out(parser)


if __name__ == "__main__":
    sys.exit(run_command(compare, add_arguments, __doc__))
