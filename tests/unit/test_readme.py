"""What the README promises."""

from __future__ import annotations

import re

from tests.support.repository import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
MODELS = (REPOSITORY / "docs" / "models.md").read_text(encoding="utf-8")


def test_the_python_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", MODELS, re.DOTALL)
    names: dict = {}
    exec(example, names)
    assert names["output"].shape == (2, 13, 64)
    assert names["weights"].shape == (2, 4, 13, 13)


def test_every_file_that_the_readme_links_to_is_there():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    local = [link for link in links if not link.startswith("http")]
    assert len(local) >= 4
    assert all((REPOSITORY / link).exists() for link in local), local


def test_every_command_of_the_readme_is_installed_and_every_option_is_known():
    """Ask each command for its help, and look the README's options up in it."""
    from fairseq_phrase.cli import (
        analyze,
        attach,
        average,
        inspect_data,
        plot,
        preprocess,
        report,
        score,
    )

    parsers = {"preprocess": preprocess, "score": score, "average": average, "plot": plot}
    parsers |= {"analyze": analyze, "attach": attach, "inspect": inspect_data, "report": report}
    joined = README.replace("\\\n", " ")
    found = re.findall(r"^ *fairseq-phrase-(\w+) (.*)$", joined, re.MULTILINE)
    assert {name for name, _ in found} == set(parsers)
    for name, arguments in found:
        parser = parsers[name]._parser()
        known = {option for action in parser._actions for option in action.option_strings}
        for action in parser._actions:
            for child in (
                (action.choices or {}).values() if isinstance(action.choices, dict) else []
            ):
                known |= {o for inner in child._actions for o in inner.option_strings}
        assert set(re.findall(r"(?<!\S)--[\w-]+", arguments)) <= known, name
