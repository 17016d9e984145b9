"""Time of a training step of a model of transformers with relation biases, compared with the same model.

The models take their steps (forward, backward, AdamW) in turns on the same batches of random sentences in
random trees, each subword a word. The table shows medians over the steps; ``speed`` is the median of the
paired ratios. On one thread times are CPU times, which other work on the machine hardly changes.

On a shared machine, set OMP_NUM_THREADS=1.

Examples:
    python benchmarks/huggingface.py                      BERT-base
    python benchmarks/huggingface.py --type m2m_100 --layers 6 --sentences 4 --vectors
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
import transformers
from machine import describe_machine, seconds

from fairseq_phrase.huggingface import add_relation_bias
from fairseq_phrase.text import markdown_table

_LAYERS = ("num_hidden_layers", "encoder_layers", "decoder_layers")


def build(options: argparse.Namespace) -> torch.nn.Module:
    """Build the model, with random weights and the sizes of its type's default configuration."""
    config = transformers.AutoConfig.for_model(options.type)
    for name in _LAYERS:
        if options.layers and hasattr(config, name):
            setattr(config, name, options.layers)
    return transformers.AutoModel.from_config(config).to(options.device).train()


def random_batch(options: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Draw sentences whose last quarter is padding in half of them, and their trees."""
    shape = options.sentences, options.tokens
    order = torch.arange(options.tokens)
    lengths = torch.full((options.sentences, 1), options.tokens)
    lengths[1::2] = options.tokens * 3 // 4
    mask = (order < lengths).long()
    # The head of a word is before it; the first word is the root.
    heads = (torch.rand(shape) * order).long()
    ids = torch.randint(5, 1000, shape)
    batch = {"input_ids": ids, "attention_mask": mask}
    batch["src_words"] = torch.where(mask.bool(), order, -1)
    batch["src_heads"] = torch.where(mask.bool(), heads, -1)
    return {name: tensor.to(options.device) for name, tensor in batch.items()}


def step_of(model: torch.nn.Module, *, has_biases: bool) -> Callable[[dict], None]:
    """Return a function that trains the model on a batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step(batch: dict[str, torch.Tensor]) -> None:
        given = {n: t for n, t in batch.items() if has_biases or not n.startswith("src_")}
        if model.config.is_encoder_decoder:
            given["decoder_input_ids"] = batch["input_ids"]
        model(**given)[0].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    """Measure both models and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--type", default="bert", help="a type of transformers' models")
    parser.add_argument("--layers", type=int, help="by default those of the type")
    parser.add_argument("--kind", default="both", choices=["tree", "sequence", "both"])
    parser.add_argument("--vectors", action="store_true", help="also a vector for each relation")
    parser.add_argument("--sentences", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of the longest sentence")
    parser.add_argument("--steps", type=int, default=9, help="measured steps of each model")
    options = parser.parse_args()
    torch.manual_seed(1)
    plain, biased = build(options), build(options)
    add_relation_bias(biased, options.kind, vectors=options.vectors)
    steps = [step_of(plain, has_biases=False), step_of(biased, has_biases=True)]
    device, times = torch.device(options.device), []
    for number in range(-1, options.steps):
        batch, taken = random_batch(options), [0.0, 0.0]
        for turn in range(2):
            index = (number + turn) % 2
            taken[index] = seconds(lambda i=index, b=batch: steps[i](b), device)
        if number >= 0:
            times.append(taken)
    lines = []
    for index, name in enumerate((options.type, f"{options.type}, relation biases")):
        speed = statistics.median(step[0] / step[index] for step in times)
        lines.append(
            [name, f"{statistics.median(s[index] for s in times) * 1e3:.0f}", f"{speed:.3f}"]
        )
    print(
        f"{describe_machine(options.device)}, {options.sentences} sentences of {options.tokens} "
        f"tokens, median of {options.steps} steps each, in turns\n"
    )
    print(markdown_table(["model", "ms per step", "speed"], lines, texts=1))


if __name__ == "__main__":
    main()
