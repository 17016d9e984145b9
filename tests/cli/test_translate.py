"""What ``fairseq-phrase-translate`` writes to a terminal."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from fairseq_phrase.cli import translate as translate_command
from tests.support.small_checkpoints import make_checkpoint, make_data


class Stream(io.BytesIO):
    """The bytes of a terminal or of a file."""

    def __init__(self, *, is_terminal: bool):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    data = make_data(folder / "data", "none")
    short = ["--max-target-positions", "6"]
    return make_checkpoint(folder / "a.pt", data, "--arch", "transformer", *short)


@pytest.mark.parametrize(
    ("output", "errors", "options", "is_shown"),
    [
        ("file", "terminal", [], True),
        ("terminal", "terminal", [], False),
        ("terminal", "terminal", ["--out"], True),
        ("terminal", "file", ["--out"], False),
        ("file", "file", [], False),
    ],
)
def test_progress_is_shown_unless_it_would_stand_between_translations(
    output, errors, options, is_shown, checkpoint, tmp_path, monkeypatch
):
    (tmp_path / "lines").write_text("der Hund\nder Hund schläft\n", encoding="utf-8")
    stream = Stream(is_terminal=output == "terminal")
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=stream, flush=lambda: None))
    message = io.StringIO()
    message.isatty = lambda: errors == "terminal"  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", message)
    out = [*options, *[str(tmp_path / "out") for _ in options]]
    translate_command.main(
        ["--path", str(checkpoint), str(tmp_path / "lines"), "--device", "cpu", "--beam", "1", *out]
    )
    assert ("translating: " in message.getvalue()) == is_shown
    translations = (tmp_path / "out").read_bytes() if options else stream.getvalue()
    assert translations.count(b"\n") == 2
