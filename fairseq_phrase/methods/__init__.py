"""A folder per method: its attention, structure, options and encoder; here, what encoders are made of.

:mod:`~fairseq_phrase.methods.syntax_encoder` is the encoder into which every method fits, and
:mod:`~fairseq_phrase.methods.encoder_method` the registration. Files of attention, positions and structures
need torch alone.
"""
