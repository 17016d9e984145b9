"""Time per sentence by length: the tree Transformer's encoder compared with a Tree-LSTM.

Both encode the same sentences with the same trees. The trees branch to the right three times out of four,
so that depth grows with length as in English. Measured are forward and backward for one sentence at a
time. The encoder has the paper's size for classification (2 layers, 4 heads, d = 64). The Tree-LSTM is a
child-sum Tree-LSTM (Tai et al. 2015) of one layer and the same width; it computes all nodes of one height
together. The time to prepare the tree is included for both.

The columns of steps give the number of sequential steps on a machine with enough processors: the
encoder's layers, and the Tree-LSTM's levels. On one CPU thread, the time also depends on the total work,
which grows with length for both.

On a machine that others use, too, set OMP_NUM_THREADS=1.

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
from machine import describe_machine, seconds
from random_trees import right_branching_spans
from torch import Tensor, nn
from tqdm import tqdm

from fairseq_phrase.figures import new_figure, save
from fairseq_phrase.models.config import nested_config
from fairseq_phrase.models.encoder_method import ENCODERS
from fairseq_phrase.models.tree_transformer import TreeEncoder

LAYERS, HEADS, WIDTH = 2, 4, 64
LABELS = 30


@dataclass
class Row:
    """One line of the table; times in milliseconds per sentence."""

    words: int
    height: float
    encoder: float
    lstm: float


class ChildSumTreeLSTM(nn.Module):
    """The N-ary child-sum Tree-LSTM, level by level.

    Args:
        vocabulary: number of words.
        width: of embeddings and states.
    """

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.embed_words = nn.Embedding(vocabulary, width)
        self.embed_labels = nn.Embedding(LABELS, width)
        self.gates = nn.Linear(width, 3 * width)
        self.gates_of_children = nn.Linear(width, 3 * width, bias=False)
        self.forget = nn.Linear(width, width)
        self.forget_of_child = nn.Linear(width, width, bias=False)

    def forward(self, tokens: Tensor, spans: Tensor, labels: Tensor) -> Tensor:
        """Encode one sentence.

        Args:
            tokens: Shape: (words,)
            spans: in post-order. Shape: (constituents, 2)
            labels: Shape: (constituents,)

        Returns:
            The states of all nodes, words first. Shape: (words + constituents, width)
        """
        parents, heights = parents_and_heights(len(tokens), spans)
        inputs = torch.cat([self.embed_words(tokens), self.embed_labels(labels)])
        gates, forget = self.gates(inputs), self.forget(inputs)
        hidden = torch.zeros_like(inputs)
        memory = torch.zeros_like(inputs)
        for height in range(int(heights.max()) + 1):
            level = (heights == height).nonzero().squeeze(1)
            place = torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)
            place[level] = torch.arange(len(level), device=inputs.device)
            children = (torch.isin(parents, level)).nonzero().squeeze(1) if height else level[:0]
            above = parents[children]
            summed = inputs.new_zeros(len(level), inputs.size(1))
            sums = summed.index_add(0, place[above], hidden[children])
            kept = torch.sigmoid(forget[above] + self.forget_of_child(hidden[children]))
            kept = summed.index_add(0, place[above], kept * memory[children])
            enter, leave, new = (gates[level] + self.gates_of_children(sums)).chunk(3, 1)
            cells = torch.sigmoid(enter) * torch.tanh(new) + kept
            memory = memory.index_copy(0, level, cells)
            hidden = hidden.index_copy(0, level, torch.sigmoid(leave) * torch.tanh(cells))
        return hidden


def parents_and_heights(words: int, spans: Tensor) -> tuple[Tensor, Tensor]:
    """Return each node's parent (-1 at the root) and height (0 at words), words first."""
    parents, heights = [-1] * (words + len(spans)), [0] * (words + len(spans))
    tops = [(word, word + 1, word) for word in range(words)]
    waiting: list[tuple[int, int]] = []  # (start, node) of nodes without a parent, left to right
    taken = 0
    for number, (start, end) in enumerate(spans.tolist()):
        node = words + number
        while taken < end:
            waiting.append((tops[taken][0], taken))
            taken += 1
        while waiting and waiting[-1][0] >= start:
            _, child = waiting.pop()
            parents[child] = node
            heights[node] = max(heights[node], heights[child] + 1)
        waiting.append((start, node))
    return torch.tensor(parents), torch.tensor(heights)


def build_encoder(dictionary: Dictionary, device: torch.device) -> TreeEncoder:
    """Build an encoder of the paper's size for classification."""
    options = ENCODERS["tree_transformer"].config(
        encoder_embed_dim=WIDTH, encoder_ffn_embed_dim=4 * WIDTH, encoder_layers=LAYERS,
        encoder_attention_heads=HEADS, decoder_embed_dim=WIDTH, dropout=0.0,
    )  # fmt: skip
    cfg = nested_config(options)
    cfg.count_labels = lambda field: LABELS
    embeddings = nn.Embedding(len(dictionary), WIDTH, dictionary.pad())
    return TreeEncoder(cfg, dictionary, embeddings).to(device)


def measure(
    words: int, encoder: TreeEncoder, lstm: ChildSumTreeLSTM, options: argparse.Namespace
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
            heights.append(int(parents_and_heights(words, spans.cpu())[1].max()))
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
    lstm = ChildSumTreeLSTM(len(dictionary), WIDTH).to(device)
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
