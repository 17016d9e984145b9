"""The commands that read a checkpoint, with the arguments before its path."""

from __future__ import annotations

from fairseq_cli import generate, interactive, train, validate

from tests.support.commands import SIZES, TRAINING

USER = ("--user-dir", "fairseq_phrase", "--task", "syntax_translation")
MODEL = ("--arch", "relation_transformer", "--relation-labels", *TRAINING, *SIZES)
PLAIN = ("--arch", "phrase_transformer_tiny", *TRAINING, *SIZES)
ONCE = ("--max-tokens", "400", "--disable-validation")
#: What a command gets after the data directory and before the checkpoint: ``(module, use, arguments)``.
FAIRSEQ = {
    "resumed": (train, "continue", [*MODEL, *ONCE, "--max-update", "2", "--restore-file"]),
    "reset": (
        train, "continue",
        [*MODEL, *ONCE, "--max-update", "2", "--reset-optimizer", "--reset-lr-scheduler",
         "--reset-meters", "--reset-dataloader", "--restore-file"],
    ),
    "fine-tuned": (
        train, "continue", [*MODEL, *ONCE, "--max-update", "2", "--finetune-from-model"]
    ),
    "pretrained": (train, "pretrained", [*MODEL, *ONCE, "--max-update", "2", "--pretrained"]),
    "validate": (validate, "use", ["--cpu", "--batch-size", "50", "--path"]),
    "generate": (generate, "use", ["--cpu", "--path"]),
    "interactive": (interactive, "use", ["--cpu", "--input", "/dev/null", "--path"]),
}  # fmt: skip
#: Arguments of this package's commands, where ``DATA``, ``NEW`` and ``TEXT`` are paths.
OWN = {
    "translate": ["DATA", "TEXT", "--source-parser", "none", "--path", "CHECKPOINT"],
    "plot": ["tree", "--line", "1", "DATA", "--out", "NEW", "--path", "CHECKPOINT"],
    "analyze": ["attention", "DATA", "--path", "CHECKPOINT"],
    "probe": ["--tasks", "TASKS", "--data", "DATA", "--path", "CHECKPOINT"],
    "demo": ["--data", "DATA", "--source-parser", "none", "CHECKPOINT"],
    "export": ["CHECKPOINT", "DATA", "NEW"],
    "export to transformers": ["--to", "transformers", "CHECKPOINT", "DATA", "NEW"],
    "export to ctranslate2": ["--to", "ctranslate2", "CHECKPOINT", "DATA", "NEW"],
    "average": ["FIRST", "CHECKPOINT", "--out", "NEW"],
}  # fmt: skip
