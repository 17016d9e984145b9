"""A small synchronous grammar: German and English sentences with gold trees on both sides.

Translating the sentences needs structure: verb-final clauses, separable verbs, inversion, and
prepositional phrases whose attachment only the tree shows. Nothing is downloaded or parsed: a model,
a test or a tutorial gets a parsed parallel corpus within seconds.

>>> from fairseq_phrase.lab.synthetic import generate
>>> pair = next(generate(1, seed=1))
>>> len(pair.source.words) == len(pair.source.heads)
True
"""

from fairseq_phrase.lab.synthetic.corpus import GrammarExhaustedError, ParallelSentence, generate
from fairseq_phrase.lab.synthetic.tree import Sentence

__all__ = ["GrammarExhaustedError", "ParallelSentence", "Sentence", "generate"]
