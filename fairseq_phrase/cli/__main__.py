"""``python -m fairseq_phrase.cli NAME ARGUMENTS`` runs ``fairseq-phrase-NAME`` without its script."""

from fairseq_phrase.__main__ import main

if __name__ == "__main__":
    main()
