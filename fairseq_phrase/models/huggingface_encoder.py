"""``--encoder huggingface``: the encoder of a model of transformers, with relation biases."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.huggingface.biased_models import add_relation_bias
from fairseq_phrase.models.config import check_heads
from fairseq_phrase.models.encoder_method import option, register_encoder
from fairseq_phrase.models.relation_transformer import RelationOptions, parse_fields
from fairseq_phrase.models.syntax_encoder import SyntaxEncoder, TimeFirstEncoder, encoder_output
from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.tensors import padding_of
from fairseq_phrase.optional_packages import import_transformers


@dataclass
class HuggingFaceOptions(RelationOptions):
    """Options of encoders of transformers."""

    # fmt: off
    huggingface_model: Optional[str] = option(None,  # noqa: UP045 - fairseq reads this type
        "the folder of a model of transformers: an encoder such as BERT; NLLB, BART or T5, of which the "
        "encoder is used; or a decoder such as Llama, with its causal mask; on data made with --bpe "
        "huggingface:FOLDER. Without it, a BERT with random parameters of the sizes --encoder-*",
        identity="free")
    huggingface_config: Optional[str] = option(None,  # noqa: UP045
        "the model's configuration; a checkpoint has it")


def take_configuration(cfg: Any) -> None:
    """Copy the configuration in ``--huggingface-model`` into the options, which checkpoints store.

    A checkpoint can then be loaded without the folder.
    """
    if folder := getattr(cfg, "huggingface_model", None):
        cfg.huggingface_config = _configuration(folder).to_json_string()


def _transformers() -> Any:
    return import_transformers("--encoder huggingface")


def _configuration(folder: str) -> Any:
    """Read a model's configuration.

    Raises:
        UserError: transformers or the folder's configuration is missing; or the model is the decoder of
            another encoder, or has relation biases.
    """
    try:
        config = _transformers().AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--huggingface-model {folder}: no model is there ({reason})") from None
    if getattr(config, "is_decoder", False) and not config.is_encoder_decoder:
        raise UserError(f"--huggingface-model {folder} is a decoder without an encoder")
    if hasattr(config, "relation_bias"):
        raise UserError(
            f"--huggingface-model {folder} has relation biases of fairseq_phrase.huggingface: give the "
            "model from which it was trained"
        )
    return _without_kernels(config)


def _without_kernels(config: Any) -> Any:
    """Let transformers choose the attention and the experts, whose names may be those of repositories.

    transformers would fetch the code of a repository, and run it.
    """
    config._attn_implementation = config._experts_implementation = None
    return config


def _trained(folder: str, config: Any) -> Any:
    """Load a model with its weights.

    Args:
        config: its configuration.

    Raises:
        UserError: the weights are missing, damaged or incomplete, or the file contains other objects.
    """
    try:
        # transformers reads a pickled file (.bin) only with torch's weights_only.
        model, found = _transformers().AutoModel.from_pretrained(
            folder, config=config, local_files_only=True, output_loading_info=True,
            trust_remote_code=False,
        )  # fmt: skip
    except Exception as error:  # of transformers, safetensors, torch and pickle
        reason = str(error).strip().splitlines()[0][:200]
        raise UserError(
            f"--huggingface-model {folder}: its weights cannot be loaded ({reason}): expected "
            "model.safetensors, or a pytorch_model.bin of nothing but tensors"
        ) from None
    if missing := sorted(name for name in found["missing_keys"] if "pooler" not in name):
        raise UserError(f"--huggingface-model {folder}: its weights lack {missing[0]}")
    return model


def _fields(cfg: Any) -> Sequence[str]:
    """Return the parse fields that the options need; see :func:`register_encoder`."""
    for name, only in {"relation_source": "heads", "relation_vectors": "none"}.items():
        if getattr(cfg, name) != only:
            raise UserError(
                f"--{name.replace('_', '-')} {getattr(cfg, name)}: a model of transformers has biases of "
                "the dependency tree: leave it out"
            )
    if cfg.relation_bias == "distance":
        raise UserError(
            "--relation-bias distance: a model of transformers has no such prior: expected tree, "
            "sequence, both or none"
        )
    return parse_fields(cfg)


@register_encoder(
    "huggingface",
    options=HuggingFaceOptions,
    parse_fields=_fields,
    variants={"Hugging Face encoder": {}},
)
class HuggingFaceEncoder(TimeFirstEncoder):
    """The encoder of a model of transformers, with learned biases for the relations of words.

    All biases start at 0. The encoder returns the states of the dictionary's tokens. Where the model
    expects a first token such as ``[CLS]``, it is added, and its state is omitted.

    Args:
        cfg: fairseq's options with :class:`HuggingFaceOptions`.
        dictionary: the source dictionary: the tokenizer's vocabulary.
        embed_tokens: not used: the model has its own embeddings.

    Attributes:
        pretrained_names: the names of the parameters loaded from the folder.
    """

    root_nodes = SyntaxEncoder.root_nodes
    numbers: Tensor

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(dictionary)
        self.cfg, self.padding_idx = cfg, dictionary.pad()
        folder = cfg.huggingface_model
        config = _configuration(folder) if folder else self._new_configuration()
        self._check_sizes(config, folder)
        if folder:
            model = _trained(folder, config)
            numbers = _numbers(folder, dictionary)
        else:
            model = _transformers().AutoModel.from_config(config, trust_remote_code=False)
            numbers = torch.arange(len(dictionary))
        if getattr(model, "pooler", None) is not None:
            model.pooler = None  # its parameters would not get a gradient
        trained = dict(model.named_parameters())
        if cfg.relation_bias != "none":
            count = cfg.count_labels("deprels") if cfg.relation_labels else 0
            try:
                add_relation_bias(model, cfg.relation_bias, list(map(str, range(count))))
            except UserError as error:
                raise UserError(f"--relation-bias {cfg.relation_bias}: {error}") from None
        self.model = model.get_encoder() if config.is_encoder_decoder else model
        pretrained = set(map(id, trained.values())) if folder else set()
        self.pretrained_names = {
            name for name, parameter in self.named_parameters() if id(parameter) in pretrained
        }
        # The model's number of each entry of the dictionary; -1 for a first token that the model lacks.
        self.register_buffer("numbers", numbers)
        self._has_start = bool(numbers[dictionary.bos()] >= 0)
        limit = getattr(config, "max_position_embeddings", cfg.max_source_positions)
        # One position is for the added first token; RoBERTa's positions begin after the padding's.
        positions = (m for n, m in model.named_modules() if n.endswith(".position_embeddings"))
        paddings = (getattr(table, "padding_idx", None) for table in positions)
        offset = 1 + max((index + 1 for index in paddings if index is not None), default=0)
        self._max_positions = min(cfg.max_source_positions, limit - offset)

    def _new_configuration(self) -> Any:
        """Return the checkpoint's configuration, or a BERT configuration with the options' sizes."""
        make, cfg = _transformers().AutoConfig.for_model, self.cfg
        if cfg.huggingface_config:
            values = json.loads(cfg.huggingface_config)
            for name in ("auto_map", "_name_or_path"):  # of the folder that the training named
                values.pop(name, None)
            return _without_kernels(make(values.pop("model_type"), **values))
        check_heads(cfg, "encoder")
        return make(
            "bert", vocab_size=len(self.dictionary), pad_token_id=self.padding_idx,
            hidden_size=cfg.encoder.embed_dim, num_hidden_layers=cfg.encoder.layers,
            num_attention_heads=cfg.encoder.attention_heads,
            intermediate_size=cfg.encoder.ffn_embed_dim, hidden_dropout_prob=cfg.dropout,
            attention_probs_dropout_prob=cfg.attention_dropout,
            max_position_embeddings=cfg.max_source_positions + 1,
        )  # fmt: skip

    def _check_sizes(self, config: Any, folder: str | None) -> None:
        """Check that width and number of layers agree with the options.

        Raises:
            UserError: the width or the number of layers differs.
        """
        layers = getattr(config, "encoder_layers", config.num_hidden_layers)
        for flag, here, there in (
            ("--encoder-embed-dim", self.cfg.encoder.embed_dim, config.hidden_size),
            ("--encoder-layers", self.cfg.encoder.layers, layers),
        ):
            if here != there:
                raise UserError(
                    f"{flag} {here}: --huggingface-model {folder} has {there}: give {flag} {there}"
                )

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._has_start = bool(self.numbers[self.dictionary.bos()] >= 0)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        **parse: Tensor,
    ) -> dict[str, list[Any]]:
        """Encode a batch; arguments and output as in :meth:`SyntaxEncoder.forward`."""
        padding = padding_of(src_tokens, self.padding_idx)
        # The model counts positions from the left, so padding is moved to the right.
        # argmax finds the first True: the column of the first token.
        first = (~padding).int().argmax(1, keepdim=True)
        lengths = (~padding).sum(1, keepdim=True)
        columns = torch.arange(src_tokens.size(1), device=src_tokens.device)
        added = int(self._has_start)
        if added:
            # The added start replaces the sentence's own start, which the rotation moves to the padding.
            is_start = src_tokens.gather(1, first).eq(self.dictionary.bos())
            first, lengths = first + is_start, lengths - is_start.long()
        # Rotate each row; its first token comes first.
        order = (columns + first) % len(columns)
        mask = columns < lengths
        inputs = self.numbers[src_tokens.gather(1, order).masked_fill(~mask, self.padding_idx)]
        if added:
            start = self.numbers[self.dictionary.bos()].expand(len(inputs), 1)
            inputs = torch.cat([start, inputs], 1)
            mask = torch.cat([mask.new_ones(len(mask), 1), mask], 1)
        found = self.model(
            input_ids=inputs,
            attention_mask=mask.long(),
            output_hidden_states=return_all_hiddens,
            **self._relations(ParseBatch.from_net_input(parse), order, added),
        )
        # The inverse rotation, which skips the added first token.
        back = (columns - first + added) % inputs.size(1)

        def placed(states: Tensor) -> Tensor:
            """Shape: (tokens, batch, width), in the order of the source."""
            return states.gather(1, back.unsqueeze(2).expand(-1, -1, states.size(2))).transpose(
                0, 1
            )

        states = placed(found.last_hidden_state)
        hidden = map(placed, found.hidden_states) if return_all_hiddens else ()
        return encoder_output(
            src_tokens, padding, encoder_out=[states], encoder_states=list(hidden)
        )

    def _relations(self, parse: ParseBatch, order: Tensor, added: int) -> dict[str, Tensor]:
        """Return what the biases read, in the model's order of tokens."""
        if self.cfg.relation_bias in ("none", "sequence"):
            return {}
        words = parse["words"].gather(1, order)
        # The added first token does not belong to a word.
        words = torch.cat([words.new_full((len(words), added), -1), words], 1)
        labels = {"src_deprels": parse["deprels"]} if self.cfg.relation_labels else {}
        return {"src_words": words, "src_heads": parse["heads"], **labels}

    def max_positions(self) -> int:
        """Return the largest number of tokens."""
        return int(self._max_positions)


def _numbers(folder: str, dictionary: Any) -> Tensor:
    """Return the model's number of each entry of the dictionary. Shape: (entries,), int64.

    Raises:
        UserError: the tokenizer has no ``word_ids``, or lacks entries of the dictionary.
    """
    try:
        tokenizer = _transformers().AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a broken file may raise any exception
        reason = str(error).strip().splitlines()[0][:200]
        raise UserError(f"--huggingface-model {folder}: no tokenizer is there ({reason})") from None
    if not tokenizer.is_fast:
        raise UserError(
            f"--huggingface-model {folder}: its tokenizer does not know which word each token belongs "
            "to (word_ids): a fast tokenizer, with tokenizer.json, is needed"
        )
    known = tokenizer.get_vocab()
    unknown = tokenizer.unk_token_id
    end = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    special = {
        dictionary.bos(): -1 if tokenizer.cls_token_id is None else tokenizer.cls_token_id,
        dictionary.pad(): 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        dictionary.eos(): end,
        dictionary.unk(): end if unknown is None else unknown,
    }
    lacking = [
        symbol
        for symbol in dictionary.symbols[dictionary.nspecial :]
        if symbol not in known and not symbol.startswith("madeupword")
    ]
    if lacking:
        raise UserError(
            f"--huggingface-model {folder}: its tokenizer lacks {len(lacking)} entries of the source "
            f"dictionary, such as '{lacking[0]}': make the data with --bpe huggingface:{folder}"
        )
    of_symbols = (known.get(symbol, special[dictionary.unk()]) for symbol in dictionary.symbols)
    return torch.tensor([special.get(i, number) for i, number in enumerate(of_symbols)])
