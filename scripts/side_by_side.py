"""Run several trainings at once, a progress bar each; each run folder's ``train.sh`` is its command.

    python scripts/side_by_side.py RUN_DIR... --epochs N

What a command prints goes to ``RUN_DIR/train.log``. A finished run leaves ``RUN_DIR/train.done`` and
is not run again; one that was stopped is resumed by fairseq from its last checkpoint. Ctrl-C stops all.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from tqdm import tqdm

# What fairseq-train logs with --log-format simple: epoch, update in it, updates per epoch, loss.
_PROGRESS = re.compile(r"epoch (\d+):\s+(\d+) / (\d+) loss=([\d.]+)")


class Training:
    """One run folder and its process."""

    def __init__(self, folder: Path, epochs: int, position: int):
        self.folder, self.done, self.epochs = folder, folder / "train.done", epochs
        self.log_path = folder / "train.log"
        self.bar = tqdm(desc=folder.name, unit="update", position=position, dynamic_ncols=True)
        self.process: subprocess.Popen | None = None
        self.read_from = self.log_path.stat().st_size if self.log_path.exists() else 0
        if self.done.exists():
            self.bar.set_postfix_str("finished before")
            return
        repair_last_checkpoint(folder)
        with open(self.log_path, "ab") as log:
            # A process group of its own: Ctrl-C reaches this script alone, which then stops it.
            self.process = subprocess.Popen(
                ["bash", str(folder / "train.sh")], stdout=log, stderr=log, start_new_session=True
            )

    def watch(self) -> bool:
        """Move the bar on; tell whether the run is still going.

        Raises:
            SystemExit: the run failed.
        """
        if self.process is None:
            return False
        status = self.process.poll()
        with open(self.log_path, "rb") as log:
            log.seek(self.read_from)
            for line in log.read().decode(errors="replace").splitlines():
                if match := _PROGRESS.search(line):
                    epoch, update, epoch_updates, loss = match.groups()
                    self.bar.total = self.epochs * int(epoch_updates)
                    self.bar.set_postfix_str(f"loss {loss}", refresh=False)
                    done = (int(epoch) - 1) * int(epoch_updates) + int(update)
                    if not self.bar.n:
                        self.bar.initial = done  # resumed: not done in this time
                        self.bar.n = done
                    self.bar.update(done - self.bar.n)
            self.read_from = log.tell()
        if status is None:
            return True
        if status != 0:
            tail = "\n".join(self.log_path.read_text(errors="replace").splitlines()[-15:])
            sys.exit(
                f"\n{self.folder} failed with status {status}; the end of {self.log_path}:\n{tail}"
            )
        self.bar.update((self.bar.total or self.bar.n) - self.bar.n)
        self.done.touch()
        self.process = None
        return False

    def stop(self) -> None:
        """Stop the run, data loading processes included."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()


def repair_last_checkpoint(folder: Path) -> None:
    """Put the newest whole checkpoint in place of a last one that was cut short.

    fairseq writes each checkpoint under another name first, but copies it to ``checkpoint_last.pt``.
    """
    last = folder / "checkpoint_last.pt"
    if last.exists() and not zipfile.is_zipfile(last):
        last.unlink()
        whole = [path for path in folder.glob("checkpoint_*_*.pt") if zipfile.is_zipfile(path)]
        if whole:
            shutil.copyfile(max(whole, key=lambda path: path.stat().st_mtime), last)


def main() -> None:
    """Run the trainings named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--epochs", type=int, required=True, help="epochs of each, for the bars")
    args = parser.parse_args()
    trainings = [Training(path, args.epochs, row) for row, path in enumerate(args.folders)]
    try:
        while any([training.watch() for training in trainings]):  # noqa: C419 - watch each
            time.sleep(1)
    except KeyboardInterrupt:
        sys.exit("\nstopped; run again to resume")
    finally:
        for training in trainings:
            training.stop()
            training.bar.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
