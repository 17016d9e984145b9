"""Messages about damaged parses name the command that made them."""

from __future__ import annotations

import shutil

import pytest

from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError


def test_damaged_parses_name_the_command_that_made_them(attached_data, data_directory, tmp_path):
    for data, command in ((attached_data, "attach"), (data_directory, "preprocess")):
        folder = tmp_path / command
        shutil.copytree(data, folder)
        (folder / "train.de-en.de.heads.bin").unlink()
        with pytest.raises(UserError, match=f"run fairseq-phrase-{command} again"):
            ParseStore(folder, "train.de-en", "de", {"words", "heads"})
        (folder / "dict.de.txt").write_text("a 1\n")
        with pytest.raises(UserError, match=f"or run fairseq-phrase-{command} again"):
            ParseStore(folder, "train.de-en", "de", {"words"})
        with pytest.raises(UserError, match=f"run fairseq-phrase-{command} for it"):
            ParseStore(folder, "test9.de-en", "de", {"words"})
