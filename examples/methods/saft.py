"""The magnetic Laplacian added to embeddings: SAFT (2025, arXiv 2507.13381), on dependency trees.

The magnetic Laplacian is L = D - A_s ⊙ exp(iΘ) with Θ_ij = 2πq (A_ij - A_ji), where A has the edges from
heads to dependents, and A_s the same without direction. Entries of its eigenvectors for the smallest
eigenvalues, real and imaginary parts, go through two linear layers and are added to the embedding of the
node. Our reading: L is not normalized; q is 0.1; the constant one of the eigenvectors is included by its
phase; the eigenvectors have norm √n; tokens have their words' entries, and 0 outside words. The paper's
graphs are AMR, and its model a language model that is tuned with adapters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_phrase.methods.encoder_method import option, register_encoder
from fairseq_phrase.methods.syntax_encoder import SourceStructure, SyntaxEncoder

from .spectral import tree_spectrum


@dataclass
class SaftOptions:
    saft_features: int = option(8, "the number of eigenvectors")
    saft_q: float = option(0.1, "the phase of an edge, in turns")


@dataclass(frozen=True)
class Spectrum(SourceStructure):
    entries: Tensor  # Shape: (batch, tokens, 2 * features)


@register_encoder("saft", options=SaftOptions, parse_fields=["words", "heads"])
class SaftEncoder(SyntaxEncoder):
    def __init__(self, cfg, dictionary, embed_tokens):
        super().__init__(cfg, dictionary, embed_tokens)
        width = embed_tokens.embedding_dim
        self.project = nn.Sequential(
            nn.Linear(2 * cfg.saft_features, width), nn.ReLU(), nn.Linear(width, width)
        )

    def structure(self, src_tokens, parse):
        words, count = parse["words"], self.cfg.saft_features
        *parts, _ = tree_spectrum(words, parse["heads"], count, self.cfg.saft_q, first=0)
        size = (parse["heads"] >= 0).sum(1)[:, None, None].sqrt()
        return Spectrum(self.padding(src_tokens), torch.cat(parts, 2) * size)

    def first_states(self, src_tokens, structure, token_embeddings=None):
        states, embedding = super().first_states(src_tokens, structure, token_embeddings)
        added = self.project(structure.entries.to(states))
        added = added.masked_fill(structure.padding_mask[..., None], 0.0)
        return states + self.dropout_module(added), embedding
