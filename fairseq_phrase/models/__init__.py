"""fairseq models: every registered encoder as a translation model, one file for each method."""

from fairseq_phrase.compat import make_checkpoints_loadable
from fairseq_phrase.models.identity import guard_checkpoints

make_checkpoints_loadable()
guard_checkpoints()
