"""The file that runs when fairseq loads this package as a user directory.

fairseq imports every file in ``tasks/`` of a ``--user-dir``. Nothing else imports this file. So it
patches fairseq and lets its commands print the same as ours; an import by a library does neither.
"""

from fairseq_phrase.checkpoints.guards import guard_checkpoints
from fairseq_phrase.repairs.commands import print_user_errors_plainly, quieten
from fairseq_phrase.repairs.ending import end_quickly
from fairseq_phrase.repairs.mkl import log_advice
from fairseq_phrase.repairs.patches import patch_fairseq

print_user_errors_plainly()
quieten()
patch_fairseq()
guard_checkpoints()
log_advice()
end_quickly()
