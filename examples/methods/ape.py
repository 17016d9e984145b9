"""Algebraic Positional Encodings (Kogkalidis, Bernardy, Garg; NeurIPS 2024), on dependency trees.

A step s from a node to a child is an orthogonal matrix W_s, a node's position P the product of the steps
from the root to it, and the score of two nodes (P_i q_i) · (P_j k_j). Our reading: a step is the word's
number of earlier siblings, at most K - 1; W_s is the exponential of a skew-symmetric matrix, learned in
each head; of long paths the last steps count; the sentence's own positions stay.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_phrase.methods.common.tensors import upcast
from fairseq_phrase.methods.encoder_method import option, register_encoder
from fairseq_phrase.methods.positions.path_positions import token_paths
from fairseq_phrase.methods.syntax_encoder import SourceStructure, SyntaxEncoder

from .transformed_attention import TransformedAttention, TransformedLayer


@dataclass
class ApeOptions:
    ape_levels: int = option(12, "the most steps of a path")
    ape_branches: int = option(4, "K, the number of different steps")


@dataclass(frozen=True)
class Paths(SourceStructure):
    steps: Tensor  # that to the word first, -1 above the root. Shape: (batch, tokens, levels)


class ApeAttention(TransformedAttention):
    def add_parameters(self, cfg):
        heads, width = self.num_heads, self.embed_dim // self.num_heads
        self.skew = nn.Parameter(0.2 * torch.randn(cfg.ape_branches, heads, width, width))

    def transform(self, query, key, structure):
        matrices = torch.matrix_exp(upcast(self.skew - self.skew.mT)).to(query)
        placed = torch.stack([query, key])
        for steps in structure.steps.unbind(2):
            before, steps = placed, steps[:, None, :, None]
            for number, matrix in enumerate(matrices):
                placed = torch.where(steps == number, before @ matrix.mT, placed)
        return placed.unbind()


class ApeLayer(TransformedLayer):
    attention_class = ApeAttention


@register_encoder("ape", options=ApeOptions, parse_fields=["words", "heads"])
class ApeEncoder(SyntaxEncoder):
    layer_class = ApeLayer

    def structure(self, src_tokens, parse):
        steps, *_ = token_paths(self.cfg.ape_levels, self.cfg.ape_branches, src_tokens, parse)
        return Paths(self.padding(src_tokens), steps)
