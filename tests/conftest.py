"""What the tests share: corpora, a preprocessed data directory, a spaCy pipeline.

Nothing here needs a download. Real treebanks, texts and pipelines are used where they are at hand
(see :mod:`tests.support.repository`). Otherwise the synthetic corpus and a pipeline trained on it
replace them, and pytest's header says so.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import settings

import fairseq_phrase
from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.cli import synthetic as synthetic_command
from fairseq_phrase.data.preprocessing.subword_models import (
    CharacterOptions,
    train_sentencepiece,
)
from fairseq_phrase.data.subwords.segmenters import SentencePieceSegmenter
from tests.support import data_workers, packages, refusals, warm_start
from tests.support.repository import REPOSITORY, shared_data, shared_pipeline
from tests.support.shared import made_once

# Machines that run tests are busy: how long an example takes says nothing. In CI the same examples
# come every time, and more of them (scripts/test.sh --all takes as many).
settings.register_profile("project", deadline=None, max_examples=15)
settings.register_profile("thorough", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("thorough" if "CI" in os.environ else "project")

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports that it was started
# Else commands print a note about MKL on an AMD processor, where a test expects one message.
os.environ.setdefault("FAIRSEQ_PHRASE_MKL", "as-it-is")
if not os.access(os.path.expanduser("~"), os.W_OK):
    # Else matplotlib makes a folder that the first fork of a warm process removes.
    os.environ.setdefault("MPLCONFIGDIR", f"{tempfile.gettempdir()}/matplotlib-of-tests")
    os.environ.setdefault("HF_HOME", f"{tempfile.gettempdir()}/huggingface-of-tests")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else Ray keeps a token there
if find_spec("fairseq"):  # scripts/release_check.sh runs tests where it is absent
    from tests.support import attaching, composing

    fairseq_phrase.register()
    composing.remember()
sys.path.append(str(REPOSITORY / "tests/support/installed"))  # parsers, as of another package
data_workers.end_at_once()
refusals.record()
warm_start.spawn(warm_start.python)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the values of a test that are beyond those of its ``fast`` mark as slow."""
    counts: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("fast"):
            counts[test := item.nodeid.partition("[")[0]] += 1
            if counts[test] > mark.args[0]:
                item.add_marker(pytest.mark.slow)


def pytest_report_header() -> list[str]:
    return [
        f"multi30k: {shared_data('multi30k') or 'not here, the synthetic corpus stands in'}",
        f"treebanks: {shared_data('treebanks') or 'not here, the synthetic corpus stands in'}",
        f"spaCy pipeline: {shared_pipeline() or 'not here, one is trained for the tests'}",
    ]


@pytest.fixture
def table(tmp_path) -> Path:
    """A table's two rows of two seeds, and the reference."""
    from tests.support.report_table import write_table

    return write_table(tmp_path)


@pytest.fixture(scope="session")
def synthetic_corpus(tmp_path_factory) -> Path:
    """A folder with {train,valid,test}.{de,en} and .conllu beside each: 2,000, 100, 100 pairs."""
    sizes = ["--train", "2000", "--valid", "100", "--test", "100"]
    return made_once(
        tmp_path_factory,
        "corpus",
        lambda folder: synthetic_command.main(["--out", str(folder), *sizes]),
    )


@pytest.fixture(scope="session")
def data_directory(synthetic_corpus, tmp_path_factory) -> Path:
    """The synthetic corpus, preprocessed: de-en, joined dictionary of about 500, all fields of parses."""
    arguments = [f"--{name}pref={synthetic_corpus / name}" for name in ("train", "valid", "test")]
    options = ["--parser", "conllu", "--constituents", "from-dependencies"]
    options += ["--vocab-size", "500", "--joined-dictionary"]

    def make(folder: Path) -> None:
        destination = str(folder / "synthetic.de-en")
        preprocess_command.main(
            ["-s", "de", "-t", "en", *arguments, "--destdir", destination, *options]
        )

    return made_once(tmp_path_factory, "data", make) / "synthetic.de-en"


@pytest.fixture(scope="session")
def segmenter(data_directory) -> SentencePieceSegmenter:
    """The subword model of :func:`data_directory`."""
    return SentencePieceSegmenter(data_directory / "spm.model")


@pytest.fixture(scope="session")
def dictionary() -> Any:
    """Thirty words. Tests do not change it."""
    from fairseq_phrase.testing import make_dictionary

    return make_dictionary()


@pytest.fixture(scope="session")
def normalizing(tmp_path_factory):
    """A model with SentencePiece's default normal form, which removes invisible characters."""
    model = tmp_path_factory.mktemp("nmt") / "spm.model"
    characters = CharacterOptions("nmt_nfkc")
    train_sentencepiece(["das Haus", "die Frau"] * 9, model, 16, 1, characters)
    return SentencePieceSegmenter(model)


@pytest.fixture(scope="session")
def normalize(segmenter):
    """A word's normal form by SentencePiece, ``▁`` for every space and none added or taken away."""
    normalizer = sentencepiece.SentencePieceNormalizer(
        model_file=str(segmenter.model), add_dummy_prefix=False, remove_extra_whitespaces=False
    )
    return lambda word: normalizer.normalize(word).replace(" ", "▁")


@pytest.fixture(scope="session")
def trained_pipeline(synthetic_corpus, tmp_path_factory) -> Path:
    """A spaCy pipeline with a parser alone, trained for a moment on both sides' synthetic trees."""

    def make(folder: Path) -> None:
        train_pipeline(synthetic_corpus, folder / "de_synthetic")

    return made_once(tmp_path_factory, "pipeline", make) / "de_synthetic"


def train_pipeline(corpus: Path, destination: Path) -> None:
    """Write a spaCy pipeline with a parser, trained on both sides' trees of the validation set."""
    import spacy
    from spacy.tokens import Doc
    from spacy.training import Example

    from fairseq_phrase.parsers.conllu import ConlluFiles
    from fairseq_phrase.text import read_lines

    spacy.util.fix_random_seed(0)
    pipeline = spacy.blank("de")
    pipeline.add_pipe("parser")
    sentences = []
    for text in (corpus / "valid.de", corpus / "valid.en"):
        for sentence in ConlluFiles().read(Path(f"{text}.conllu"), read_lines(text)):
            gold = Doc(
                pipeline.vocab,
                sentence.words,
                [*sentence.space_before[1:], True],
                heads=sentence.tree.heads.tolist(),
                deps=sentence.deprels,
            )
            sentences.append(gold)
    # Some lines have two sentences.
    lines = sentences + [Doc.from_docs(sentences[i : i + 2]) for i in range(0, len(sentences), 2)]
    examples = [Example(pipeline.make_doc(line.text), line) for line in lines]
    optimizer = pipeline.initialize(lambda: examples)
    for batch in [*range(8)] * 6:
        pipeline.update(examples[batch::8], sgd=optimizer)
    pipeline.to_disk(destination)


@pytest.fixture
def english_parser(trained_pipeline) -> dict[str, str]:
    """The setting that names a parser of English: the shared one, or one trained here."""
    return {"FAIRSEQ_PHRASE_PARSER": f"spacy:{shared_pipeline('en_ewt_sm') or trained_pipeline}"}


@pytest.fixture(scope="session")
def spacy_pipeline(request) -> Path:
    """A spaCy pipeline's folder: the shared one, or one trained here."""
    return shared_pipeline() or request.getfixturevalue("trained_pipeline")


# Text that stock tools segment and binarize. Not to be changed.


@pytest.fixture(scope="session")
def gold_corpus(synthetic_corpus, tmp_path_factory) -> Path:
    """The first lines of the synthetic corpus: 200, 20, 30 pairs, with .conllu and .ptb."""
    return made_once(
        tmp_path_factory, "gold", lambda folder: attaching.shorten(synthetic_corpus, folder)
    )


@pytest.fixture(scope="session")
def bpe_corpus(gold_corpus, tmp_path_factory) -> Path:
    """Its tokens, split by subword-nmt."""
    return made_once(
        tmp_path_factory, "bpe", lambda folder: attaching.segment_tokens(gold_corpus, folder)
    )


@pytest.fixture(scope="session")
def stock_bpe_data(bpe_corpus, tmp_path_factory) -> Path:
    """Those in fairseq's format; rare subwords are unknown."""
    options = ("--joined-dictionary", "--thresholdsrc", "4")

    def make(folder: Path) -> None:
        attaching.binarize(bpe_corpus, folder / "data", *options)

    return made_once(tmp_path_factory, "stock_bpe", make) / "data"


@pytest.fixture(scope="session")
def attached_data(stock_bpe_data, bpe_corpus, tmp_path_factory) -> Path:
    """And with their gold trees."""
    options = (*attaching.GOLD, "--bpe-codes", bpe_corpus / "codes.de")

    def make(folder: Path) -> None:
        data = Path(shutil.copytree(stock_bpe_data, folder / "data"))
        attaching.attach(data, bpe_corpus, *options)

    return made_once(tmp_path_factory, "attached", make) / "data"


@pytest.fixture(scope="session")
def sp_corpus(gold_corpus, tmp_path_factory) -> Path:
    """Its raw lines, split by SentencePiece."""
    return made_once(
        tmp_path_factory, "sp", lambda folder: attaching.segment_lines(gold_corpus, folder)
    )


@pytest.fixture(scope="session")
def stock_sp_data(sp_corpus, tmp_path_factory) -> Path:
    """Those in fairseq's format."""

    def make(folder: Path) -> None:
        attaching.binarize(sp_corpus, folder / "data", "--joined-dictionary")

    return made_once(tmp_path_factory, "stock_sp", make) / "data"


@pytest.fixture
def command(monkeypatch, capsys, caplog):
    """Call one of fairseq's commands in this process; returns what it logged and printed.

    Starting one takes longer than what tests do with it.
    """

    def called(module, *arguments: object) -> str:
        loads = module.__name__.partition(".")[2] in ("generate", "train", "validate")
        if loads and "--num-workers" not in arguments:
            # torch loses a batch at times if a worker ends before its last batch is fetched.
            arguments += ("--num-workers", "0")
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        monkeypatch.chdir(REPOSITORY)
        caplog.clear()
        logging.disable(logging.NOTSET)
        with caplog.at_level(logging.INFO):
            module.cli_main()
        return "\n".join([*caplog.messages, capsys.readouterr().out])

    return called


@pytest.fixture
def install_parser(monkeypatch):
    """Install what makes ``--parser of-test``, as another package does."""
    return lambda make: monkeypatch.setattr(packages, "parser_of_test", make)


@pytest.fixture
def jobs_done(monkeypatch) -> list[int]:
    """The numbers of the jobs that runs of preprocessing do, not those that are kept from earlier."""
    from fairseq_phrase.data.preprocessing import first_pass

    numbers, run = [], first_pass.run_jobs

    def counted(jobs, *rest):
        return run((numbers.append(job.number) or job for job in jobs), *rest)

    monkeypatch.setattr(first_pass, "run_jobs", counted)
    return numbers


@pytest.fixture
def block_lines(monkeypatch):
    """Set the number of lines of a block of preprocessing, so that short texts have several."""
    from fairseq_phrase.data.preprocessing import texts

    return lambda count: monkeypatch.setattr(texts, "BLOCK_LINES", count)


@pytest.fixture
def longest_translation(monkeypatch):
    """Set the tokens of the longest translation, to which models go that have hardly learned."""
    from fairseq_phrase.inference import search

    return lambda tokens: monkeypatch.setattr(search, "LONGEST", tokens)


@pytest.fixture
def interrupted(monkeypatch):
    """A context in which a run of preprocessing is stopped, after its first pass, as by Ctrl-C."""
    from fairseq_phrase.data.preprocessing import preprocess

    def stop(*_):
        raise KeyboardInterrupt

    @contextmanager
    def stopped():
        with monkeypatch.context() as patch:
            patch.setattr(preprocess, "make_dictionaries", stop)
            with pytest.raises(SystemExit, match="130"):
                yield

    return stopped


@pytest.fixture
def printed_by_the_hook(monkeypatch, capsys):
    """Return what a command prints that ends with an error; Python's own hook comes back."""
    from fairseq_phrase.repairs.commands import print_user_errors_plainly

    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    print_user_errors_plainly()

    def printed(error: BaseException) -> str:
        sys.excepthook(type(error), error, error.__traceback__)
        return capsys.readouterr().err

    return printed


@pytest.fixture
def refused(capsys):
    """Call a command that stops; returns what it printed to standard error."""

    def called(function, *arguments: object, **options: object) -> str:
        with pytest.raises(SystemExit):
            function(*arguments, **options)
        return capsys.readouterr().err

    return called
