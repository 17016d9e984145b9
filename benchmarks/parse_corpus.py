"""The cost of adding parses to a corpus, in addition to the parser itself.

Four tables, each from one run (``--tables`` selects tables):

- ``parsing``: only ``nlp.pipe``, the corpus driver in this process, and the driver in two processes,
  in turns on the same lines. The time is from loading the pipeline to the last parse.
  Target: the driver has at least 0.95 of the speed of ``nlp.pipe``, and two
  processes have 1.7 of the speed of one.
- ``loading``: one sentence's parse from disk, and opening a data directory of 4.5 million sentences
  (made up for this). Target: under 20 µs; under a second and 200 MB.
- ``disk``: bytes per subword. Target: 6 for words, heads, relations and tags; 12 with constituents.
- ``memory``: the peak memory of the whole command by the size of the corpus. The corpus repeats
  ``--text`` several times, from the second time on with a new word at the end of each line. Target: no
  growth beyond SentencePiece's sample.

Example:
    python benchmarks/parse_corpus.py --text multi30k/train.de --other multi30k/train.en \\
        --pipeline de_core_news_sm --rounds 3
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from measuring import Turns, describe_machine, rotated

from fairseq_phrase.data.preprocessing.engines import EngineOptions
from fairseq_phrase.data.preprocessing.first_pass import parse_and_count
from fairseq_phrase.data.preprocessing.options import Options
from fairseq_phrase.data.preprocessing.segmentation import RawText
from fairseq_phrase.data.preprocessing.splits import Split
from fairseq_phrase.data.preprocessing.texts import Corpus
from fairseq_phrase.data.store.indexed import IndexedWriter
from fairseq_phrase.data.store.layout import shared_index
from fairseq_phrase.data.store.manifest import Manifest, SplitRecord, fingerprint
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.data.subwords.segmenters import SharedSegmenter
from fairseq_phrase.option_values import WHOLE_WORDS
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from fairseq_phrase.parsers.spacy import BATCH_LINES, SpacyParser, unused_components
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.text import digest_of, read_lines

SPLIT = "train.xx-yy"
#: Numbers of a made-up sentence in each field: 25 words, 30 subwords and 20 constituents.
LARGE = {"words": 30, "heads": 25, "deprels": 25, "tags": 25, "spans": 60}


def timed(run: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def parse(text: Path, parsing: ParsingOptions, folder: Path, workers: int) -> None:
    """Parse a text as preprocessing does in its first pass, without splitting words."""
    pipeline = ParsingPipeline(parsing)
    corpus = Corpus("train.xx", text, sum(1 for _ in read_lines(text)), digest_of(text))
    segmenter = SharedSegmenter(WHOLE_WORDS, None)
    split = Split(
        "train", "train", [RawText("xx", corpus, pipeline, pipeline.fields, segmenter)], True
    )
    split.write_to([folder])
    engine = EngineOptions(workers=workers)
    options = Options("xx", None, folder, {}, {}, on_error="flat", max_flat=1, engine=engine)
    parse_and_count(options, [split], folder / "blocks")


def parsing_table(text: Path, pipeline: str, rounds: int) -> None:
    """Print sentences/s of bare spaCy, the driver, and the driver in two processes."""
    parsing = ParsingOptions(f"spacy:{pipeline}")
    lines = list(read_lines(text))
    unused = sorted(unused_components(SpacyParser(pipeline)._components))

    def bare() -> None:
        import spacy

        nlp = spacy.load(pipeline, exclude=unused)
        for _ in nlp.pipe(lines, batch_size=BATCH_LINES):
            pass

    def driver(workers: int) -> Callable[[], None]:
        def run() -> None:
            with tempfile.TemporaryDirectory() as folder:
                parse(text, parsing, Path(folder), workers)

        return run

    ways = {"nlp.pipe": bare, "driver": driver(1), "driver, 2 processes": driver(2)}
    turns = Turns()
    for number in range(rounds):
        times = {way: timed([*ways.values()][way]) for way in rotated(len(ways), number)}
        turns.rows.append([times[way] for way in range(len(ways))])
    against = [
        "",
        f"{turns.speed(1):.3f} of nlp.pipe",
        f"{turns.speed(2, base=1):.2f} of one process",
    ]
    print("| parsing | sentences/s | against |\n|---|--:|---|")
    for way, name in enumerate(ways):
        print(f"| {name} | {len(lines) / turns.median(way):,.0f} | {against[way]} |")


def make_data(text: Path, other: Path, pipeline: str, vocabulary: int, workers: int) -> Path:
    """Return a data directory, in a separate folder."""
    # Imported here, because each parsing process imports this file and does not need fairseq.
    from fairseq_phrase.data.preprocessing.preprocess import preprocess

    root = Path(tempfile.mkdtemp())
    for path, language in ((text, "xx"), (other, "yy")):
        (root / f"train.{language}").write_text(
            "".join(f"{line}\n" for line in read_lines(path)), encoding="utf-8"
        )
    preprocess(
        Options(
            "xx",
            "yy",
            root / "data",
            {"train": str(root / "train")},
            {"xx": ParsingOptions(f"spacy:{pipeline}", "from-dependencies")},
            vocab_size=vocabulary,
            joined_dictionary=True,
            on_error="flat",
            engine=EngineOptions(workers=workers),
        )
    )
    return root / "data"


def loading_table(data: Path, sentences: int) -> None:
    """Print the time to load a sentence's parse, and to open a large data directory."""
    store = ParseStore(data, SPLIT, "xx", set(Manifest.load(data, "xx").fields))
    order = random.Random(1).sample(range(len(store)), min(len(store), 10_000))
    alone = timed(lambda: [store[index] for index in order]) / len(order)
    batches = [np.array(order[start : start + 100]) for start in range(0, len(order), 100)]
    together = timed(lambda: [store.together(batch) for batch in batches]) / len(order)
    print("\n| loading | |\n|---|--:|")
    print(f"| one sentence, all its fields | {1e6 * alone:.1f} µs |")
    print(f"| one sentence of a batch of 100 | {1e6 * together:.1f} µs |")
    with tempfile.TemporaryDirectory() as folder:
        make_large(Path(folder), sentences)
        code = (
            "import json, re, time\n"
            "from fairseq_phrase.data.store.reader import ParseStore\n"
            "def peak():\n"
            "    status = open('/proc/self/status').read()\n"
            "    return int(re.search(r'VmHWM:\\s+(\\d+)', status)[1])\n"
            "before = peak()\n"
            "begin = time.perf_counter()\n"
            f"store = ParseStore({folder!r}, {SPLIT!r}, 'xx', {set(LARGE)!r})\n"
            "store[len(store) // 2]\n"
            "taken = time.perf_counter() - begin\n"
            "print(json.dumps([taken, peak(), peak() - before]))\n"
        )
        process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    time, peak, more = json.loads(process.stdout)
    print(f"| opening {sentences:,} sentences | {time:.2f} s |")
    print(f"| resident after it, of which for it | {peak / 1024:.0f} MB, {more / 1024:.0f} MB |")


def make_large(folder: Path, sentences: int) -> None:
    """Write a data directory of made-up parses."""
    generator = np.random.default_rng(1)
    paths = []
    for name, size in {"": 31, **LARGE}.items():
        prefix = folder / f"{SPLIT}.xx{name and '.'}{name}"
        own_index = not name or shared_index(name, FIELDS) is None
        arrays = sentences // 1000 * 1000
        writer = IndexedWriter(prefix, np.dtype(np.uint8), arrays if own_index else None)
        for _ in range(sentences // 1000):
            block = generator.integers(0, 25, 1000 * size, dtype=np.uint8)
            writer.append(block, np.full(1000, size))
        writer.close()
        paths += writer.paths
    (folder / "dict.xx.txt").write_text("a 1\n")
    manifest = Manifest(
        "xx", "spacy:x", "x", list(LARGE), "parser", False, "sentencepiece", "spm.model",
        fingerprint(folder / "dict.xx.txt"),
    )  # fmt: skip
    checksums = {path.name: fingerprint(path) for path in paths}
    manifest.splits[SPLIT] = SplitRecord(sentences, 25 * sentences, 30 * sentences, checksums)
    manifest.save(folder)


def disk_table(data: Path) -> None:
    """Print bytes per subword."""
    subwords = Manifest.load(data, "xx").splits[SPLIT].subwords
    sizes = {
        name: sum(path.stat().st_size for path in data.glob(f"{SPLIT}.xx.{name}.*"))
        for name in FIELDS
    }
    four = sum(size for name, size in sizes.items() if name != "spans")
    print("\n| disk | bytes per subword |\n|---|--:|")
    print(f"| words, heads, relations, tags | {four / subwords:.2f} |")
    print(f"| and constituents | {sum(sizes.values()) / subwords:.2f} |")


def memory_table(
    text: Path, other: Path, pipeline: str, sizes: Sequence[int], sample: int, vocabulary: int
) -> None:
    """Print the peak memory of the whole command on corpora of several sizes."""
    print(
        f"\n| sentence pairs (SentencePiece trained on {sample:,} lines) | peak memory | minutes |"
    )
    print("|--:|--:|--:|")
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for path, language in ((text, "xx"), (other, "yy")):
                with open(folder / f"train.{language}", "w", encoding="utf-8") as out:
                    out.writelines(islice(varied(path), size))
            command = [
                sys.executable, "-m", "fairseq_phrase", "preprocess", "-s", "xx", "-t", "yy",
                "--trainpref", str(folder / "train"), "--destdir", str(folder / "data"),
                "--parser", f"spacy:{pipeline}", "--constituents", "from-dependencies",
                "--on-error", "flat", "--joined-dictionary", "--vocab-size", str(vocabulary),
                "--sentencepiece-lines", str(sample),
            ]  # fmt: skip
            begin = time.perf_counter()
            run = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
            )
            _, status, usage = os.wait4(run.pid, 0)
            minutes = (time.perf_counter() - begin) / 60
        if status:
            sys.exit(f"the command failed on {size:,} pairs: {' '.join(command)}")
        print(f"| {size:,} | {usage.ru_maxrss / 1024:,.0f} MB | {minutes:.1f} |", flush=True)


def varied(path: Path) -> Iterator[str]:
    """Yield a text's lines without end; after the first round, each line ends with a new word."""
    yield from (f"{line}\n" for line in read_lines(path))
    for number, line in enumerate(itertools.cycle(read_lines(path))):
        yield f"{line} {number}\n"


def main() -> None:
    """Run the tables."""
    tables = ("parsing", "loading", "disk", "memory")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="text to parse (.gz too)")
    parser.add_argument("--other", type=Path, required=True, help="its other side")
    parser.add_argument("--pipeline", required=True, help="spaCy pipeline, a package or a folder")
    parser.add_argument(
        "--lines", type=int, default=29_000, help="so many: the first, or all several times"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocab-size", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=1, help="processes that make the data")
    parser.add_argument("--tables", nargs="+", choices=tables, default=tables)
    parser.add_argument(
        "--memory-pairs", type=int, nargs="+", default=[25_000, 100_000, 400_000],
        help="sizes of the corpora of the table of memory",
    )  # fmt: skip
    parser.add_argument(
        "--sentencepiece-lines", type=int, default=50_000, help="SentencePiece's sample there"
    )
    parser.add_argument("--large", type=int, default=4_500_000, help="sentences to open")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        texts = []
        for path in (options.text, options.other):
            texts.append(Path(folder) / path.name.removesuffix(".gz"))
            lines = islice(itertools.cycle(read_lines(path)), options.lines)
            texts[-1].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"{describe_machine('cpu')}, {options.lines:,} lines of {options.text.name}\n")
        tables = set(options.tables)
        if "parsing" in tables:
            parsing_table(texts[0], options.pipeline, options.rounds)
        if tables & {"loading", "disk"}:
            data = make_data(*texts, options.pipeline, options.vocab_size, options.workers)
            loading_table(data, options.large)
            disk_table(data)
        if "memory" in tables:
            memory_table(
                *texts, options.pipeline, options.memory_pairs, options.sentencepiece_lines,
                options.vocab_size,
            )  # fmt: skip


if __name__ == "__main__":
    main()
