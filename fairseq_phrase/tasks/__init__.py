"""fairseq tasks."""

from fairseq_phrase.compat import (
    keep_last_batches,
    make_checkpoints_loadable,
    print_user_errors_plainly,
    quieten,
    restore_integers_of_numpy,
    resume_the_same_training,
)

make_checkpoints_loadable()
keep_last_batches()
print_user_errors_plainly()
restore_integers_of_numpy()
resume_the_same_training()
quieten()
