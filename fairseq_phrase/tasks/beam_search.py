"""Search for translations by few operations, with the hypotheses of fairseq's search.

fairseq's search copies keys, values and the encoder's output whenever it reorders hypotheses, computes
attention by separate operations, keeps its weights, and passes over the scores of all words six times.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoder, TransformerDecoderBase
from fairseq.modules import MultiheadAttention
from fairseq.modules.transformer_layer import TransformerDecoderLayer, TransformerDecoderLayerBase
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from fairseq_phrase.methods.accumulation.tree_transformer import (
    TreeCrossAttention,
    TreeDecoder,
    TreeDecoderLayer,
)
from fairseq_phrase.methods.common.biased_attention import node_attention
from fairseq_phrase.methods.common.projections import project
from fairseq_phrase.methods.common.tensors import infinite
from fairseq_phrase.methods.copying.copying_decoder import CopyingDecoder, copying_class
from fairseq_phrase.methods.model_parts import decoder_of
from fairseq_phrase.methods.syntax_decoder import SyntaxDecoder, over_tokens

logger = logging.getLogger(__name__)

_DECODERS = (TransformerDecoderBase, TransformerDecoder, SyntaxDecoder, TreeDecoder)
_LAYERS = (TransformerDecoderLayerBase, TransformerDecoderLayer, TreeDecoderLayer)
#: A hypothesis attends to the slots of all of its sentence. With 100, fairseq's search is faster.
LARGEST_BEAM = 50
#: Options of fairseq's layers that :class:`DecoderStep` does not compute.
_SCALES = ("c_attn", "attn_ln", "ffn_layernorm", "w_resid")


def obstacle(models: Sequence[Any], options: Mapping[str, Any]) -> str | None:
    """Return why :class:`FastGenerator` cannot search with models; None if it can.

    Args:
        options: of the generator.
    """
    if options.get("lm_model") is not None:
        return "a language model is added"
    if options.get("beam_size", 0) > LARGEST_BEAM:
        return f"more than {LARGEST_BEAM} hypotheses of a sentence"
    for model in models:
        decoder = decoder_of(model)
        name = type(decoder).__name__
        if type(decoder) not in {*_DECODERS, *map(copying_class, _DECODERS)}:
            return f"{name} is not a known Transformer decoder"
        if decoder.quant_noise is not None or decoder.cross_self_attention:
            return f"{name} has quantization noise or attends to both sides at once"
        if any(getattr(part, "apply_during_inference", False) for part in decoder.modules()):
            return "dropout is retained"
        if not all(map(_is_known, _layers(decoder))):
            return f"a layer of {name} has options of its own"
        if any(map(_has_hooks, decoder.modules())):
            return f"{name} has hooks"
    return None


def _layers(decoder: Any) -> list[Any]:
    """List all layers. Iterating over them drops layers in training, and always draws random numbers."""
    return [*nn.ModuleList.__iter__(decoder.layers)]


def _has_hooks(module: Any) -> bool:
    """Return whether a user has added something to the call of a module."""
    is_replaced = "forward" in vars(module)
    return bool(module._forward_hooks or module._forward_pre_hooks or is_replaced)


def _is_known(layer: Any) -> bool:
    return (
        type(layer) in _LAYERS
        and _is_plain(layer.self_attn)
        and _is_plain(layer.encoder_attn, TreeCrossAttention)
        and all(getattr(layer, name) is None for name in _SCALES)
    )


def _is_plain(attention: Any, *further: type) -> bool:
    """Return whether an attention is fairseq's or of other classes, without options of fairseq's."""
    return (
        type(attention) in (MultiheadAttention, *further)
        and not (attention.use_xformers or attention.add_zero_attn or attention.onnx_trace)
        and not attention.skip_embed_dim_check
        and attention.bias_k is None
        and all(
            type(projection) is nn.Linear and projection.bias is not None
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
    )


@cache
def log_search(reason: str | None) -> None:
    """Log once which search a task uses.

    Args:
        reason: why it is fairseq's own; None if it is not.
    """
    name = "by few operations, with the hypotheses of fairseq's"
    logger.info("search: %s", name if reason is None else f"fairseq's own ({reason})")


class DecoderStep:
    """A Transformer's decoder in the search of a batch: the next words of all hypotheses.

    The hypotheses of a sentence share its encoder output and one store of keys and values, in which a
    hypothesis attends to the slots of its own words. So choosing hypotheses moves no keys and values.

    Args:
        model: a model without :func:`obstacle`.
        encoder_out: the output of its encoder, each sentence once.
        needs_attention: whether to return the weights of cross-attention.
    """

    def __init__(self, model: Any, encoder_out: dict[str, Any], needs_attention: bool) -> None:
        self._model, self._decoder, self._encoder_out = model, model.decoder, encoder_out
        scores = getattr(self._decoder, "copy_scores", None)
        self._needs_attention = needs_attention or (scores is not None and scores.needs_attention)
        layers = _layers(self._decoder)
        self._sources = [_source(layer.encoder_attn, encoder_out) for layer in layers]
        self._joined = [_joined(layer.self_attn) for layer in layers]
        self._output = _by_columns(self._decoder.output_projection)
        attention, states = layers[0].self_attn, encoder_out["encoder_out"][0]
        sentences, heads, width = states.size(1), attention.num_heads, attention.head_dim
        #: Keys and values. Shape: (layers, 2, sentences, heads, slots, head width)
        self._kept = states.new_empty(len(layers), 2, sentences, heads, 64, width)
        #: 0 at slots of a hypothesis' own words, else -inf. Shape: (sentences, 1, hypotheses, slots)
        self._own = states.new_zeros(sentences, 1, 1, 0)

    def __call__(self, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor | None]:
        """Compute the next words' log-probabilities, and store the last words' keys and values.

        Args:
            tokens: the words of the hypotheses so far; those of a sentence are adjacent. At first there
                is one for each sentence. Shape: (sentences * hypotheses, words)

        Returns:
            The log-probabilities, of shape (sentences * hypotheses, vocabulary), and the weights of the
            last layer's cross-attention, of shape (sentences * hypotheses, source tokens), or None.
        """
        decoder, sentences = self._decoder, len(self._own)
        states = decoder.embed_scale * decoder.embed_tokens(tokens[:, -1:])
        if decoder.project_in_dim is not None:
            states = decoder.project_in_dim(states)
        if decoder.embed_positions is not None:
            states = states + decoder.embed_positions(tokens, incremental_state={})
        if decoder.layernorm_embedding is not None:
            states = decoder.layernorm_embedding(states)
        states = states.view(sentences, -1, states.size(-1))
        self._add_slots(states.size(1))

        weights = None
        for number, layer in enumerate(decoder.layers):
            before, is_last = layer.normalize_before, number == len(self._joined) - 1
            norm = layer.self_attn_layer_norm
            attended = self._attend_to_words(number, layer.self_attn, _if(before, norm, states))
            states = _if(not before, norm, states + attended)
            norm = layer.encoder_attn_layer_norm
            attended, weights = self._attend_to_source(
                number,
                layer.encoder_attn,
                _if(before, norm, states),
                self._needs_attention and is_last,
            )
            states = _if(not before, norm, states + attended)
            norm = layer.final_layer_norm
            hidden = layer.activation_fn(layer.fc1(_if(before, norm, states)))
            states = _if(not before, norm, states + layer.fc2(hidden))

        if decoder.layer_norm is not None:
            states = decoder.layer_norm(states)
        if decoder.project_out_dim is not None:
            states = decoder.project_out_dim(states)
        scores = linear(states, *self._output) if self._output else decoder.output_layer(states)
        if weights is not None:
            weights = over_tokens(weights.mean(1), self._encoder_out)
        if isinstance(decoder, CopyingDecoder):
            scores = decoder.joined(scores, states, self._encoder_out, weights)
        if temperature != 1:
            scores = scores / temperature
        words = self._model.get_normalized_probs((scores, None), log_probs=True, sample=None)
        return words.flatten(0, 1), None if weights is None else weights.flatten(0, 1)

    def _add_slots(self, hypotheses: int) -> None:
        """Add a slot for the last word of each hypothesis, which the others do not attend to."""
        masked = ~torch.eye(hypotheses, dtype=torch.bool, device=self._own.device)
        new = infinite(masked, self._own.dtype).expand(len(self._own), 1, -1, -1)
        self._own = torch.cat([self._own, new], -1)
        size, store = self._kept.size(-2), self._kept
        if self._own.size(-1) > size:
            larger = max(2 * size, self._own.size(-1))
            self._kept = store.new_empty(*store.shape[:-2], larger, store.size(-1))
            self._kept[..., :size, :] = store

    def _attend_to_words(self, number: int, attention: Any, states: Tensor) -> Tensor:
        heads = linear(states, *self._joined[number]).unflatten(-1, (3, attention.num_heads, -1))
        # -> (queries, keys or values; sentences, heads, hypotheses, head width)
        heads = heads.permute(2, 0, 3, 1, 4)
        slots, new = self._own.size(-1), states.size(1)
        # The mask keeps hypotheses apart, but -inf does not remove NaN, as of an overflow in 16 bits.
        self._kept[number, ..., slots - new : slots, :] = heads[1:].nan_to_num(0.0, 0.0, 0.0)
        keys, values = self._kept[number, ..., :slots, :]
        mask = self._own if new > 1 else None
        attended = scaled_dot_product_attention(heads[0], keys, values, mask)
        output: Tensor = attention.out_proj(attended.transpose(1, 2).flatten(2))
        return output

    def _attend_to_source(
        self, number: int, attention: Any, states: Tensor, needs_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        source = self._sources[number]
        queries = attention.q_proj(states).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
        attended, weights = node_attention(
            queries, source["prev_key"], source["prev_value"], source["prev_mask"],
            getattr(attention, "node_gate", None), source["leaves"], 0.0, needs_weights,
            twice=queries.size(2),
        )  # fmt: skip
        return attention.out_proj(attended.transpose(1, 2).flatten(2)), weights

    def choose(self, sentences: Tensor | None, hypotheses: Tensor) -> None:
        """Go on with some hypotheses.

        Args:
            sentences: the indices of the sentences that go on; None for all. Shape: (sentences,)
            hypotheses: for each new hypothesis, the old one that it continues.
                Shape: (sentences, hypotheses)
        """
        if sentences is not None:
            self._own, self._kept = self._own[sentences], self._kept[:, :, sentences]
            for source in self._sources:
                for name in ("prev_key", "prev_value", "prev_mask"):
                    source[name] = None if source[name] is None else source[name][sentences]
            if isinstance(self._decoder, CopyingDecoder):
                self._encoder_out = self._model.encoder.reorder_encoder_out(
                    self._encoder_out, sentences
                )
        if self._own.size(2) == 1:
            hypotheses = torch.zeros_like(hypotheses)
        index = hypotheses[:, None, :, None].expand(-1, -1, -1, self._own.size(-1))
        self._own = self._own.gather(2, index)


def _if(condition: bool, norm: Any, states: Tensor) -> Tensor:
    """Normalize states on a condition: before a block or after it."""
    return norm(states) if condition else states


def _joined(attention: Any) -> tuple[Tensor, Tensor]:
    """Join the weights and the biases of queries, keys and values."""
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    return torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])


def _by_columns(projection: nn.Module | None) -> tuple[Tensor, Tensor | None] | None:
    """Copy a weight, and its bias, in the order in which products with few rows are faster.

    On a CPU a search for one sentence then takes 0.86 of the time. Of a larger weight the copy takes more
    than it saves, in 16 bits the product is slower, and an adaptive softmax has no such product.
    """
    if type(projection) is not nn.Linear:
        return None
    weight = projection.weight
    if weight.is_cuda or weight.dtype != torch.float32 or weight.numel() > 2**23:
        return None
    return weight.t().contiguous().t(), projection.bias


def _source(attention: Any, encoder_out: dict[str, Any]) -> dict[str, Any]:
    """Compute what a layer attends to in the source, see :meth:`TreeCrossAttention.encoded`."""
    states = encoder_out["encoder_out"][0]
    if isinstance(attention, TreeCrossAttention):
        return attention.encoded(states, encoder_out["tree"][0])
    rows = project(states.transpose(0, 1), [attention.k_proj, attention.v_proj])
    keys, values = (
        part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2).contiguous() for part in rows
    )
    mask = None
    for padding in encoder_out["encoder_padding_mask"]:
        if padding.any():
            mask = infinite(padding.bool(), keys.dtype)[:, None, None]
    return {"prev_key": keys, "prev_value": values, "prev_mask": mask, "leaves": len(states)}


class BestWords(BeamSearch):
    """fairseq's choice of the best words, which orders only the words of the best blocks.

    The n best words are in the n blocks with the best words.
    """

    #: Words of a block; the last ones of the vocabulary, fewer than that, are in none.
    size = 64

    def step(
        self, step: int, lprobs: Tensor, scores: Tensor | None, *unused: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Choose; arguments and results are fairseq's. NaN is -inf."""
        sentences, beams, words = lprobs.shape
        unsliced = lprobs
        if step == 0:  # all hypotheses are the same
            lprobs, totals = lprobs[:, :1], lprobs.new_zeros(sentences, 1)
        else:
            assert scores is not None
            totals = scores[:, :, step - 1]
        hypotheses, blocks = totals.size(1), words // self.size
        count = min(2 * beams, hypotheses * words - 1)
        in_blocks = lprobs[..., : blocks * self.size].unflatten(-1, (blocks, self.size))
        of_blocks = (in_blocks.amax(-1) + totals[..., None]).flatten(1)
        if of_blocks.isnan().any():  # perhaps of one word: the others of its block have numbers
            return super().step(step, _without_nan(unsliced), scores)  # type: ignore[no-any-return]
        best = of_blocks.topk(min(count, of_blocks.size(1))).indices

        # Positions among all words of all hypotheses of a sentence.
        starts = best // blocks * words + best % blocks * self.size if blocks else best
        inside = torch.arange(self.size, device=best.device)
        tail = torch.arange(blocks * self.size, words, device=best.device)
        tail = (torch.arange(hypotheses, device=best.device)[:, None] * words + tail).flatten()
        positions = torch.cat(
            [(starts[..., None] + inside).flatten(1), tail.expand(sentences, -1)], 1
        )
        best_totals = lprobs.flatten(1).gather(1, positions) + totals.gather(1, positions // words)
        best_totals, order = _without_nan(best_totals).topk(count)
        positions = positions.gather(1, order)
        return best_totals, positions % words, positions // words


def _without_nan(scores: Tensor) -> Tensor:
    return scores.masked_fill_(scores.isnan(), -math.inf)


class FastGenerator(SequenceGenerator):
    """fairseq's generator with :class:`DecoderStep`, and without needless passes over the scores.

    Args:
        models, target_dictionary, **options: fairseq's.
        needs_attention: whether hypotheses have the weights of cross-attention.
    """

    search: Any

    def __init__(
        self, models: Any, target_dictionary: Any, *, needs_attention: bool = False, **options: Any
    ) -> None:
        super().__init__(models, target_dictionary, **options)
        self.needs_attention = needs_attention
        if type(self.search) is BeamSearch:
            self.search = BestWords(target_dictionary)

    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[dict[str, Tensor]]]:
        """Search, see fairseq.

        A sentence is finished with as many ended hypotheses as beams. It then leaves the batch.
        """
        net_input, beams = sample["net_input"], self.beam_size
        source = net_input["src_tokens"]
        lengths = net_input.get("src_lengths")
        if lengths is None:
            lengths = (source.ne(self.eos) & source.ne(self.pad)).sum(1)
        if constraints is not None and not self.search.supports_constraints:
            raise NotImplementedError(f"{type(self.search).__name__} knows no constraints")
        self.search.init_constraints(constraints, beams)
        sentences, longest = len(source), self._longest(source, lengths)
        decoders = [
            DecoderStep(model, encoder_out, self.needs_attention)
            for model, encoder_out in zip(
                self.model.models, self.model.forward_encoder(net_input), strict=True
            )
        ]

        tokens = source.new_full((sentences * beams, longest + 2), self.pad)
        tokens[:, 0] = self.eos if bos_token is None else bos_token
        scores = torch.zeros(sentences * beams, longest + 1, device=source.device)
        attention: Tensor | None = None
        finalized: list[list[dict[str, Tensor]]] = [[] for _ in range(sentences)]
        finished = [False] * sentences
        # Hypotheses that have ended, in the slots of the beam that no other one has taken.
        ended = torch.zeros(sentences, beams, dtype=torch.bool, device=source.device)
        numbers = sample.get("id")
        if not isinstance(numbers, Tensor):
            numbers = torch.arange(sentences, device=source.device)
        ranks = torch.arange(2 * beams, device=source.device)
        first_rows = torch.arange(sentences, device=source.device)[:, None] * beams

        for step in range(longest + 1):
            words, attended = self._next_words(decoders, tokens[:, : step + 1])
            scores = scores.type_as(words)
            words, tokens, scores = self._allowed(
                step, longest, words, tokens, scores, prefix_tokens
            )
            if attended is not None:
                if attention is None:
                    attention = scores.new_empty(len(tokens), attended.size(1), longest + 2)
                attention[:, :, step + 1] = attended
            if self.should_set_src_lengths:
                self.search.set_src_lengths(lengths)
            if self.repeat_ngram_blocker is not None:
                words = self.repeat_ngram_blocker(tokens, words, sentences, beams, step)

            # The best candidates of each sentence, twice as many as beams: half of them may end.
            totals, candidates, hypotheses = self.search.step(
                step,
                words.view(sentences, beams, -1),
                scores.view(sentences, beams, -1)[:, :, :step],
                tokens[:, : step + 1],
                numbers,
            )
            rows = hypotheses + first_rows[:sentences]
            ends = candidates.eq(self.eos) & totals.ne(-math.inf)
            now = ends[:, :beams] & ~ended
            completed: list[int] = []
            if now.any():
                completed = self.finalize_hypos(
                    step, rows[:, :beams][now], totals[:, :beams][now], tokens, scores, finalized,
                    finished, beams, attention, lengths, longest,
                )  # fmt: skip
            if len(completed) == sentences or (self.search.stop_on_max_len and step >= longest):
                break
            assert step < longest, f"{step} < {longest}"

            going_on = None
            if completed:
                remaining = [number for number in range(sentences) if number not in set(completed)]
                going_on = torch.tensor(remaining, device=source.device)
                self.search.prune_sentences(going_on)
                totals, candidates, hypotheses, ends, now, ended, lengths, numbers = (
                    part[going_on]
                    for part in (totals, candidates, hypotheses, ends, now, ended, lengths, numbers)
                )
                if prefix_tokens is not None:
                    prefix_tokens = prefix_tokens[going_on]
                # The rows of sentences that are finished are not among them.
                rows = rows[going_on]
                sentences = len(remaining)

            # The first candidates that go on, and if they are too few, ended ones.
            ends[:, :beams] = now | ended
            order = ends * (2 * beams) + ranks[: ends.size(1)]
            order, beam = order.topk(beams, dim=1, largest=False)
            ended = order >= 2 * beams
            assert (~ended).any(1).all()
            self.search.update_constraints(beam)
            rows = rows.gather(1, beam).flatten()
            tokens, scores = tokens[rows], scores[rows]
            tokens[:, step + 1] = candidates.gather(1, beam).flatten()
            scores[:, step] = totals.gather(1, beam).flatten()
            if attention is not None:
                attention = attention[rows]
            for decoder in decoders:
                decoder.choose(going_on, hypotheses.gather(1, beam))

        return [
            sorted(hypotheses, key=lambda hypothesis: float(hypothesis["score"]), reverse=True)
            for hypotheses in finalized
        ]

    def _longest(self, source: Tensor, lengths: Tensor) -> int:
        """Return the largest number of words of a translation."""
        if self.match_source_len:
            longest = int(lengths.max())
        else:
            longest = min(int(self.max_len_a * source.size(1) + self.max_len_b), self.max_len - 1)
        assert self.min_len <= longest, (
            "min_len cannot be larger than max_len, please adjust these!"
        )
        return longest

    def _next_words(
        self, decoders: Sequence[DecoderStep], tokens: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return the mean of the models' probabilities, and of their attention if there is one."""
        is_first = tokens.size(1) == 1
        if is_first:  # all hypotheses are the same
            tokens = tokens[:: self.beam_size]
        results = [decoder(tokens, self.temperature) for decoder in decoders]
        words, attention = results[0]
        if len(decoders) > 1:
            of_models = torch.stack([words for words, _ in results])
            words = of_models.logsumexp(0) - math.log(len(decoders))
            weights = [attended for _, attended in results if attended is not None]
            attention = torch.stack(weights).mean(0) if weights else None
        if is_first:
            words = words.repeat_interleave(self.beam_size, 0)
            if attention is not None:
                attention = attention.repeat_interleave(self.beam_size, 0)
        return words, attention

    def _allowed(
        self,
        step: int,
        longest: int,
        words: Tensor,
        tokens: Tensor,
        scores: Tensor,
        prefix_tokens: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Exclude words by the options; returns the words, and the tokens and scores so far."""
        if type(self.search) is not BestWords:
            _without_nan(words)
        words[:, self.pad] = -math.inf
        words[:, self.unk] -= self.unk_penalty
        if step >= longest:
            words[:, : self.eos] = -math.inf
            words[:, self.eos + 1 :] = -math.inf
        if prefix_tokens is not None and step < prefix_tokens.size(1) and step < longest:
            allowed: tuple[Tensor, Tensor, Tensor] = self._prefix_tokens(
                step, words, scores, tokens, prefix_tokens, self.beam_size
            )
            return allowed
        if step < self.min_len:
            words[:, self.eos] = -math.inf
        if self.token_indices_to_suppress is not None:
            words[:, self.token_indices_to_suppress] = -math.inf
        return words, tokens, scores


class FastGeneratorWithAlignment(SequenceGeneratorWithAlignment, FastGenerator):
    """fairseq's generator with alignments, over the faster search."""

    def __init__(self, models: Any, target_dictionary: Any, **options: Any) -> None:
        super().__init__(models, target_dictionary, **options, needs_attention=True)
