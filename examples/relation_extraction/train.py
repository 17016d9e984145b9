"""Relations that a tree does not state: a BERT classifies two marked words, with trees or without.

In enhanced Universal Dependencies, some pairs of words have a relation that no edge of the tree states:
the subject of a controlled verb (*she wants to leave*: she, leave), an object that two verbs share. These
pairs and as many unrelated pairs are the examples. The model reads the trees of a parser, and as controls
linear and random trees.

    python train.py --treebank en_ewt --model minilm --trees parsed --parser en_core_web_sm --seed 1
"""

import argparse
import gzip
import json
import random
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoModel, AutoTokenizer

from fairseq_phrase.huggingface import add_relation_bias, collate, parameter_groups

RELATIONS = ("none", "nsubj", "obj", "obl", "nmod", "amod", "other")
TREES = ("none", "parsed", "linear", "random", "gold")
MARKS = ("#", "*")  # around the two words: tokens that every BERT has


def sentences(path, longest):
    """Yield the words, heads and enhanced edges (head, dependent, label) of CoNLL-U, from 0."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    for block in text.split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines() if line[:1].isdigit()]
        rows = [row for row in rows if row[0].isdigit()]  # words alone
        if not 2 < len(rows) <= longest:
            continue
        heads = [int(row[6]) - 1 if row[6] != "0" else i for i, row in enumerate(rows)]
        edges = []
        for i, row in enumerate(rows):
            for edge in row[8].split("|"):
                head, _, label = edge.partition(":")
                if head.isdigit() and head != "0":
                    edges.append((int(head) - 1, i, label.split(":")[0]))
        yield [row[1] for row in rows], heads, edges, [row[3] for row in rows]


def examples(path, longest, seed=0):
    """List (words, heads, first, second, relation): pairs without an edge of the tree."""
    draw, pairs = random.Random(seed), []
    for words, heads, edges, tags in sentences(path, longest):
        in_tree = {frozenset(pair) for pair in enumerate(heads)}
        joined = in_tree | {frozenset(edge[:2]) for edge in edges}
        for head, dependent, label in edges:
            if head == dependent or frozenset((head, dependent)) in in_tree:
                continue
            relation = label if label in RELATIONS else "other"
            pairs.append((words, heads, head, dependent, relation))
            candidates = [
                i for i, tag in enumerate(tags)
                if tag == tags[dependent] and frozenset((head, i)) not in joined and i != head
            ]  # fmt: skip
            if candidates:
                pairs.append((words, heads, head, draw.choice(candidates), "none"))
    return pairs


def tree_of(kind, words, heads, parse, draw):
    """Return the heads that a model reads."""
    count = len(words)
    if kind == "parsed":
        return parse(words)
    if kind == "linear":
        return [min(i + 1, count - 1) for i in range(count)]
    if kind == "random":
        order = draw.sample(range(count), count)
        heads = [order[0]] * count
        for place, word in enumerate(order[1:], 1):
            heads[word] = order[draw.randrange(place)]
    return heads  # gold


def marked(words, heads, first, second):
    """Put markers around two words; a marker depends on its word."""
    with_marks, of_old, below = [], {}, []
    for i, word in enumerate(words):
        mark = MARKS[0] if i == first else MARKS[1] if i == second else ""
        around = [mark, word, mark] if mark else [word]
        of_old[i] = len(with_marks) + (1 if mark else 0)
        below += [i] * len(around)
        with_marks += around
    new = [of_old[i] for i in below]
    for i, head in enumerate(heads):
        new[of_old[i]] = of_old[head]
    return with_marks, new, of_old[first], of_old[second]


class Classifier(nn.Module):
    """A linear layer over the states of the two words' first tokens."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.output = nn.Linear(2 * model.config.hidden_size, len(RELATIONS))

    def forward(self, inputs, columns):
        states = self.model(**inputs).last_hidden_state
        rows = torch.arange(len(columns))[:, None]
        return self.output(states[rows, columns].flatten(1))


def batches(rows, tokenizer, options):
    """Yield the model's inputs, the columns of the two words and the relations."""
    for start in range(0, len(rows), options.batch):
        of_batch = rows[start : start + options.batch]
        words, heads, firsts, seconds, relations = zip(*of_batch, strict=True)
        encoded = tokenizer(
            list(words), is_split_into_words=True, padding=True, return_tensors="pt"
        )
        columns = [
            [encoded.word_ids(row).index(word) for word in pair]
            for row, pair in enumerate(zip(firsts, seconds, strict=True))
        ]
        trees = {}
        if options.trees != "none":
            trees = collate(encoded, [(tree, []) for tree in heads])
        targets = torch.tensor([RELATIONS.index(relation) for relation in relations])
        yield {**encoded, **trees}, torch.tensor(columns), targets


def scores(model, rows, tokenizer, options):
    """Return the accuracy, and the F1 of all relations but none, in percent."""
    model.eval()
    correct = true = claimed = hits = 0
    with torch.no_grad():
        for inputs, columns, targets in batches(rows, tokenizer, options):
            predictions = model(inputs, columns).argmax(1)
            correct += int((predictions == targets).sum())
            true += int((targets > 0).sum())
            claimed += int((predictions > 0).sum())
            hits += int(((predictions == targets) & (targets > 0)).sum())
    return round(100 * correct / len(rows), 2), round(200 * hits / max(true + claimed, 1), 2)


def parsing(folder):
    """Return a function from words to heads by a spaCy pipeline."""
    import spacy

    pipeline = spacy.load(folder)

    def parse(words):
        return [token.head.i for token in pipeline(spacy.tokens.Doc(pipeline.vocab, words=words))]

    return parse


def data_of(options):
    """Return the rows of training, drawn with the seed, and the first rows of the test set."""
    parse = parsing(options.parser) if options.trees == "parsed" else None
    draw, parts = random.Random(options.seed), []
    for split, count in (("train", options.steps * options.batch), ("test", options.test_pairs)):
        (path,) = options.treebank.glob(f"*{split}.conllu*")
        rows = examples(path, options.longest)
        rows = draw.choices(rows, k=count) if split == "train" else rows[:count]
        part = []
        for words, heads, first, second, relation in rows:
            tree = tree_of(options.trees, words, heads, parse, draw)
            part.append((*marked(words, tree, first, second), relation))
        parts.append(part)
    return parts


def trained(train, tokenizer, options):
    """Return a classifier, and the loss of its last step."""
    torch.manual_seed(options.seed)
    encoder = AutoModel.from_pretrained(options.model)
    groups = [{"params": encoder.parameters(), "lr": 1e-4}]
    if options.trees != "none":
        groups = parameter_groups(add_relation_bias(encoder), lr=1e-4, bias_lr=1e-2)
    model = Classifier(encoder).train()
    adam = torch.optim.AdamW([*groups, {"params": model.output.parameters(), "lr": 1e-3}])
    schedule = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.0, options.steps)
    for inputs, columns, targets in batches(train, tokenizer, options):
        loss = cross_entropy(model(inputs, columns), targets)
        loss.backward()
        adam.step()
        schedule.step()
        adam.zero_grad()
    return model, loss.item()


def main(arguments=None):
    """Train and test; print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--treebank", type=Path, required=True, help="folder of CoNLL-U, .gz too")
    parser.add_argument("--model", required=True, help="folder of a BERT and its tokenizer")
    parser.add_argument("--trees", choices=TREES, required=True)
    parser.add_argument("--parser", help="spaCy pipeline of --trees parsed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16, help="pairs of a step")
    parser.add_argument("--test-pairs", type=int, default=500, help="first pairs of the test set")
    parser.add_argument("--longest", type=int, default=30, help="words of the longest sentence")
    options = parser.parse_args(arguments)
    train, test = data_of(options)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model, loss = trained(train, tokenizer, options)
    accuracy, f1 = scores(model, test, tokenizer, options)
    run = {"trees": options.trees, "seed": options.seed, "steps": options.steps}
    print(json.dumps({**run, "accuracy": accuracy, "f1": f1, "loss": loss}))


if __name__ == "__main__":
    main()
