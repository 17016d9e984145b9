"""``python -m fairseq_phrase.cli NAME ARGUMENTS`` runs ``fairseq-phrase-NAME`` without its script."""

import sys
from importlib import import_module

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    import_module(f"fairseq_phrase.cli.{name}").main(arguments)
