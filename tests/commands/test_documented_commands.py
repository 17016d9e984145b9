"""The commands of README and docs/ run, page by page, with small data and short trainings.

Scripts, the two examples of plugins, the demo and docs/tutorials/translate.md have tests of their own.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from fairseq_phrase.text import read_lines
from tests.support import warm_start
from tests.support.attaching import SPLITS, binarize, gold_of, write_first_trees, write_lines
from tests.support.documented import LEFT_OUT, blocks_of, install_pipelines, run_page
from tests.support.fairseq_bart import write_bart
from tests.support.huggingface_models import write_bert
from tests.support.labelled_corpora import write_corpus
from tests.support.repository import REPOSITORY
from tests.support.run_folders import write_generation

#: Pages of which the commands have tests of their own.
ELSEWHERE = {
    "docs/gpu.md", "docs/models/methods.md", "docs/own_tables.md", "docs/tables.md",
    "docs/tutorials/encoder.md", "docs/tutorials/tagger.md", "docs/tutorials/translate.md",
}  # fmt: skip
HERE = {
    "README.md", "docs/compare.md", "docs/compat.md", "docs/labelling.md", "docs/parsers.md",
    "docs/preprocessing.md", "docs/pretraining.md", "docs/probing.md", "docs/translate.md",
    "docs/usage.md",
    "docs/tutorials/dictionary.md", "docs/tutorials/grammatical_errors.md", "docs/tutorials/wmt14.md",
}  # fmt: skip
#: The sizes of --arch NAME_tiny, for an encoder.
TINY = (
    "--encoder-layers 3 --encoder-embed-dim 128 --encoder-ffn-embed-dim 256 "
    "--encoder-attention-heads 4"
)
TREE_MODEL = (
    "fairseq-train data-bin/multi30k.de-en --user-dir fairseq_phrase --task syntax_translation "
    "--arch tree_transformer_tiny --share-all-embeddings --optimizer adam --lr 0.005 "
    "--criterion cross_entropy --max-tokens 4096 --max-update 1 --save-dir tree"
)
STOCK_MODEL = (
    "fairseq-train data-bin/mine.en-de --arch transformer_tiny --optimizer adam --lr 0.005 "
    "--criterion cross_entropy --max-tokens 4096 --max-update 1 --save-dir stock"
)


@pytest.fixture(scope="module")
def packages(spacy_pipeline, tmp_path_factory) -> Path:
    """One pipeline under the names of the pages."""
    folder = tmp_path_factory.mktemp("packages")
    return install_pipelines(folder, spacy_pipeline, "de_core_news_sm", "en_core_web_sm")


def test_every_page_with_commands_is_run():
    pages = [
        "README.md",
        *(str(p.relative_to(REPOSITORY)) for p in REPOSITORY.glob("docs/**/*.md")),
    ]
    with_commands = {
        page
        for page in pages
        for line in "".join(blocks_of(page)).splitlines()
        if not line.startswith((*LEFT_OUT, "#"))
    }
    assert with_commands == HERE | ELSEWHERE


def test_documented_sampling_draws_as_many_translations_as_beams():
    """fairseq-interactive refuses others, and its example has other beams."""
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
    documented = [
        shlex.split(options)
        for page in pages
        for options in re.findall(r"`[^`]*(--sampling [^`]*)`", page.read_text(encoding="utf-8"))
    ]
    assert documented
    for options in documented:
        beams, translations = (options[options.index(name) + 1] for name in ("--beam", "--nbest"))
        assert beams == translations, options


@pytest.mark.slow
def test_usage_and_the_pages_that_go_on_with_its_models(
    packages, bpe_corpus, synthetic_corpus, tmp_path
):
    shutil.copytree(bpe_corpus, tmp_path / "bpe")
    shutil.copyfile(bpe_corpus / "codes.en", tmp_path / "bpe" / "codes")
    binarize(bpe_corpus, tmp_path / "data-bin" / "wmt14.en-de", "-s", "en", "-t", "de")
    binarize(bpe_corpus, tmp_path / "data-bin" / "mine.en-de", "-s", "en", "-t", "de")
    _probing_task(synthetic_corpus, tmp_path / "probing")
    begun = "fairseq-phrase-attach data-bin/mine.en-de"
    run_page(
        "docs/usage.md", tmp_path,
        {
            "--train 20000": "--train 120 --valid 20 --test 20",
            # The page has no commands for this model: it is trained "as above".
            "fairseq-phrase-analyze": f"{TREE_MODEL}\nfairseq-phrase-analyze",
            begun: f"{STOCK_MODEL}\n{begun}",
            "tree/average.pt": "tree/checkpoint_last.pt",
            "--layer all": "--layer all --hidden 20 --l2 0.001",
        },
        packages=packages,
    )  # fmt: skip
    compared, *_ = run_page(
        "docs/compare.md", tmp_path, left_out=("python scripts/", "fairseq-phrase-report RUNS"),
        packages=packages,
    )  # fmt: skip
    assert "PhraseTransformer of dependency chains" in compared
    for file in (
        "report/report.html",
        "attention.pdf",
        "tree.png",
        "probed/probing.png",
    ):
        assert (tmp_path / file).stat().st_size > 1000, file

    shutil.rmtree(tmp_path / "checkpoints")  # of another model
    small = {"--arch transformer": "--arch transformer_tiny --max-epoch 1"}
    run_page("docs/compat.md", tmp_path, small)
    write_lines(tmp_path / "input.de", ["Der Hund schläft.", "", "Der Student sieht den Hund."])
    run_page("docs/translate.md", tmp_path, packages=packages)
    assert len(list(read_lines(tmp_path / "output.en"))) == 3
    assert len(list(read_lines(tmp_path / "large.en"))) == 3

    shutil.copyfile(synthetic_corpus / "valid.en", tmp_path / "sentences.en")
    (tmp_path / "wsj").mkdir()
    for number in (1, 2):
        trees = (
            f"( (S (NP (DT The) (NN dog{number}{line})) (VP (VBZ barks)) (. .)) )"
            for line in range(30)
        )
        write_lines(tmp_path / "wsj" / f"wsj_000{number}.mrg", trees)
    run_page(
        "docs/probing.md", tmp_path,
        {
            "runs/structural/": "runs/chains/",
            "--layer all": "--layer all --hidden 20 --l2 0.001",
            "--out probing": "--out made",
        },
        left_out=("fairseq-phrase-probe --make top_constituents --text sentences.en --parser stanza",),
        packages=packages,
    )  # fmt: skip


def _probing_task(corpus: Path, folder: Path) -> None:
    """Is a sentence longer than most?"""
    folder.mkdir()
    lines = list(read_lines(corpus / "train.de"))[:150]
    median = sorted(len(line.split()) for line in lines)[75]
    for split, part in (("va", lines[:100]), ("te", lines[100:])):
        rows = [f"{line}\t{len(line.split()) > median}" for line in part]
        write_lines(folder / f"sentence_length.{split}.txt", rows)


def test_the_readme(tmp_path, monkeypatch, capsys):
    *_, printed = run_page(
        "README.md", tmp_path, {"--train 20000": "--train 200 --valid 20 --test 20"}
    )[:2]
    assert "BLEU" in printed
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"(?s)```python\n(.*?)```", text)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("[")


def test_preprocessing(packages, gold_corpus, bpe_corpus, tmp_path):
    shutil.copytree(gold_corpus, tmp_path / "corpus")
    for path in gold_corpus.iterdir():
        renamed = path.name.replace("valid.", "val.").replace("test.", "new.")
        shutil.copyfile(path, tmp_path / "corpus" / renamed)
    binarize(bpe_corpus, tmp_path / "stock", splits=("train",))
    # The text of the page is tokenized, and its codes and dictionaries are there already.
    (tmp_path / "wmt").mkdir()
    shutil.copyfile(bpe_corpus / "codes.de", tmp_path / "wmt" / "bpe.32000")
    for language in ("de", "en"):
        shutil.copyfile(tmp_path / f"stock/dict.{language}.txt", tmp_path / f"dict.{language}.txt")
        tokenized = read_lines(bpe_corpus / f"train.{language}")
        write_lines(
            tmp_path / f"wmt/train.tok.{language}", [line.replace("@@ ", "") for line in tokenized]
        )
    run_page(
        "docs/preprocessing.md", tmp_path,
        # The text is too short for parts, which have tests of their own.
        {"data1/": "data-bin/multi30k.de-en/", "--parts 4": "--parts 1"},
        packages=packages,
    )  # fmt: skip
    manifests = [
        json.loads(p.read_text()) for p in sorted(tmp_path.glob("data-bin/*/syntax.*.json"))
    ]
    assert len(manifests) == 5


def test_labelling_and_pretraining(packages, gold_corpus, tmp_path):
    corpus, treebank = write_corpus(tmp_path / "made"), tmp_path / "treebanks" / "en_ewt"
    treebank.mkdir(parents=True)
    for split, part in (("train", "train"), ("valid", "dev"), ("test", "test")):
        shutil.copyfile(corpus / f"{split}.en.conllu", treebank / f"en_ewt-{part}.conllu")
    write_lines(tmp_path / "text.en", ["the dog sees a cat", "every horse"])
    write_bert(tmp_path / "minilm", read_lines(corpus / "train.en"))
    (tmp_path / "mt").symlink_to(gold_corpus)
    for path in gold_corpus.iterdir():  # the page's labels go to corpus/ewt
        (tmp_path / "corpus").mkdir(exist_ok=True)
        (tmp_path / "corpus" / path.name).symlink_to(path)
    run_page(
        "docs/labelling.md", tmp_path,
        {
            "--column xpos": "--column upos",
            # The page has no commands for the baseline: it is trained "in the same way".
            "fairseq-phrase-report": "cp -r tagging/phrase tagging/transformer\nfairseq-phrase-report",
            "--encoder-embed-dim 384 --encoder-layers 6": "--encoder-embed-dim 16 --encoder-layers 2",
        },
        packages=packages,
    )  # fmt: skip
    run_page(
        "docs/pretraining.md", tmp_path,
        {
            "--encoder tree_transformer": f"--encoder tree_transformer {TINY} --max-update 1",
            "--arch tree_transformer": "--arch tree_transformer_tiny --max-update 1",
        },
        packages=packages,
    )  # fmt: skip
    labels = list(read_lines(tmp_path / "text.tag"))
    assert [len(line.split()) for line in labels] == [5, 2]
    assert len(list(read_lines(tmp_path / "tagging/phrase/seed1/labels-test.txt"))) >= 21
    assert (tmp_path / "report" / "report.html").exists()
    for trained in ("checkpoints/captions", "checkpoints"):
        assert (tmp_path / trained / "checkpoint_last.pt").exists()


def test_parsers(packages, synthetic_corpus, tmp_path):
    write_first_trees(synthetic_corpus / "train.en.conllu", tmp_path / "own.conllu", 400)
    small = {"--out corpus": "--out corpus --train 120 --valid 20 --test 20"}
    adapted, inspected = run_page("docs/parsers.md", tmp_path, small, packages=packages)
    assert adapted.count("whole trees") == 2
    assert "root" in inspected
    assert (tmp_path / "parsers" / "own" / "config.cfg").exists()


def test_the_tutorial_on_a_dictionary(packages, gold_corpus, tmp_path):
    (tmp_path / "text").mkdir()
    for split, language in itertools.product(SPLITS, ("de", "en")):
        shutil.copyfile(gold_corpus / f"{split}.{language}", tmp_path / f"text/{split}.{language}")
    write_lines(tmp_path / "words.tsv", ["Hund\tdog", "Hund\thound", "Student\tstudent"])
    write_lines(tmp_path / "new.de", ["Der Student sieht den Hund."])
    run_page("docs/tutorials/dictionary.md", tmp_path, packages=packages)
    (glossed,) = read_lines(tmp_path / "glossed" / "new.de")
    assert glossed == "Der Student sieht den Hund. . student dog hound"
    assert len(list(read_lines(tmp_path / "output.en"))) == 1


@pytest.mark.slow
def test_the_tutorial_on_grammatical_errors(packages, gold_corpus, tmp_path):
    (tmp_path / "gec").mkdir()
    for split in SPLITS:
        sentences = gold_of(gold_corpus, split, "en")
        m2 = (
            f"S {' '.join(words := sentence.words)}\n"
            f"A 0 1|||R|||{words[0].lower()}|||REQUIRED|||-NONE-|||0\n"
            for sentence in sentences
        )
        text = "\n".join(m2).encode()
        if split == "valid":
            (tmp_path / "valid.m2.gz").write_bytes(gzip.compress(text))
        else:
            (tmp_path / f"{split}.m2").write_bytes(text)
        trees = tmp_path / "gec" / f"{split}.src.conllu"
        shutil.copyfile(gold_corpus / f"{split}.en.conllu", trees)
    write_lines(tmp_path / "new.src", ["the dog sleeps .", "a student sees the dog ."])
    write_bart(tmp_path / "bart.base", tmp_path / "gec" / "train.src.conllu")
    small = {"--arch relation_transformer": "--arch relation_transformer_tiny"}
    run_page("docs/tutorials/grammatical_errors.md", tmp_path, small, packages=packages)
    assert (tmp_path / "gec" / "test.tgt").read_text() != (
        tmp_path / "gec" / "test.src"
    ).read_text()
    assert len(list(read_lines(tmp_path / "corrections.txt"))) == 30
    for name in ("new.corrected", "new.bart"):
        assert len(list(read_lines(tmp_path / name))) == 2
    checkpoints = {path.name for path in (tmp_path / "checkpoints" / "gec").glob("*.pt")}
    assert checkpoints == {"checkpoint_best.pt", "checkpoint_last.pt"}


@pytest.mark.slow
def test_the_tutorial_on_wmt14(packages, gold_corpus, bpe_corpus, tmp_path):
    downloads = tmp_path / "data" / "wmt14"
    downloads.mkdir(parents=True)
    for split, name in (
        ("train",) * 2,
        ("valid", "newstest2013"),
        ("test", "newstest2014.wmt14-full"),
    ):
        for language in ("en", "de"):
            (downloads / f"{name}.{language}").symlink_to(gold_corpus / f"{split}.{language}")
    shutil.copytree(bpe_corpus, tmp_path / "bpe")
    shutil.copyfile(bpe_corpus / "codes.en", tmp_path / "bpe" / "code")
    joined = ("-s", "en", "-t", "de", "--joined-dictionary")
    binarize(bpe_corpus, tmp_path / "data-bin" / "wmt14_en_de", *joined)
    run_page(
        "docs/tutorials/wmt14.md", tmp_path,
        {
            # Ray's cluster has tests of its own.
            "--engine ray": "--engine processes",
            "--ray-address auto": "",
            "torchrun --nproc_per_node 8": "torchrun --nproc_per_node 1",
            # torchrun starts an interpreter of its own. fairseq wants a GPU for each process of it.
            '"$(command -v fairseq-train)"': f"{warm_start.REAL}/fairseq-train",
            "_wmt_en_de_big": "_tiny",
            "--bf16": "--cpu --max-update 1",
        },
        packages=packages,
    )  # fmt: skip
    assert (tmp_path / "checkpoints" / "wmt14" / "checkpoint_last.pt").exists()


def test_the_command_for_a_plain_file_writes_the_translations_in_the_test_sets_order(tmp_path):
    page = (REPOSITORY / "docs/usage.md").read_text(encoding="utf-8")
    ((before, command),) = re.findall(r"^(sed .*) (runs\S+ \|.*) >", page, re.MULTILINE)
    hypotheses = [f"translation\t{number}" * (number != 3) for number in range(12)]
    path = write_generation(tmp_path / "generate.txt", hypotheses, hypotheses, hypotheses)
    lines = path.read_text(encoding="utf-8").splitlines()
    second = ["D-0\t-9.0\tthe second best"]
    path.write_text("\n".join([*lines[::-1], *second]) + "\n", encoding="utf-8")
    piped = f"{before} {shlex.quote(str(path))} {command.partition(' ')[2]}"
    output = subprocess.run(
        ["bash", "-c", piped], capture_output=True, text=True, check=True
    ).stdout
    assert output.splitlines() == hypotheses
