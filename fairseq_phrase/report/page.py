"""A report as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping, Sequence
from html import escape

from fairseq_phrase.report.differences import Difference, RowDifferences, marked_words
from fairseq_phrase.report.report import Report
from fairseq_phrase.report.tables import NONE, table_cells

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --mark: #f5c54266; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 92rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .55rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
tr.baseline td { background: var(--soft); }
.notes { font-size: .9rem; } code { font-size: .85em; overflow-wrap: anywhere; }
.partial { border: 2px solid #c33; padding: .5rem 1rem; margin: 1rem 0; }
img { max-width: 100%; height: auto; background: #fff; }
details { margin: .6rem 0; } summary { cursor: pointer; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem .9rem; margin: 0 0 1rem;
     padding: .5rem .8rem; background: var(--soft); }
dt { opacity: .75; } dd { margin: 0; } mark { background: var(--mark); color: inherit; }
"""  # noqa: E501 - CSS


def page(
    report: Report, pictures: Mapping[str, bytes], found: Sequence[RowDifferences], runs: str
) -> str:
    """Write a report as HTML.

    Args:
        report: the report.
        pictures: PNG files by title.
        found: examples of translations that differ.
        runs: the table of single runs, as CSV.
    """
    parts = [
        f"<h1>{escape(report.caption)}</h1>",
        _left_out(report),
        _table(report),
        _notes(report),
        *(_picture(title, picture) for title, picture in pictures.items()),
        _examples(report, found),
        "<details><summary>Every run (CSV)</summary>"
        f'<pre class="scroll">{escape(runs)}</pre></details>',
    ]
    body = "\n".join(part for part in parts if part)
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(report.caption)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _left_out(report: Report) -> str:
    if not report.left_out:
        return ""
    items = "".join(f"<li>{escape(problem)}</li>" for problem in report.left_out)
    return f'<div class="partial"><b>Left out of this table:</b><ul>{items}</ul></div>'


def _table(report: Report) -> str:
    heading, *lines = table_cells(report)
    rows = []
    for row, line in zip(report.shown, lines, strict=True):
        kind = ' class="baseline"' if row is report.baseline else ""
        rows.append(f"<tr{kind}>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>")
    titles = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    return (
        f'<div class="scroll"><table><thead><tr>{titles}</tr></thead>\n'
        f"<tbody>{chr(10).join(rows)}</tbody></table></div>"
    )


def _notes(report: Report) -> str:
    notes = "".join(f"<p>{escape(note)}</p>" for note in report.notes)
    signatures = "".join(
        f"<li>{escape(metric)}: <code>{escape(signature)}</code></li>"
        for metric, signature in report.signatures.items()
    )
    return f'<div class="notes">{notes}<p>sacrebleu signatures:</p><ul>{signatures}</ul></div>'


def _picture(title: str, picture: bytes) -> str:
    data = base64.b64encode(picture).decode("ascii")
    text = escape(title)
    return f'<h2>{text}</h2>\n<img alt="{text}" src="data:image/png;base64,{data}">'


def _examples(report: Report, found: Sequence[RowDifferences]) -> str:
    if report.baseline is None or not found:
        return ""
    parts = [
        "<h2>Translations that differ</h2>",
        f"<p>Against {escape(report.baseline.title)}, by sentence chrF. Words that the other translation "
        "lacks are marked.</p>",
    ]
    for one in found:
        seed = "" if one.seed is None else f", seed {one.seed}"
        parts.append(
            f"<details open><summary>{escape(one.row.title)}{seed}: {one.better} sentences better, "
            f"{one.worse} worse, {one.equal} the same to the letter</summary>"
        )
        for heading, examples in (("Gained most", one.best), ("Lost most", one.worst)):
            if examples:
                parts.append(f"<p>{heading}:</p>")
                parts += [_example(example, report, one) for example in examples]
        parts.append("</details>")
    return "\n".join(parts)


def _example(example: Difference, report: Report, found: RowDifferences) -> str:
    baseline = report.baseline.title if report.baseline is not None else ""
    lines = [
        (f"source {example.index}", escape(example.source or NONE)),
        ("reference", escape(example.reference)),
        (
            f"{baseline} ({example.baseline_chrf:.1f})",
            _marked(example.baseline, example.other),
        ),
        (
            f"{found.row.title} ({example.other_chrf:.1f})",
            _marked(example.other, example.baseline),
        ),
    ]
    items = "".join(f'<dt>{escape(name)}</dt><dd dir="auto">{text}</dd>' for name, text in lines)
    return f"<dl>{items}</dl>"


def _marked(text: str, other: str) -> str:
    parts = []
    for new, words in itertools.groupby(marked_words(text, other), key=lambda pair: pair[1]):
        phrase = escape(" ".join(word for word, _ in words))
        parts.append(f"<mark>{phrase}</mark>" if new else phrase)
    return " ".join(parts)
