"""Updates that cost less than fairseq's, for every model of the tasks, with the same losses to rounding.

:mod:`~fairseq_phrase.training.update` decides which parts apply to a training. Only the objects of that
training change; an import changes nothing.
"""
