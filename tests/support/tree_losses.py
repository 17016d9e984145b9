"""Samples and criteria for losses that teach trees."""

from __future__ import annotations

from argparse import Namespace

from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.methods.losses.tree_losses import TreeLossOptions


def make_sample(dictionary, inputs):
    """A sample as the dataset makes it, with as many target tokens as source sentences have."""
    tokens = inputs["src_tokens"]
    lengths = tokens.ne(dictionary.pad()).sum(1)
    return {
        "net_input": {"src_tokens": tokens, "src_lengths": lengths, "prev_output_tokens": tokens},
        "target": tokens,
        "ntokens": int(lengths.sum()),
        "parse": {name: inputs[f"src_{name}"] for name in ("words", "heads", "spans")},
    }


def make_criterion(kind, dictionary, **options):
    task = Namespace(target_dictionary=dictionary, loss_scale=1.0)
    return kind(task, sentence_avg=False, label_smoothing=0.1, **options)


def own_inputs(name, model, inputs):
    """The parses that an encoder takes."""
    needed = ENCODERS[name].parse_fields(model.cfg) if name in ENCODERS else []
    return {f"src_{field}": inputs[f"src_{field}"] for field in needed}


def with_loss(loss, criterion, model, weight):
    """A criterion with a loss as the task adds it."""
    setting = loss.setting_for(TreeLossOptions(**{loss.option: weight}), model)
    return loss.over(criterion, weight, setting).double()
