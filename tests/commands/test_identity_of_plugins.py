"""The identity record has the options of encoders of other packages."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from fairseq_phrase.data.store.identity import Entry
from tests.support.repository import REPOSITORY
from tests.support.warm_start import python


def test_a_new_option_of_an_encoder_is_guarded_without_a_line() -> None:
    # In a process of its own, because an encoder stays registered.
    code = (
        "from fairseq_phrase.checkpoints.loading import register_all; register_all();"
        "import label_transformer;"
        "from fairseq_phrase.checkpoints.options import model_entries;"
        "print(model_entries({'_name': 'label_transformer', 'label_scale': 2.0})['label-scale'])"
    )
    plugin = str(Path(REPOSITORY) / "examples" / "encoder_plugin")
    paths = os.pathsep.join([plugin, str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    process = subprocess.run(
        [python(), "-c", code],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    expected = Entry("2.0", "2.0", "encoder", "must", default="1.0")
    assert process.stdout.strip() == str(expected), process.stderr[-2000:]
