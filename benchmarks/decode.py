"""Sentences per second of beam search with our models, compared with fairseq's Transformer.

All models have the same sizes and random weights. They translate the same sentences in turns: a slowdown
of the machine affects all of them. With random weights no hypothesis ends early: all have --target-length
tokens, so every model takes the same number of steps. The table shows medians over the batches:

- ``sentences/s``: of beam search from subwords and, if the model needs them, parses,
- ``measured``: sentences per second divided by the transformer's, the median of the paired ratios,
- ``parsing, ms``: segmenting a batch of raw lines into words and subwords and, for models that need
  trees, parsing them, on one thread, as fairseq-interactive does with ``--tokenizer syntax --bpe
  syntax``,
- ``with parsing``: sentences per second of both together, and the ratio to the transformer without
  parsing, as in the paper's table 1 (2.48 / 3.23 = 0.77).

The last two need raw text (--text) in the source language of DATA, and possibly a parser (--parser).

``--transformers`` adds a row for each model: the same search by transformers' ``generate``, as for a
folder from ``fairseq-phrase-export --to transformers``. ``--ctranslate2`` adds rows of CTranslate2 with
the weights of each model that it computes, in float32 and int8: the Transformer, relative positions
without absolute positions, and source factors in them.

On a shared machine, set OMP_NUM_THREADS=1.

Examples:
    python benchmarks/decode.py --size tiny --batch-size 16
    python benchmarks/decode.py --models "relations, parent" --transformers --target-length 50
    python benchmarks/decode.py DATA --text corpus/test.de --parser spacy:de_core_news_sm
    python benchmarks/decode.py --models "sequential relative" --size tiny --ctranslate2
    python benchmarks/decode.py DATA --device cuda --dtype bfloat16 --batch-size 128
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.sequence_generator import SequenceGenerator
from machine import describe_machine, seconds
from models import Built, add_arguments, build_models, load_dataset
from tqdm import tqdm

from fairseq_phrase.text import markdown_table

Batch = dict[str, Any]
_EXPORTED = ", transformers"
_CONVERTED = ", CTranslate2 "


def load_batches(models: list[Built], options: argparse.Namespace) -> list[Batch]:
    """Draw batches of sentences of similar length, as fairseq-generate does."""
    batches = models[0].task.get_batch_iterator(
        load_dataset(models, options.subset, options),
        max_sentences=options.batch_size,
        required_batch_size_multiple=1,
    )
    batches = list(batches.next_epoch_itr(shuffle=False))
    step = max(1, len(batches) // options.batches)
    return batches[::step][: options.batches]


def read_lines(options: argparse.Namespace) -> Iterator[list[str]]:
    """Split the text into batches, as fairseq-interactive does with ``--buffer-size``."""
    lines = options.text.read_text(encoding="utf-8").splitlines()
    for start in range(
        0, min(len(lines), options.batches * options.batch_size), options.batch_size
    ):
        yield lines[start : start + options.batch_size]


def encode(built: Built, lines: list[str]) -> Batch:
    """Segment raw lines into subwords and parse them."""
    source = built.task.source_text
    return source.batch(source.encode(lines))


class Exported:
    """transformers' search with a model, called like fairseq's.

    Args:
        built: the model.
        options: the sizes of the search.
    """

    def __init__(self, built: Built, options: argparse.Namespace):
        from fairseq_phrase.inference.exports import special_tokens
        from fairseq_phrase.inference.transformers_model import (
            FairseqPhraseConfig,
            FairseqPhraseModel,
        )

        special = special_tokens(built.task.target_dictionary)
        self._model = FairseqPhraseModel(FairseqPhraseConfig(**special), built.model).eval()
        self._options = {
            "num_beams": options.beam,
            "max_length": options.target_length + 2,
            "early_stopping": True,
        }

    def generate(self, models: list[Any], sample: Batch) -> Any:
        """Translate a batch."""
        inputs = dict(sample["net_input"], input_ids=sample["net_input"]["src_tokens"])
        for name in ("src_tokens", "src_lengths", "prev_output_tokens"):
            inputs.pop(name, None)
        return self._model.generate(**inputs, **self._options)


class Converted:
    """CTranslate2's search with a model, called like fairseq's.

    Args:
        built: the model.
        options: the sizes of the search.
        quantization: the type of the weights.
    """

    def __init__(self, built: Built, options: argparse.Namespace, quantization: str):
        from ctranslate2 import Translator

        from fairseq_phrase.inference.exports import save_ctranslate2

        self._built, size = built, options.target_length
        self._options = {"beam_size": options.beam, "max_decoding_length": size}
        self._options["min_decoding_length"] = size
        with tempfile.TemporaryDirectory() as folder:
            save_ctranslate2(built.model, built.task, folder, quantization)
            threads = torch.get_num_threads()
            self._translator = Translator(
                folder, options.device, compute_type=quantization, intra_threads=threads
            )

    def generate(self, models: list[Any], sample: Batch) -> Any:
        """Translate a batch."""
        from fairseq_phrase.inference.factored_tokens import batch_texts

        rows = batch_texts(self._built.task, self._built.model, sample["net_input"])
        return self._translator.translate_batch(rows, **self._options)


def measure(
    models: list[Built], options: argparse.Namespace
) -> tuple[list[list[float]], list[list[float]], list[int]]:
    """Translate in turns.

    Returns:
        For each batch each model's seconds of beam search and of encoding raw lines, and the number of
        its sentences. Without raw lines the seconds of encoding are 0.
    """
    device = torch.device(options.device)
    generators = [_generator(built, options) for built in models]
    work: list[Any] = list(read_lines(options)) if options.text else load_batches(models, options)
    decoding, encoding, counts = [], [], []
    for number, batch in enumerate(tqdm([work[0], *work], unit="batch", file=sys.stderr)):
        taken, encoded = [0.0] * len(models), [0.0] * len(models)
        for turn in range(len(models)):
            # Each model comes first, second, ... equally often.
            index = (number + turn) % len(models)
            own, generator = models[index], generators[index]
            sample = batch
            if options.text:
                made: list[Batch] = []
                encoded[index] = seconds(
                    lambda o=own, b=batch, m=made: m.append(encode(o, b)), torch.device("cpu")
                )
                sample = made[0]
            sample = own.own_inputs(sample)
            sample = utils.move_to_cuda(sample) if device.type == "cuda" else sample
            taken[index] = seconds(
                lambda g=generator, s=sample, m=own.model: g.generate([m], s), device
            )
        if number > 0:
            decoding.append(taken)
            encoding.append(encoded)
            counts.append(len(sample["net_input"]["src_tokens"]))
    return decoding, encoding, counts


def _generator(built: Built, options: argparse.Namespace) -> Any:
    """Return the search with a model."""
    if built.name.endswith(_EXPORTED):
        return Exported(built, options)
    if _CONVERTED in built.name:
        return Converted(built, options, built.name.rpartition(" ")[2])
    return SequenceGenerator(
        [built.model.eval()],
        built.task.target_dictionary,
        beam_size=options.beam,
        max_len_a=0,
        max_len_b=options.target_length,
    )


def table(
    models: list[Built],
    decoding: list[list[float]],
    encoding: list[list[float]],
    counts: list[int],
) -> str:
    """Format the measurements in Markdown."""
    has_text = any(any(row) for row in encoding)
    headings = ["model", "sentences/s", "measured"]
    headings += ["parsing, ms", "with parsing", "measured"] * has_text
    lines = []
    for index, built in enumerate(models):
        own = [row[index] for row in decoding]
        parsing = [row[index] for row in encoding]
        both = [one + other for one, other in zip(own, parsing, strict=True)]
        plain = [row[0] for row in decoding]

        def rate(times: list[float]) -> float:
            return statistics.median(n / time for n, time in zip(counts, times, strict=True))

        def ratio(times: list[float], plain: list[float] = plain) -> float:
            return statistics.median(one / time for one, time in zip(plain, times, strict=True))

        line = [built.name, f"{rate(own):.2f}", f"{ratio(own):.3f}"]
        if has_text:
            milliseconds = statistics.median(parsing) * 1e3
            line += [f"{milliseconds:.0f}", f"{rate(both):.2f}", f"{ratio(both):.3f}"]
        lines.append(line)
    return markdown_table(headings, lines, texts=1)


def use_parsers(models: list[Built], options: argparse.Namespace) -> None:
    """Parse raw lines for models that need trees; for other models only tokenize them."""
    for built in models:
        needs_tree = built.parses - {"src_words"}
        built.task.cfg.source_parser = options.parser if needs_tree else "none"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--subset", default="test", help="split of DATA that sentences come from")
    parser.add_argument("--text", type=Path, help="raw lines to translate instead, parsed here")
    parser.add_argument("--parser", help="of --text; by default the one that made DATA")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--batches", type=int, default=8, help="different batches, each measured once"
    )
    parser.add_argument("--target-length", type=int, default=16, help="tokens of every translation")
    parser.add_argument(
        "--transformers", action="store_true", help="also search with transformers, see above"
    )
    parser.add_argument(
        "--ctranslate2", action="store_true", help="also search with CTranslate2, see above"
    )
    parser.add_argument("--out", type=Path, help="also write the table here, in Markdown")
    options = parser.parse_args(arguments)
    if options.text and not options.data:
        parser.error("--text needs DATA: its dictionary, subword model and parser")
    return options


def main() -> None:
    """Measure all models and print the table."""
    options = parse_arguments()
    # fairseq reports every dictionary, and torch its deprecated names, between the progress bars.
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    models = build_models(options)
    if options.transformers:
        models += [replace(built, name=built.name + _EXPORTED) for built in models]
    if options.ctranslate2:
        from fairseq_phrase.inference.exports import obstacle

        models += [
            replace(built, name=f"{built.name}{_CONVERTED}{kind}")
            for built in models
            if not built.name.endswith(_EXPORTED) and obstacle(built.model) is None
            for kind in ("float32", "int8")
        ]
    if options.text:
        use_parsers(models, options)
    decoding, encoding, counts = measure(models, options)
    source = options.text or (options.subset if options.data else "random")
    conditions = (
        f"{describe_machine(options.device)}, {options.dtype}, size {options.size}, beam "
        f"{options.beam}, {len(counts)} batches of {options.batch_size} sentences ({source}), "
        f"{options.target_length} target tokens, median of the batches, in turns"
        f"{f', parser {options.parser}' if options.parser else ''}"
    )
    report = f"{conditions}\n\n{table(models, decoding, encoding, counts)}\n"
    print(report)
    if options.out:
        options.out.write_text(report)


if __name__ == "__main__":
    main()
