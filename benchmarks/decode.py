"""Sentences per second of beam search with our models, compared with fairseq's search and Transformer.

All models have the same sizes and random weights. They translate the same sentences in turns: a slowdown
of the machine affects all of them. With random weights no hypothesis ends early: all have --target-length
tokens, so every model takes the same number of steps. The table shows medians over the batches:

- ``sentences/s``: of beam search from subwords and, if the model needs them, parses,
- ``measured``: sentences per second divided by those of the first row, the median of the paired ratios,
- ``parsing, ms``: segmenting a batch of raw lines into words and subwords and, for models that need
  trees, parsing them, on one thread, as fairseq-interactive does with ``--tokenizer syntax --bpe
  syntax``,
- ``with parsing``: sentences per second of both together, and the ratio to the first row without
  parsing, as in the paper's table 1 (2.48 / 3.23 = 0.77).

The first row is fairseq's Transformer in fairseq's own search (``--fairseq-search``: every model).

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
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.sequence_generator import SequenceGenerator
from measuring import (
    Turns,
    add_out,
    describe_machine,
    one_turn,
    progress,
    report,
    run_command,
)
from translation_models import Built, Sample, add_arguments, build_models, load_dataset

from fairseq_phrase.text import markdown_table

_EXPORTED = ", transformers"
_CONVERTED = ", CTranslate2 "
_FAIRSEQ = ", fairseq's search"


def draw_sentences(models: list[Built], options: argparse.Namespace) -> list[Sample]:
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

    def generate(self, models: list[Any], sample: Sample) -> Any:
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

    def generate(self, models: list[Any], sample: Sample) -> Any:
        """Translate a batch."""
        from fairseq_phrase.inference.factored_tokens import batch_texts

        rows = batch_texts(self._built.task, self._built.model, sample["net_input"])
        return self._translator.translate_batch(rows, **self._options)


def measure(models: list[Built], options: argparse.Namespace) -> tuple[Turns, Turns, list[int]]:
    """Translate in turns.

    Returns:
        For each batch each model's seconds of beam search and of encoding raw lines, and the number of
        its sentences. Without raw lines nothing is encoded.
    """
    device = torch.device(options.device)
    generators = [_generator(built, options) for built in models]
    work: list[Any] = list(read_lines(options)) if options.text else draw_sentences(models, options)
    decoding, encoding, counts = Turns(), Turns(), []
    for number, batch in enumerate(progress([work[0], *work], unit="batch")):
        samples, encoded = [batch] * len(models), []
        if options.text:
            runs = [
                partial(_encode, samples, way, built, batch) for way, built in enumerate(models)
            ]
            encoded = one_turn(runs, number, torch.device("cpu"))
        samples = [built.own_inputs(x) for built, x in zip(models, samples, strict=True)]
        samples = utils.move_to_cuda(samples) if device.type == "cuda" else samples
        times = one_turn(
            [
                partial(generator.generate, [built.model], sample)
                for generator, built, sample in zip(generators, models, samples, strict=True)
            ],
            number,
            device,
        )
        if number > 0:  # the first batch warms up
            decoding.rows.append(times)
            encoding.rows.append(encoded)
            counts.append(len(samples[0]["net_input"]["src_tokens"]))
    return decoding, encoding, counts


def _encode(samples: list[Any], way: int, built: Built, lines: list[str]) -> None:
    """Segment raw lines into subwords and parse them, for a model."""
    source = built.task.source_text
    samples[way] = source.batch(source.encode(lines))


def _generator(built: Built, options: argparse.Namespace) -> Any:
    """Return the search with a model."""
    if built.name.endswith(_EXPORTED):
        return Exported(built, options)
    if _CONVERTED in built.name:
        return Converted(built, options, built.name.rpartition(" ")[2])
    sizes = argparse.Namespace(beam=options.beam, max_len_a=0, max_len_b=options.target_length)
    kind = SequenceGenerator if built.name.endswith(_FAIRSEQ) else None
    return built.task.build_generator([built.model.eval()], sizes, kind)


def table(models: list[Built], decoding: Turns, encoding: Turns, counts: list[int]) -> str:
    """Format the measurements in Markdown."""
    headings = ["model", "sentences/s", "measured"]
    lines = [
        [built.name, f"{decoding.rate(way, counts):.2f}", f"{decoding.speed(way):.3f}"]
        for way, built in enumerate(models)
    ]
    if any(encoding.rows):
        headings += ["parsing, ms", "with parsing", "measured"]
        for way, line in enumerate(lines):
            pairs = zip(decoding.rows, encoding.rows, strict=True)
            # The first row's beam search without parsing, and this model's with it.
            sums = Turns([[row[0], row[way] + own_row[way]] for row, own_row in pairs])
            line += [f"{1e3 * encoding.median(way):.0f}"]
            line += [f"{sums.rate(1, counts):.2f}", f"{sums.speed(1):.3f}"]
    return markdown_table(headings, lines, texts=1)


def use_parsers(models: list[Built], options: argparse.Namespace) -> None:
    """Parse raw lines for models that need trees; for other models only tokenize them."""
    for built in models:
        needs_tree = built.parses - {"src_words"}
        built.task.cfg.source_parser = options.parser if needs_tree else "none"


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
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
        "--fairseq-search", action="store_true", help="also search with fairseq, see above"
    )
    parser.add_argument(
        "--transformers", action="store_true", help="also search with transformers, see above"
    )
    parser.add_argument(
        "--ctranslate2", action="store_true", help="also search with CTranslate2, see above"
    )
    add_out(parser)


def decode(options: argparse.Namespace) -> None:
    """Measure all models and print the table."""
    if options.text and not options.data:
        sys.exit("--text needs DATA: its dictionary, subword model and parser")
    own = build_models(options)
    stock = own if options.fairseq_search else own[:1]
    models = [replace(built, name=built.name + _FAIRSEQ) for built in stock] + own
    if options.transformers:
        models += [replace(built, name=built.name + _EXPORTED) for built in own]
    if options.ctranslate2:
        from fairseq_phrase.inference.exports import export_obstacle

        models += [
            replace(built, name=f"{built.name}{_CONVERTED}{kind}")
            for built in own
            if export_obstacle(built.model) is None
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
    report(conditions, table(models, decoding, encoding, counts), options.out)


if __name__ == "__main__":
    sys.exit(run_command(decode, add_decoding_arguments, __doc__))
