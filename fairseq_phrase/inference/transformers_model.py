"""A fairseq model of this package as a model of transformers.

The folder that :mod:`fairseq_phrase.inference.exports` writes is a bundle with a
configuration and a few lines of code, which import this module.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils.generic import ModelOutput

from fairseq_phrase.checkpoints.loading import build_models
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.bundle import read_bundle
from fairseq_phrase.syntax.fields import FIELDS, PREFIX

_FIELDS = [f"{PREFIX}{name}" for name in FIELDS]


class FairseqPhraseConfig(PretrainedConfig):
    """The configuration for transformers. The model's own options are in the bundle."""

    model_type = "fairseq_phrase"

    def __init__(self, **options: Any):
        super().__init__(**{"is_encoder_decoder": True, **options})


@dataclass
class EncoderStates(ModelOutput):
    """The encoder's states. The attribute ``encoded`` is the dictionary that fairseq's decoder reads.

    transformers repeats the fields for each beam, and nothing else. Therefore a field gives the sentence
    of each row.

    Attributes:
        last_hidden_state: the states of the nodes. Shape: ``(batch, nodes, channels)``.
        rows: the sentence of each row, from 0. Shape: ``(batch,)``.
    """

    last_hidden_state: Any = None
    rows: Any = None
    encoded = None


class Encoder(nn.Module):
    """fairseq's encoder with transformers' arguments."""

    main_input_name = "input_ids"

    def __init__(self, encoder: Any, padding: int):
        super().__init__()
        self.encoder, self.padding = encoder, padding

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **inputs: Any
    ) -> EncoderStates:
        """Encode a batch.

        Args:
            input_ids: fairseq's token indices, with the end of sentence, padded on the right.
                Shape: ``(batch, tokens)``.
            attention_mask: not used. Padding is found by its index.
            **inputs: the fields of ``src_words``, ``src_heads``… that the encoder needs, as
                :func:`fairseq_phrase.data.batches.source_batches.collate_parses` makes them. Others are
                not used.
        """
        fields = {name: inputs[name] for name in _FIELDS if inputs.get(name) is not None}
        encoded = self.encoder(input_ids, src_lengths=input_ids.ne(self.padding).sum(1), **fields)
        # (nodes, batch, channels) to (batch, nodes, channels)
        states = encoded["encoder_out"][0].transpose(0, 1)
        rows = torch.arange(len(input_ids), device=input_ids.device)
        output = EncoderStates(last_hidden_state=states, rows=rows)
        object.__setattr__(output, "encoded", encoded)
        return output


# generate refuses arguments that are not in the signature.
_own = inspect.signature(Encoder.forward)
Encoder.forward.__signature__ = _own.replace(  # type: ignore[attr-defined]
    parameters=[
        *list(_own.parameters.values())[:-1],
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for name in _FIELDS
        ),
    ]
)

#: The name of the cache in outputs and inputs: transformers 5.24 changed it.
CACHE = "cache" if "cache" in Seq2SeqLMOutput.__dataclass_fields__ else "past_key_values"


class DecoderCache:
    """The state of fairseq's decoder between the steps of a search: keys and values.

    Args:
        encoded: the encoder's dictionary, with the beams' rows.

    Attributes:
        length: the number of decoded target tokens.
    """

    def __init__(self, decoder: Any, encoded: dict[str, Any]):
        self.decoder, self.encoded, self.length = decoder, encoded, 0
        self._state: dict[str, Any] = {}

    def decode(self, tokens: Tensor) -> tuple[Tensor, Any]:
        """Decode the last of the tokens; all before it have been decoded. Shape: ``(batch, tokens)``."""
        self.length = tokens.size(1)
        output: tuple[Tensor, Any] = self.decoder(
            tokens, encoder_out=self.encoded, incremental_state=self._state
        )
        return output

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of decoded tokens, as transformers' caches do."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Choose rows for beam search. A row and its replacement belong to the same sentence.

        Args:
            beam_idx: for each new row, the index of the old row. Shape: ``(batch,)``.
        """
        for module in self.decoder.modules():
            # The source's keys belong to the sentence, which stays the same.
            if not getattr(module, "encoder_decoder_attention", False) and hasattr(
                module, "reorder_incremental_state"
            ):
                module.reorder_incremental_state(self._state, beam_idx)


class FairseqPhraseModel(PreTrainedModel, GenerationMixin):
    """A translation model for transformers' ``generate``."""

    config_class = FairseqPhraseConfig
    base_model_prefix = "fairseq"
    main_input_name = "input_ids"
    _supports_default_dynamic_cache = classmethod(lambda cls: False)

    def __init__(self, config: FairseqPhraseConfig, model: Any):
        # The model has fairseq's attention. transformers would fetch a repository's code by its name.
        config._attn_implementation, config._experts_implementation = "eager", None
        super().__init__(config)
        self.encoder = Encoder(model.encoder, config.pad_token_id)
        self.decoder = model.decoder
        self.generation_config = GenerationConfig.from_model_config(config)

    @classmethod
    def from_pretrained(  # type: ignore[override, unused-ignore]
        cls, path: Any, *args: Any, config: Any = None, **options: Any
    ) -> Any:
        """Load an exported folder, or its copy on a hub.

        Args:
            **options: ``dtype``, and the hub's options (``revision``, ``token``…). Others are not used.
        """
        folder = Path(path)
        if not folder.is_dir():
            names = inspect.signature(snapshot_download).parameters.keys() & options.keys()
            of_hub = {name: options[name] for name in names}
            folder = Path(snapshot_download(str(path), **of_hub))
        config = config or FairseqPhraseConfig.from_pretrained(folder)
        (fairseq_model,), _ = build_models([read_bundle(folder)], folder)
        model: Any = cls(config, fairseq_model)
        generation = folder / "generation_config.json"
        if generation.is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder)
        dtype = options.get("dtype") or options.get("torch_dtype")
        if isinstance(dtype, str) and dtype != "auto":
            dtype = getattr(torch, dtype)
        return (model.to(dtype) if isinstance(dtype, torch.dtype) else model).eval()

    def save_pretrained(self, *args: Any, **options: Any) -> None:
        """Raise an error: the folder can only be written from fairseq's checkpoint.

        Raises:
            UserError: always.
        """
        raise UserError("this model is exported from its checkpoint: use fairseq-phrase-export")

    def get_encoder(self, *args: Any, **options: Any) -> Encoder:
        """Return the encoder."""
        return self.encoder

    def prepare_inputs_for_generation(  # type: ignore[override, unused-ignore]
        self, decoder_input_ids: Tensor, **model_inputs: Any
    ) -> dict[str, Any]:
        """Return the inputs of one step. fairseq's decoder takes the whole prefix and decodes its end."""
        inputs = {name: model_inputs.get(name) for name in ("encoder_outputs", "use_cache")}
        return {"decoder_input_ids": decoder_input_ids, "cache": model_inputs.get(CACHE), **inputs}

    def forward(
        self,
        input_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        cache: DecoderCache | None = None,
        use_cache: bool | None = None,
        **inputs: Any,
    ) -> Seq2SeqLMOutput:
        """Compute the scores of the next tokens.

        Args:
            input_ids: the source, as for :meth:`Encoder.forward`.
            decoder_input_ids: the target, which begins with the end of sentence. Shape: ``(batch, target
                tokens)``.
            encoder_outputs: the encoder's result, instead of the source.
            cache: the cache of the last call, which was for the same target without its end.
            use_cache: return keys and values for the next call.
            **inputs: the parse, as for :meth:`Encoder.forward`.

        Returns:
            ``logits`` of shape ``(batch, target tokens, vocabulary)``, without the tokens of earlier
            calls.
        """
        assert decoder_input_ids is not None
        if cache is None:
            if encoder_outputs is None:
                encoder_outputs = self.encoder(input_ids, **inputs)
            encoded, rows = encoder_outputs.encoded, encoder_outputs.rows
            if len(rows) != encoded["encoder_out"][0].size(1):
                # transformers repeated the sentences for its beams.
                encoded = self.encoder.encoder.reorder_encoder_out(encoded, rows)
            if not use_cache:
                logits = self._logits(self.decoder(decoder_input_ids, encoder_out=encoded))
                return Seq2SeqLMOutput(logits=logits, encoder_last_hidden_state=encoder_outputs[0])
            cache = DecoderCache(self.decoder, encoded)
        new = range(cache.length + 1, decoder_input_ids.size(1) + 1)
        steps = [self._logits(cache.decode(decoder_input_ids[:, :end])) for end in new]
        outputs: dict[str, Any] = {"logits": torch.cat(steps, 1), CACHE: cache}
        return Seq2SeqLMOutput(**outputs)

    def _logits(self, output: tuple[Tensor, Any]) -> Tensor:
        if getattr(self.decoder, "adaptive_softmax", None) is None:
            return output[0]
        # Such a decoder returns its states. Logarithms of probabilities are logits as well.
        logits: Tensor = self.decoder.get_normalized_probs(output, True, None)
        return logits
