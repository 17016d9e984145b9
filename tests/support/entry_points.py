"""The commands that compare identity records, by their entry_point."""

from __future__ import annotations

COMMANDS = {
    "train": {"fairseq-train", "fairseq-hydra-train"},
    "use": {
        *(f"fairseq-{name}" for name in ("generate", "interactive", "validate")),
        *(
            f"fairseq-phrase-{name}"
            for name in ("translate", "label", "probe", "plot", "analyze", "demo", "export")
        ),
    },
    "pretrained": {"fairseq-train"},
    "pretrained-model": {"fairseq-train"},
    "ensemble": {"fairseq-generate"},
    "average": {"fairseq-phrase-average"},
    "shards": {"fairseq-train", "fairseq-generate"},
    "reuse": {"fairseq-phrase-preprocess"},
    "attach": {"fairseq-phrase-attach"},
    "report": {"fairseq-phrase-report", "fairseq-phrase-score"},
}
