"""SynGEC's DepGCN after the encoder (Zhang et al., EMNLP 2022).

With the arcs A in both directions and a vector e_r for each label and direction, layer l of the GCN is
g_i = ReLU(Σ_j A_ij (W g_j + e_r(ij)) + W_0 g_i), and the decoder reads β h + (1 - β) g. Our reading: W
differs by direction, sums over dependents are means, and each subword has its word's arcs; a residual
connection with layer norm is around each layer; β is 0.5.
"""

from dataclasses import dataclass

from fairseq.modules import LayerNorm
from torch import Tensor, nn
from torch.nn.functional import relu

from fairseq_phrase.methods.encoder_method import option, register_encoder
from fairseq_phrase.methods.syntax_encoder import SourceStructure, SyntaxEncoder


@dataclass
class GcnOptions:
    gcn_layers: int = option(3, "layers of the GCN")
    gcn_share: float = option(0.5, "1 - β, the share of the GCN's states")


@dataclass(frozen=True)
class Arcs(SourceStructure):
    to_head: Tensor  # True at the subwords of a token's head. Shape: (batch, tokens, tokens)
    labels: Tensor  # of each token's arc to its head. Shape: (batch, tokens)


@register_encoder("depgcn", options=GcnOptions, parse_fields=["words", "heads", "deprels"])
class DepGcnEncoder(SyntaxEncoder):
    def __init__(self, cfg, dictionary, embed_tokens):
        super().__init__(cfg, dictionary, embed_tokens)
        width = embed_tokens.embedding_dim
        self.gcn = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(cfg.gcn_layers))
        self.norms = nn.ModuleList(LayerNorm(width) for _ in self.gcn)
        self.embed_arcs = nn.Embedding(cfg.labels.count("deprels"), 2 * width)

    def structure(self, src_tokens, parse):
        words, of_words = parse["words"], parse["words"].clamp(min=0)
        heads, labels = (parse[f].gather(1, of_words) for f in ("heads", "deprels"))
        has_head = (words >= 0) & (heads != words)
        arcs = (heads[:, :, None] == words[:, None]) & has_head[:, :, None]
        return Arcs(self.padding(src_tokens), arcs, labels.masked_fill(~has_head, 0))

    def after_layers(self, states, structure):
        arcs = structure.to_head.to(states)
        up = arcs / arcs.sum(2, keepdim=True).clamp(min=1)  # each of a head's subwords counts alike
        dependents = up.mT.sum(2, keepdim=True)  # below 1 if a head has more subwords than they
        down = up.mT / dependents.masked_fill(dependents == 0, 1)
        of_head, of_dependent = self.embed_arcs(structure.labels).chunk(2, -1)
        hidden = states.transpose(0, 1)
        of_head = of_head * up.sum(2, keepdim=True)
        for layer, norm in zip(self.gcn, self.norms, strict=True):
            itself, head, dependent = layer(hidden).chunk(3, -1)
            summed = itself + up @ head + of_head + down @ (dependent + of_dependent)
            hidden = norm(hidden + self.dropout_module(relu(summed)))
        share = self.cfg.gcn_share
        return (1 - share) * states + share * hidden.transpose(0, 1)
