"""Attention of a tree Transformer: the nonterminals' share, and the weights in single sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_phrase.data.batches.raw_tokens import ends_of
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.encoder_maps import attention_maps
from fairseq_phrase.methods.common.tree_batch import TreeBatch
from fairseq_phrase.methods.model_parts import decoder_of
from fairseq_phrase.models.source_factors import HookedEnsemble
from fairseq_phrase.text import markdown_table

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary


@dataclass(frozen=True)
class Share:
    """The share of a layer's attention on nonterminals, averaged over all queries.

    Attributes:
        attention: ``cross`` (of target words) or ``self`` (of source nodes).
        layer: the layer, from 1.
        on_nonterminals: the share of attention on nonterminals.
        of_nodes: their share of the nodes that may be attended to, which is their share of uniform
            attention.
    """

    attention: str
    layer: int
    on_nonterminals: float
    of_nodes: float


def cross_attention(
    model: Any, net_input: dict[str, Tensor], previous: Tensor
) -> tuple[TreeBatch, Tensor]:
    """Compute every decoder layer's attention to the source, averaged over the heads.

    Args:
        previous: the target, shifted right. Shape: ``(batch, target tokens)``.

    Returns:
        The trees, and the weights, of shape ``(layers, batch, target tokens, nodes)``.
    """
    encoded = model.encoder(**net_input)
    layers = []
    for layer in range(model.decoder.num_layers):
        _, extra = model.decoder(
            previous, encoder_out=encoded, features_only=True, alignment_layer=layer
        )
        layers.append(extra["node_attn"][0].float())
    return encoded["tree"][0], torch.stack(layers)


def self_attention(model: Any, net_input: dict[str, Tensor]) -> tuple[TreeBatch, Tensor]:
    """Compute every encoder layer's attention, averaged over the heads.

    Returns:
        The trees, and the weights, of shape ``(layers, batch, nodes, nodes)``.

    Raises:
        UserError: the model is not a tree Transformer.
    """
    tree, maps = attention_maps(model, net_input)
    if not isinstance(tree, TreeBatch):
        raise UserError("this model is not a tree Transformer: it does not attend to constituents")
    return tree, torch.stack([layer["all nodes"].float().mean(1) for layer in maps])


def nonterminal_shares(model: Any, samples: Iterable[dict[str, Any]]) -> list[Share]:
    """Measure nonterminals' share of attention over a data set, in each layer.

    The queries are every target position, teacher-forced, and every source node. Only queries that may
    attend to both leaves and nonterminals count. So the words of a sentence without constituents do not
    count, and with subtree masking the leaves in the encoder do not count.

    Raises:
        UserError: the model is not a tree Transformer, lacks a decoder, or no query attends to
            nonterminals.
    """
    require_decoder(model)
    totals: dict[str, Any] = {"cross": 0, "self": 0}
    for sample in samples:
        net_input = dict(sample["net_input"])
        previous = net_input.pop("prev_output_tokens")
        with torch.no_grad():
            tree, self_weights = self_attention(model, net_input)
            _, cross = cross_attention(model, net_input, previous)
        keys = tree.key_mask[:, 0]
        # The target begins with the end of sentence, which also is a query.
        attends = previous.ne(model.decoder.padding_idx)
        totals["cross"] += _sums(cross, keys, attends, tree)
        masked = not model.cfg.no_subtree_masking
        allowed = tree.subtree_mask[:, 0] if masked else keys
        totals["self"] += _sums(self_weights, allowed, ~tree.node_padding_mask, tree)
    shares = []
    for name, total in totals.items():
        if isinstance(total, int) or total[0, 2] == 0:
            raise UserError("no sentence has constituents: there is nothing to measure")
        for layer, (on_nonterminals, of_nodes, count) in enumerate(total.tolist(), start=1):
            shares.append(Share(name, layer, on_nonterminals / count, of_nodes / count))
    return shares


def _sums(weights: Tensor, allowed: Tensor, attends: Tensor, tree: TreeBatch) -> Tensor:
    """Sum over all queries that count.

    Args:
        weights: Shape: ``(layers, batch, queries, nodes)``.
        allowed: which nodes may be attended to. Shape: ``(batch, queries or 1, nodes)``.
        attends: which queries count. Shape: ``(batch, queries)``.

    Returns:
        For each layer the attention on nonterminals, their share of the nodes, and the number of
        queries. Shape: ``(layers, 3)``, float64.
    """
    nonterminals = allowed[..., tree.num_leaves :].sum(-1)
    of_nodes = (nonterminals / allowed.sum(-1)).expand(attends.shape)
    attends = attends & (nonterminals > 0)
    on_nonterminals = weights[..., tree.num_leaves :].sum(-1)[:, attends].double().sum(1)
    constants = torch.stack([of_nodes[attends].double().sum(), attends.sum().double()])
    return torch.cat([on_nonterminals[:, None], constants.expand(len(weights), 2)], 1)


def shares_table(shares: Sequence[Share]) -> str:
    """Format shares in Markdown."""
    lines = [
        [share.attention, str(share.layer), f"{share.on_nonterminals:.1%}", f"{share.of_nodes:.1%}"]
        for share in shares
    ]
    for name in ("cross", "self"):
        layers = [share for share in shares if share.attention == name]
        mean = sum(share.on_nonterminals for share in layers) / len(layers)
        lines.append([name, "mean", f"{mean:.1%}", f"{layers[0].of_nodes:.1%}"])
    headings = ["attention", "layer", "on nonterminals", "share of nodes"]
    return markdown_table(headings, lines, texts=1)


def require_decoder(model: Any) -> None:
    """Check that a model translates: labellers and pre-trainers only have an encoder.

    Raises:
        UserError: the model lacks a decoder.
    """
    if decoder_of(model) is None:
        raise UserError(
            "this model has no decoder, so it does not translate: fairseq-phrase-plot attention, and "
            "tree --encoder, draw the attention of its encoder"
        )


def translate(
    model: Any,
    net_input: dict[str, Tensor],
    dictionary: Dictionary,
    beam: int = 5,
    longest: int = 201,
) -> Tensor:
    """Translate one sentence, its end included. Shape: ``(target tokens,)``.

    Args:
        longest: the largest number of the translation's tokens, with the end of sentence.
    """
    require_decoder(model)
    # With --langs, a translation begins and ends with its language's tag.
    end = ends_of(dictionary)[-1]
    generator = SequenceGenerator(
        [model], dictionary, beam_size=beam, max_len_b=longest - 1, eos=end
    )
    generator.model = HookedEnsemble([model])
    lengths = net_input["src_tokens"].ne(dictionary.pad()).sum(1)
    (hypotheses,) = generator.generate(
        [model], {"net_input": {**net_input, "src_lengths": lengths}}
    )
    tokens: Tensor = hypotheses[0]["tokens"]
    return tokens
