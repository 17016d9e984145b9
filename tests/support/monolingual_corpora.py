"""Text of one language in documents, with gold trees of both kinds."""

from __future__ import annotations

from pathlib import Path

from fairseq_phrase.cli.preprocess import main as preprocess
from tests.support.labelled_corpora import write_corpus

#: Sentences of a document.
DOCUMENT = 4


def write_documents(folder: Path, seed: int = 1) -> Path:
    """Write the labelled corpus without labels, with a blank line after every few sentences."""
    write_corpus(folder, seed)
    for path in sorted(folder.glob("*.en")):
        lines = path.read_text().splitlines()
        trees = (folder / f"{path.name}.ptb").read_text().splitlines()
        sentences = (folder / f"{path.name}.conllu").read_text().split("\n\n")
        text, ptb, conllu = [], [], []
        for number, line in enumerate(lines):
            if number and number % DOCUMENT == 0:
                text.append("")
                ptb.append("")
            text.append(line)
            ptb.append(trees[number])
            conllu.append(sentences[number])
        path.write_text("".join(f"{line}\n" for line in text))
        (folder / f"{path.name}.ptb").write_text("".join(f"{line}\n" for line in ptb))
        (folder / f"{path.name}.conllu").write_text(
            "".join(f"{sentence.strip()}\n\n" for sentence in conllu)
        )
    return folder


def make_data(folder: Path, out: Path, *options: object) -> Path:
    """Preprocess the corpus."""
    prefixes = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    preprocess(
        ["-s", "en", "--only-source", *prefixes, "--destdir", str(out)]
        + [str(option) for option in options]
    )
    return out
