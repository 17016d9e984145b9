"""The PhraseTransformer: attention over phrases."""
