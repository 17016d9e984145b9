"""Corpora that stock tools segment and binarize, for the tests of ``fairseq-phrase-attach``."""

from __future__ import annotations

import io
import shutil
from itertools import islice
from pathlib import Path

import sentencepiece
from fairseq.data import Dictionary, data_utils
from fairseq.options import get_preprocessing_parser
from fairseq_cli.preprocess import main as fairseq_preprocess
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from fairseq_phrase.cli.attach import main
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.text import read_lines

#: Gold dependency trees, and constituents of them.
GOLD = ("--parser", "conllu", "--constituents", "from-dependencies")
#: The splits of the corpora and their lines.
SPLITS = {"train": 200, "valid": 20, "test": 30}


def contents(directory):
    """A folder's files, by name."""
    return {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def write_lines(path, lines):
    """Write a text file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def binarize(text, out, *options, splits=tuple(SPLITS)):
    """Binarize as a user of fairseq does."""
    arguments = ["-s", "de", "-t", "en", "--destdir", str(out)]
    arguments += [f"--{split}pref={text / split}" for split in splits]
    fairseq_preprocess(get_preprocessing_parser().parse_args([*arguments, *map(str, options)]))
    return out


def attach(data, text, *options, splits=tuple(SPLITS), bpe="subword_nmt"):
    """Run fairseq-phrase-attach on some splits of a text."""
    prefixes = [f"--{split}pref={text / split}" for split in splits]
    main([str(data), "-s", "de", "-t", "en", *prefixes, "--bpe", bpe, *map(str, options)])
    return data


def gold_of(folder, split, language="de", parser=None):
    """The trees beside a text, as their parser reads them."""
    parser = parser or ConlluFiles()
    text = folder / f"{split}.{language}"
    return list(parser.read(Path(f"{text}.{parser.suffix}"), read_lines(text)))


def subwords_of(data, split, language="de"):
    """The binarized text, by fairseq's own reader; end of sentence left out."""
    dictionary = Dictionary.load(str(data / f"dict.{language}.txt"))
    path = str(data / f"{split}.de-en.{language}")
    return [
        [dictionary[number] for number in sentence[:-1]]
        for sentence in data_utils.load_indexed_dataset(path, dictionary, "mmap")
    ]


def lines_of(folder, split, language="de"):
    """The subwords of each line of a text."""
    return [line.split() for line in read_lines(folder / f"{split}.{language}")]


def write_first_trees(source, target, count):
    """Write the first trees of a CoNLL-U file."""
    blocks = source.read_text().split("\n\n")[:count]
    target.write_text("\n\n".join([*blocks, ""]))


def shorten(corpus, folder):
    """Write the first lines of a corpus, with their trees."""
    for split, size in SPLITS.items():
        for language in ("de", "en"):
            name = f"{split}.{language}"
            for suffix in ("", ".ptb"):
                lines = islice(read_lines(corpus / f"{name}{suffix}"), size)
                write_lines(folder / f"{name}{suffix}", lines)
            write_first_trees(corpus / f"{name}.conllu", folder / f"{name}.conllu", size)


def segment_tokens(corpus, folder):
    """Segment a corpus' tokens by subword-nmt; write its codes, ``codes.de``, and its trees too."""
    for language in ("de", "en"):
        tokens = {
            split: [" ".join(sentence.words) for sentence in gold_of(corpus, split, language)]
            for split in SPLITS
        }
        codes = io.StringIO()
        learn_bpe(io.StringIO("\n".join(tokens["train"])), codes, 150)
        (folder / f"codes.{language}").write_text(codes.getvalue())
        bpe = BPE(io.StringIO(codes.getvalue()))
        for split, lines in tokens.items():
            write_lines(folder / f"{split}.{language}", map(bpe.process_line, lines))
    _copy_trees(corpus, folder)


def segment_lines(corpus, folder):
    """Segment a corpus' raw lines by SentencePiece; write its models, ``de.model``, and its trees too.

    Some subwords are of two words: the end of one and the full stop.
    """
    for language in ("de", "en"):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(list(read_lines(corpus / f"train.{language}"))),
            model_writer=model, vocab_size=150, minloglevel=2, character_coverage=1.0,
            user_defined_symbols=["n.", "t."],
        )  # fmt: skip
        (folder / f"{language}.model").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        for split in SPLITS:
            lines = read_lines(corpus / f"{split}.{language}")
            segmented = (" ".join(processor.encode(line, out_type=str)) for line in lines)
            write_lines(folder / f"{split}.{language}", segmented)
    _copy_trees(corpus, folder)


def _copy_trees(corpus, folder):
    for suffix in ("conllu", "ptb"):
        for path in corpus.glob(f"*.{suffix}"):
            shutil.copyfile(path, folder / path.name)
