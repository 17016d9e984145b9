"""Parsers of other packages: found by their entry points, here and in worker processes."""

import re
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import PARSER_GROUP, load_parser
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from tests.support.packages import install_package
from tests.support.repository import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "parser_plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder as pip would leave it behind: the example's module and the metadata of its build."""
    source = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(EXAMPLE, source)
    site = tmp_path_factory.mktemp("site")
    build = "from setuptools import build_meta as b; b.prepare_metadata_for_build_wheel({!r})"
    subprocess.run(
        [sys.executable, "-c", build.format(str(site))], cwd=source, check=True, capture_output=True
    )
    shutil.copy(source / "right_branching.py", site)
    return site


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Install a package whose entry points and module are given."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(entries, code="", name="mine"):
        module = f"{name}_module"
        install_package(
            tmp_path, name, f"[{PARSER_GROUP}]\n{entries}\n", **{module: PREAMBLE + code}
        )
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


PREAMBLE = """
from fairseq_phrase.parsers import FileParser, LineParser

class Parser(LineParser):
    version, fields = "mine", ("words",)

    def __init__(self, argument="nothing"):
        self.argument = argument

    def parse(self, lines):
        raise NotImplementedError
"""


def test_the_example_parses_when_it_is_installed(installed, monkeypatch):
    monkeypatch.syspath_prepend(str(installed))
    pipeline = ParsingPipeline(ParsingOptions("right-branching", "from-dependencies"))
    assert pipeline.parser.version == "right branching 1.0"
    sentence, empty = pipeline.parse(["Der Hund schläft", ""])
    assert sentence.words == ["Der", "Hund", "schläft"]
    assert sentence.tree.heads.tolist() == [0, 0, 1]
    assert sentence.constituents.spans.tolist() == [[1, 3], [0, 3]]
    assert empty.words == []


def heads_of(line):
    (sentence,) = ParsingPipeline(ParsingOptions("right-branching")).parse([line])
    return sentence.tree.heads.tolist()


def test_the_example_parses_in_spawned_workers(installed, monkeypatch):
    monkeypatch.syspath_prepend(str(installed))
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert list(pool.map(heads_of, ["a b", "a b c"])) == [[0, 0], [0, 0, 1]]


def test_the_documentation_shows_the_example():
    document = (REPOSITORY / "docs" / "parsers.md").read_text(encoding="utf-8")
    code = (EXAMPLE / "right_branching.py").read_text(encoding="utf-8")
    assert code.split('"""\n\n', 1)[1] in document
    (group,) = re.findall(
        r'^\[project\.entry-points\."(.*)"\]$', (EXAMPLE / "pyproject.toml").read_text(), re.M
    )
    assert group == PARSER_GROUP
    assert f'[project.entry-points."{PARSER_GROUP}"]' in document


def test_what_follows_the_colon_is_handed_on_if_there_is_anything(plugin):
    plugin("mine = mine_module:Parser")
    assert [load_parser(spec).argument for spec in ("mine", "mine:", "mine:a:b@/c")] == [
        "nothing",
        "nothing",
        "a:b@/c",
    ]


@pytest.mark.parametrize(
    ("code", "spec"),
    [("def make():\n    return Parser()", "mine:x"), ("def make(model):\n    pass", "mine")],
)
def test_an_argument_too_many_or_too_few_is_refused(plugin, code, spec):
    plugin("mine = mine_module:make", code)
    with pytest.raises(UserError, match=rf"parser {spec}: expected mine as mine 1\.0 takes it \("):
        load_parser(spec)


def test_a_parser_of_this_project_is_not_replaced(plugin):
    plugin("none = mine_module:Parser")
    assert load_parser("none").version == "white space"


def test_an_unknown_parser_is_refused_with_all_that_are_there(plugin):
    plugin("mine = mine_module:Parser\nhers = mine_module:Parser")
    with pytest.raises(
        UserError,
        match=r"unknown parser 'his:x': .*ptb, .*, none, .*, hers, mine or",
    ):
        load_parser("his:x")


def test_a_name_that_two_packages_have_is_ambiguous(plugin):
    plugin("mine = mine_module:Parser")
    plugin("mine = hers_module:Parser", name="hers")
    with pytest.raises(UserError, match=r"the parser mine is ambiguous: .*hers 1\.0"):
        load_parser("mine")


@pytest.mark.parametrize("value", ["no_such_module:Parser", "mine_module:NoSuchParser"])
def test_a_broken_package_is_named(plugin, value):
    plugin(f"mine = {value}")
    with pytest.raises(UserError, match=r"mine 1\.0, which has the parser mine, is broken: .*"):
        load_parser("mine")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def make():\n    return 3", "made a int, which is neither a LineParser nor a FileParser"),
        ("make = Parser\nParser.fields = ('heads',)", "has the fields heads: expected words"),
        ("make = Parser\nParser.fields = ('words', 'trees')", "has the fields words, trees: expec"),
        ("make = Parser\ndel Parser.version, Parser.fields", "has no version, fields"),
        (
            "class make(FileParser):\n    version, fields = 'f', ('words',)\n"
            "    def read(self, path, lines):\n        return iter(())",
            "has no suffix",
        ),
    ],
)
def test_what_is_no_parser_is_refused(plugin, code, message):
    plugin("mine = mine_module:make", code)
    with pytest.raises(UserError, match=message):
        load_parser("mine")


def test_errors_of_a_parser_itself_are_its_own(plugin):
    plugin("mine = mine_module:make", "def make():\n    raise RuntimeError('no model')")
    with pytest.raises(RuntimeError, match="no model"):
        load_parser("mine")
