"""The values that options accept, which ``--help`` reads without the libraries behind them."""

#: Where parsing runs, ``--engine``.
ENGINES = ("processes", "ray")
#: The source of constituents, ``--constituents``.
CONSTITUENTS = ("parser", "from-dependencies", "none")
#: The parsers of this project, ``--parser NAME``.
PARSERS = ("spacy", "stanza", "conllu", "ptb", "corenlp", "penman", "factored", "none")
#: The treatment of a line without a parse, ``--on-error``.
ON_ERROR = ("stop", "skip", "flat")
#: The method that splits words into subwords, ``--bpe``.
SUBWORD_MODELS = ("sentencepiece", "subword_nmt")
#: The normal form of text in a SentencePiece model, ``--normal-form``, by SentencePiece's names.
NORMAL_FORMS = ("identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")
#: ``--bpe``, if words are not split into subwords.
WHOLE_WORDS = "none"
#: The units that the labels of a data directory belong to, ``--labels``.
LABELLED = ("word", "sentence")
#: The languages of the synthetic corpus.
SYNTHETIC_LANGUAGES = ("de", "en")
#: Formal languages of outputs, ``--form``.
FORMS = ("calls", "lambda", "regex", "sql")
