"""All code that depends on the versions of fairseq, torch and other libraries.

An import changes nothing. :func:`fairseq_phrase.register` patches fairseq
(:func:`fairseq_phrase.repairs.patches.patch_fairseq`). Printed output changes only where fairseq loads
this package as a user directory (:mod:`fairseq_phrase.tasks.user_directory`).
"""
