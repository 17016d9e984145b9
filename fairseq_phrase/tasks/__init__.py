"""fairseq tasks."""

from fairseq_phrase.compat import make_checkpoints_loadable, print_user_errors_plainly, quieten

make_checkpoints_loadable()
print_user_errors_plainly()
quieten()
