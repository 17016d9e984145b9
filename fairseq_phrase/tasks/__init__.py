"""fairseq tasks."""

from fairseq_phrase.compat import (
    keep_last_batches,
    make_checkpoints_loadable,
    print_user_errors_plainly,
    quieten,
)

make_checkpoints_loadable()
keep_last_batches()
print_user_errors_plainly()
quieten()
