"""The command ``models.py tree-lstm``: time of recurrent encoders over trees, by length."""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path

import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY
from measuring import (
    Run,
    Turns,
    add_device,
    add_out,
    describe_machine,
    in_turns,
    progress,
    report,
)
from torch import Tensor, nn

from fairseq_phrase.methods.accumulation.tree_transformer import TreeEncoder
from fairseq_phrase.methods.config import nested_config
from fairseq_phrase.methods.recurrent.tree_lstm import (
    ChildSumTreeLSTM,
    TreeLevels,
    constituency_trees,
)
from fairseq_phrase.models.syntax_task import ParseLabels
from fairseq_phrase.text import markdown_table

LAYERS, HEADS, WIDTH, LABELS = 2, 4, 64, 30


def tree_lstm(options: argparse.Namespace) -> None:
    """Time per sentence by length: the tree Transformer's encoder compared with a Tree-LSTM.

    Both encode the same sentences with the same trees. The trees branch to the right three times out of
    four, and their depth grows with length as in English. Forward and backward are measured for one
    sentence at a time. The encoder has the paper's size for classification (2 layers, 4 heads, d = 64).
    The Tree-LSTM is a child-sum Tree-LSTM (Tai et al. 2015) of one layer and the same width, the module
    of ``--encoder tree_lstm``; it computes all nodes of one height together. The time to prepare the tree
    is included for both.

    The columns of steps give the number of sequential steps on a machine with enough processors: the
    encoder's layers, and the Tree-LSTM's levels. On one CPU thread, the time also depends on the total
    work, which grows with length for both.

    Example:
        python benchmarks/models.py tree-lstm --lengths 10 50 200 --plot docs/length.png
    """
    dictionary = Dictionary()
    for number in range(1000):
        dictionary.add_symbol(f"word{number}")
    encoder = build_encoder(dictionary).to(options.device)
    lstm = ConstituentLSTM(len(dictionary), WIDTH).to(options.device)
    times: list[list[float]] = []
    lines = []
    for words in progress(options.lengths, unit="length"):
        turns, height = measure_length(words, encoder, lstm, options)
        times.append([1e3 * turns.median(way) for way in range(2)])
        cells = [*(f"{time:.1f}" for time in times[-1]), f"{times[-1][1] / times[-1][0]:.1f}"]
        lines.append([str(words), *cells, str(LAYERS), f"{height + 1:.0f}"])
    headings = [
        "words", "tree Transformer, ms", "Tree-LSTM, ms", "ratio", "steps: layers", "steps: levels"
    ]  # fmt: skip
    conditions = (
        f"{describe_machine(options.device)}, width {WIDTH}, one sentence at a time, forward and "
        f"backward, median of {options.sentences} sentences"
    )
    report(conditions, markdown_table(headings, lines, texts=0), options.out)
    if options.plot:
        plot(options.lengths, times, options.plot, conditions)


def build_encoder(dictionary: Dictionary) -> TreeEncoder:
    """Build an encoder of the paper's size for classification."""
    options = MODEL_DATACLASS_REGISTRY["tree_transformer"](
        encoder_embed_dim=WIDTH, encoder_ffn_embed_dim=4 * WIDTH, encoder_layers=LAYERS,
        encoder_attention_heads=HEADS, decoder_embed_dim=WIDTH, dropout=0.0,
    )  # fmt: skip
    cfg = nested_config(options)
    cfg.labels = ParseLabels((), lambda field: [""] * LABELS)
    embeddings = nn.Embedding(len(dictionary), WIDTH, dictionary.pad())
    return TreeEncoder(cfg, dictionary, embeddings)


class ConstituentLSTM(nn.Module):
    """The child-sum Tree-LSTM over constituents, with embeddings of words and labels as its inputs.

    Args:
        vocabulary: number of words.
        width: of embeddings and states.
    """

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.embed_words = nn.Embedding(vocabulary, width)
        self.embed_labels = nn.Embedding(LABELS, width)
        self.tree_lstm = ChildSumTreeLSTM(input_dim=width, hidden_dim=width)

    def forward(self, tokens: Tensor, spans: Tensor, labels: Tensor) -> Tensor:
        """Encode one sentence.

        Args:
            tokens: Shape: (words,)
            spans: in post-order. Shape: (constituents, 2)
            labels: Shape: (constituents,)

        Returns:
            The states of all nodes, words first. Shape: (1, words + constituents, width)
        """
        inputs = torch.cat([self.embed_words(tokens), self.embed_labels(labels)])[None]
        return self.tree_lstm(inputs, levels_of(tokens, spans))


def levels_of(tokens: Tensor, spans: Tensor) -> TreeLevels:
    """Make the schedule of one sentence."""
    words = torch.arange(len(tokens), device=tokens.device)[None]
    padding = torch.zeros_like(words, dtype=torch.bool)
    return constituency_trees(words, spans[None], padding, binary=False).levels


def right_branching_spans(leaves: int, rng: random.Random) -> list[tuple[int, int]]:
    """Draw one tree that branches to the right three times out of four, as English trees mostly do.

    Its depth grows in proportion to its length.

    Returns:
        The nonterminals' leaves, half-open, in post-order.
    """
    spans, stack = [], [(0, leaves)]
    while stack:
        start, end = stack.pop()
        if end - start < 2:
            continue
        spans.append((start, end))
        first = start + 1 if rng.random() < 0.75 else rng.randrange(start + 1, end)
        stack += [(start, first), (first, end)]
    return sorted(spans, key=lambda span: (span[1], -span[0]))


def measure_length(
    words: int, encoder: TreeEncoder, lstm: ConstituentLSTM, options: argparse.Namespace
) -> tuple[Turns, float]:
    """Measure sentences of one length; return the times, and the mean height of the trees."""
    rng, dictionary, heights = random.Random(words), encoder.dictionary, []
    order = torch.arange(words, device=options.device)

    def runs(number: int) -> list[Run]:
        spans = torch.tensor(right_branching_spans(words, rng), device=options.device)
        labels = torch.randint(0, LABELS, (len(spans),), device=options.device)
        tokens = torch.randint_like(order, dictionary.nspecial, len(dictionary))
        inputs = {
            "src_tokens": torch.cat([tokens, tokens.new_tensor([dictionary.eos()])])[None],
            "src_words": torch.cat([order, order.new_tensor([-1])])[None],
            "src_spans": torch.cat([spans, labels[:, None]], 1)[None],
        }
        if number >= 0:
            heights.append(len(levels_of(tokens, spans).steps) - 1)
        return [
            lambda: encoder(**inputs)["encoder_out"][0].sum().backward(),
            lambda: lstm(tokens, spans, labels).sum().backward(),
        ]

    turns = in_turns(runs, options.sentences, options.device, warmup=2)
    return turns, statistics.mean(heights)


def plot(lengths: list[int], times: list[list[float]], path: Path, conditions: str) -> None:
    """Draw both lines."""
    from fairseq_phrase.lab.pictures.figures import new_figure, save

    figure = new_figure(path, (6.0, 4.0))
    axes = figure.subplots()
    encoder, lstm = zip(*times, strict=True)
    axes.plot(lengths, lstm, marker="o", label="Tree-LSTM")
    axes.plot(lengths, encoder, marker="o", label="tree Transformer's encoder")
    axes.set_xlabel("words in the sentence")
    axes.set_ylabel("ms per sentence, forward and backward")
    axes.set_ylim(bottom=0)
    axes.set_title(conditions, fontsize=6, wrap=True)
    axes.legend()
    save(figure, path)


def add_tree_lstm_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`tree_lstm`."""
    add_device(parser)
    lengths = [10, 20, 40, 60, 80, 120, 160, 200]
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths)
    parser.add_argument("--sentences", type=int, default=15, help="of each length")
    parser.add_argument("--plot", type=Path, help="also draw the lines here")
    add_out(parser)
