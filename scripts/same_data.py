"""Check that the data of a restored table equal the data on which its kept runs were trained.

    python scripts/same_data.py DATA

restore_results.py puts the kept runs' manifests next to the new ones, as DATA/kept.syntax.LANG.json. If
texts, subwords or parses differ, a table would compare models of different data.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def differing(kept: dict, made: dict) -> list[str]:
    """Name the files that differ, of splits that both manifests have."""
    return [
        name
        for split in kept["splits"].keys() & made["splits"].keys()
        for name, checksum in kept["splits"][split]["checksums"].items()
        if made["splits"][split]["checksums"].get(name, checksum) != checksum
    ]


def difference(kept_path: Path) -> str:
    """Describe how new data differ from the kept runs' data; empty if they do not differ."""
    made_path = kept_path.with_name(kept_path.name.removeprefix("kept."))
    if not made_path.is_file():
        return ""
    kept_manifest, made_manifest = (
        json.loads(path.read_text("utf-8")) for path in (kept_path, made_path)
    )
    files = sorted(differing(kept_manifest, made_manifest))
    if not files:
        return ""
    parsers = [
        f"{manifest['parser']} ({manifest['parser_version'] or 'no version'})"
        for manifest in (kept_manifest, made_manifest)
    ]
    reason = f"the kept runs have the parser {parsers[0]}, these data {parsers[1]}"
    if parsers[0] == parsers[1]:
        reason = f"the parser is {parsers[0]} both times; the text or the subwords differ"
    return (
        f"{made_path.parent} is not what the kept runs were trained on: {', '.join(files[:3])}"
        f"{', …' if len(files) > 3 else ''} differ; {reason}. Make the same data (FAIRSEQ_PHRASE_PARSER "
        f"names a parser), or, if no row reads what differs, delete {kept_path} and run again"
    )


def main() -> None:
    """Check the folder named on the command line."""
    for path in sorted(Path(sys.argv[1]).glob("kept.syntax.*.json")):
        if message := difference(path):
            sys.exit(message)


if __name__ == "__main__":
    main()
