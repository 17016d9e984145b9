"""fairseq models, one file each."""

from fairseq_phrase.compat import make_checkpoints_loadable

make_checkpoints_loadable()
