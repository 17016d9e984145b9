"""What the README and the pages in docs/ promise: commands, examples and links."""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fairseq import options

from fairseq_phrase import cli, models, tasks
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoder
from tests.support.registrations import registrations_undone
from tests.support.repository import REPOSITORY

PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "SECURITY.md",
    *sorted(path for path in (REPOSITORY / "docs").rglob("*.md") if path.parent.name != "api"),
    REPOSITORY / "results" / "README.md",
]
NAMES = [str(page.relative_to(REPOSITORY)) for page in PAGES]
STOCK = {
    "fairseq-train": options.get_training_parser,
    "fairseq-generate": options.get_generation_parser,
    "fairseq-interactive": options.get_interactive_generation_parser,
}
OWN = "fairseq-phrase-"
#: Before links of README to files of the repository, which hold on a package index, too.
ABSOLUTE = re.compile(
    r"https://(github\.com/fairseq-phrase/fairseq_phrase/blob|"
    r"raw\.githubusercontent\.com/fairseq-phrase/fairseq_phrase)/main/"
)
#: Pages of the site that are not in docs/, as in scripts/docs_site.py.
FURTHER = {
    "index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md", "reports/index.md": "results/README.md",
}  # fmt: skip

#: What users ask, and the page and heading where the answer begins.
ANSWERS = {
    "How do I continue a training?": "docs/usage.md#continue-a-training",
    "How do I use my own trees?": "docs/parsers.md#a-parser-of-your-own",
    "How do I translate a file?": "docs/translate.md#translate-with-a-trained-model",
    "How do I compare two models?": "docs/compare.md#compare-runs",
    "How do I use two GPUs?": "docs/gpu.md#several-gpus",
    "How do I add my encoder?": "CONTRIBUTING.md#add-an-encoder",
    "How do I export a model?": "docs/translate.md#for-other-libraries",
    "How do I score a translation?": "docs/usage.md#score",
    "How do I see attention?": "docs/usage.md#plot-attention",
    "How do I use a BERT?": "docs/labelling.md#begin-from-a-bert",
}


def commands_of(page: Path) -> list[list[str]]:
    """The words of each command in a page's bash blocks, without pipes and redirections."""
    commands = []
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        if block.startswith("#!"):
            continue  # a script, which its own test runs
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "|" in words:
                words = words[words.index("|") + 1 :]
            words = [word for word in words if not word.startswith((">", "<"))]
            if words:
                commands.append(words)
    return commands


def module_of(command: str) -> str:
    """A command's module: the one whose parser has the command's name."""
    for path in (REPOSITORY / "fairseq_phrase" / "cli").glob("*.py"):
        if f'prog="{command}"' in path.read_text(encoding="utf-8"):
            return path.stem
    raise AssertionError(f"no command {command}")


@pytest.fixture
def in_repository(monkeypatch):
    """The working directory of the commands, with the plugin as --user-dir imports it."""
    monkeypatch.chdir(REPOSITORY)
    for room in (models, tasks):
        for module in pkgutil.iter_modules(room.__path__):
            importlib.import_module(f"{room.__name__}.{module.name}")
    with registrations_undone("methods"):  # --user-dir examples/methods
        yield


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_is_read_by_its_own_parser(page, in_repository):
    """An unknown option or a bad value ends the test."""
    for command, *arguments in commands_of(page):
        if command in STOCK:
            assert options.parse_args_and_arch(STOCK[command](), arguments)
        elif command.startswith(OWN):
            module = importlib.import_module(f"{cli.__name__}.{module_of(command)}")
            assert module.make_parser().parse_args(arguments)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_script_that_is_named_exists_and_has_the_options(page):
    shared = (REPOSITORY / "scripts" / "table.sh").read_text(encoding="utf-8")
    for command, *arguments in commands_of(page):
        if command not in ("bash", "python") or arguments[0].startswith("-"):
            continue
        script, *words_of_command = arguments
        text = (REPOSITORY / script).read_text(encoding="utf-8")
        options = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text + shared)) | {"--help"}
        options_of_command = {
            word for word in words_of_command if word.startswith("-") and " " not in word
        }  # no --train-flags
        assert options_of_command <= options, (script, words_of_command)


def test_every_configuration_of_a_hydra_command_exists():
    hydra_commands = [
        words for page in PAGES for words in commands_of(page) if "--config-name" in words
    ]
    files = [
        f"{words[words.index('--config-dir') + 1]}/{words[words.index('--config-name') + 1]}.yaml"
        for words in hydra_commands
    ]
    in_repository = [name.removeprefix("$PWD/") for name in files if "/runs/" not in name]
    assert in_repository
    assert all((REPOSITORY / name).is_file() for name in in_repository), in_repository


def test_every_command_of_this_project_is_shown_in_the_pages():
    commands = {words[0] for page in PAGES for words in commands_of(page)}
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    installed = set(re.findall(r'^(fairseq-phrase-\w+) = "', project, re.MULTILINE))
    modules = {path.stem for path in (REPOSITORY / "fairseq_phrase" / "cli").glob("*.py")}
    assert len(installed) == len(
        modules - {"__init__", "__main__", "arguments", "command", "raw_text"}
    )
    assert installed <= commands


def test_the_python_example_runs():
    page = (REPOSITORY / "docs" / "models" / "phrase_transformer.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(example, names)
    assert names["output"].shape == (2, 13, 64)
    assert names["weights"].shape == (2, 4, 13, 13)


def test_every_method_that_an_encoder_overrides_is_listed():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    methods = list(vars(SyntaxEncoder))
    overridable = methods[
        : methods.index("shared_options")
    ]  # methods that all encoders share follow
    listed = set(re.findall(r"`(\w+)", text))
    assert {name for name in overridable if not name.startswith("_")} <= listed


def links_of(page: Path) -> set[tuple[Path, str]]:
    """The files of the repository that a page links to, each with the heading's anchor or ""."""
    text = page.read_text(encoding="utf-8")
    links = [*re.findall(r"\]\(([^)\s]+)\)", text), *re.findall(r"(?m)^\[[^\]]+\]: (\S+)$", text)]
    inside = [link for link in (ABSOLUTE.sub("", link) for link in links) if "://" not in link]
    parts = [link.partition("#") for link in inside]
    return {((page.parent / name).resolve() if name else page, anchor) for name, _, anchor in parts}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_somewhere(page):
    """Files exist, and a page that is linked to has the heading that is named."""
    for target, heading in links_of(page):
        assert target.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
            assert heading in anchors, (target, heading)


def test_what_users_ask_is_at_most_two_clicks_from_the_readme():
    first = links_of(REPOSITORY / "README.md")
    pages = {page for page, _ in first if page.suffix == ".md"}
    reached = first.union(*map(links_of, pages))
    assert {
        question: answer
        for question, answer in ANSWERS.items()
        if (REPOSITORY / answer.split("#")[0], answer.split("#")[1]) not in reached
    } == {}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_file_that_is_named_exists(page):
    """Paths in back quotes, except placeholders such as ``models/my_encoder.py``."""
    text = page.read_text(encoding="utf-8")
    folders = "fairseq_phrase|scripts|configs|tests|docs|benchmarks|examples"
    files = set(re.findall(rf"`((?:{folders})/[^\s`]+)`", text))
    real = {name for name in files if not re.search(r"my_|TABLE|NAME|SIZE|SETTING|[…*{]", name)}
    assert {name for name in real if not (REPOSITORY / name).exists()} == set()


def test_every_group_of_entry_points_is_named_as_public():
    page = (REPOSITORY / "docs" / "public.md").read_text(encoding="utf-8")
    (cell,) = re.findall(r"(?m)^\| entry points \| (.*) \|$", page)
    texts = [
        path.read_text(encoding="utf-8") for path in (REPOSITORY / "fairseq_phrase").rglob("*.py")
    ]
    groups = {group for text in texts for group in re.findall(r'(?m)^[A-Z_]*GROUP = "(.*)"$', text)}
    assert {f"fairseq_phrase.{name}" for name in re.findall(r"\.([a-z_.]+)`", cell)} == groups


def _without_code(page: Path) -> str:
    return re.sub(r"(?ms)^ *```.*?^ *```", "", page.read_text(encoding="utf-8"))


def paragraphs_of(page: Path) -> list[str]:
    """The prose of a page, a paragraph or an item of a list each, without code, tables and headings."""
    blocks = [
        block for block in re.split(r"\n\s*\n", _without_code(page)) if not block.startswith("    ")
    ]
    lines = "\n\n".join(blocks).split("\n")
    prose = [line for line in lines if not re.match(r"\||#|\$\$|\[[^\]]+\]: ", line)]
    return re.split(r"\n\s*\n|\n *(?:[-*]|\d+\.) ", "\n".join(prose))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_sentence_has_more_than_40_words(page):
    for paragraph in paragraphs_of(page):
        plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", paragraph))
        plain = re.sub(r"\b(et al|eq|cf)\.", r"\1", plain)
        for sentence in re.split(r"(?<=[.!?])[)\"”*]*\s+", plain):
            assert len(re.findall(r"\S*\w\S*", sentence)) <= 40, sentence


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_prose_is_wrapped_at_100_characters(page):
    """A line is only longer if it has nowhere to break outside of inline code."""
    for line in "\n".join(paragraphs_of(page)).splitlines():
        unbroken = re.sub(r"`[^`]*`|\$[^$]+\$", lambda code: "x" * len(code[0]), line.strip())
        assert len(line) <= 100 or " " not in unbroken.rstrip(".,;:)"), line


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_table_has_a_head(page):
    """An empty line within a table ends it: the rows below it are shown as text."""
    for table in re.findall(r"(?m)(?:^\|.*\n)+", f"{_without_code(page)}\n"):
        assert re.match(r".*\n\|(?: *:?-+:? *\|)+\n", table), table


def test_all_pages_together_have_at_most_28000_words():
    """Words have a letter or a digit. What stands on one page is linked from the others."""
    words = [word for page in PAGES for word in re.findall(r"\S*\w\S*", _without_code(page))]
    assert 1000 < len(words) <= 28_000


def _titles(entries: list) -> Iterator[str]:
    """The names in the site's navigation, sections too."""
    for entry in entries:
        if isinstance(entry, str):
            name = FURTHER.get(entry, f"docs/{entry}")
            yield (REPOSITORY / name).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
            continue
        for name, below in entry.items():
            yield name
            yield from _titles(below) if isinstance(below, list) else ()


def test_no_two_entries_of_the_navigation_have_one_name():
    text = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    names = list(_titles(yaml.safe_load(text)["nav"]))
    assert len(names) == len(set(names)), sorted(names)


def test_the_architecture_lists_every_package():
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w/]+)/` \|", text, re.MULTILINE)
    package = REPOSITORY / "fairseq_phrase"
    for name in ("*", "data/*"):
        packages = {
            path.parent.relative_to(package) for path in package.glob(f"{name}/__init__.py")
        }
        assert {path.as_posix() for path in packages} - {"data"} <= set(listed)
    assert all((package / name).is_dir() for name in listed)


def test_the_readme_fits_a_screen_and_a_package_index():
    """Short lines, and no link that is relative to the repository."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len([line for line in lines if not re.match(r"\[[^\]]+\]: https:", line)]) <= 120
    assert max(map(len, lines)) <= 120
    assert re.findall(r"\]\((?!http)[^)]*\)", text) == []
    defined, used = (
        set(re.findall(r"(?m)^(\[[^\]]+\]): https:", text)),
        re.findall(r"\](\[[^\]]+\])", text),
    )
    assert defined == set(used)
    results = re.search(r"(?s)\n## Results\n(.*?)\n## ", re.sub(r"(?s)<!--.*?-->", "", text))[1]
    assert len(results.split()) <= 190, "the details are in docs/results.md"


def test_the_paper_of_every_encoder_can_be_cited(in_repository):
    page = (REPOSITORY / "docs" / "citing.md").read_text(encoding="utf-8")
    encoders = {
        name
        for name, method in ENCODERS.items()
        if method.encoder.__module__.startswith("fairseq_phrase.")
    }
    assert len(encoders) > 5
    assert encoders - {"transformer"} <= set(re.findall(r"`(?:--encoder )?(\w+)`", page))
    keys = re.findall(r"(?m)^@\w+\{([\w-]+),$", page)
    software, *cited = zip(keys, re.findall(r"title = \{\{(.*)\}\}", page), strict=True)
    assert re.findall(r"(?m)^\| .* \| ([a-z][\w-]+) \|$", page)[1:] == [key for key, _ in cited]
    file = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert software[1].replace("\\", "") == file["title"]
    assert [reference["title"] for reference in file["references"]] == [title for _, title in cited]
