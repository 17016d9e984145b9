"""Time per sentence by length: the tree Transformer's encoder compared with a Tree-LSTM.

Both encode the same sentences with the same trees. The trees branch to the right three times out of four,
and their depth grows with length as in English. Forward and backward are measured for one sentence at a
time. The encoder has the paper's size for classification (2 layers, 4 heads, d = 64). The Tree-LSTM is a
child-sum Tree-LSTM (Tai et al. 2015) of one layer and the same width, the module of ``--encoder
tree_lstm``; it computes all nodes of one height together. The time to prepare the tree is included for
both.

The columns of steps give the number of sequential steps on a machine with enough processors: the
encoder's layers, and the Tree-LSTM's levels. On one CPU thread, the time also depends on the total work,
which grows with length for both.

On a shared machine, set OMP_NUM_THREADS=1.

Example:
    python benchmarks/length.py --lengths 10 50 200 --plot docs/length.png
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY
from machine import describe_machine, seconds
from random_trees import right_branching_spans
from torch import Tensor, nn
from tqdm import tqdm

from fairseq_phrase import register
from fairseq_phrase.models.config import nested_config
from fairseq_phrase.models.tree_transformer import TreeEncoder
from fairseq_phrase.modules.recurrent.tree_lstm import (
    ChildSumTreeLSTM,
    TreeLevels,
    constituency_trees,
)
from fairseq_phrase.visualization.figures import new_figure, save

LAYERS, HEADS, WIDTH = 2, 4, 64
LABELS = 30


@dataclass
class Row:
    """One line of the table; times in milliseconds per sentence."""

    words: int
    height: float
    encoder: float
    lstm: float


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


def build_encoder(dictionary: Dictionary, device: torch.device) -> TreeEncoder:
    """Build an encoder of the paper's size for classification."""
    register()
    options = MODEL_DATACLASS_REGISTRY["tree_transformer"](
        encoder_embed_dim=WIDTH, encoder_ffn_embed_dim=4 * WIDTH, encoder_layers=LAYERS,
        encoder_attention_heads=HEADS, decoder_embed_dim=WIDTH, dropout=0.0,
    )  # fmt: skip
    cfg = nested_config(options)
    cfg.count_labels = lambda field: LABELS
    embeddings = nn.Embedding(len(dictionary), WIDTH, dictionary.pad())
    return TreeEncoder(cfg, dictionary, embeddings).to(device)


def measure(
    words: int, encoder: TreeEncoder, lstm: ConstituentLSTM, options: argparse.Namespace
) -> Row:
    """Measure one row: the median over sentences, the two in turns."""
    device = torch.device(options.device)
    chance = random.Random(words)
    dictionary = encoder.dictionary
    times, heights = [], []
    for number in range(-2, options.sentences):
        spans = torch.tensor(right_branching_spans(words, chance), device=device)
        labels = torch.randint(0, LABELS, (len(spans),), device=device)
        tokens = torch.randint(dictionary.nspecial, len(dictionary), (words,), device=device)
        inputs = {
            "src_tokens": torch.cat([tokens, tokens.new_tensor([dictionary.eos()])])[None],
            "src_words": torch.cat([torch.arange(words, device=device), tokens.new_tensor([-1])])[
                None
            ],
            "src_spans": torch.cat([spans, labels[:, None]], 1)[None],
        }
        kinds: list[Callable[[], Tensor]] = [
            lambda inputs=inputs: encoder(**inputs)["encoder_out"][0],
            lambda given=(tokens, spans, labels): lstm(*given),
        ]
        pair = [seconds(lambda kind=kind: kind().sum().backward(), device) for kind in kinds]
        if number >= 0:
            times.append([1e3 * time for time in pair])
            heights.append(len(levels_of(tokens, spans).steps) - 1)
    columns = [statistics.median(column) for column in zip(*times, strict=True)]
    return Row(words, statistics.mean(heights), *columns)


def table(rows: list[Row]) -> str:
    """Format the rows in Markdown."""
    lines = [
        "| words | tree Transformer, ms | Tree-LSTM, ms | ratio | steps: layers | steps: levels |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.words} | {row.encoder:.1f} | {row.lstm:.1f} | {row.lstm / row.encoder:.1f} "
        f"| {LAYERS} | {row.height + 1:.0f} |"
        for row in rows
    ]
    return "\n".join(lines)


def plot(rows: list[Row], path: Path, conditions: str) -> None:
    """Draw both lines."""
    figure = new_figure(path, (6.0, 4.0))
    axes = figure.subplots()
    words = [row.words for row in rows]
    axes.plot(words, [row.lstm for row in rows], marker="o", label="Tree-LSTM")
    axes.plot(words, [row.encoder for row in rows], marker="o", label="tree Transformer's encoder")
    axes.set_xlabel("words in the sentence")
    axes.set_ylabel("ms per sentence, forward and backward")
    axes.set_ylim(bottom=0)
    axes.set_title(conditions, fontsize=6, wrap=True)
    axes.legend()
    save(figure, path)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[10, 20, 40, 60, 80, 120, 160, 200]
    )
    parser.add_argument("--sentences", type=int, default=15, help="of each length")
    parser.add_argument("--plot", type=Path, help="also draw the lines here")
    parser.add_argument("--out", type=Path, help="also write the table here, in Markdown")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure all rows and print them."""
    options = parse_arguments()
    torch.manual_seed(1)
    dictionary = Dictionary()
    for number in range(1000):
        dictionary.add_symbol(f"word{number}")
    device = torch.device(options.device)
    encoder = build_encoder(dictionary, device)
    lstm = ConstituentLSTM(len(dictionary), WIDTH).to(device)
    rows = [
        measure(words, encoder, lstm, options)
        for words in tqdm(options.lengths, unit="length", file=sys.stderr)
    ]
    conditions = (
        f"{describe_machine(options.device)}, width {WIDTH}, one sentence at a time, forward and "
        f"backward, median of {options.sentences} sentences"
    )
    report = f"{conditions}\n\n{table(rows)}\n"
    print(report)
    if options.out:
        options.out.write_text(report)
    if options.plot:
        plot(rows, options.plot, conditions)


if __name__ == "__main__":
    main()
