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

OWN = {"preprocess": preprocess, "average": average, "report": report, "plot": plot}
OWN |= {"synthetic": synthetic, "inspect": inspect_data, "label": label}
STOCK = {
    "fairseq-train": options.get_training_parser,
    "fairseq-generate": options.get_generation_parser,
    "fairseq-validate": options.get_validation_parser,
    "fairseq-interactive": options.get_interactive_generation_parser,
}
DRY = "--dry-run"


def commands_of(output: str) -> list[list[str]]:
    """The words of each command that a dry run prints, without redirections."""
    lines = (shlex.split(line, comments=True) for line in output.splitlines() if "\x1b" not in line)
    return [[word for word in words if not word.startswith(("<", ">"))] for words in lines if words]


@pytest.fixture
def parse(monkeypatch):
    """Let a command's own parser read its flags: an unknown one, or a bad value, ends the test."""
    monkeypatch.chdir(REPOSITORY)

    def parsed(words: list[str]):
        name, *arguments = words
        if name in STOCK:
            return options.parse_args_and_arch(STOCK[name](), arguments)
        if name.startswith("fairseq-phrase-"):
            return OWN[name.removeprefix("fairseq-phrase-")].make_parser().parse_args(arguments)
        return None

    return parsed


_known: set[tuple[str, ...]] = set()  # also of the tables that this process tested before


def of_different_options(commands: list[list[str]]) -> list[list[str]]:
    """One of all commands that differ in their seed and in their files below OUT."""
    shapes = {}
    for words in commands:
        shape = re.sub(r"OUT\S*|--seed \d", "FILE", " ".join(words))
        shapes.setdefault(tuple(shape.split()), words)
    new = [words for shape, words in shapes.items() if shape not in _known]
    _known.update(shapes)
    return new


#: A script with options, and patterns of the commands that make its reports, whose folder is OUT. The
#: tables of each script and part come first.
TABLES = {
    "multi30k_table1": ["Multi30k de-en, test_2016_flickr, tuned setting .* --lowercase"],
    "learning_curves": ["Multi30k de-en, post_norm"],
    "wmt14_table2 --size big --gpus-per-run 4 --precision bf16": ["newstest2014.wmt14-full, big"],
    "iwslt14_trees --fractions 1/4,1": [
        "1/4 of the training data, trees of spacy:any, constituents from-dependencies"
    ],
    "nist_zh_en_table1 --data tests": ["tests zh-en, dev, first reference"],
    "which_syntax": ["Multi30k en-de, small setting"],
    "true_trees --direction en-tr": ["--baseline relative .*UD ATIS, en-tr"],
    "low_resource": ["Tatoeba de-en, Ding, 3000 pairs .*--metric file:unseen="],
    "ptb_tagging_table2": [
        "--baseline transformer .*--source OUT/raw/text/test.en --known-words OUT/raw/text/train.en",
        "--baseline relative .*--out OUT/report.relative ",
    ],
    "semantic_parsing --data tests": ["Semantic parsing, geo"],
    "compositional --data tests": ["slog --out OUT/report --measure exact --form calls"],
    "regex --data tests": ["NL-RX synth .*--measure exact --form regex"],
    "sql": ["WikiSQL, 10000 training questions .*--measure exact --form sql"],
    "lecture_table": ["Recurrent models and Transformers, Multi30k de-en .*--source"],
    "chunking --data tests": ["Chunking, CoNLL-2000 .*--measure spans .*--known-words"],
    "sst_imdb_table --data tests": [
        "SST-5, all phrases in .*--measure labels --source OUT/raw/text/test.en$",
        "--baseline transformer_relative .*--out OUT/report.transformer_relative ",
    ],
    "pretraining --part objectives": [],
    "pretraining --part translation --fractions 1/4,1": ["de, 1/4 of the pairs", "de, 1 of the"],
    "pretraining --part tagging": [
        "--source OUT/tagging/raw/test.en --known-words OUT/tagging/raw/t"
    ],
    "pretraining --part sst": ["--source OUT/sst/raw/test.en$"],
    "pretrained_table --part tagging": ["EWT, XPOS, from MiniLM"],
    "pretrained_table --part chunking": ["--measure spans --source OUT/chunking/raw/test.en$"],
    "pretrained_table --part sst": ["--measure labels --source OUT/sst/raw/test.en$"],
    "pretrained_table --part translation": ["Multi30k en-de, from MiniLM"],
    "quickstart": ["Multi30k de-en, test_2016_flickr"],
    "multi30k_table1 --setting paper": ["paper setting .*--lowercase"],
    "multi30k_table1 --text moses": ["setting, lower-cased tokens of Moses .*--tokenize none"],
    "learning_curves --setting paper_size": ["Multi30k de-en, paper_size"],
    "iwslt14_trees --text authors": ["lower-cased tokens of Moses, 1 of .*--tokenize none"],
    "which_syntax --direction de-en --setting full": ["Multi30k de-en, full setting"],
    "which_syntax --corpus tatoeba --train-size 1000": ["Tatoeba de-en, 1000 pairs, small setting"],
    "which_syntax --corpus synthetic": ["corpus, gold trees, 40000 pairs"],
    "which_syntax --corpus synthetic --trees parsed": ["corpus, parsed trees, 40000 pairs"],
    "true_trees --direction en-it": ["ParTUT, en-it"],
    "low_resource --direction en-tr --train-size 1000": [
        "UD ATIS en-tr, FreeDict, 1000 pairs",
        "--vocab-size 1000",
    ],
    "ptb_tagging_table2 --data tests": ["Penn Treebank .tests. .the paper's numbers: the whole"],
    "semantic_parsing --corpus atis --data tests": ["Semantic parsing, atis"],
    "compositional --corpus scan --split length --data tests": ["scan.length .*--measure exact$"],
    "sst_imdb_table --task imdb --data tests": ["IMDB, reviews truncated to 1,024 tokens"],
    "pretraining --text documents --part objectives": [],
    "pretraining --text documents --part sst": ["SST-2 from pre-trained encoders"],
    "quickstart --full": ["Multi30k de-en, test_2016_flickr"],
    "quickstart --fast": ["Synthetic corpus"],
}


@pytest.mark.fast(3)
@pytest.mark.parametrize("table", TABLES)
def test_every_flag_of_every_command_of_every_row_is_known(table, tmp_path, parse):
    name, *arguments = table.split()
    out = tmp_path / "out"
    if name == "quickstart":  # its default is three rows
        file = REPOSITORY / "configs/tables/quickstart.yaml"
        arguments += ["--rows", ",".join(yaml.safe_load(file.read_text())["rows"])]
    output = run_script(name, DRY, "--with-parsing", *arguments, "--seeds", "1,2", "--out", out)
    assert not out.exists(), "nothing was run"
    for shown in (
        str(out).replace(" ", "\\ "),
        str(out),
    ):  # as bash quotes blanks, and as Python does
        output = output.replace(shown, "OUT")
    commands = commands_of(output)
    files = re.search(r"(?:titles|--rows)((?: configs/tables/\S+)+)", output)[1].split()
    tables = [yaml.safe_load((REPOSITORY / file).read_text()) for file in files]
    rows = list(dict.fromkeys(row for table in tables for row in table.get("rows", {})))
    trained = [Path(words[-2]).parent.name for words in commands if words[0] == "fairseq-train"]
    assert trained == 2 * rows * (2 if "--fractions" in arguments else 1)
    assert ("--distributed-world-size 4 --bf16 " in output) == ("bf16" in arguments)
    for words in of_different_options(commands):
        parse(words)
    lines = [" ".join(words) for words in commands if words[0].startswith("fairseq-phrase-")]
    for pattern in TABLES[table]:
        assert [line for line in lines if re.search(pattern, line)], lines


@pytest.mark.fast(6)
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("wmt14_table2 --size huge", "--size huge: expected one of base big"),
        ("wmt14_table2 --sise big", "unknown option '--sise'"),
        ("wmt14_table2 --slice", "--slice needs a value"),
        ("wmt14_table2 --slice many", "--slice many: expected a number, at least 1"),
        ("wmt14_table2 --bpe-codes codes", "--bpe-codes is for text that you have"),
        ("iwslt14_trees --direction en-fr", "without --data, --direction en-fr: expected"),
        ("iwslt14_trees --text authors --data tests", "--text authors and --data: the text"),
        ("iwslt14_trees --fractions 2/3", "--fractions 2/3: expected 1 or 1/K"),
        ("which_syntax --corpus tatoeba --direction en-de", "en-de: expected one of de-en"),
        ("which_syntax --contrastive /none", "--contrastive /none: there is no such folder"),
        ("which_syntax --dry-run --pairs-of relative,treee", "no row treee: the table has"),
        ("true_trees --data /none", "/none: there is no such file or folder"),
        ("compositional --split length", "--split length is for --corpus scan"),
        ("compositional --corpus scan --trees adapted", "--trees adapted is for --corpus slog"),
        ("multi30k_table1 --baselines transformr", "--baselines: no row transformr: the"),
        ("quickstart --fast --full", "--fast and --full: choose one"),
        ("quickstart --fast --report-only", "out has no runs to report: leave --report-only out"),
        ("lecture_table --report-only", "out has no runs to report: leave --report-only out"),
    ],
)
def test_bad_options_are_named(command, message, tmp_path):
    name, *arguments = shlex.split(command)
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
    assert " --bf16 " not in run_script(*arguments), "nothing was made with these settings"
    (tmp_path / "raw").mkdir()
    assert " --bf16 " in run_script(*arguments)
    output = run_script(*arguments, "--precision", "fp32", "--tokenize", "char")
    assert f"The first runs of {tmp_path} are trained in bf16, new ones in fp32." in output
    assert "--bf16" not in output
    assert " --tokenize char" in output
    (tmp_path / "settings").write_text(settings.replace("4000", "500"))
    assert "holds runs with direction=de-en vocab-size=500" in run_script(*arguments, expect=1)


@pytest.mark.fast(1)
@pytest.mark.parametrize("direction", ["de-en", "en-de"])
def test_each_test_set_of_multi30k_is_translated_and_reported(direction, tmp_path, parse):
    names = [f"test_{year}_flickr" for year in (2016, 2017, 2018)]
    (tmp_path / "multi30k").mkdir()
    for name in ("train", "val", *names):
        for language in ("de", "en"):
            (tmp_path / "multi30k" / f"{name}.{language}.gz").touch()
    output = run_script(
        "multi30k_table1", DRY, "--rows", "1", "--direction", direction, "--out", tmp_path / "out",
        FAIRSEQ_PHRASE_DATA=str(tmp_path),
    )  # fmt: skip
    reports = [parse(words) for words in commands_of(output) if words[0] == "fairseq-phrase-report"]
    assert re.findall(r"--gen-subset (\w+)", output) == [report.subset for report in reports]
    assert [
        (report.subset, report.out.name, Path(report.reference[0]).name) for report in reports
    ] == [
        (f"test{number or ''}", f"report-{name}", f"{name}.{direction[-2:]}.gz")
        for number, name in enumerate(names)
    ]
    # The paper's numbers are of one test set, German to English.
    has_numbers = [report.rows.name == "rows.yaml" for report in reports]
    assert has_numbers == [direction == "de-en", False, False]


def test_minimal_pairs_are_scored_unless_none_are_wanted(tmp_path):
    pairs = tmp_path / "pairs"
    (pairs / "agreement").mkdir(parents=True)
    (pairs / "agreement" / "src.en").write_text("A sentence.\n" * 10)
    command = ["which_syntax", DRY, "--rows", "1", "--out", tmp_path / "out", "--contrastive"]

    def printed(*arguments):
        return run_script(*command, *arguments).replace("\\ ", " ")  # blanks are quoted

    scored = printed(pairs)
    assert f"scripts/contrastive.py {pairs}" in scored
    assert f"--contrastive {pairs}" in scored
    some = printed(pairs, "--pairs", "5")
    assert f"slice.py {pairs}/agreement/src en 5 --every 2" in some
    assert f"--contrastive {tmp_path}/out/raw/contrastive.5" in some
    assert "contrastive" not in printed("none")


@pytest.fixture
def elsewhere(tmp_path):
    """Run a script in a folder without texts."""
    for name in ("scripts", "configs"):
        (tmp_path / name).symlink_to(REPOSITORY / name)

    def run(name: str, *arguments: object, data: Path | str = "") -> str:
        words = (*arguments, DRY, "--rows", "1", "--out", tmp_path / "out")
        printed = run_script(name, *words, cwd=tmp_path, FAIRSEQ_PHRASE_DATA=str(data))
        return printed.replace("\\ ", " ")  # blanks are quoted

    return run


def test_texts_are_found_where_the_scripts_look_for_every_text(elsewhere, tmp_path):
    texts = tmp_path / "texts"
    for name in ("tatoeba", "contrastive/own", "multi30k"):
        (texts / name).mkdir(parents=True)
    (texts / "tatoeba" / "deu-eng.tsv.gz").touch()
    tatoeba = ("which_syntax", "--corpus", "tatoeba")
    assert f"tatoeba.py {texts}/tatoeba/deu-eng.tsv.gz" in elsewhere(*tatoeba, data=texts)
    pairs = elsewhere("which_syntax", "--data-only", data=texts)
    assert "/out/corpora/contrastive" in pairs
    assert "distil-lingeval" not in pairs
    texts.rename(tmp_path / "data")
    assert "tatoeba.py data/tatoeba/deu-eng.tsv.gz" in elsewhere(*tatoeba)
    downloaded = elsewhere("which_syntax")
    assert "distil-lingeval" in downloaded
    assert "test_2018_flickr.de.gz" in downloaded


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("which_syntax --corpus tatoeba", "the corpus tatoeba is not here and cannot be downl"),
        ("which_syntax --corpus tatoeba --tatoeba /none", "--tatoeba /none: there is no such file"),
        ("nist_zh_en_table1", "--data DIR: the LDC's text cannot be downloaded"),
        ("sql --data /none", "/none: there is no such file or folder"),
    ],
)
def test_a_dry_run_names_a_text_that_is_missing_and_prints_every_command(
    command, message, elsewhere
):
    output = elsewhere(*command.split())
    assert output.count(f"# missing: {message}") == 1
    assert "\nfairseq-train " in output


#: Of the scripts that do more than train and report, and of one that does not.
DATA_ONLY = [
    "multi30k_table1", "which_syntax", "pretraining --part translation --fractions 1/4,1",
    "pretraining --part objectives", "iwslt14_trees --fractions 1/4,1", "learning_curves",
    "quickstart",
]  # fmt: skip


@pytest.mark.fast(3)
@pytest.mark.parametrize("table", DATA_ONLY)
def test_data_only_makes_the_data_and_trains_nothing(table, tmp_path):
    output = run_script(*table.split(), DRY, "--data-only", "--out", tmp_path / "out")
    names = {Path(words[words[0] == "python"]).name for words in commands_of(output)}
    assert "fairseq-phrase-preprocess" in names
    assert not names & {"fairseq-train", "fairseq-generate", "fairseq-phrase-report"}
    assert not names & {"curve.py", "onset.py", "pretraining_losses.py"}
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
    arguments = [DRY, "--data", "text", "--seeds", "1,2"]
    output = run_script("run_table", "--table", file, *arguments, cwd=clone)
    parsed = [(words[0], parse(words)) for words in commands_of(output)]
    assert [(run.arch, run.dropout) for name, run in parsed if name == "fairseq-train"] == [
        ("transformer", 0.3), ("structural_transformer", 0.1)
    ] * 2  # fmt: skip
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
    text = file.read_text().replace("--form regex", "--form $CORPUS --metric $(touch/ran)")
    file.write_text(text.replace("parser: none", "parser: none\n  data-bin.unread: --bpe none"))
    output = run_script("regex", DRY, "--data", "a b$DATA", "--corpus", "turk", cwd=clone)
    assert "logical_forms.py regex a\\ b\\$DATA " in output
    assert "--form turk --metric \\$\\(touch/ran\\)" in output
    assert "--destdir runs/regex.turk/data-bin " in output
    assert "data-bin.unread" not in output, "no row reads these data"


@pytest.mark.fast(4)
@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        ("corpus: conll2000", "corpora: conll2000", "table: has no key 'corpora'"),
        ("corpus: conll2000", "", "table: has no corpus"),
        ("languages: en-tag", "languages: en", "table: languages: expected two with - between"),
        ("title: Chunking", 'title: "Chunking', "table: title: write the value in this line"),
        ("corpus: ", "corpus:\n    ", "table: corpus: write the value in this line"),
        ("$DATA $RAW", "$DATE $RAW", "there is no variable $DATE"),
        ("title: Chunking", "title: $CORPUS_NAM", "there is no variable $CORPUS_NAM"),
        (
            "\nrows:",
            "\ndata: other\nrows:",
            "a row has data: other, and table: has no data-bin.oth",
        ),
    ],
)
def test_a_bad_entry_of_a_table_is_named(written, instead, message, clone):
    file = clone / "configs" / "tables" / "chunking.yaml"
    text = file.read_text()
    assert written in text
    file.write_text(text.replace(written, instead))
    output = run_script("chunking", DRY, "--rows", "1", "--data", "tests", expect=1, cwd=clone)
    assert f"error: configs/tables/chunking.yaml: {message}" in output


def test_a_table_is_what_its_yaml_says_whatever_the_editor(clone):
    """Ends of lines, a byte order mark, the indentation and a last line without an end change nothing."""
    file = clone / "configs" / "tables" / "mine.yaml"
    table = "table:\n  title: Mine\n  languages: de-en\n  corpus: mine\n  parser: none\n"
    rows = "rows:\n  transformer: {title: T, model: {_name: transformer}}\n"
    table = f"task: {{_name: syntax_translation}}\n{rows}{table}  data-bin: --vocab-size 100"

    def output_of(content):
        file.write_bytes(content.encode())
        arguments = ("--table", file.relative_to(clone), "--data", "text", "--max-update", "2", DRY)
        return run_script("run_table", *arguments, cwd=clone)

    plain = output_of(f"{table}\n")
    assert "-s de -t en --trainpref text/train" in plain
    indented = table.replace("\n  ", "\n    ")
    for content in (indented, f"\ufeff{table}\n\n".replace("\n", "\r\n")):
        assert output_of(content) == plain


@pytest.mark.fast(2)
@pytest.mark.parametrize("name", dict.fromkeys(table.split()[0] for table in TABLES))
def test_help_says_which_options_there_are(name):
    output = run_script(name, "--help")
    assert "Options of this table:" in output
    assert "--gpus-per-run N" in output
    assert f"bash scripts/{name}.sh" in output


def test_an_environment_that_is_not_ready_is_named(tmp_path):
    shutil.copy(shutil.which("dirname"), tmp_path)
    output = run_script(
        "wmt14_table2", DRY, "--out", tmp_path / "out", expect=1, PATH=f"{tmp_path}:/usr/bin:/bin"
    )
    assert "PATH finds no fairseq-train" in output


@pytest.mark.fast(1)
@pytest.mark.parametrize(("sections", "updates"), [(("00", "01"), "2300"), (("18", "23"), "10000")])
def test_the_whole_treebank_is_trained_on_longer_than_a_sample(sections, updates, tmp_path):
    for section in sections:
        (tmp_path / "wsj" / section).mkdir(parents=True)
        (tmp_path / "wsj" / section / f"wsj_{section}01.mrg").touch()
    arguments = ["--data", tmp_path / "wsj", "--rows", "1", "--out", tmp_path / "out"]
    output = run_script("ptb_tagging_table2", DRY, *arguments)
    assert f"--total-num-update {updates} " in output
    assert f"--max-update {updates} " in output
    assert ("--save-interval-updates" in output) == (updates == "10000")


def test_the_whole_treebank_is_not_needed_where_its_text_is(tmp_path):
    out = tmp_path / "out"
    (out / "raw" / "text").mkdir(parents=True)
    (out / "raw" / "text" / "made-with.json").write_text("{}")
    arguments = ["--data", "/none", "--rows", "1", "--out", out]
    (out / "settings").write_text(
        "data=/none treebank= whole slice= max-epoch= max-update= average= precision=fp32 "
        "train-flags='' generate-flags=''\n"
    )
    assert "--max-update 10000 " in run_script("ptb_tagging_table2", DRY, *arguments)
