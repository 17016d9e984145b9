"""The model card of a bundle: what the model is, in a README.md made of its identity record."""

from __future__ import annotations

from fairseq_phrase.store.identity import PARTS, Identity
from fairseq_phrase.store.manifest import Manifest


def model_card(record: Identity, manifest: Manifest, scores: str | None) -> str:
    """Write the card.

    Args:
        record: the model's record. Options at their defaults are left out.
        manifest: that of its data.
        scores: the model's scores as Markdown; None if there are none.
    """
    pair = " to ".join(
        entry.label for entry in record.entries.values() if entry.part == "languages"
    )
    lines = [f"# {pair}", "", f"A translation model of fairseq_phrase, {pair}."]
    title = ""
    order = list(PARTS)
    for key, entry in sorted(record.entries.items(), key=lambda one: order.index(one[1].part)):
        if entry.value == entry.default:
            continue
        if PARTS[entry.part].title != title:
            title = PARTS[entry.part].title
            lines += ["", f"## {title}", ""]
        made = f", `--parser {manifest.parser}`" if key == "parser" else ""
        lines.append(f"- {key}: {entry.label}{made}")
    if record.allowed:
        lines += ["", "## Differences that were allowed", ""]
        lines += [f"- {each}" for each in record.allowed]
    if scores:
        lines += ["", "## Scores", "", scores.strip()]
    lines += [
        "", "## Use", "", "```bash", "pip install fairseq-phrase",
        "fairseq-phrase-inspect BUNDLE", "fairseq-phrase-translate BUNDLE < text > translation",
        "```", "",
    ]  # fmt: skip
    return "\n".join(lines)
