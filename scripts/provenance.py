"""Print when, how and where something was run, to keep with its result.

python scripts/provenance.py COMMAND...
"""

import shlex
import subprocess
import sys
from datetime import datetime, timezone

from fairseq_phrase.lab.versions import machine, settings, software


def commit() -> str:
    """Name the commit, and whether tracked files differ from it."""

    def git(*arguments: str) -> str:
        finished = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
        return finished.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + (" and changes that are not committed" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown (no git repository)"


def main() -> None:
    """Print the facts, one per line, and an empty line."""
    facts = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(sys.argv[1:]),
        "commit": commit(),
        "machine": machine(),
        "software": software(),
        "environment": settings(),
    }
    print(*(f"{name}: {value}" for name, value in facts.items()), "", sep="\n")


if __name__ == "__main__":
    main()
