"""fairseq's composition of a command's options, remembered.

Hydra parses and checks about 350 options, most of them the same for every command: half of the time of
a training of a few updates. A command that sets the same options as one before, whatever their values,
gets a copy of what was composed; only the values that differ are parsed and set, by hydra's own function.
"""

from __future__ import annotations

import copy
import inspect
from functools import partial
from types import SimpleNamespace
from typing import Any

from fairseq import options
from fairseq.dataclass import utils
from hydra._internal import utils as hydra_utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

compose = utils.compose
parse_rule = OverridesParser.parse_rule
_parsed: dict[str, Any] = {}
_composed: dict[tuple[str, ...], tuple[list[str], DictConfig]] = {}


def compose_again(name: str, overrides: list[str], **given: Any) -> DictConfig:
    """Compose as hydra does; the arguments are those that fairseq gives."""
    # "task=translation" chooses a group of options, "task.data='x'" sets one.
    keys = [override.partition("=")[0] for override in overrides]
    shape = tuple(
        key if "." in key else override for key, override in zip(keys, overrides, strict=True)
    )
    if shape not in _composed:
        _composed[shape] = overrides, compose(name, overrides, **given)
    before, config = _composed[shape]
    config = copy.deepcopy(config)
    differing = [now for now, then in zip(overrides, before, strict=True) if now != then]
    parsed = OverridesParser.create().parse_overrides(differing)
    ConfigLoaderImpl._apply_overrides_to_config(parsed, config)
    return config


def parse_again(parser: OverridesParser, text: str, rule_name: str) -> Any:
    """Parse an option as hydra does, once: a new set of options has few that no set before had."""
    if rule_name != "override":
        return parse_rule(parser, text, rule_name)
    if text not in _parsed:
        _parsed[text] = parse_rule(parser, text, rule_name)
    return copy.copy(_parsed[text])


def remember() -> None:
    """From here on, commands of this process and of its forks compose so."""
    utils.compose = compose_again
    OverridesParser.parse_rule = parse_again
    # Hydra reads the name of its caller's file, and the source text around each call on the stack.
    quick = partial(inspect.stack, context=0)
    hydra_utils.inspect = SimpleNamespace(**{**vars(inspect), "stack": quick})


def learn(task: str, *architectures: str) -> None:
    """Compose what forks of this process will: options of trainings and of a generation."""
    arguments = ["data", "--task", task]
    training = ["--optimizer", "adam", "--lr-scheduler", "inverse_sqrt"]
    training += ["--criterion", "label_smoothed_cross_entropy"]
    generation = options.get_generation_parser()
    generation.add_argument("--arch", default="wav2vec2")  # as fairseq-generate does
    commands = [(generation, [*arguments, "--path", "model"])]
    for architecture in architectures:
        commands.append(
            (options.get_training_parser(), [*arguments, *training, "--arch", architecture])
        )
    for parser, words in commands:
        utils.convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
