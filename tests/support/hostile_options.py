"""Texts of options that would run code if fairseq evaluated them, or exhaust memory."""

from __future__ import annotations

#: A shell command that a text runs; ``MARK`` is a file that it makes.
COMMAND = "touch MARK"
#: Texts that run :data:`COMMAND`, without a call where that is possible.
SHELL = [
    f"__import__('os').system({COMMAND!r})",
    f"[__import__('os').system({COMMAND!r}) for x in [1]]",
    f"[[os.environ[{COMMAND!r}] for os._Environ.__getitem__ in [os.system]]]",
    f"[1 for os._Environ.__getitem__ in [os.system] for y in [os.environ[{COMMAND!r}]]]",
    f"{{os.environ[{COMMAND!r}]: 1 for os._Environ.__getitem__ in [os.system]}}",
    f"f\"{{__import__('os').system({COMMAND!r})}}\"",
    f"(lambda: __import__('os').system({COMMAND!r}))()",
    f"[x := __import__('os'), x.system({COMMAND!r})]",
    f"[*[__import__('os').system({COMMAND!r})]]",
    f"1 if __import__('os').system({COMMAND!r}) else 2",
    f"__import__('os').system({COMMAND!r}) or [1]",
    f"{{'a': __import__('os').system({COMMAND!r})}}",
    f"(1, [2, {{3: __import__('os').system({COMMAND!r})}}])",
    f" \t[1][__import__('os').system({COMMAND!r})]",
]
#: Texts of other expressions.
CODE = [
    *SHELL,
    "os.environ['HOME']",
    "9**9**9",
    "[0] * 10**10",
    "[0] * 10000000000",
    "-" * 9999 + "1",
]
