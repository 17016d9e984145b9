"""A folder per method: its attention, structure, options and encoder. Here is what encoders are made of.

:mod:`~fairseq_phrase.methods.syntax_encoder` is the encoder into which every method fits, and
:mod:`~fairseq_phrase.methods.encoder_method` its registration. Attention, positions and structures need
torch alone; files that import fairseq are those of encoders, decoders and their options.
"""
