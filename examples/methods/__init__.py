"""Published methods as encoders, one file each: ``--user-dir examples/methods --arch NAME``."""

import fairseq_phrase

fairseq_phrase.register()

from . import ape, depgcn, saft, wire  # noqa: E402, F401
