"""Write a corpus of documents for pre-training: one sentence per line, a blank line between documents.

    python scripts/documents.py OUT [--imdb FOLDER] [--treebank FOLDER] [--reviews N] [--slice N]

writes OUT/{train,valid,test}.en from reviews (IMDB's train.tsv and test.tsv, compressed or not) and
from a treebank of Universal Dependencies (*-train.conllu, *-dev.conllu, *-test.conllu). spaCy's rules
split reviews into sentences. A treebank's documents begin with "# newdoc". Reviews of the test file are
not in train.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import spacy
from labelled_text import imdb_reviews, treebank_file
from tqdm import tqdm

from fairseq_phrase.errors import UserError
from fairseq_phrase.text import read_lines

Document = list[str]
TREEBANK_SPLITS = {"train": "train", "valid": "dev", "test": "test"}


def treebank_documents(path: Path) -> Iterator[Document]:
    """Yield the texts of a treebank's documents."""
    document: Document = []
    for line in read_lines(path):
        if line.startswith("# newdoc") and document:
            yield document
            document = []
        elif line.startswith("# text = "):
            document.append(line.removeprefix("# text = "))
    if document:
        yield document


def review_documents(folder: Path, reviews: int) -> dict[str, list[Document]]:
    """Split reviews into sentences: N of the training file, N / 20 of the test file for each split."""
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    train = _every(imdb_reviews(folder, "train"), reviews)
    held_out = _every(imdb_reviews(folder, "test"), 2 * max(1, reviews // 20))
    splits = {"train": train, "valid": held_out[::2], "test": held_out[1::2]}
    return {
        name: [
            [sentence.text.strip() for sentence in parsed.sents if sentence.text.strip()]
            for parsed in tqdm(nlp.pipe(texts), f"{name}: reviews", len(texts), unit="review")
        ]
        for name, texts in splits.items()
    }


def _every(reviews: Iterator[tuple[str, str]], count: int) -> list[str]:
    """Choose reviews at equal distances, because the files are sorted by label."""
    texts = [text for _, text in reviews]
    return texts[:: max(1, len(texts) // count)][:count]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--imdb", type=Path)
    parser.add_argument("--treebank", type=Path)
    parser.add_argument(
        "--reviews", type=int, default=5000, help="reviews to train on (%(default)s)"
    )
    parser.add_argument("--slice", type=int, help="keep so many documents of each split")
    args = parser.parse_args(argv)
    if args.reviews < 1:
        parser.error(f"--reviews {args.reviews}: expected a number, at least 1")
    if not (args.imdb or args.treebank):
        parser.error("name --imdb FOLDER, --treebank FOLDER or both")
    splits: dict[str, list[Document]] = {name: [] for name in TREEBANK_SPLITS}
    try:
        if args.treebank:
            for name, part in TREEBANK_SPLITS.items():
                splits[name] += treebank_documents(treebank_file(args.treebank, part))
        if args.imdb:
            for name, documents in review_documents(args.imdb, args.reviews).items():
                splits[name] += documents
    except UserError as error:
        sys.exit(f"error: {error}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name, documents_of_split in splits.items():
        documents = documents_of_split[: args.slice]
        text = "\n".join(
            "".join(f"{sentence}\n" for sentence in sentences) for sentences in documents
        )
        (args.out / f"{name}.en").write_text(text, encoding="utf-8")
        print(f"{name}: {len(documents)} documents, {sum(map(len, documents))} sentences")


if __name__ == "__main__":
    main()
