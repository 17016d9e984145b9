"""The files of Stanza's models, and which of them a parse needs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError

#: The processors that cut a line into words, and those that make trees.
TOKENIZERS = ("tokenize", "mwt")
ANALYSES = ("depparse", "constituency")
# Stanza's name for the lemmatizer that has no model: every word is its own lemma.
_IDENTITY = "identity"


@dataclass(frozen=True)
class StanzaModels:
    """The models of one language that a parse needs; all their files exist.

    Attributes:
        language: the language's code in the folders' names.
        folder: Stanza's folder of models, with its ``resources.json``.
        packages: the package of each processor, in the order in which they run.
    """

    language: str
    folder: Path
    packages: dict[str, str]

    def chosen(self, *processors: str) -> dict[str, str]:
        """Return the packages of these processors, as far as they have one."""
        return {name: package for name, package in self.packages.items() if name in processors}

    @classmethod
    def find(cls, language: str, folder: Path) -> StanzaModels:
        """Find a language's default package in Stanza's download folder.

        Of the two parsers, those whose model file exists are used. The list in ``resources.json`` also
        has models that were not downloaded.

        Args:
            language: Stanza's code of the language or an alias.
            folder: the folder that holds ``resources.json`` and ``LANGUAGE/PROCESSOR/PACKAGE.pt``.

        Raises:
            UserError: models are missing or ``resources.json`` cannot be read; the message says what to
                run.
        """
        resources = _resources(language, folder)
        seen = {language}
        while isinstance(resources.get(language), dict) and "alias" in resources[language]:
            language = resources[language]["alias"]
            if language in seen:
                break
            seen.add(language)
        entry = resources.get(language)
        if not isinstance(entry, dict) or "default" not in entry.get("packages", {}):
            raise UserError(
                f"{folder / 'resources.json'} has no default package for the language '{language}': "
                f"{_command(language, folder)}"
            )
        # Some languages' constituency parsers come with the default package only if asked for.
        default = entry["packages"]["default"]
        default = {**default.get("optional", {}), **default}

        def file(processor: str) -> Path:
            return folder / language / processor / f"{default[processor]}.pt"

        analyses = [name for name in ANALYSES if name in default and file(name).is_file()]
        if not analyses:
            raise UserError(
                f"{folder} has no Stanza parser for the language '{language}', neither depparse nor "
                f"constituency: {_command(language, folder)}"
            )
        names = [name for name in (*TOKENIZERS, "pos") if name in default]
        if "depparse" in analyses:
            # Stanza requires lemmas before it parses, even if the language has no lemmatizer.
            default = {"lemma": _IDENTITY, **default}
            names.append("lemma")
        packages = {name: default[name] for name in (*names, *analyses)}
        for processor, package in packages.items():
            if (processor, package) != ("lemma", _IDENTITY):
                _require(entry, language, folder, processor, package)
        return cls(language, folder, packages)


def _resources(language: str, folder: Path) -> dict[str, Any]:
    path = folder / "resources.json"
    try:
        resources = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no Stanza models (resources.json is missing): "
            f"{_command(language, folder)}"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(resources, dict):
        raise UserError(f"{path} is not Stanza's list of models: expected a JSON object")
    return resources


def _require(
    entry: dict[str, Any], language: str, folder: Path, processor: str, package: str
) -> None:
    """Check that a model exists, and the files that it depends on, such as word vectors."""
    needed = entry.get(processor, {}).get(package, {}).get("dependencies", [])
    files = [(processor, package), *((item["model"], item["package"]) for item in needed)]
    for kind, name in files:
        path = folder / language / kind / f"{name}.pt"
        if not path.is_file():
            raise UserError(
                f"the Stanza model {path} is missing, which {processor} needs: "
                f"{_command(language, folder)}"
            )


def _command(language: str, folder: Path) -> str:
    arguments = f"{language!r}, model_dir={str(folder)!r}"
    return f'python -c "import stanza; stanza.download({arguments})"'
