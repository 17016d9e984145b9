"""PhraseTransformer with relative positions (Shaw et al. 2018) in the attention over all nodes (phase 1).

Ours, to ask what phrases bring beyond relative positions. A phrase stands where its first token stands.
"""

from dataclasses import dataclass

import torch

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.encoder_method import option, register_encoder
from fairseq_phrase.methods.phrases import phrase_transformer as phrases
from fairseq_phrase.methods.positions.relative_attention import RelativeAttention
from fairseq_phrase.methods.positions.relative_positions import RelativePositions


@dataclass
class Options(phrases.PhraseOptions):
    relative_clip: int = option(16, "largest relative position; larger ones are clipped")


def check(cfg):
    phrases.check(cfg)
    if cfg.relative_clip < 1:
        raise UserError(f"--relative-clip {cfg.relative_clip}: expected 1 or more")


class NodeAttention(RelativeAttention):
    def forward(self, states, structure, need_weights=False):
        tokens = torch.arange(structure.num_tokens, device=states.device)
        first = structure.is_member.int().argmax(2)  # of each phrase. Shape: (batch, phrases)
        place = torch.cat([tokens.expand(len(first), -1), first], 1)
        relative = {"sequential": place[:, :, None] - place[:, None]}
        rows = RelativePositions.from_kinds(relative, self.clips, structure.padding_mask)
        attended, weights = super().forward(states.transpose(0, 1), rows, need_weights)
        return attended.transpose(0, 1), weights


class RelativeNodes:
    def build_self_attention(self, embed_dim, cfg):
        clips = {"sequential": cfg.relative_clip}
        heads = {"num_heads": cfg.encoder.attention_heads, "dropout": cfg.attention_dropout}
        return self.with_quant_noise(NodeAttention(embed_dim=embed_dim, clips=clips, **heads))


class RelativeNodeLayer(RelativeNodes, phrases.NodeEncoderLayer): ...


class RelativePhraseLayer(RelativeNodes, phrases.PhraseEncoderLayer): ...


@register_encoder(
    "relative_phrases", options=Options, check=check, parse_fields=phrases.parse_fields
)
class RelativePhraseEncoder(phrases.PhraseEncoder):
    layer_class, token_layer_class = RelativePhraseLayer, RelativeNodeLayer

    @classmethod
    def neutral_obstacle(cls, cfg):
        return "relative positions of nodes have no neutral start"

    @classmethod
    def causal_obstacle(cls, cfg, window):
        return "relative positions of nodes are not masked"
