"""The commands that compare identity records, by the use."""

from __future__ import annotations

COMMANDS = {
    "continue": {"fairseq-train", "fairseq-hydra-train"},
    "use": {
        *(f"fairseq-{name}" for name in ("generate", "interactive", "validate")),
        *(
            f"fairseq-phrase-{name}"
            for name in ("translate", "label", "probe", "plot", "analyze", "demo", "export")
        ),
    },
    "join": {"fairseq-phrase-average"},
}
