"""Syntax-aware encoders for fairseq, used with ``--user-dir fairseq_phrase``.

Importing this package does not import any other module. So ``fairseq_phrase.syntax`` needs only NumPy,
and ``fairseq_phrase.modules`` needs only torch. fairseq imports every file in ``tasks/`` and ``models/``.
Importing either of these packages registers everything and makes checkpoints loadable (see
:mod:`fairseq_phrase.compat`).
"""

__version__ = "0.1.0"
