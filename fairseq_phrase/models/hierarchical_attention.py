"""``--encoder han``: hierarchical attention networks for documents (Yang et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_phrase.models.encoder_method import option, register_encoder
from fairseq_phrase.models.recurrent_encoder import RecurrentEncoder, check_width
from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.recurrent.hierarchical_attention import (
    HierarchicalAttention,
    SentenceBatch,
    by_constituents,
    by_dependencies,
    by_final_tokens,
)
from fairseq_phrase.syntax.constituency import ROOT_LABEL

#: What ``--han-sentences`` chooses: the parse fields that sentences are found with.
SENTENCES = {
    "dependencies": ["words", "heads", "deprels"],
    "constituents": ["words", "spans"],
    "punctuation": [],
}
_FINAL = frozenset(".!?…。！？")


@dataclass
class HierarchicalOptions:
    """Options of hierarchical attention."""

    han_sentences: ChoiceEnum(list(SENTENCES)) = option(  # type: ignore[valid-type]
        "dependencies",
        "where a line's sentences come from: dependencies (every root that the parser found "
        "begins one), constituents (the trees under the extra root of a line), or, without a "
        "parse, punctuation (tokens like . ! ? end one)",
    )


@register_encoder(
    "han",
    options=HierarchicalOptions,
    parse_fields=lambda cfg: [*check_width(cfg), *SENTENCES[str(cfg.han_sentences)]],
    rows={
        "HAN": {},
        "HAN, constituents": {"han_sentences": "constituents"},
        "HAN, punctuation": {"han_sentences": "punctuation"},
    },
    translation=False,
)
class HierarchicalEncoder(RecurrentEncoder):
    """Bidirectional GRUs and attention over words, then over sentences; a line is a document.

    Its nodes are the tokens (the words' GRU), the sentences (the sentences' GRU), and the document, which
    is the root. ``--pooling root`` of labelling is thus the paper's classifier.
    """

    is_final: Tensor

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.sentences = str(cfg.han_sentences)
        self.network = HierarchicalAttention(
            input_dim=embed_tokens.embedding_dim,
            hidden_dim=cfg.encoder.embed_dim,
            num_layers=cfg.encoder.layers,
            dropout=cfg.dropout,
        )
        if self.sentences == "constituents":
            self.root_label = cfg.label_number("spans", ROOT_LABEL)
        symbols = (dictionary[index].strip("▁") for index in range(len(dictionary)))
        final = [bool(symbol) and _FINAL.issuperset(symbol) for symbol in symbols]
        self.register_buffer("is_final", torch.tensor(final), persistent=False)

    def sentence_numbers(
        self, src_tokens: Tensor, padding_mask: Tensor, parse: ParseBatch
    ) -> Tensor:
        """Number the sentences of each line.

        Args:
            src_tokens: source. Shape: (batch, tokens).
            padding_mask: True at padding. Shape: (batch, tokens).

        Returns:
            The sentence of each token, from 0; -1 at padding. Shape: (batch, tokens), int64.

        Raises:
            ValueError: the batch does not carry the parse.
        """
        if self.sentences == "dependencies":
            words, heads, relations = (parse[name] for name in SENTENCES["dependencies"])
            return by_dependencies(words, heads, relations, padding_mask)
        if self.sentences == "constituents":
            separates = src_tokens.eq(self.dictionary.eos())
            return by_constituents(
                parse["words"], parse["spans"], self.root_label, padding_mask, separates
            )
        return by_final_tokens(src_tokens, self.is_final, self.dictionary.eos(), padding_mask)

    def encode(
        self, embedding: Tensor, src_tokens: Tensor, padding_mask: Tensor, parse: ParseBatch
    ) -> tuple[list[Tensor], Tensor, dict[str, list[Any]]]:
        """Compute the states of a batch, see the base class."""
        numbers = self.sentence_numbers(src_tokens, padding_mask, parse)
        sentences = SentenceBatch.from_numbers(numbers)
        of_layers, summaries, documents = self.network(embedding, sentences)
        of_layers[-1] = torch.cat([of_layers[-1], summaries, documents.unsqueeze(1)], 1)
        is_document = padding_mask.new_zeros(len(documents), 1)
        padding = torch.cat([padding_mask, sentences.sentence_padding, is_document], 1)
        roots = torch.full_like(numbers[:, 0], padding.size(1) - 1)
        return of_layers, padding, {"roots": [roots]}
