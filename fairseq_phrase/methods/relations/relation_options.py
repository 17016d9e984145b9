"""Options of relation biases, and the parse fields that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.encoder_method import option
from fairseq_phrase.methods.relations.relation_bias import BIASES, VECTORS
from fairseq_phrase.syntax.fields import FIELDS


@dataclass
class RelationOptions:
    """Options of relation biases."""

    # fmt: off
    relation_bias: ChoiceEnum(list(BIASES)) = option("tree",  # type: ignore[valid-type]
        "which relations of two words have a learned bias in each head: those in the dependency "
        "tree (tree), distances in the sentence as in T5 (sequence), both, or none; distance: a fixed "
        "bias that decays with the distance in the tree")
    relation_labels: bool = option(False,
        "add a bias for the dependency label of pairs of parent and child")
    relation_vectors: ChoiceEnum(list(VECTORS)) = option("none",  # type: ignore[valid-type]
        "give the relations of --relation-bias learned vectors instead of biases (Shaw et al. 2018; "
        "RAT-SQL): added to keys, or to keys and values")
    relation_source: str = option("heads",
        "the parse field of the relations: heads, the dependency tree, or a field of a graph's edges, "
        "such as enhanced")


def reads_trees(cfg: Any) -> bool:
    """Return whether the options ask for relations in the tree."""
    return cfg.relation_bias in ("tree", "both")


def check_relations(cfg: Any) -> None:
    """Check the options of relation biases.

    Raises:
        UserError: a number is out of its range, or the options contradict each other.
    """
    if cfg.relation_labels and not reads_trees(cfg):
        raise UserError(
            f"--relation-labels needs --relation-bias tree or both, not {cfg.relation_bias}"
        )
    if cfg.relation_vectors != "none" and cfg.relation_bias in ("none", "distance"):
        raise UserError(
            "--relation-vectors needs --relation-bias tree, sequence or both, not "
            f"{cfg.relation_bias}"
        )
    if cfg.relation_bias != "none" and cfg.encoder.xformers_att_config:
        raise UserError(
            "--encoder-xformers-att-config does not support relation biases: leave it out"
        )
    graphs = [name for name, field in FIELDS.items() if field.per == "edge"]
    if cfg.relation_source not in ("heads", *graphs):
        raise UserError(
            f"--relation-source: '{cfg.relation_source}' has no edges: expected heads or "
            f"{' or '.join(graphs)}"
        )
    if cfg.relation_source != "heads" and not reads_trees(cfg):
        raise UserError(
            f"--relation-source needs --relation-bias tree or both, not {cfg.relation_bias}"
        )


def parse_fields(cfg: Any) -> Sequence[str]:
    """Return the parse fields that the options need; see :func:`register_encoder`."""
    if not reads_trees(cfg):
        return ["words", "heads"] if cfg.relation_bias == "distance" else []
    labels = [label_field(cfg)] if cfg.relation_labels else []
    return list(dict.fromkeys(["words", cfg.relation_source, *labels]))


def label_field(cfg: Any) -> str:
    """Return the field of relation labels, which differs for trees and graphs."""
    return "deprels" if cfg.relation_source == "heads" else str(cfg.relation_source)
