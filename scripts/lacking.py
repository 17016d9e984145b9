"""Print which requirements of fairseq, this project and its extras an environment does not meet, if any.

python -I scripts/lacking.py EXTRAS
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

try:
    from packaging.requirements import Requirement
except ModuleNotFoundError:  # spaCy needs it: at least that is missing
    Requirement = None


def lacking(extras: str) -> list[str]:
    """List the requirements, and fairseq and this project where their commands are missing.

    A fairseq of another version may be the user's own, and is not compared.
    """
    commands = Path(sys.prefix, "bin")
    missing = [
        package
        for package, command in (
            ("fairseq-fixed", "fairseq-train"),
            ("fairseq-phrase", "fairseq-phrase-preprocess"),
        )
        if not (commands / command).exists()
    ]
    if Requirement is None:
        return [*missing, "packaging"]
    with suppress(PackageNotFoundError):
        missing += _unmet("fairseq-phrase", set(extras.split(",")))
    return list(dict.fromkeys(missing))


def _unmet(package, extras) -> Iterator[str]:
    """Yield the requirements of a package that the environment does not meet."""
    for requirement in map(Requirement, requires(package) or []):
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            continue
        if requirement.name == package:  # fairseq-phrase[test] needs fairseq-phrase[plot]
            yield from _unmet(package, requirement.extras)
        elif not _is_met(requirement):
            yield f"{requirement.name}{requirement.specifier}"


def _is_met(requirement) -> bool:
    try:
        return requirement.name == "fairseq-fixed" or requirement.specifier.contains(
            version(requirement.name), prereleases=True
        )
    except PackageNotFoundError:
        return False


if __name__ == "__main__":
    print(*lacking(sys.argv[1]), sep=", ")
