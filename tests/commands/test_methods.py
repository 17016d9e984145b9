"""The methods of ``examples/methods`` train and translate by fairseq's commands, as their page says."""

from __future__ import annotations

import pytest

from tests.support.commands import run
from tests.support.documented import run_page
from tests.support.repository import REPOSITORY

USER = ["--user-dir", str(REPOSITORY / "examples/methods"), "--task", "syntax_translation"]


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["depgcn", "ape", "relative_phrases", "saft", "wire"])
def test_a_method_trains_and_translates(name, data_directory, tmp_path):
    (tmp_path / "data-bin").mkdir()
    (tmp_path / "data-bin" / "multi30k.de-en").symlink_to(data_directory)
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    run_page("docs/models/methods.md", tmp_path, changed={"wire_tiny": f"{name}_tiny"})
    checkpoint = tmp_path / "checkpoints" / "checkpoint_best.pt"
    average = tmp_path / "average.pt"
    run("fairseq-phrase-average", checkpoint, "--out", average)  # without the plugin
    printed = run(
        "fairseq-generate", data_directory, *USER, "--path", average, "--max-len-b", "8",
        "--gen-subset", "valid", "--max-sentences", "50",
    )  # fmt: skip
    assert "Generate valid" in printed
