"""fairseq tasks."""

from fairseq_phrase.compat import make_checkpoints_loadable

make_checkpoints_loadable()
