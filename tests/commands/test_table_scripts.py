"""The scripts of the papers' tables: each command of each row, and bad input."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from fairseq import options

from fairseq_phrase.cli import average, inspect_data, label, plot, preprocess, report, synthetic
from tests.support.commands import run_script
from tests.support.repository import REPOSITORY
from tests.support.selection import first_fast

OWN = {"preprocess": preprocess, "average": average, "report": report, "plot": plot}
OWN |= {"synthetic": synthetic, "inspect": inspect_data, "label": label}
DRY = "--dry-run"


def printed_commands(output: str) -> list[list[str]]:
    """The words of each command that a dry run prints, without redirections."""
    lines = (shlex.split(line, comments=True) for line in output.splitlines() if "\x1b" not in line)
    return [[word for word in words if not word.startswith(("<", ">"))] for words in lines if words]


@pytest.fixture
def parse(monkeypatch):
    """Let a command's own parser read its flags: an unknown one, or a bad value, ends the test."""
    monkeypatch.chdir(REPOSITORY)
    stock = {
        "fairseq-train": options.get_training_parser,
        "fairseq-generate": options.get_generation_parser,
        "fairseq-validate": options.get_validation_parser,
        "fairseq-interactive": options.get_interactive_generation_parser,
    }

    def parsed(words: list[str]):
        name, *arguments = words
        if name in stock:
            return options.parse_args_and_arch(stock[name](), arguments)
        if name.startswith("fairseq-phrase-"):
            return OWN[name.removeprefix("fairseq-phrase-")].make_parser().parse_args(arguments)
        return None

    return parsed


_known: set[tuple[str, ...]] = set()  # also of the tables that this process tested before


def of_different_options(commands: list[list[str]], out: Path) -> list[list[str]]:
    """One of all commands that differ in their seed and in their files below ``out``."""
    by_shape = {}
    for words in commands:
        shape = [re.sub(rf"{re.escape(str(out))}\S*", "FILE", word) for word in words]
        if "--seed" in shape:
            shape[shape.index("--seed") + 1] = "1"
        by_shape.setdefault(tuple(shape), words)
    new = [words for shape, words in by_shape.items() if shape not in _known]
    _known.update(by_shape)
    return new


TABLES = {
    "multi30k_table1": ["--setting", "tuned"],
    "multi30k_table1 paper": ["--setting", "paper"],
    "multi30k_table1 moses": ["--text", "moses"],
    "learning_curves": [],
    "learning_curves paper_size": ["--setting", "paper_size"],
    "wmt14_table2": ["--size", "base"],
    "wmt14_table2 big": ["--size", "big", "--gpus-per-run", "4", "--precision", "bf16"],
    "iwslt14_trees": ["--fractions", "1/4,1"],
    "iwslt14_trees authors": ["--text", "authors"],
    "nist_zh_en_table1": ["--data", "tests"],
    "which_syntax": [],
    "which_syntax de-en full": ["--direction", "de-en", "--setting", "full"],
    "which_syntax tatoeba": ["--corpus", "tatoeba", "--train-size", "1000"],
    "which_syntax gold": ["--corpus", "synthetic", "--trees", "gold"],
    "which_syntax parsed": ["--corpus", "synthetic", "--trees", "parsed"],
    **{f"true_trees {d}": ["--direction", d] for d in ("en-tr", "tr-en", "en-it")},
    "low_resource": [],
    "low_resource en-tr": ["--direction", "en-tr", "--train-size", "1000"],
    "ptb_tagging_table2": [],
    "ptb_tagging_table2 ptb": ["--data", "tests"],
    "semantic_parsing": ["--data", "tests"],
    "semantic_parsing atis": ["--corpus", "atis", "--data", "tests"],
    "compositional": ["--data", "tests"],
    "compositional scan": ["--corpus", "scan", "--split", "length", "--data", "tests"],
    "regex": ["--data", "tests"],
    "regex turk": ["--corpus", "turk", "--data", "tests"],
    "sql": [],
    "lecture_table": [],
    "chunking": ["--data", "tests"],
    "sst_imdb_table sst5": ["--data", "tests"],
    "sst_imdb_table sst2": ["--task", "sst2", "--data", "tests"],
    "sst_imdb_table imdb": ["--task", "imdb", "--data", "tests"],
    "pretraining objectives": ["--part", "objectives"],
    "pretraining translation": ["--part", "translation", "--fractions", "1/4,1"],
    "pretraining tagging": ["--part", "tagging"],
    "pretraining sst": ["--part", "sst"],
    "pretraining objectives documents": ["--text", "documents", "--part", "objectives"],
    "pretraining sst documents": ["--text", "documents", "--part", "sst"],
    **{
        f"pretrained_table {part}": ["--part", part]
        for part in ("tagging", "chunking", "sst", "translation")
    },
    "quickstart": [],
    "quickstart full": ["--full"],
    "quickstart fast": ["--fast"],
}


#: Words of the commands that make their reports.
REPORTED = {
    "multi30k_table1": "Multi30k de-en, test_2016_flickr, tuned setting --lowercase",
    "multi30k_table1 moses": "tuned setting, lower-cased tokens of Moses --tokenize none",
    "iwslt14_trees": "1/4 of the training data, constituents of spacy:any (from-dependencies)",
    "which_syntax tatoeba": "Tatoeba de-en, 1000 pairs, small setting",
    "which_syntax gold": "synthetic corpus, gold trees, 40000 pairs, small setting",
    "low_resource en-tr": "UD ATIS en-tr, FreeDict, 1000 pairs --metric file:unseen=",
    "ptb_tagging_table2 ptb": "Penn Treebank (tests) (the paper's numbers: the whole Penn Treebank)",
    "compositional": "Compositional generalization, slog --measure exact --form calls",
    "regex": "Regular expressions, NL-RX synth --measure exact --form regex",
    "sql": "WikiSQL, 10000 training questions --measure exact --form sql",
    "lecture_table": "Recurrent models and Transformers, Multi30k de-en --source",
    "chunking": "Chunking, CoNLL-2000 --measure spans",
    "sst_imdb_table imdb": "Classification, IMDB, reviews truncated to 1,024 tokens --measure labels",
}


#: Where a report of labels finds the sentences, below the folder, and whether it marks known words.
SENTENCES = {
    "ptb_tagging_table2": ("raw/labels", True),
    "chunking": ("raw/text", True),
    "sst_imdb_table sst5": ("raw/labels", False),
    "sst_imdb_table imdb": ("raw/labels", False),
    "pretraining tagging": ("tagging/raw", True),
    "pretraining sst": ("sst/raw", False),
    "pretrained_table chunking": ("chunking/raw", False),
    "pretrained_table sst": ("sst/raw", False),
}
#: Rows that a second report of labels compares with.
RELATIVE = {
    "ptb_tagging_table2": "relative",
    "chunking": "relative",
    "sst_imdb_table sst5": "transformer_relative",
}
#: The papers' numbers that a report shows; one that an owner of the paper adds is shown, too.
NUMBERS = {
    "semantic_parsing": {"none": "about 30", "additive": "74.6", "additive_joint": "85.0"},
    "semantic_parsing atis": {"additive": "69.9", "additive_joint": "76.3"},
    "sst_imdb_table sst5": {},
}


def of_each_part() -> list[str]:
    """The first table of each script, and of each of its parts."""
    tables = {}
    for table, arguments in TABLES.items():
        part = arguments[arguments.index("--part") + 1] if "--part" in arguments else ""
        tables.setdefault((table.split()[0], part), table)
    return [*tables.values()]


PARTS_FIRST = [*of_each_part(), *(table for table in TABLES if table not in of_each_part())]


@pytest.mark.parametrize("table", first_fast(PARTS_FIRST, len(of_each_part())))
def test_every_flag_of_every_command_of_every_row_is_known(table, tmp_path, parse):
    name, arguments = table.split()[0], TABLES[table]
    files = [f"{name}.yaml", *(f"{name}.{word}.yaml" for word in (table.split()[1:]))]
    paths = [REPOSITORY / "configs" / "tables" / file for file in files]
    tables = [yaml.safe_load(path.read_text()) for path in paths if path.exists()]
    rows = list(dict.fromkeys(row for table in tables for row in table.get("rows", {})))
    out = tmp_path / "out"
    row_arguments = (
        ["--rows", ",".join(rows)] if name == "quickstart" else []
    )  # its default is three rows
    arguments = [*arguments, *row_arguments, "--seeds", "1,2"]
    output = run_script(name, DRY, "--with-parsing", *arguments, "--out", out)
    commands = printed_commands(output)
    trained = [Path(words[-2]) for words in commands if words[0] == "fairseq-train"]
    repeated = 2 if "--fractions" in arguments else 1
    # sst_imdb_table trains the row with other trees first.
    ordered = sorted if name == "sst_imdb_table" else list
    assert ordered(path.parent.name for path in trained) == ordered((rows + rows) * repeated)
    for words in of_different_options(commands, out):
        parse(words)
    reports = [" ".join(words) for words in commands if words[0] == "fairseq-phrase-report"]
    report_lines = re.sub(rf"--out {out}\S* ", "", "\n".join(reports))
    assert REPORTED.get(table, "") in report_lines
    assert not out.exists(), "nothing was run"
    report_options = [parse(words) for words in commands if words[0] == "fairseq-phrase-report"]
    if table in SENTENCES:
        folder, known = SENTENCES[table]
        known_words = out / folder / "train.en" if known else None
        texts = {(*report.source, report.known_words) for report in report_options}
        assert texts == {(str(out / folder / "test.en"), known_words)}
    if table in RELATIVE:
        compared = [(report.baseline, report.out.name) for report in report_options]
        relative = RELATIVE[table]
        assert compared == [("transformer", "report"), (relative, f"report.{relative}")]
    if table in NUMBERS:
        (words,) = (words for words in commands if words[1:3] == ["scripts/table.py", "titles"])
        assert "--without-numbers" not in words
        numbers = {}
        for file in words[3:]:
            texts = yaml.load((REPOSITORY / file).read_text(), yaml.BaseLoader).get("rows", {})
            numbers |= {name: row["paper"] for name, row in texts.items() if "paper" in row}
        assert numbers == NUMBERS[table]


def test_the_check_of_flags_finds_unknown_ones(parse, capsys):
    with pytest.raises(SystemExit):
        parse(["fairseq-train", "D", "--arch", "tree_transformer", "--no-such-flag"])
    assert "unrecognized arguments: --no-such-flag" in capsys.readouterr().err


def test_several_gpus_train_a_run_on_the_same_batch_and_one_translates(tmp_path, parse):
    output = run_script(
        "wmt14_table2", DRY, "--gpus", "0,1,2,3", "--gpus-per-run", "4", "--rows", "1",
        "--out", tmp_path / "out",
    )  # fmt: skip
    training, translating = (
        parse(next(words for words in printed_commands(output) if words[0] == name))
        for name in ("fairseq-train", "fairseq-generate")
    )
    assert training.distributed_world_size == 4
    assert (training.update_freq, training.max_tokens) == ([2], 4096)
    assert translating.distributed_world_size == 1
    assert (translating.beam, translating.lenpen) == (4, 0.6)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("wmt14_table2", ["--size", "huge"], "--size huge: expected one of base big"),
        ("wmt14_table2", ["--sise", "big"], "unknown option '--sise'"),
        ("wmt14_table2", [""], "unknown option ''"),
        ("wmt14_table2", ["--slice"], "--slice needs a value"),
        ("wmt14_table2", ["--slice", "many"], "--slice many: expected a number"),
        ("wmt14_table2", ["--precision", "fp8"], "--precision fp8: expected one of fp32 fp16 bf16"),
        ("wmt14_table2", ["--precision", "bf16"], "--precision bf16 needs a GPU, and none is here"),
        ("wmt14_table2", ["--bpe-codes", "codes"], "--bpe-codes is for text that you have"),
        ("wmt14_table2", [DRY, "--gpus-per-run", "3"], "update_freq 8 on one GPU, which 3 cannot"),
        ("wmt14_table2", [DRY, "--rows", "structural_1"], "no row structural_1"),
        ("iwslt14_trees", ["--direction", "en-fr"], "without --data, --direction en-fr: expected"),
        (
            "iwslt14_trees",
            ["--text", "authors", "--data", "tests"],
            "--text authors and --data: the text",
        ),
        ("iwslt14_trees", ["--fractions", "2/3"], "--fractions 2/3: expected 1 or 1/K"),
        ("nist_zh_en_table1", [], "the LDC's text cannot be downloaded"),
        ("nist_zh_en_table1", ["--data", "/nowhere"], "--data /nowhere: there is no such folder"),
        ("multi30k_table1", ["--setting", "best"], "--setting best: expected one of tuned paper"),
        (
            "which_syntax",
            ["--corpus", "wmt"],
            "--corpus wmt: expected one of multi30k tatoeba synth",
        ),
        ("which_syntax", ["--trees", "flat"], "--trees flat: expected one of gold parsed"),
        ("which_syntax", ["--train-size", "0"], "--train-size 0: expected a number, at least 1"),
        (
            "which_syntax",
            ["--corpus", "tatoeba", "--direction", "en-de"],
            "--corpus tatoeba --direction en-de: expected one of de-en",
        ),
        (
            "which_syntax",
            ["--contrastive", "/none"],
            "--contrastive /none: there is no such folder",
        ),
        (
            "which_syntax",
            ["--corpus", "tatoeba", "--tatoeba", "/none", "--rows", "1", "--gpus", ""],
            "--tatoeba /none: there is no such file",
        ),
        ("which_syntax", [DRY, "--pairs-of", "relative,treee"], "no row treee: the table has"),
        ("true_trees", ["--direction", "it-en"], "expected one of en-tr tr-en en-it"),
        ("true_trees", ["--data", "/none"], "--data /none: there is no such folder"),
        ("multi30k_table1", ["--text", "bpe"], "--text bpe: expected one of raw moses"),
        ("multi30k_table1", ["--baselines", "transformr"], "--baselines: no row transformr: the"),
        ("multi30k_table1", ["--tokenize", "13b"], "--tokenize 13b: expected one of 13a"),
        ("quickstart", ["--fast", "--full"], "--fast and --full: choose one"),
    ],
)
def test_bad_options_are_named(name, arguments, message, tmp_path):
    out = tmp_path / "out"
    assert message in run_script(name, "--out", out, *arguments, expect=1)
    assert not out.exists()


def test_a_folder_may_have_rows_of_another_precision_and_a_report_its_own_tokenizer(tmp_path):
    arguments = ["lecture_table", "--rows", "1", DRY, "--out", tmp_path]
    settings = (
        "direction=de-en vocab-size=4000 slice= max-epoch= max-update= average= precision=bf16 "
        "train-flags='' generate-flags=''\n"
    )
    (tmp_path / "settings").write_text(settings)
    assert " --bf16 " in run_script(*arguments)
    output = run_script(*arguments, "--precision", "fp32", "--tokenize", "char")
    assert f"The first runs of {tmp_path} are trained in bf16, new ones in fp32." in output
    assert "--bf16" not in output
    assert " --tokenize char" in output
    (tmp_path / "settings").write_text(settings.replace("4000", "500"))
    assert "holds runs with direction=de-en vocab-size=500" in run_script(*arguments, expect=1)


@pytest.mark.parametrize(("direction", "with_numbers"), [("de-en", 1), ("en-de", 0)])
def test_each_test_set_of_multi30k_is_translated_and_reported(
    direction, with_numbers, tmp_path, parse
):
    data = tmp_path / "multi30k"
    data.mkdir()
    names = [f"test_{year}_flickr" for year in (2016, 2017, 2018)]
    for name in ("train", "val", *names):
        for language in ("de", "en"):
            (data / f"{name}.{language}.gz").touch()
    commands = printed_commands(
        run_script(
            "multi30k_table1", DRY, "--rows", "1", "--direction", direction, "--out",
            tmp_path / "out", FAIRSEQ_PHRASE_DATA=str(tmp_path),
        )
    )  # fmt: skip
    translated = [parse(words) for words in commands if words[0] == "fairseq-generate"]
    assert [options.gen_subset for options in translated] == ["test", "test1", "test2"]
    reported = [parse(words) for words in commands if words[0] == "fairseq-phrase-report"]
    references = [[Path(reference).name for reference in options.reference] for options in reported]
    assert references == [[f"{name}.{direction[-2:]}.gz"] for name in names]
    assert [options.subset for options in reported] == ["test", "test1", "test2"]
    assert [options.out.name for options in reported] == [f"report-{name}" for name in names]
    # The paper's numbers are of one test set, German to English.
    has_numbers = [options.rows.name == "rows.yaml" for options in reported]
    assert has_numbers == [bool(with_numbers), False, False]


@pytest.mark.parametrize(
    ("size", "updates", "tokens"), [("base", 200_000, 32_768), ("big", 20_000, 524_288)]
)
def test_the_tree_transformer_has_its_papers_updates_and_batch(
    size, updates, tokens, tmp_path, parse
):
    output = run_script(
        "wmt14_table2", DRY, "--size", size, "--rows", "transformer_tree_updates,tree",
        "--out", tmp_path / "out",
    )  # fmt: skip
    commands = printed_commands(output)
    runs = [parse(words) for words in commands if words[0] == "fairseq-train"]
    assert [run.arch for run in runs] == ["transformer", "tree_transformer"]
    for run in runs:
        assert run.max_update == updates
        assert run.max_tokens * run.update_freq[0] == tokens
    (data,) = (parse(words) for words in commands if words[0] == "fairseq-phrase-preprocess")
    assert data.constituents == "from-dependencies"


def test_minimal_pairs_are_scored_unless_none_are_wanted(tmp_path):
    pairs = tmp_path / "pairs"
    (pairs / "agreement").mkdir(parents=True)
    (pairs / "agreement" / "src.en").write_text("A sentence.\n" * 10)
    command = ["which_syntax", DRY, "--rows", "1", "--out", tmp_path / "out", "--contrastive"]
    scored = run_script(*command, pairs)
    assert f"scripts/contrastive.py {pairs}" in scored
    assert f"--contrastive {pairs}" in scored
    some = run_script(*command, pairs, "--pairs", "5")
    assert f"slice.py {pairs}/agreement/src en 5 --every 2" in some
    assert f"--contrastive {tmp_path}/out/raw/contrastive.5" in some
    assert "contrastive" not in run_script(*command, "none")


def test_texts_are_found_where_the_scripts_look_for_every_text(tmp_path):
    for name in ("scripts", "configs"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    for name in ("tatoeba", "contrastive/own", "multi30k"):
        (tmp_path / "texts" / name).mkdir(parents=True)
    (tmp_path / "texts" / "tatoeba" / "deu-eng.tsv.gz").touch()
    command = ["which_syntax", DRY, "--rows", "1", "--data-only", "--out", tmp_path / "out"]
    printed = run_script(
        *command, "--corpus", "tatoeba", cwd=tmp_path, FAIRSEQ_PHRASE_DATA=str(tmp_path / "texts")
    )
    assert f"tatoeba.py {tmp_path}/texts/tatoeba/deu-eng.tsv.gz" in printed
    pairs = run_script(*command, cwd=tmp_path, FAIRSEQ_PHRASE_DATA=str(tmp_path / "texts"))
    assert "/out/corpora/contrastive" in pairs
    assert "distil-lingeval" not in pairs
    (tmp_path / "texts").rename(tmp_path / "data")
    printed = run_script(*command, "--corpus", "tatoeba", cwd=tmp_path, FAIRSEQ_PHRASE_DATA="")
    assert "tatoeba.py data/tatoeba/deu-eng.tsv.gz" in printed
    downloaded = run_script(*command, cwd=tmp_path, FAIRSEQ_PHRASE_DATA="")
    assert "distil-lingeval" in downloaded
    assert "test_2018_flickr.de.gz" in downloaded


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("which_syntax --corpus tatoeba", "the corpus tatoeba is not here and cannot be downl"),
        ("which_syntax --corpus tatoeba --tatoeba /none", "--tatoeba /none: there is no such file"),
        ("sst_imdb_table", "the corpus sst is not here and cannot be downloaded: docs/tables.md"),
        ("nist_zh_en_table1", "--data DIR: the LDC's text cannot be downloaded"),
        ("nist_zh_en_table1 --data /none", "--data /none: there is no such folder"),
        ("ptb_tagging_table2 --data /none", "--data /none: there is no such folder"),
        ("iwslt14_trees --data /none", "/none: there is no such folder"),
        ("sql --data /none", "--data /none: there is no such file or folder"),
    ],
)
def test_a_dry_run_names_a_text_that_is_missing_and_prints_every_command(table, message, tmp_path):
    for name in ("scripts", "configs"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    name, *arguments = table.split()
    output = run_script(
        name, DRY, *arguments, "--rows", "1", "--out", tmp_path / "out", cwd=tmp_path,
        FAIRSEQ_PHRASE_DATA="",
    )  # fmt: skip
    assert output.count(f"# missing: {message}") == 1
    assert "fairseq-train" in {words[0] for words in printed_commands(output)}


#: Of the scripts that do more than train and report, and of one that does not.
DATA_ONLY = [
    "multi30k_table1", "which_syntax", "pretraining translation", "pretraining objectives",
    "compositional", "iwslt14_trees", "learning_curves", "low_resource", "quickstart",
]  # fmt: skip


@pytest.mark.parametrize("table", first_fast(DATA_ONLY, 3))
def test_data_only_makes_the_data_and_trains_nothing(table, tmp_path):
    output = run_script(
        table.split()[0], DRY, *TABLES[table], "--data-only", "--out", tmp_path / "out"
    )
    commands = printed_commands(output)
    names = {Path(words[words[0] == "python"]).name for words in commands}
    assert "fairseq-phrase-preprocess" in names
    assert not names & {"fairseq-train", "fairseq-generate", "fairseq-phrase-report"}
    assert not names & {"by_set.py", "curve.py", "onset.py", "pretraining_losses.py"}
    assert not [words for words in commands if words[1:3] == ["scripts/glosses.py", "score"]]
    assert "not trained (--data-only)" in output


@pytest.fixture
def clone(tmp_path):
    """A copy of the scripts and tables, to which a table can be added."""
    for name in ("scripts", "configs"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    return tmp_path


def test_the_documented_table_is_a_table(clone, parse):
    """Its text and rows in a file make a table, and so does its script with options."""
    text = (REPOSITORY / "docs" / "own_tables.md").read_text()
    rows, table = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    script = re.search(r"```bash\n(#!.*?)```", text, re.DOTALL)[1]
    file = "configs/tables/my_table.yaml"
    (clone / file).write_text(table + rows)
    (clone / "scripts" / "my_table.sh").write_text(script)
    options = [DRY, "--data", "text"]
    output = run_script("run_table", "--table", file, *options, "--seeds", "1,2", cwd=clone)
    commands = printed_commands(output)
    trained = [parse(words) for words in commands if words[0] == "fairseq-train"]
    assert [(run.arch, run.dropout) for run in trained] == [
        ("transformer", 0.3), ("structural_transformer", 0.1)
    ] * 2  # fmt: skip
    for words in commands:
        parse(words)
    assert "--trainpref text/train --validpref text/dev --testpref text/test" in output
    assert "runs/my_table/report" in output
    (clone / "data" / "mine").mkdir(parents=True)
    assert "--trainpref data/mine/train" in run_script("my_table", DRY, cwd=clone)
    assert "--setting small|large   (small)" in run_script("my_table", "--help", cwd=clone)
    bad = run_script("my_table", "--setting", "medium", expect=1, cwd=clone)
    assert "--setting medium: expected one of small large" in bad


def test_the_options_of_a_table_are_variables_of_its_file(clone):
    """The values are words as they are: nothing in them is run."""
    file = clone / "configs" / "tables" / "regex.yaml"
    text = file.read_text()
    file.write_text(text.replace("--form regex", "--form $CORPUS --metric $(touch/ran)"))
    output = run_script("regex", DRY, "--data", "a b", "--corpus", "turk", cwd=clone)
    assert "logical_forms.py regex a\\ b " in output
    assert "--form turk --metric \\$\\(touch/ran\\)" in output
    folder = clone / "of the old version"
    folder.mkdir()
    (folder / "settings").write_text(
        "corpus=turk data=a b slice= max-epoch= max-update= average= precision=fp32 "
        "train-flags='' generate-flags=''\n"
    )
    arguments = ("regex", DRY, "--data", "a b", "--out", folder, "--corpus")
    assert "logical_forms.py" in run_script(*arguments, "turk", cwd=clone)
    assert "holds runs with corpus=turk data=a b" in run_script(
        *arguments, "synth", expect=1, cwd=clone
    )


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        ("corpus: conll2000", "corpora: conll2000", "table: has no key 'corpora'"),
        ("corpus: conll2000", "", "table: has no corpus"),
        ("title: Chunking", 'title: "Chunking', "table: title: write the value in this line"),
        (
            "corpus: conll2000",
            "corpus:\n    conll2000",
            "table: corpus: write the value in this line",
        ),
        ("$DATA $RAW", "$DATE $RAW", "there is no variable $DATE"),
        ("title: Chunking", "title: $CORPUS_NAM", "there is no variable $CORPUS_NAM"),
    ],
)
def test_a_bad_entry_of_a_table_is_named(written, instead, message, clone):
    file = clone / "configs" / "tables" / "chunking.yaml"
    text = file.read_text()
    assert written in text
    file.write_text(text.replace(written, instead))
    output = run_script("chunking", DRY, "--rows", "1", "--data", "tests", expect=1, cwd=clone)
    assert f"error: configs/tables/chunking.yaml: {message}" in output


def test_help_says_which_options_there_are():
    for name in dict.fromkeys(table.split()[0] for table in TABLES):
        output = run_script(name, "--help")
        assert "Options of this table:" in output
        assert "--gpus-per-run N" in output
        assert not re.search("Source it|sourc(e|ing) (it )?from|common to", output)
        assert f"bash scripts/{name}.sh" in output


def test_an_environment_that_is_not_ready_is_named(tmp_path):
    shutil.copy(shutil.which("dirname"), tmp_path)
    output = run_script(
        "wmt14_table2", DRY, "--out", tmp_path / "out", expect=1, PATH=f"{tmp_path}:/usr/bin:/bin"
    )
    assert "PATH finds no fairseq-train" in output


@pytest.mark.parametrize(("sections", "updates"), [(("00", "01"), "2300"), (("18", "23"), "10000")])
def test_the_whole_treebank_is_trained_on_longer_than_a_sample(sections, updates, tmp_path):
    for section in sections:
        (tmp_path / "wsj" / section).mkdir(parents=True)
        (tmp_path / "wsj" / section / f"wsj_{section}01.mrg").touch()
    arguments = ["--data", tmp_path / "wsj", "--rows", "1", "--out", tmp_path / "out"]
    commands = printed_commands(run_script("ptb_tagging_table2", DRY, *arguments))
    (words,) = (words for words in commands if words[0] == "fairseq-train")
    assert words[words.index("--max-update") + 1] == updates
    assert words[words.index("--total-num-update") + 1] == updates
    assert ("--save-interval-updates" in words) == (updates == "10000")
