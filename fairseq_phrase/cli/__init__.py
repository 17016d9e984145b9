"""Commands: only argument parsing. What they share is in :mod:`fairseq_phrase.cli.command`."""
