"""A small synchronous grammar: German and English sentences with gold trees on both sides.

The sentences need structure to be translated: verb-final clauses, separable verbs, inversion, and
prepositional phrases whose attachment only the tree tells. Nothing is downloaded and nothing
parsed, so a model, a test or a tutorial has a parsed parallel corpus within seconds.

>>> from fairseq_phrase.synthetic import generate
>>> pair = next(generate(1, seed=1))
>>> len(pair.source.words) == len(pair.source.heads)
True
"""

from fairseq_phrase.synthetic.corpus import (
    GrammarExhaustedError,
    ParallelSentence,
    generate,
)
from fairseq_phrase.synthetic.tree import Sentence

__all__ = ["GrammarExhaustedError", "ParallelSentence", "Sentence", "generate"]
