"""fairseq models: every registered encoder as a translation model, one file for each method."""

from fairseq_phrase.compat import make_checkpoints_loadable
from fairseq_phrase.models.model_options import refuse_changed_options
from fairseq_phrase.models.registry import load_installed_encoders

make_checkpoints_loadable()
refuse_changed_options()
load_installed_encoders()
