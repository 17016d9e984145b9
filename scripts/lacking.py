"""Print which parts of fairseq, this project and its extras are missing in an environment, if any.

python -I scripts/lacking.py EXTRAS
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path


def lacking(extras: str) -> list[str]:
    """Name the packages that this interpreter lacks, or whose commands it lacks."""
    commands = Path(sys.prefix, "bin")
    missing = [
        package
        for package, command in (
            ("fairseq-fixed", "fairseq-train"),
            ("fairseq-phrase", "fairseq-phrase-preprocess"),
        )
        if not (commands / command).exists()
    ]
    try:
        needed = requires("fairseq-phrase") or []
    except PackageNotFoundError:
        needed = []
    names = extras.split(",")
    for extra in names:  # fairseq-phrase[test] needs fairseq-phrase[plot]
        requirements = (
            re.match(rf"fairseq-phrase\[([\w,]+)\].*extra == ['\"]{extra}['\"]", need)
            for need in needed
        )
        names += [
            more
            for match in requirements
            if match
            for more in match[1].split(",")
            if more not in names
        ]
    for need in needed:
        extra = re.search(r"extra == ['\"](\w+)", need)
        if extra is None or extra[1] in names:
            name = re.match(r"[\w.-]+", need)[0]
            try:
                version(name)
            except PackageNotFoundError:
                missing.append(name)
    return list(dict.fromkeys(missing))


if __name__ == "__main__":
    print(*lacking(sys.argv[1]), sep=", ")
