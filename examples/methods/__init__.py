"""Methods as encoders, one file each: ``--user-dir examples/methods --arch NAME``."""

import fairseq_phrase

fairseq_phrase.register()

from . import ape, depgcn, relative_phrases, saft, wire  # noqa: E402, F401
