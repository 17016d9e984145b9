"""Write a dictionary's translations (glosses) behind each sentence, and a graph from words to glosses.

    python scripts/glosses.py dictionary ding de-en.txt >words.tsv
    python scripts/glosses.py parse de_core_news_sm new.de parsed/new.de
    python scripts/glosses.py append parsed/new.de --dictionary words.tsv --ranked-by train.en --out out

A line of words.tsv is a word, a tab and a translation. out/new.de.conllu is for
``--parser conllu:surface,enhanced``: the graph has an edge ``gloss`` from a word to each word of its
glosses, and in the tree glosses depend on their words.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from unicodedata import normalize

from parallel_trees import read_sentences, write

from fairseq_phrase.errors import UserError, location
from fairseq_phrase.lab.report.generation import read_generation
from fairseq_phrase.lab.report.runs import find_runs
from fairseq_phrase.parsers import Unparsed, load_parser
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.text import read_lines

CONTENT = {"NOUN", "PROPN", "VERB", "ADJ", "ADV", "NUM", "_"}  # a word without a tag may be one
BAR = "."  # between a sentence and its glosses; the subwords of every text have it
_MOST_WORDS = 3  # of a translation
# {m}, [coll.], (for persons), <spelling>, /ABBR/ in Ding; (sports) in FreeDict.
_NOTE = re.compile(r"\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|<[^<>]*>|(?<!\S)/[^/\s]*/(?!\S)")
_BEFORE_VERB = re.compile(r"^(\w+(/\w+)+|to) ")  # er/sie geht, he/she goes, to go
_WORDS = re.compile(r"\w[\w'-]*(?: \w[\w'-]*)*")
Dictionary = dict[str, list[str]]
Rows = list[list[str]]
Words = list[tuple[str, str, str]]


def ding(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, word and translation of Ding: ``Hund {m}; Köter {m} | Hunde {pl} :: dog | dogs``."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.startswith("#") or not line.strip():
            continue
        sides = [_NOTE.sub(" ", side).split("|") for side in line.split(" :: ", 1)]
        if len(sides) == 1 or len(sides[0]) != len(sides[1]):
            yield number, line, ""
            continue
        for words, translations in zip(*sides, strict=True):
            for word in words.split(";"):
                for translation in translations.split(";"):
                    yield number, _BEFORE_VERB.sub("", word.strip()), translation


def freedict(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the same of FreeDict's text: ``flight /flˈaɪt/``, then lines such as ``1. uçuş, uçma``."""
    word = ""
    for number, line in enumerate(read_lines(path), start=1):
        if heading := re.fullmatch(r"(\S[^/]*) /[^/]+/", line):
            word = heading[1]
        elif word and line.strip():
            sense = _NOTE.sub(" ", re.sub(r"^\d+\. ", "", line))
            for translation in re.split(r"[.:]", sense)[0].split(","):  # examples follow
                yield number, word, translation


def print_dictionary(kind: str, path: Path) -> None:
    """Print a word, a tab and a translation per line; name the first entry of each kind left out.

    Raises:
        UserError: nothing is left.
    """
    left_out: dict[str, list[int]] = {}
    pairs: dict[str, None] = {}
    for number, word, text in {"ding": ding, "freedict": freedict}[kind](path):
        translation = _BEFORE_VERB.sub("", " ".join(text.split())).replace("’", "'")
        if not word.strip() or not translation:
            reason = "no translation"
        elif len(word.split()) > 1:
            reason = "an entry of several words"
        elif not _WORDS.fullmatch(translation) or len(translation.split()) > _MOST_WORDS:
            reason = f"a sentence, or more than {_MOST_WORDS} words, as translation"
        else:
            pairs[f"{word.strip()}\t{translation}"] = None
            continue
        left_out.setdefault(reason, []).append(number)
    for reason, numbers in left_out.items():
        print(f"{location(path, numbers[0])}: {reason} ({len(numbers)} left out)", file=sys.stderr)
    if not pairs:
        raise UserError(f"{path} has no word with a translation")
    print("\n".join(pairs))


def read_dictionary(path: Path) -> Dictionary:
    """Read the translations of each word.

    Raises:
        UserError: a line is not a word, a tab and a translation, or the file is empty.
    """
    dictionary: Dictionary = {}
    expected = "expected lines of a word, a tab and a translation"
    for number, line in enumerate(read_lines(path), start=1):
        word, _, translation = (part.strip() for part in line.partition("\t"))
        if not word or not translation or " " in word or "\t" in translation:
            raise UserError(f"{location(path, number)}: {expected}")
        dictionary.setdefault(normalize("NFC", word), []).append(" ".join(translation.split()))
    if not dictionary:
        raise UserError(f"{path} is empty: {expected}")
    return dictionary


def parse(pipeline: str, path: Path) -> list[tuple[str, str]]:
    """Parse lines with a spaCy pipeline. Later sentences of a line depend on its first root.

    Returns:
        The text and the tree of each line.

    Raises:
        UserError: the pipeline is missing or has no dependency parser, or a line is empty.
    """
    load_parser(f"spacy:{pipeline}")  # its checks; as a parser it leaves out the lemmatizer
    import spacy

    texts = [" ".join(line.split()) for line in read_lines(path)]
    if "" in texts:
        raise UserError(f"{location(path, texts.index('') + 1)}: a line without text")
    sentences, has_lemmas = [], False
    for text, document in zip(texts, spacy.load(pipeline).pipe(texts), strict=True):
        first, *others = (token for token in document if token.head == token)
        heads = {first: 0, **dict.fromkeys(others, first.i + 1)}
        rows = [
            [str(token.i + 1), token.text, token.lemma_ or "_", token.pos_ or "_", "_", "_",
             str(heads.get(token, token.head.i + 1)), token.dep_ or "dep", "_", "_"]
            for token in document
        ]  # fmt: skip
        has_lemmas |= any(token.lemma_ for token in document)
        sentences.append((text, _tree(text, rows)))
    if not has_lemmas:
        print(f"{pipeline} gives no lemmas: words are looked up by form only", file=sys.stderr)
    return sentences


def _tree(text: str, rows: Rows) -> str:
    return "\n".join([f"# text = {text}", *map("\t".join, rows)])


def rows_of(tree: str) -> Rows:
    """Return the columns of a tree's rows, without comments."""
    return [line.split("\t") for line in tree.split("\n") if not line.startswith("#")]


def read_trees(path: Path) -> list[tuple[str, str]]:
    """Read the text and the lines of each tree.

    Raises:
        UserError: a tree is not CoNLL-U or does not spell its text; the message has the line.
    """
    sentences = read_sentences(path)
    for sentence in ConlluFiles("surface").read(path, [text for text, _ in sentences]):
        if isinstance(sentence, Unparsed):
            raise UserError(sentence.reason)
    return sentences


def content_words(trees: Sequence[Rows], dictionary: Dictionary) -> Iterator[Words]:
    """Yield number, form and entry in the dictionary, or "", of each tree's content words."""
    folded = {word.casefold(): word for word in reversed(dictionary)}  # the first of several
    for rows in trees:
        # Not with capitals: there "tun" (to do) is not the noun "Tun".
        is_lower = all(form == form.lower() for _, form, *_ in rows)
        words = []
        for number, form, lemma, tag, *_ in rows:
            if tag in CONTENT and number.isdigit():
                names = [normalize("NFC", n) for n in (form, form.lower(), lemma, lemma.lower())]
                names += [folded.get(name.casefold(), "") for name in names if is_lower]
                words.append((number, form, next(filter(dictionary.__contains__, names), "")))
        yield words


def words_of(text: str) -> list[str]:
    """Return a text's words, lower-cased."""
    return re.findall(r"\w+", text.lower())


def ranked(dictionary: Dictionary, text: Path, most: int) -> Dictionary:
    """Take the shortest translations; of these the most frequent in a text, then in the dictionary."""
    texts = read_lines(text), (" ".join(texts) for texts in dictionary.values())
    counts = [Counter(word for line in lines for word in words_of(line)) for lines in texts]

    def rank(translation: str) -> tuple[int, ...]:
        words = words_of(translation)
        return len(words), *(-min((count[word] for word in words), default=0) for count in counts)

    return {word: sorted(texts, key=rank)[:most] for word, texts in dictionary.items()}


def with_glosses(
    text: str, rows: Rows, glosses: list[tuple[str, str, list[str]]], variant: str
) -> tuple[str, str]:
    """Append glosses to a sentence.

    Args:
        glosses: number and form of a word, and its translations.
        variant: ``keyed`` repeats a word before its glosses; ``shuffled`` draws edges from other words.

    Returns:
        The text and the tree.
    """
    root = next(row[0] for row in rows if row[6] == "0")
    rows = [[*row[:8], "0:root" if row[0] == root else "_", row[9]] for row in rows]
    numbers = [row[0] for row in rows if row[0].isdigit()]
    heads = [number for number, *_ in glosses]
    if variant == "shuffled":
        rng = random.Random(text)
        if len(heads) == 1:
            heads = [rng.choice([number for number in numbers if number != heads[0]] or heads)]
        turn = rng.randrange(1, max(2, len(heads)))
        heads = heads[turn:] + heads[:turn]
    added = [(BAR, root, "punct", "_")] if glosses else []
    for head, (_, form, translations) in zip(heads, glosses, strict=True):
        words = [form] if variant == "keyed" else []
        words += [word for translation in translations for word in translation.split()]
        added += [(word, head, "gloss", f"{head}:gloss") for word in words]
    for number, (word, head, label, edge) in enumerate(added, start=int(numbers[-1]) + 1):
        rows.append([str(number), word, "_", "X", "_", "_", head, label, edge, "_"])
    text = " ".join([text, *(word for word, *_ in added)])
    return text, _tree(text, rows)


def append(args: argparse.Namespace) -> None:
    """Write texts with glosses. Their translations are copied, if they are beside the texts."""
    if args.most < 1:
        raise UserError(f"--most {args.most}: expected 1 or more")
    if args.out.is_file():
        raise UserError(f"--out {args.out} is a file: name a folder")
    if args.out.resolve() in [path.parent.resolve() for path in (*args.texts, args.ranked_by)]:
        raise UserError(f"--out {args.out} has texts that are read here: name another folder")
    dictionary = ranked(read_dictionary(args.dictionary), args.ranked_by, args.most)
    texts = {path: read_trees(Path(f"{path}.conllu")) for path in args.texts}
    words, entries = {}, dict[str, None]()
    for path, sentences in texts.items():
        words[path] = [*content_words([rows_of(tree) for _, tree in sentences], dictionary)]
        found = [entry for sentence in words[path] for _, _, entry in sentence]
        count = f"{len(found) - found.count('')} of {len(found)} content words"
        print(f"{path}: {count} have glosses", file=sys.stderr)
        entries |= dict.fromkeys(filter(None, found))
        if not entries:
            raise UserError(f"{args.dictionary} has none of the content words (by tag) of {path}")
    if args.variant == "other":  # an entry always has the glosses of the same other entry
        drawn = random.Random(1).sample(sorted(entries), len(entries))
        pairs = zip(drawn, drawn[1:] + drawn[:1], strict=True)
        dictionary |= {entry: dictionary[other] for entry, other in list(pairs)}
    for path, sentences in texts.items():
        target = path.with_suffix(Path(args.ranked_by.name.removesuffix(".gz")).suffix)
        lines = [*read_lines(target)] if target.exists() else []
        if args.variant != "entries":
            for index, (text, tree) in enumerate(sentences):
                glosses = [(n, form, dictionary[e]) for n, form, e in words[path][index] if e]
                sentences[index] = with_glosses(text, rows_of(tree), glosses, args.variant)
        elif path == args.texts[0]:
            pairs = [(entry, word) for entry in entries for word in dictionary[entry]]
            times = max(1, round(len(pairs) / len(sentences)))  # as many sentences as entries
            columns = ["_", "X", "_", "_", "0", "root", "_", "_"]
            sentences = sentences * times + [
                (entry, _tree(entry, [["1", entry, *columns]])) for entry, _ in pairs
            ]
            lines = lines * times + [word for _, word in pairs]
        write(sentences, args.out / path.name)
        if lines:
            (args.out / target.name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


def has(text: str, translation: str) -> bool:
    """Return whether a text has a translation's words, adjacent and in this order."""
    words = words_of(translation)
    return bool(words) and f" {' '.join(words)} " in f" {' '.join(words_of(text))} "


def expected_words(
    train: Sequence[Rows], test: Sequence[Rows], references: Sequence[str], dictionary: Dictionary
) -> dict[str, list[list[set[str]]]]:
    """Find the translations of each content word that the dictionary and the reference share.

    Returns:
        For words whose form the training text lacks (unseen) and for others (seen): a list for each test
        sentence, with the set of each word that has such translations.
    """
    forms = {row[1].lower() for rows in train for row in rows}
    groups: dict[str, list[list[set[str]]]] = {
        name: [[] for _ in test] for name in ("unseen", "seen")
    }
    pairs = zip(content_words(test, dictionary), references, strict=True)
    for index, (words, reference) in enumerate(pairs):
        for _, form, entry in words:
            if shared := {text for text in dictionary.get(entry, ()) if has(reference, text)}:
                groups["seen" if form.lower() in forms else "unseen"][index].append(shared)
    return groups


def accuracy(expected: list[list[set[str]]], hypotheses: Sequence[str]) -> list[float]:
    """Return a number for each sentence; their mean is the percentage of words that are translated."""
    factor = 100 * len(expected) / max(1, sum(map(len, expected)))
    return [
        factor * sum(any(has(text, translation) for translation in shared) for shared in words)
        for words, text in zip(expected, hypotheses, strict=True)
    ]


def score(args: argparse.Namespace) -> None:
    """Write unseen-test.txt and seen-test.txt into the folder of each run.

    Raises:
        UserError: the reference or an output has another number of lines than the test text's trees.
    """
    files = [Path(f"{path}.conllu") for path in args.texts]
    train, test = ([rows_of(tree) for _, tree in read_trees(file)] for file in files)
    references = [*read_lines(args.reference)]
    outputs = [run.path / "generate-test.txt" for run in find_runs([str(args.runs)])]
    hypotheses = {path: read_generation(path).hypotheses for path in outputs if path.is_file()}
    for path, lines in {args.reference: references, **hypotheses}.items():
        if len(lines) != len(test):
            raise UserError(f"{path} has {len(lines)} lines, and {files[1]} has {len(test)} trees")
    groups = expected_words(train, test, references, read_dictionary(args.dictionary))
    print(", ".join(f"{name}: {sum(map(len, words))} words" for name, words in groups.items()))
    for path, lines in hypotheses.items():
        for name, words in groups.items():
            numbers = "".join(f"{number}\n" for number in accuracy(words, lines))
            path.with_name(f"{name}-test.txt").write_text(numbers)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, and do what it names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("dictionary", help="print a dictionary's words and translations")
    command.add_argument("kind", choices=("ding", "freedict"))
    command.add_argument("file", type=Path)
    command = commands.add_parser("parse", help="parse a text with a spaCy pipeline")
    command.add_argument("pipeline")
    command.add_argument("text", type=Path)
    command.add_argument("out", type=Path)
    command = commands.add_parser("append", help="append glosses to parsed texts")
    command.add_argument("texts", type=Path, nargs="+", help="the training text first")
    command.add_argument("--ranked-by", type=Path, required=True, help="training text, target")
    command.add_argument("--most", type=int, default=3, help="glosses of a word (3)")
    variants = ("glosses", "keyed", "shuffled", "other", "entries")
    command.add_argument("--variant", choices=variants, default="glosses")
    command.add_argument("--out", type=Path, required=True, help="a folder")
    command.add_argument("--dictionary", type=Path, required=True)
    command = commands.add_parser("score", help="accuracy on words that the training text lacks")
    command.add_argument("runs", type=Path)
    command.add_argument("texts", type=Path, nargs=2, help="parsed training and test text")
    command.add_argument("--reference", type=Path, required=True)
    command.add_argument("--dictionary", type=Path, required=True)
    args = parser.parse_args(arguments)
    try:
        if args.command == "dictionary":
            print_dictionary(args.kind, args.file)
        elif args.command == "parse":
            write(parse(args.pipeline, args.text), args.out)
        else:
            {"append": append, "score": score}[args.command](args)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
