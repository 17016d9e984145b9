r"""Adapt a spaCy pipeline's parser to other text: continue its training on trees.

    python scripts/adapt_parser.py MODEL TREES.conllu OUT [--measure OTHER.conllu ...]

A parser of newspaper text makes errors on other text. A thousand trees and some seconds of training
correct many of them, because the parser starts from its own parameters. Attachment scores on held-out
trees are printed, before and after. Only the parser is trained; it gets its own copy of the pipeline's
word vectors (tok2vec), so tags do not change. OUT is then used as spacy:OUT. Relations that the parser
does not know are added to its labels.
"""

from __future__ import annotations

import argparse
import operator
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import conllu
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import fix_random_seed, minibatch
from tqdm import tqdm

from fairseq_phrase.errors import UserError


def load_pipeline(model: str) -> Language:
    """Load a pipeline whose parser has its own word vectors.

    Raises:
        UserError: the pipeline does not exist, or lacks a parser.
    """
    try:
        pipeline = spacy.load(model)
    except (OSError, ValueError) as error:
        raise UserError(f"{model}: {error}") from None
    if "parser" not in pipeline.pipe_names:
        raise UserError(f"{model}: this pipeline has no parser, so there is nothing to adapt")
    if "tok2vec" in pipeline.pipe_names:
        pipeline.replace_listeners("tok2vec", "parser", ["model.tok2vec"])
    return pipeline


def read_trees(path: Path, pipeline: Language) -> list[Doc]:
    """Read trees. Ranges and empty nodes are skipped.

    Raises:
        UserError: the file is not CoNLL-U, or is empty.
    """
    trees = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, sentence in enumerate(conllu.parse_incr(file), start=1):
                words = [token for token in sentence if isinstance(token["id"], int)]
                if any(token.get("head") is None for token in words):
                    raise UserError(f"{path}: sentence {number} has a word without a head")
                # spaCy's root is its own head, and its relation is written in capitals.
                heads = [(token["head"] or token["id"]) - 1 for token in words]
                relations = [token["deprel"] if token["head"] else "ROOT" for token in words]
                forms = [token["form"] for token in words]
                trees.append(Doc(pipeline.vocab, forms, heads=heads, deps=relations))
    except (OSError, ValueError, TypeError, conllu.exceptions.ParseException) as error:
        raise UserError(f"{path}: no CoNLL-U trees: {error}") from None
    if not trees:
        raise UserError(f"{path}: no tree in it")
    return trees


def add_relations(pipeline: Language, trees: Sequence[Doc]) -> list[str]:
    """Add the relations of trees that a parser does not know, and return them."""
    parser: Any = pipeline.get_pipe("parser")
    new = sorted({token.dep_ for tree in trees for token in tree} - {*parser.labels, "ROOT"})
    for relation in new:
        parser.add_label(relation)
    return new


def examples(trees: Sequence[Doc]) -> list[Example]:
    """Pair each tree with its words."""
    return [Example(Doc(tree.vocab, [token.text for token in tree]), tree) for tree in trees]


class Accuracy(NamedTuple):
    """A parser's attachment scores, in percent.

    Attributes:
        unlabelled: words with the correct head (UAS).
        labelled: words with the correct head and relation (LAS).
        whole: sentences whose heads are all correct.
    """

    unlabelled: float
    labelled: float
    whole: float

    def __str__(self) -> str:
        """Format the scores."""
        return f"UAS {self.unlabelled:.1f}, LAS {self.labelled:.1f}, whole trees {self.whole:.1f}"


def measure(pipeline: Language, trees: Sequence[Doc]) -> Accuracy:
    """Measure a parser on trees. Punctuation counts, as do words that spaCy makes additional roots."""
    words = labels = heads = sentences = 0
    parsed = pipeline.pipe(example.predicted for example in examples(trees))
    for tree, parse in zip(trees, parsed, strict=True):
        right = [
            token.head.i == parsed_token.head.i
            for token, parsed_token in zip(tree, parse, strict=True)
        ]
        has_label = [
            token.dep == parsed_token.dep for token, parsed_token in zip(tree, parse, strict=True)
        ]
        words += len(right)
        heads += sum(right)
        labels += sum(map(operator.and_, right, has_label))
        sentences += all(right)
    return Accuracy(100 * heads / words, 100 * labels / words, 100 * sentences / len(trees))


def adapt(pipeline: Language, trees: Sequence[Doc], passes: int, learn_rate: float) -> None:
    """Continue the training of a pipeline's parser, in place."""
    optimizer = pipeline.resume_training()
    optimizer.learn_rate = learn_rate
    shuffled = examples(trees)
    with tqdm(total=passes * len(shuffled), desc="adapting the parser", unit="tree") as bar:
        for _ in range(passes):
            random.shuffle(shuffled)
            for batch in minibatch(shuffled, size=64):
                pipeline.update(batch, sgd=optimizer, drop=0.1)
                bar.update(len(batch))


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and write the adapted pipeline."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="an installed pipeline, or a folder")
    parser.add_argument("trees", type=Path, help="trees, CoNLL-U")
    parser.add_argument("out", type=Path, help="folder of the adapted pipeline")
    parser.add_argument("--passes", type=int, default=1, help="passes over the trees (1)")
    parser.add_argument("--learn-rate", type=float, default=0.0005, help="of Adam (0.0005)")
    parser.add_argument("--held-out", type=int, default=200, help="the last N trees measure (200)")
    parser.add_argument(
        "--measure", type=Path, nargs="+", default=[], help="more trees to measure on"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order of trees (1)")
    args = parser.parse_args(arguments)
    try:
        if args.out.exists():
            raise UserError(f"{args.out} is there already: name another folder, or remove it")
        pipeline = load_pipeline(args.model)
        trees = read_trees(args.trees, pipeline)
        if len(trees) <= args.held_out:
            raise UserError(
                f"{args.trees} has {len(trees)} trees, and --held-out {args.held_out} leaves none"
            )
        measured = {str(path): read_trees(path, pipeline) for path in args.measure}
    except UserError as error:
        sys.exit(f"error: {error}")
    fix_random_seed(args.seed)
    learned, held_out = trees[: len(trees) - args.held_out], trees[len(trees) - args.held_out :]
    if held_out:
        measured = {f"{args.trees}, the last {len(held_out)}": held_out} | measured
    if new := add_relations(pipeline, learned):
        print(f"relations that {args.model} does not know: {', '.join(new)}")
    with pipeline.select_pipes(enable=["parser"]):
        before = {name: measure(pipeline, documents) for name, documents in measured.items()}
        adapt(pipeline, learned, args.passes, args.learn_rate)
        after = {name: measure(pipeline, documents) for name, documents in measured.items()}
    pipeline.meta["name"] += "_adapted"
    unfinished = args.out.with_name(f"{args.out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    pipeline.to_disk(unfinished)
    unfinished.rename(args.out)
    for name in measured:
        print(f"{name}:\n  before  {before[name]}\n  after   {after[name]}")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
