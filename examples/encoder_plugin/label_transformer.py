"""A user-defined encoder: every token has the relation of its word to its head.

The embedding of the dependency label is added to the token's embedding; the layers are fairseq's.
"""

from dataclasses import dataclass

from fairseq.models.transformer.transformer_base import Embedding
from torch import Tensor

from fairseq_phrase.methods.encoder_method import NeutralOptions, option, register_encoder
from fairseq_phrase.methods.syntax_encoder import SourceStructure, SyntaxEncoder


@dataclass
class LabelOptions(NeutralOptions):
    """Options of dependency labels."""

    label_scale: float = option(1.0, "factor of the label's embedding")


@dataclass(frozen=True)
class LabelledTokens(SourceStructure):
    """The tokens of a batch with their words' labels.

    Attributes:
        labels: index of each token's label; 0 at tokens outside words. Shape: ``(batch, tokens)``.
    """

    labels: Tensor


@register_encoder(
    "label_transformer",
    options=LabelOptions,
    parse_fields=["words", "deprels"],
    variants={"dependency labels": {}, "dependency labels, neutral": {"neutral_start": True}},
)
class LabelEncoder(SyntaxEncoder):
    """fairseq's Transformer encoder with embeddings of dependency labels."""

    # With zeros it computes the same as fairseq's encoder, whose checkpoints --neutral-start can load.
    neutral_parameters = ("embed_labels",)

    def __init__(self, cfg, dictionary, embed_tokens):
        super().__init__(cfg, dictionary, embed_tokens)
        self.embed_labels = Embedding(
            cfg.labels.count("deprels"), embed_tokens.embedding_dim, padding_idx=0
        )
        if cfg.neutral_start:
            self.embed_labels.weight.data.zero_()

    def structure(self, src_tokens, parse):
        words = parse["words"]
        labels = parse["deprels"].gather(1, words.clamp(min=0)).masked_fill(words < 0, 0)
        return LabelledTokens(self.padding(src_tokens), labels)

    def first_states(self, src_tokens, structure, token_embeddings=None):
        states, embedding = super().first_states(src_tokens, structure, token_embeddings)
        labels = self.cfg.label_scale * self.embed_labels(structure.labels)
        return states + self.dropout_module(labels), embedding
