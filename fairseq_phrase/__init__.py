"""Syntax-aware encoders for fairseq, used with ``--user-dir fairseq_phrase``.

Importing this package alone imports nothing else, so that ``fairseq_phrase.syntax`` needs only NumPy
and ``fairseq_phrase.modules`` only torch. fairseq itself imports every file in ``tasks/`` and
``models/``, and importing either of those packages registers everything and makes checkpoints
loadable (see :mod:`fairseq_phrase.compat`).
"""

__version__ = "0.1.0"
