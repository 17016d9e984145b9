"""A parallel corpus with gold trees on both sides, from treebank files to a training."""

from __future__ import annotations

import gzip
from itertools import zip_longest

import pytest
import torch
from fairseq_cli import train as train_command

from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.text import read_lines
from tests.support.commands import SIZES, TRAINING
from tests.support.repository import shared_data
from tests.support.stores import TREE_FIELDS
from tests.twins.projectivity import is_projective


@pytest.fixture(scope="module")
def parallel_treebank(tmp_path_factory, synthetic_corpus):
    """A parallel corpus with gold trees on both sides: the PUD treebanks, else the synthetic one."""
    treebanks = shared_data("treebanks")
    if treebanks is None:
        return synthetic_corpus
    folder = tmp_path_factory.mktemp("pud")
    for language in ("de", "en"):
        path = treebanks / "pud" / f"{language}_pud-ud-test.conllu.gz"
        content = gzip.decompress(path.read_bytes()).decode("utf-8")
        (folder / f"train.{language}.conllu").write_text(content, encoding="utf-8")
        text = [x for x in content.split("\n") if x.startswith("# text = ")]
        lines = [line.removeprefix("# text = ") for line in text]
        (folder / f"train.{language}").write_text(
            "".join(f"{x}\n" for x in lines), encoding="utf-8"
        )
    return folder


@pytest.fixture(scope="module")
def treebank_data(parallel_treebank, tmp_path_factory):
    out = tmp_path_factory.mktemp("treebank") / "data"
    preprocess_command.main(
        ["-s", "de", "-t", "en", f"--trainpref={parallel_treebank / 'train'}", "--vocab-size", "500",
         "--parser", "conllu", "--parse", "both", "--constituents", "from-dependencies",
         "--joined-dictionary", "--destdir", str(out)]
    )  # fmt: skip
    return out


@pytest.mark.slow
def test_a_parallel_treebank_is_read_with_all_its_trees(parallel_treebank, treebank_data):
    for language in ("de", "en"):
        text = parallel_treebank / f"train.{language}"
        gold = ConlluFiles().read(parallel_treebank / f"train.{language}.conllu", read_lines(text))
        store = ParseStore(treebank_data, "train.de-en", language, set(TREE_FIELDS))
        not_projective = 0
        for parse, sentence in zip_longest(map(store.__getitem__, range(len(store))), gold):
            assert parse["heads"].tolist() == sentence.tree.heads.tolist()
            not_projective += not is_projective(sentence.tree)
        assert Manifest.load(treebank_data, language).splits["train.de-en"].unparsed_flat == 0
    assert not_projective < len(store)


def test_an_encoder_trains_on_the_gold_trees_of_the_target_side(treebank_data, command, tmp_path):
    command(
        train_command, treebank_data, "--user-dir", "fairseq_phrase", "--task",
        "syntax_translation", "--source-lang", "en", "--target-lang", "de", *TRAINING, *SIZES,
        "--arch", "tree_transformer_tiny", "--save-dir", tmp_path, "--max-tokens", "800",
        "--max-update", "3", "--disable-validation",
    )  # fmt: skip
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert state["optimizer_history"][-1]["num_updates"] == 3
