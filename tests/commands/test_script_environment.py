"""What the scripts do with the environment that they find: they change none that they did not make."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY

COMMANDS = Path(sys.executable).parent


@pytest.fixture
def clone(tmp_path):
    """What a fresh clone has of scripts and packaging."""
    folder = tmp_path / "clone"
    for name in ("scripts", "configs"):
        shutil.copytree(
            REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, folder)
    return folder


@pytest.fixture
def empty_environment(tmp_path):
    """A virtual environment of a user's, without any package."""
    folder = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


@pytest.fixture
def bare_python(empty_environment, tmp_path):
    """An interpreter that stands in for a system's Python without packages."""
    bare = tmp_path / "bare"
    prefix = f'if [[ $* == *"print(sys.prefix)"* ]]; then echo "{bare}"; exit; fi'
    commands_in(bare, python3=f'{prefix}\nexec "{empty_environment}/bin/python3" "$@"')
    return bare / "python3"


def quoted(path: Path) -> str:
    """As bash prints it: the temporary folder may have a blank in its name."""
    return str(path).replace(" ", "\\ ")


def commands_in(folder: Path, **scripts: str) -> str:
    """Make a folder of commands, by their names and what bash runs; return it as part of PATH."""
    folder.mkdir(exist_ok=True)
    for name, text in scripts.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    return str(folder)


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def run(
    clone: Path, script: str, *arguments: object, expect: int = 0, path: str = "", **environment
):
    """Run a script of a clone, with little but the system's commands in PATH."""
    finished = subprocess.run(
        ["bash", f"scripts/{script}.sh", *map(str, arguments)],
        cwd=clone,
        env={
            "PATH": f"{path}{os.pathsep}/usr/local/bin:/usr/bin:/bin",
            "HOME": os.environ["HOME"],
            "FAIRSEQ_PHRASE_DATA": str(clone),
            **environment,
        },
        capture_output=True,
        text=True,
        # Where the tests run in the background, signals of the keyboard are ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    output = finished.stdout + finished.stderr
    assert finished.returncode == expect, output[-4000:]
    return output


@pytest.mark.fast(1)
@pytest.mark.parametrize("script", ["quickstart", "lecture_table", "wmt14_table2"])
def test_a_dry_run_in_a_fresh_clone_prints_how_all_is_made_and_makes_nothing(
    script, clone, bare_python, tmp_path
):
    before = files(tmp_path)
    output = run(clone, script, "--dry-run", PYTHON=str(bare_python))
    assert files(tmp_path) == before
    for command in (
        f"{quoted(bare_python)} -m venv .venv",
        "env READTHEDOCS=1 .venv/bin/python -m pip install --quiet --no-cache-dir --no-deps "
        "--no-build-isolation fairseq-fixed",
        "fairseq-phrase-preprocess -s ",
        f"scripts/table.py run configs/tables/{script}.yaml",
        "fairseq-phrase-report ",
    ):
        assert command in output
    # With OmegaConf, that command prints those of the rows.
    line = next(line for line in output.splitlines() if "scripts/table.py run" in line)
    assert line.rstrip().endswith("--dry-run")


def test_probing_installs_what_its_commands_need(clone, bare_python, tmp_path):
    table = tmp_path / "table"
    for path in ("rows/transformer/seed1/average.pt", "data-bin/syntax.en.json"):
        (table / path).parent.mkdir(parents=True)
        (table / path).touch()
    options = ["--tasks", clone, "--dry-run"]
    output = run(clone, "probing_table3", table, *options, PYTHON=str(bare_python))
    assert "--editable .\\[probe\\,plot\\,moses\\]" in output
    assert " --detokenize en " in output


def interpreters(folder: Path, fitting: str = "") -> Path:
    """Interpreters of a Python that is too new, and perhaps one that fits."""
    names = ["python3", *(f"python3.{minor}" for minor in range(10, 14))]
    scripts = dict.fromkeys(names, "echo Python 3.14.0; [[ $1 == --version ]]")
    if fitting:
        scripts[fitting] = f'exec {sys.executable} "$@"'
    return Path(commands_in(folder, **scripts))


def test_where_no_python_fits_it_is_said_how_to_get_one(clone, tmp_path):
    path = str(interpreters(tmp_path / "interpreters"))
    output = run(clone, "quickstart", "--fast", expect=1, path=path)
    assert "error: Python 3.10 to 3.13 is needed, and python3 is Python 3.14.0. Install" in output
    assert "apt-get install python3" in output
    assert "PYTHON=$(uv python find 3.12) bash scripts/quickstart.sh" in output
    assert not (clone / ".venv").exists()


@pytest.mark.slow
def test_another_python_in_the_path_is_taken_if_python3_does_not_fit(clone, tmp_path):
    path = str(interpreters(tmp_path / "interpreters", "python3.11"))
    output = run(clone, "quickstart", "--fast", "--dry-run", path=path)
    assert "\npython3.11 -m venv " in output


def test_nothing_is_installed_into_an_active_environment(clone, empty_environment, tmp_path):
    before = files(tmp_path)
    python = str(empty_environment / "bin" / "python3")
    output = run(clone, "quickstart", "--fast", expect=1, PYTHON=python)
    assert f"the virtual environment {empty_environment} lacks fairseq-fixed" in output
    assert "nothing is installed into it" in output
    assert f"{empty_environment}/bin/python -m pip install" in output
    assert "FAIRSEQ_PHRASE_VENV=" in output
    dry = run(clone, "quickstart", "--fast", "--dry-run", PYTHON=python)
    assert f"# The virtual environment {empty_environment} lacks fairseq-fixed" in dry
    assert "pip install" not in dry
    assert "fairseq-phrase-preprocess -s de -t en" in dry
    assert files(tmp_path) == before


def test_a_virtual_environment_that_was_not_made_here_is_not_changed(clone, bare_python, tmp_path):
    """Not active, but where the scripts would make theirs."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(clone / ".venv")], check=True
    )
    before = files(tmp_path)
    output = run(clone, "test", expect=1, PYTHON=str(bare_python))
    assert "the virtual environment .venv lacks fairseq-fixed" in output
    assert files(tmp_path) == before


def test_an_environment_that_has_all_is_used_as_it_is(clone, tmp_path):
    before = files(tmp_path)
    output = run(clone, "quickstart", "--fast", "--dry-run", PYTHON=sys.executable)
    assert "lacks" not in output
    assert "pip install" not in output
    assert "--arch phrase_transformer" in output
    assert files(tmp_path) == before


def test_what_an_extra_needs_is_looked_for(tmp_path):
    script = REPOSITORY / "scripts" / "lacking.py"
    (tmp_path / "fairseq_phrase-1.dist-info").mkdir()
    (tmp_path / "fairseq_phrase-1.dist-info" / "METADATA").write_text(
        "Name: fairseq-phrase\nVersion: 1\nRequires-Dist: numpy>=2\nRequires-Dist: torch>=99\n"
        "Requires-Dist: no-such-picture>=3; extra == 'plot'\n"
        "Requires-Dist: no-such-test>=3; extra == 'dev'\n"
        "Requires-Dist: fairseq-phrase[plot]; extra == 'dev'\n"
    )

    def lacking(extra: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            [sys.executable, script, extra],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert "no-such-picture" in lacking("plot")
    assert "no-such-test" not in lacking("plot")
    assert "no-such-picture" in lacking("dev"), "an extra that needs another one"
    assert "numpy" not in lacking("dev")
    assert "torch>=99" in lacking("plot"), "a version that is too old"


def test_no_parser_is_installed_into_an_environment_of_the_users(clone):
    """It is said how to install one, and the quickstart takes a corpus with trees of its own."""
    for name in ("train", "val", "test_2016_flickr"):
        for language in ("de", "en"):
            path = clone / "multi30k" / f"{name}.{language}.gz"
            path.parent.mkdir(exist_ok=True)
            path.touch()
    fakes = commands_in(
        clone / "fakes",
        python="exit 9",
        fairseq_phrase_preprocess='echo "$@"; exit 9',
        # An interpreter without any spaCy pipeline.
        python3=f'[[ $* != *import*core* ]] || exit 1\nexec {sys.executable} "$@"',
    )
    output = run(
        clone, "quickstart", "--slice", "100", expect=9, path=f"{fakes}{os.pathsep}{COMMANDS}",
        FAIRSEQ_PHRASE_READY="1",
    )  # fmt: skip
    assert "To install one: python -m spacy download de_core_news_sm" in output
    assert "own synthetic corpus takes the place of Multi30k, with its own trees" in output
    assert "--parser conllu" in output
    assert "FAIRSEQ_PHRASE_PARSER=spacy:MODEL" in output
    # The folder is not that of Multi30k, which a later call makes when there is a parser.
    assert "--destdir runs/quickstart-synthetic/data-bin" in output


def test_without_a_network_multi30k_can_be_named(clone):
    echo = 'echo "$@"; exit 9'
    fakes = commands_in(clone / "fakes", python=echo, fairseq_phrase_synthetic=echo)
    path = f"{fakes}{os.pathsep}{COMMANDS}"
    output = run(clone, "quickstart", expect=9, path=path, FAIRSEQ_PHRASE_READY="1")
    assert output.count("scripts/download.py https://") == 1
    assert "FAIRSEQ_PHRASE_DATA=FOLDER bash scripts/quickstart.sh\nFOLDER/multi30k then" in output
    assert "--out runs/quickstart-synthetic/synthetic" in output


@pytest.mark.fast(1)
@pytest.mark.parametrize("code", [1, 0])
def test_a_pipeline_is_downloaded_in_one_line(code, clone):
    """Without a network spaCy prints a traceback, whose last line is the reason."""
    printed = f"printf '%s\n' Traceback 'HTTPSConnectionPool: no network' >&2; exit {code}"
    fakes = commands_in(clone / "fakes", python=printed, python3="exit 1")
    (clone / "scripts" / "parser.sh").write_text(
        ". scripts/common.sh\n. scripts/data.sh\nOWN_ENVIRONMENT=1\nfind_parser ru\necho $PARSER\n"
    )
    lines = run(clone, "parser", path=fakes).splitlines()
    assert "Traceback" not in lines
    assert ("HTTPSConnectionPool: no network" in lines) == bool(code)
    assert ("none" if code else "spacy:ru_core_news_sm") in lines


@pytest.mark.parametrize(
    ("given", "selected"),
    [
        (["-x"], ["-m", "not slow", "-x"]),
        (["--all", "-x"], ["--hypothesis-profile", "thorough", "-x"]),
    ],
)
def test_only_all_includes_the_slow_tests(clone, given, selected):
    echo = {"python": 'printf "%s\\n" "$@"'}
    names = ("python3", "fairseq_train", "fairseq_phrase_preprocess")
    fakes = commands_in(clone / "fakes", **echo, **dict.fromkeys(names, ""))
    output = run(clone, "test", *given, path=fakes, FAIRSEQ_PHRASE_READY="1")
    assert output.splitlines()[-len(selected) - 1 :] == ["--durations=30", *selected]


@pytest.mark.parametrize(
    ("script", "option", "first_command"),
    [("quickstart", "--fast", "fairseq_phrase_synthetic"), ("chunking", "--data=text", "python")],
)
def test_a_script_that_is_stopped_says_how_to_go_on(clone, script, option, first_command):
    (clone / "text").mkdir()
    fakes = commands_in(clone / "fakes", **{first_command: "kill -INT $PPID\nexit 130"})
    option = option.replace("=", " ")
    output = run(
        clone, script, *option.split(), "--out", "my run", expect=130,
        path=f"{fakes}{os.pathsep}{COMMANDS}", FAIRSEQ_PHRASE_READY="1",
    )  # fmt: skip
    assert "Stopped. What is finished is kept; to go on from there:\n" in output
    command = f" FAIRSEQ_PHRASE_READY=1 bash scripts/{script}.sh {option} --out my\\ run\n"
    assert command in output


@pytest.fixture
def site(clone, tmp_path):
    """The packages of an environment with fairseq, in which a clone is installed editably."""
    site = tmp_path / "site"
    for folder in ("fairseq", "fairseq_phrase-1.dist-info"):
        (site / folder).mkdir(parents=True)
    (site / "fairseq" / "data").mkdir()
    (site / "fairseq" / "__init__.py").touch()
    (site / "fairseq_phrase-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: fairseq-phrase\nVersion: 1\n"
    )
    (site / "fairseq_phrase-1.dist-info" / "RECORD").write_text(
        "fairseq_phrase-1.dist-info/RECORD,,\n"
    )
    (clone / "fairseq_phrase").mkdir()
    (clone / "fairseq_phrase" / "__init__.py").touch()
    return site


def link(clone: Path, site: Path) -> str:
    process = subprocess.run(
        [sys.executable, "-S", clone / "scripts" / "link_package.py"],
        env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return process.stderr


def test_fairseq_finds_an_editable_installation_from_every_folder(clone, site):
    for _ in range(2):
        assert link(clone, site) == f"{site}/fairseq_phrase leads to {clone}/fairseq_phrase\n"
    # pip removes what its record lists.
    record = (site / "fairseq_phrase-1.dist-info" / "RECORD").read_text().split()
    assert record.count("fairseq_phrase,,") == 1
    # Where fairseq looks for a --user-dir that the working folder lacks.
    assert os.path.samefile(site / "fairseq" / ".." / "fairseq_phrase", clone / "fairseq_phrase")


def test_only_missing_extensions_of_fairseq_are_replaced(clone, site):
    compiled = site / "fairseq" / f"libbleu{EXTENSION_SUFFIXES[0]}"
    compiled.touch()
    for _ in range(2):
        link(clone, site)
    replaced = ["fairseq/data/data_utils_fast.py", "fairseq/data/token_block_utils_fast.py"]
    record = (site / "fairseq_phrase-1.dist-info" / "RECORD").read_text().split()
    assert record == [
        "fairseq_phrase-1.dist-info/RECORD,,",
        *(f"{name},," for name in replaced),
        "fairseq_phrase,,",
    ]
    package = clone / "fairseq_phrase" / "repairs" / "uncompiled"
    assert [(site / name).readlink().parent for name in replaced] == [package] * 2
    for name in replaced:
        assert (REPOSITORY / "fairseq_phrase/repairs/uncompiled" / Path(name).name).is_file()
    assert not (site / "fairseq" / "libbleu.py").exists()


def test_a_copy_is_not_replaced_by_a_link(clone, site):
    (site / "fairseq_phrase").mkdir()
    assert "is a copy, not an editable installation" in link(clone, site)
    assert not (site / "fairseq_phrase").is_symlink()


def test_a_command_says_that_fairseq_would_import_another_copy(tmp_path):
    # Without the working folder in the path, as an installed command runs.
    code = "import runpy, sys; del sys.path[0]; runpy.run_module('fairseq_phrase', run_name='__main__')"
    command = [sys.executable, "-c", code, "synthetic", "--help"]
    copy = tmp_path / "fairseq_phrase"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

    def warning() -> str:
        process = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return process.stderr

    assert warning() == ""
    shutil.copytree(REPOSITORY / "fairseq_phrase", copy)
    assert warning() == "", "the same code"
    (copy / "text.py").write_text("")
    assert f"--user-dir fairseq_phrase in this folder runs {copy}, which differs" in warning()
