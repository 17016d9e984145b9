"""``python -m fairseq_phrase.cli NAME ARGUMENTS`` runs ``fairseq-phrase-NAME`` without its script."""

import sys
from importlib import import_module

from fairseq_phrase.__main__ import commands

if __name__ == "__main__":
    name, *arguments = sys.argv[1:] or [""]
    modules = {
        command.removeprefix("fairseq-phrase-"): module
        for command, (module, _) in commands().items()
    }
    if name not in modules:
        sys.exit(f"error: expected a command, one of {', '.join(modules)}")
    import_module(modules[name]).main(arguments)
