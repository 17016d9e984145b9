"""fairseq models: every registered encoder as a translation model, one file a method."""

from fairseq_phrase.compat import make_checkpoints_loadable
from fairseq_phrase.models.registry import load_installed_encoders

make_checkpoints_loadable()
load_installed_encoders()
