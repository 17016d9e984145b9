"""What happens when fairseq loads this package as a user directory.

fairseq imports every file in ``tasks/`` of a ``--user-dir``. Nothing else imports this one. So here, and
not in an import by a library, fairseq is mended and its commands print what ours print.
"""

from fairseq_phrase.checkpoints.identity import guard_checkpoints
from fairseq_phrase.compat import mend_fairseq, print_user_errors_plainly, quieten

print_user_errors_plainly()
quieten()
mend_fairseq()
guard_checkpoints()
