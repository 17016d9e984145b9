"""Rotary positions of graphs: WIRE (Reid et al. 2025, arXiv 2509.22259), on dependency trees.

With node i's entries r_i in eigenvectors of the Laplacian, pair n of the columns of its queries and keys
is rotated by the angle ω_n · r_i. Our reading: r omits the constant eigenvector and is divided by the
roots of eigenvalues, so with all of them |r_i - r_j|² is the number of edges from i to j; ω is learned in
each head and starts from N(0, 1); tokens have their words' r, or 0; the sentence's own positions stay.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_phrase.methods.encoder_method import option, register_encoder
from fairseq_phrase.methods.syntax_encoder import SourceStructure, SyntaxEncoder

from .spectral import tree_spectrum
from .transformed_attention import TransformedAttention, TransformedLayer


@dataclass
class WireOptions:
    wire_features: int = option(8, "the number of eigenvectors")


@dataclass(frozen=True)
class Coordinates(SourceStructure):
    r: Tensor  # Shape: (batch, tokens, features)


class WireAttention(TransformedAttention):
    def add_parameters(self, cfg):
        pairs = self.embed_dim // self.num_heads // 2
        self.omega = nn.Parameter(torch.randn(self.num_heads, cfg.wire_features, pairs))

    def transform(self, query, key, structure):
        angles = torch.einsum("btm,hmn->bhtn", structure.r.to(query), self.omega)
        return rotated(query, angles), rotated(key, angles)


def rotated(heads, angles):
    (x, y), cos, sin = heads.unflatten(-1, (-1, 2)).unbind(-1), angles.cos(), angles.sin()
    return torch.stack([x * cos - y * sin, x * sin + y * cos], -1).flatten(-2)


class WireLayer(TransformedLayer):
    attention_class = WireAttention


@register_encoder("wire", options=WireOptions, parse_fields=["words", "heads"])
class WireEncoder(SyntaxEncoder):
    layer_class = WireLayer

    def structure(self, src_tokens, parse):
        count = self.cfg.wire_features
        real, _, eigenvalues = tree_spectrum(parse["words"], parse["heads"], count)
        return Coordinates(self.padding(src_tokens), real / eigenvalues.sqrt())
