"""The tree Transformer's encoder: source tokens and constituents as nodes of one attention."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from fairseq.models.transformer.transformer_base import Embedding
from fairseq.modules.quant_noise import quant_noise
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_phrase.models.layers import wrap_layer
from fairseq_phrase.models.tree_beams import regroup
from fairseq_phrase.modules.trees.hierarchical_accumulation import HierarchicalAccumulation
from fairseq_phrase.modules.trees.tree_attention import TreeSelfAttention
from fairseq_phrase.modules.trees.tree_batch import TreeBatch


def build_accumulation(
    cfg: TransformerConfig, embed_dim: int, num_heads: int
) -> HierarchicalAccumulation:
    """Build a layer's accumulation as the options say."""
    return HierarchicalAccumulation(
        embed_dim=embed_dim,
        num_heads=num_heads,
        # In the decoder, too, the leaves are the encoder's.
        leaf_dim=cfg.encoder.embed_dim,
        embeddings=not cfg.no_hierarchical_embeddings,
        max_vertical=cfg.tree_max_vertical,
        max_horizontal=cfg.tree_max_horizontal,
        convention=cfg.tree_convention,
    )


class _SelfAttention(TreeSelfAttention):
    """:class:`TreeSelfAttention` as fairseq's encoder layer calls its attention."""

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: TreeBatch,
        need_weights: bool = False,
        attn_mask: None = None,
    ) -> tuple[Tensor, Tensor | None]:
        return super().forward(query, key_padding_mask, need_weights)


class TreeEncoderLayer(TransformerEncoderLayerBase):
    """fairseq's encoder layer over the nodes of trees; all of them share its parameters.

    Batch-first. Its second argument, fairseq's padding mask, is a :class:`TreeBatch` here, which
    fairseq's ``forward`` hands on to the attention.
    """

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> TreeSelfAttention:
        """Build the attention between nodes, with accumulated values."""
        attention = _SelfAttention(
            accumulation=build_accumulation(cfg, embed_dim, cfg.encoder.attention_heads),
            dropout=cfg.attention_dropout,
            subtree_masking=not cfg.no_subtree_masking,
        )
        for projection in (
            attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj
        ):  # fmt: skip
            quant_noise(projection, self.quant_noise, self.quant_noise_block_size)
        return attention


class TreeEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder over leaves (source tokens) and nonterminals (constituents).

    Args:
        cfg: fairseq's options with those of trees, and ``num_labels``, the size of the table of label
            embeddings.
        dictionary: the source dictionary.
        embed_tokens: the source embeddings.
    """

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding):
        super().__init__(cfg, dictionary, embed_tokens)
        self.embed_labels = Embedding(cfg.num_labels, embed_tokens.embedding_dim, None)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build a layer, wrapped as fairseq wraps its own."""
        return wrap_layer(TreeEncoderLayer(cfg), cfg)

    def tree(
        self, src_tokens: Tensor, src_words: Tensor | None, src_spans: Tensor | None
    ) -> TreeBatch:
        """Make the trees of a batch; see :meth:`forward`.

        Raises:
            ValueError: there are no constituents, or they are no trees.
        """
        if src_words is None or src_spans is None:
            raise ValueError(
                "the batch carries no constituents: --task syntax_translation adds them, or pass "
                "src_words and src_spans"
            )
        return TreeBatch.from_words(src_words, src_spans, src_tokens.eq(self.padding_idx))

    def _embed(
        self,
        src_tokens: Tensor,
        src_spans: Tensor,
        tree: TreeBatch,
        token_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Embed leaves with their positions, and nonterminals by their labels without.

        Returns:
            The nodes' first states, of shape (batch, nodes, width), and the leaves' embeddings.
        """
        leaves, embedding = self.forward_embedding(src_tokens, token_embeddings)
        labels = src_spans[..., 2].clamp(min=0)
        if self.cfg.tree_one_label:
            labels = torch.zeros_like(labels)
        nonterminals = self.embed_scale * self.embed_labels(labels)
        if self.layernorm_embedding is not None:
            nonterminals = self.layernorm_embedding(nonterminals)
        nonterminals = self.dropout_module(nonterminals)
        if self.quant_noise is not None:
            nonterminals = self.quant_noise(nonterminals)
        states = torch.cat([leaves, nonterminals], 1)
        return states.masked_fill(tree.node_padding_mask.unsqueeze(-1), 0.0), embedding

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        src_words: Tensor | None = None,
        src_spans: Tensor | None = None,
        **_other_parses: Tensor,
    ) -> dict[str, list[Any]]:
        """Encode a batch.

        Args:
            src_tokens: source, padded on either side. Shape: ``(batch, tokens)``.
            src_lengths: not used, as in fairseq.
            return_all_hiddens: also return every layer's states.
            token_embeddings: embeddings to use instead of the table's.
            src_words: the word of each token, -1 where there is none. Shape: ``(batch, tokens)``.
            src_spans: first word, one past the last, and number of the label of each constituent,
                children before parents; -1 at padding. Shape: ``(batch, constituents, 3)``.
            _other_parses: what other models of an ensemble need.

        Returns:
            What fairseq's encoder returns, of all N nodes, the n leaves before the nonterminals:
            ``encoder_out`` (shape ``(nodes, batch, width)``, time-first), ``encoder_padding_mask``
            (``(batch, nodes)``), ``encoder_states`` (as ``encoder_out``); ``encoder_embedding`` and
            ``src_lengths`` of the leaves alone. Further ``tree``, the :class:`TreeBatch`, and
            ``beams``, the number of the decoder's rows that share a sentence
            (:meth:`reorder_encoder_out`).
        """
        tree = self.tree(src_tokens, src_words, src_spans)
        assert src_spans is not None
        states, embedding = self._embed(src_tokens, src_spans, tree, token_embeddings)
        hidden = [states] if return_all_hiddens else []
        for layer in self.layers:
            states = layer(states, tree)
            if return_all_hiddens:
                hidden.append(states)
        if self.layer_norm is not None:
            states = self.layer_norm(states)
        return {
            "encoder_out": [states.transpose(0, 1)],
            "encoder_padding_mask": [tree.node_padding_mask],
            "encoder_embedding": [embedding],
            "encoder_states": [layer_states.transpose(0, 1) for layer_states in hidden],
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [(~tree.padding_mask).sum(1, keepdim=True, dtype=torch.int32)],
            "tree": [tree],
            "beams": [1],
        }

    def reorder_encoder_out(  # type: ignore[override]
        self, encoder_out: dict[str, list[Any]], new_order: Tensor
    ) -> dict[str, list[Any]]:
        """Reorder what :meth:`forward` returned, as beam search wants its rows.

        A sentence stays single however many rows it has, so that the decoder accumulates it once;
        ``beams`` is their number.

        Args:
            encoder_out: from :meth:`forward`.
            new_order: the row that each new row was. Shape: ``(new rows,)``, int64.
        """
        (tree,), (beams,) = encoder_out["tree"], encoder_out["beams"]
        chosen, beams = regroup(new_order, tree.batch_size, beams)
        reordered = {**encoder_out, "beams": [beams]}
        if chosen is not None:
            states = encoder_out["encoder_states"]
            reordered.update(
                super().reorder_encoder_out({**encoder_out, "encoder_states": [*states]}, chosen)
            )
            reordered["tree"] = [tree.index_select(chosen)]
        return reordered

    def attention_maps(
        self,
        src_tokens: Tensor,
        src_words: Tensor | None = None,
        src_spans: Tensor | None = None,
        **_other: Tensor,
    ) -> tuple[TreeBatch, list[Tensor]]:
        """Compute the attention weights of every layer; for the arguments see :meth:`forward`.

        Returns:
            The trees, and each layer's weights, of shape ``(batch, heads, nodes, nodes)``.
        """
        tree = self.tree(src_tokens, src_words, src_spans)
        assert src_spans is not None
        states, _ = self._embed(src_tokens, src_spans, tree)
        maps = []
        for layer in self.layers:
            inputs = layer.self_attn_layer_norm(states) if layer.normalize_before else states
            maps.append(layer.self_attn(inputs, inputs, inputs, tree, need_weights=True)[1])
            states = layer(states, tree)
        return tree, maps
