"""How commands start: what is imported before the arguments are read, and what late."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys

import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.optional_packages import import_transformers
from fairseq_phrase.repairs import late_imports
from tests.support.repository import REPOSITORY

# Each of these takes from a tenth of a second to several seconds.
HEAVY = {
    "torch", "fairseq", "spacy", "stanza", "numpy", "scipy", "sacrebleu", "sentencepiece", "tqdm",
    "matplotlib", "ray", "omegaconf", "hydra", "yaml", "jinja2", "transformers", "safetensors",
}  # fmt: skip
CODE = """
import importlib, json, pkgutil, sys
from fairseq_phrase import cli
for module in pkgutil.iter_modules(cli.__path__):
    command = importlib.import_module(f"{cli.__name__}.{module.name}")
    if hasattr(command, "make_parser"):
        assert command.make_parser().format_help()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_help_and_version_import_nothing_heavy():
    # In a process of its own, because the tests have imported everything.
    process = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    imported = set(json.loads(process.stdout))
    assert "argparse" in imported
    assert imported & HEAVY == set()


PARSE = ["-s", "de", "-t", "en", "--trainpref", "x", "--parser", "spacy:de_nowhere"]
NOWHERE = ["--source-parser", "spacy:de_nowhere"]
REFUSED = [
    (["translate", "--path", "x", "--nbest", "10", "--beam", "5"], "1 to the number of beams, 5"),
    (["translate", "--path", "x", "--out", "nowhere/x"], "--out: there is no folder nowhere"),
    (["translate", "{bundle}", "--path", "x"], "is a bundle, which has its own model"),
    (["translate", "--path", "x", *NOWHERE], "spacy download de_nowhere"),
    (["label", "x", "--path", "x", *NOWHERE], "spacy download de_nowhere"),
    (["preprocess", *PARSE], "spacy download de_nowhere"),
    (["attach", "x", "--bpe", "subword_nmt", *PARSE], "spacy download de_nowhere"),
]
REFUSING = """
import json, sys
from contextlib import suppress
from fairseq_phrase.__main__ import main
for arguments in json.loads(sys.argv[1]):
    with suppress(SystemExit):
        main(arguments)
assert not {"torch", "fairseq", "spacy"} & sys.modules.keys()
"""


def test_options_are_refused_in_one_line_before_slow_imports(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    commands = [[part.format(bundle=tmp_path) for part in command] for command, _ in REFUSED]
    process = subprocess.run(
        [sys.executable, "-c", REFUSING, json.dumps(commands)],
        capture_output=True, text=True, cwd=REPOSITORY,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    for line, (_, message) in zip(process.stderr.splitlines(), REFUSED, strict=True):
        assert message in line


LATE = """
import sys
from fairseq_phrase.repairs.late_imports import import_late

import_late()
import fairseq_phrase, spacy
fairseq_phrase.register()
late = {"sklearn", "sklearn.metrics", "scipy.stats", "spacy.cli", "spacy.cli.info"}
assert not late & set(sys.modules), late & set(sys.modules)

from hydra.core.config_store import ConfigStore

stored = ConfigStore.instance().repo["model"]["phrase_transformer.yaml"]
assert "node" not in vars(stored)
options = ConfigStore.instance().load("model/phrase_transformer.yaml").node
assert (options._name, options.phrase_max_length) == ("phrase_transformer", 2)

import numpy as np
from fairseq.criterions.sentence_prediction import acc_and_f1, matthews_corrcoef, pearson_and_spearman
from fairseq.tasks.audio_classification import sklearn_metrics

right, found = np.array([0, 1, 1, 1]), np.array([0, 1, 1, 0])
assert acc_and_f1(found, right) == {"acc": 0.75, "f1": 0.8, "acc_and_f1": 0.775}
assert abs(matthews_corrcoef(found, right) - 3**-0.5) < 1e-9
assert abs(pearson_and_spearman(found, right)["corr"] - 3**-0.5) < 1e-9
assert sklearn_metrics.roc_curve(right, found)[0].tolist() == [0, 0, 1]
assert spacy.info(silent=True)["spacy_version"] == spacy.__version__

import scipy.stats, sklearn.metrics, spacy.cli
assert {*map(type, (scipy.stats, sklearn, sklearn.metrics, spacy.cli))} == {type(sys)}
assert scipy.stats.norm.cdf(0) == 0.5
"""


def test_what_fairseq_and_spacy_import_late_works_when_it_is_used():
    process = subprocess.run(
        [sys.executable, "-c", LATE], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert process.returncode == 0, process.stderr


def test_what_reads_all_modules_takes_a_late_one_for_a_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "late", late_imports.LateModule("late"))
    assert inspect.getmodule(inspect.currentframe()).__name__ == __name__
    with pytest.raises(ModuleNotFoundError, match="'late' is not a package"):
        importlib.import_module("late.part")


def test_a_process_ends_while_input_may_still_come():
    code = """
import sys
from fairseq_phrase.inference.raw_lines import ahead
print(next(ahead(sys.stdin, str)), end="")
sys.exit(3)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdin.write("a line\n")
        process.stdin.flush()
        try:
            assert process.wait(100) == 3
        finally:
            process.kill()
        assert process.stdout.read() == "a line\n"


@pytest.mark.slow
def test_what_a_script_has_imported_stays():
    code = (
        "import scipy.stats, sklearn.metrics, fairseq_phrase; fairseq_phrase.register()\n"
        "from fairseq.criterions import sentence_prediction\n"
        "assert sentence_prediction.f1_score is sklearn.metrics.f1_score\n"
        "assert sentence_prediction.pearsonr is scipy.stats.pearsonr\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert process.returncode == 0, process.stderr


def test_a_torchaudio_of_another_torch_is_named(tmp_path, monkeypatch):
    (tmp_path / "torchaudio.py").write_text("raise OSError('Could not load this library: x.so')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchaudio", raising=False)
    with pytest.raises(UserError, match=r"another torch .*x\.so.*: pip uninstall torchaudio"):
        import_transformers("this")
