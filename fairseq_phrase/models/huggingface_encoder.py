"""``--encoder huggingface``: the encoder of a model of transformers, with relation biases."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.config import check_heads
from fairseq_phrase.methods.encoder_method import option, register_encoder
from fairseq_phrase.methods.relations.relation_options import (
    RelationOptions,
    check_relations,
    parse_fields,
)
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoder, TimeFirstEncoder, encoder_output
from fairseq_phrase.models.huggingface_vocabulary import (
    Frame,
    frame_of,
    load_tokenizer,
    numbers_of,
    read_frame,
)
from fairseq_phrase.optional_packages import import_transformers
from fairseq_phrase.text import read_json

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary


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
    huggingface_language: Optional[str] = option(None,  # noqa: UP045
        "the language of the source, by the code of a tokenizer that marks it (NLLB: deu_Latn; mBART-50: "
        "de_DE); by default the tokenizer's own",
        identity="free")
    huggingface_frame: Optional[str] = option(None,  # noqa: UP045
        "the numbers of the tokens that the tokenizer puts around a sentence; a checkpoint has them")


def take_configuration(cfg: Any) -> None:
    """Copy what ``--huggingface-model`` has into the options, which checkpoints store.

    A checkpoint can then be loaded without the folder.
    """
    if folder := getattr(cfg, "huggingface_model", None):
        cfg.huggingface_config = _configuration(folder).to_json_string()
        frame = frame_of(load_tokenizer(folder, cfg.huggingface_language))
        cfg.huggingface_frame = json.dumps(frame._asdict())


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
        model, loading_info = _transformers().AutoModel.from_pretrained(
            folder, config=config, local_files_only=True, output_loading_info=True,
            trust_remote_code=False,
        )  # fmt: skip
    except Exception as error:  # of transformers, safetensors, torch and pickle
        reason = str(error).strip().splitlines()[0][:200]
        raise UserError(
            f"--huggingface-model {folder}: its weights cannot be loaded ({reason}): expected "
            "model.safetensors, or a pytorch_model.bin of nothing but tensors"
        ) from None
    if missing := sorted(name for name in loading_info["missing_keys"] if "pooler" not in name):
        raise UserError(f"--huggingface-model {folder}: its weights lack {missing[0]}")
    return model


def check(cfg: Any) -> None:
    """Check the options of relations, of which a model of transformers has those of the tree.

    Raises:
        UserError: an option asks for others, or the options contradict each other.
    """
    for flag, value, only in (
        ("--relation-source", cfg.relation_source, "heads"),
        ("--relation-vectors", cfg.relation_vectors, "none"),
    ):
        if value != only:
            raise UserError(
                f"{flag} {value}: a model of transformers has biases of "
                "the dependency tree: leave it out"
            )
    if cfg.relation_bias == "distance":
        raise UserError(
            "--relation-bias distance: a model of transformers has no such prior: expected tree, "
            "sequence, both or none"
        )
    check_relations(cfg)


@register_encoder(
    "huggingface",
    options=HuggingFaceOptions,
    check=check,
    parse_fields=parse_fields,
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
    before: Tensor
    after: Tensor

    def __init__(
        self, cfg: TransformerConfig, dictionary: "Dictionary", embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(dictionary)
        self.cfg, self.padding_idx = cfg, dictionary.pad()
        if pruning := cfg.encoder.layers_to_keep:
            raise UserError(
                f"--encoder-layers-to-keep {pruning} prunes layers by fairseq's names, and --encoder "
                "huggingface has others: leave it out, and give fewer --encoder-layers"
            )
        folder = cfg.huggingface_model
        config = _configuration(folder) if folder else self._new_configuration()
        self._check_sizes(config, folder)
        frame = read_frame(cfg.huggingface_frame) if cfg.huggingface_frame else None
        if folder:
            model = _trained(folder, config)
            tokenizer = load_tokenizer(folder, cfg.huggingface_language)
            frame = frame_of(tokenizer)
            numbers = numbers_of(tokenizer, frame, folder, dictionary)
        else:
            model = _transformers().AutoModel.from_config(config, trust_remote_code=False)
            numbers = torch.arange(len(dictionary))
        if getattr(model, "pooler", None) is not None:
            model.pooler = None  # its parameters would not get a gradient
        trained = dict(model.named_parameters())
        if cfg.relation_bias != "none":
            from fairseq_phrase.huggingface.biased_models import add_relation_bias

            count = cfg.labels.count("deprels") if cfg.relation_labels else 0
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
        self._set_frame(frame)
        limit = getattr(config, "max_position_embeddings", cfg.max_source_positions)
        # RoBERTa's positions begin after the padding's. A sentence has its own end.
        positions = (m for n, m in model.named_modules() if n.endswith(".position_embeddings"))
        paddings = (getattr(table, "padding_idx", None) for table in positions)
        offset = max((index + 1 for index in paddings if index is not None), default=0)
        offset += len(self.before) + len(self.after) - 1
        self._max_positions = min(cfg.max_source_positions, limit - offset)

    def _set_frame(self, frame: Frame | None) -> None:
        """Set the tokens around a sentence; by default the start and the end of the dictionary."""
        if frame is None:  # of a checkpoint of the first version, or a new BERT
            start = self.numbers[self.dictionary.bos()].item()
            end = self.numbers[self.dictionary.eos()].item()
            frame = Frame([int(start)] if start >= 0 else [], [int(end)])
        for name, numbers in frame._asdict().items():
            # Not in the checkpoint, whose options have it.
            tensor = torch.tensor(numbers, dtype=torch.long, device=self.numbers.device)
            self.register_buffer(name, tensor, persistent=False)

    def _new_configuration(self) -> Any:
        """Return the checkpoint's configuration, or a BERT configuration with the options' sizes."""
        make, cfg = _transformers().AutoConfig.for_model, self.cfg
        if cfg.huggingface_config:
            values = read_json(cfg.huggingface_config)
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
        for flag, size, there in (
            ("--encoder-embed-dim", self.cfg.encoder.embed_dim, config.hidden_size),
            ("--encoder-layers", self.cfg.encoder.layers, layers),
        ):
            if size != there:
                raise UserError(
                    f"{flag} {size}: --huggingface-model {folder} has {there}: give {flag} {there}"
                )

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        if not self.cfg.huggingface_frame:
            self._set_frame(None)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        **parse: Tensor,
    ) -> dict[str, list[Any]]:
        """Encode a batch; arguments and output as in :meth:`SyntaxEncoder.forward`."""
        padding = src_tokens.eq(self.padding_idx)
        before, after = len(self.before), len(self.after)
        columns = torch.arange(src_tokens.size(1), device=src_tokens.device)
        # The model counts positions from the left, so padding is moved to the right.
        # argmax finds the first True: the column of the first token.
        first = (~padding).int().argmax(1, keepdim=True)
        has_start = src_tokens.gather(1, first).eq(self.dictionary.bos())
        # The model's frame replaces the end of the sentence, and a labeller's start.
        first, lengths = first + has_start, (~padding).sum(1, keepdim=True) - has_start.long() - 1
        # Rotate each row; its first subword comes first. The last column never has a subword.
        order = (columns[:-1] + first) % len(columns)
        is_subword = columns[:-1] < lengths
        framed, mask = self._framed(src_tokens.gather(1, order), is_subword, lengths)
        output = self.model(
            input_ids=framed,
            attention_mask=mask.long(),
            output_hidden_states=return_all_hiddens,
            **self._relations(ParseBatch.from_net_input(parse), order, is_subword),
        )
        # The inverse rotation. The start is the frame's first token.
        back = (columns - first + before).masked_fill(columns == first - 1, 0) % framed.size(1)
        # An end that the model does not read has no state, and no weight unless it is alone.
        no_state = (columns == first + lengths) & (after == 0)

        def placed(states: Tensor) -> Tensor:
            """Shape: (tokens, batch, width), in the order of the source."""
            states = states.gather(1, back.unsqueeze(2).expand(-1, -1, states.size(2)))
            return states.masked_fill(no_state.unsqueeze(2), 0).transpose(0, 1)

        states = placed(output.last_hidden_state)
        hidden = map(placed, output.hidden_states) if return_all_hiddens else ()
        return encoder_output(
            src_tokens, padding, encoder_out=[states], encoder_states=list(hidden),
            encoder_padding_mask=[padding | (no_state & (lengths > 0))],
        )  # fmt: skip

    def _framed(self, tokens: Tensor, is_subword: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Put the frame around sentences. Shape of both results: (batch, columns of the model).

        Args:
            tokens: sentences on the left, without the start and the end. Shape: (batch, columns)
            is_subword: whether it is one. Shape: (batch, columns)
            lengths: the number of subwords. Shape: (batch, 1)

        Returns:
            The model's numbers, and True at tokens that it reads.
        """
        batch, after = len(tokens), len(self.after)
        inputs = self.numbers[tokens.masked_fill(~is_subword, self.padding_idx)]
        # Without any token the model would attend to nothing; it reads padding then.
        width = max(len(self.before) + tokens.size(1) + after, 1)
        padding = self.numbers[self.padding_idx].expand(
            batch, width - len(self.before) - tokens.size(1)
        )
        inputs = torch.cat([self.before.expand(batch, -1), inputs, padding], 1)
        ends = len(self.before) + lengths
        columns = torch.arange(width, device=tokens.device)
        slots = ends + columns[:after]
        inputs = inputs.scatter(1, slots, self.after.expand(batch, -1))
        return inputs, columns < (ends + after).clamp(min=1)

    def _relations(self, parse: ParseBatch, order: Tensor, is_subword: Tensor) -> dict[str, Tensor]:
        """Return what the biases read, in the model's order of tokens."""
        if self.cfg.relation_bias in ("none", "sequence"):
            return {}
        words = parse["words"].gather(1, order).masked_fill(~is_subword, -1)
        # The frame does not belong to a word.
        words = pad(words, (len(self.before), len(self.after)), value=-1)
        words = pad(words, (0, 1), value=-1) if words.size(1) == 0 else words
        labels = {"src_deprels": parse["deprels"]} if self.cfg.relation_labels else {}
        return {"src_words": words, "src_heads": parse["heads"], **labels}

    def first_token_obstacle(self) -> str | None:
        """Return why the state of the first token does not stand for the sentence, or None."""
        kind = self.model.config.model_type
        if not len(self.before):
            return f"the tokenizer of this {kind} model puts no token before a sentence"
        words = self.dictionary
        tokens = torch.tensor(
            [[words.bos(), w, words.eos()] for w in (words.unk(), words.nspecial)]
        )
        nothing = torch.full((2, 3), -1)
        parse = {f"src_{field}": nothing for field in ("words", "heads", "deprels")}
        training = self.training
        with torch.no_grad():
            first, second = self.eval()(tokens, **parse)["encoder_out"][0][0]
        self.train(training)
        if torch.allclose(first, second):
            return f"the first token of a {kind} model does not read the tokens after it"
        return None

    def max_positions(self) -> int:
        """Return the largest number of tokens."""
        return int(self._max_positions)
