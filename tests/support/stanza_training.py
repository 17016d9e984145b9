"""Stanza models that Stanza's own trainers make in a few seconds: real, tiny and bad at German."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np

#: Words of the synthetic corpus that UD's German treebanks take for two.
MULTI_WORD_TOKENS = {
    "im": ("in", "dem"), "am": ("an", "dem"), "zum": ("zu", "dem"), "zur": ("zu", "der"),
    "ins": ("in", "das"), "beim": ("bei", "dem"), "vom": ("von", "dem"),
}  # fmt: skip
_NAME = "synthetic"
_SMALL = {
    "hidden_dim": 16, "char_hidden_dim": 8, "char_emb_dim": 8, "transformed_dim": 8, "tag_emb_dim": 8,
    "word_emb_dim": 8, "num_layers": 1, "deep_biaff_hidden_dim": 8, "dropout": 0, "word_dropout": 0,
}  # fmt: skip
_SMALL_CONSTITUENCY = {
    "hidden_size": 16, "delta_embedding_dim": 8, "tag_embedding_dim": 8, "num_lstm_layers": 1,
    "transition_hidden_size": 8, "transition_embedding_dim": 8, "lattn_d_proj": 0,
}  # fmt: skip


def train_stanza(text: Path, folder: Path) -> Path:
    """Train a tokenizer, a multi-word expander, a tagger and both parsers, all of German.

    Args:
        text: synthetic German, with ``.conllu`` and ``.ptb`` beside it.
        folder: where to make the folders ``work`` and ``models``.

    Returns:
        The folder of models: what ``stanza.download`` makes, ``resources.json`` and all.
    """
    work, models = folder / "work", folder / "models"
    work.mkdir()
    treebank, paragraphs = work / "gold.conllu", work / "gold.txt"
    sentences = [
        _with_multi_word_tokens(block)
        for block in Path(f"{text}.conllu").read_text(encoding="utf-8").strip().split("\n\n")
    ]
    treebank.write_text("".join(block for block, _ in sentences), encoding="utf-8")
    # Several to a paragraph: that sentences end within a line is for the tokenizer to learn.
    lines = [line for _, line in sentences]
    blocks = (" ".join(lines[start : start + 3]) for start in range(0, len(lines), 3))
    paragraphs.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    with _silent_trainers():
        _train_tokenizers(treebank, paragraphs, models / "de", work)
        _train_parsers(treebank, Path(f"{text}.ptb"), models / "de", work)
    _write_resources(models)
    return models


def _with_multi_word_tokens(block: str) -> tuple[str, str]:
    """Split ``im`` and its like in two; return the sentence's CoNLL-U and its text."""
    rows = [line.split("\t") for line in block.split("\n") if not line.startswith("#")]
    new_index, count = {"0": 0}, 0
    for row in rows:
        new_index[row[0]] = count + 1
        count += len(MULTI_WORD_TOKENS.get(row[1], (row[1],)))
    lines, text = [], ""
    for identifier, form, lemma, upos, xpos, feats, old_head, deprel, deps, misc in rows:
        index, head = new_index[identifier], str(new_index[old_head])
        words = MULTI_WORD_TOKENS.get(form)
        if words:
            lines.append([f"{index}-{index + 1}", form, *["_"] * 7, misc])
            for place, (word, tag) in enumerate(zip(words, ("ADP", "DET"), strict=True)):
                relation = deprel if tag == "ADP" else "det"
                lines.append(
                    [str(index + place), word, word, tag, tag, "_", head, relation, "_", "_"]
                )
        else:
            lines.append([str(index), form, lemma, upos, xpos, feats, head, deprel, deps, misc])
        text += form + ("" if "SpaceAfter=No" in misc else " ")
    return "".join("\t".join(line) + "\n" for line in lines) + "\n", text.strip()


class _NoScorer:
    """In the place of the Java program that scores constituents, so that the last model is best."""

    def __init__(self, **_):
        self._epoch = 0

    def __enter__(self) -> _NoScorer:
        return self

    def __exit__(self, *_) -> None:
        pass

    def process(self, _):
        from stanza.protobuf import EvaluateParserResponse

        self._epoch += 1
        return EvaluateParserResponse(f1=self._epoch)


@contextlib.contextmanager
def _silent_trainers() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("stanza", "stanza.constituency.trainer")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with (
            mock.patch("stanza.models.constituency.parser_training.EvaluateParser", _NoScorer),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _run(trainer, *flags: str, **options: object) -> None:
    option_arguments = [
        text for name, value in options.items() for text in (f"--{name}", str(value))
    ]
    trainer.main([*option_arguments, *flags])


def _train_tokenizers(treebank: Path, paragraphs: Path, models: Path, work: Path) -> None:
    from stanza.models import mwt_expander, tokenizer
    from stanza.utils.datasets import prepare_tokenizer_data

    labels, expansions = work / "labels", work / "expansions.json"
    prepare_tokenizer_data.main(
        [str(paragraphs), str(treebank), "-o", str(labels), "-m", str(expansions)]
    )
    shared = {"lang": "de", "shorthand": f"de_{_NAME}", "save_name": f"{_NAME}.pt", "device": "cpu"}
    _run(
        tokenizer, **shared, save_dir=models / "tokenize",
        txt_file=paragraphs, label_file=labels, dev_txt_file=paragraphs, dev_label_file=labels,
        mwt_json_file=expansions, emb_dim=8, hidden_dim=16, steps=150, eval_steps=1000, lr0=0.02,
        dropout=0, unit_dropout=0, feat_unit_dropout=0, shuffle_steps=0,
    )  # fmt: skip
    _run(
        mwt_expander, "--dict_only", **shared, save_dir=models / "mwt",
        train_file=treebank, eval_file=treebank, gold_file=treebank, output_file=work / "mwt.conllu",
    )  # fmt: skip


def _train_parsers(treebank: Path, brackets: Path, models: Path, work: Path) -> None:
    from stanza.models import constituency_parser, parser, tagger
    from stanza.models.common.pretrain import Pretrain

    rows = (line.split("\t") for line in treebank.read_text(encoding="utf-8").split("\n") if line)
    words = sorted({row[1] for row in rows})
    vectors = np.random.default_rng(1).normal(size=(len(words), 10)).round(3)
    text = "".join(
        f"{word} {' '.join(map(str, vector))}\n"
        for word, vector in zip(words, vectors.tolist(), strict=True)
    )
    (work / "vectors.txt").write_text(text, encoding="utf-8")
    pretrained = models / "pretrain" / f"{_NAME}.pt"
    Pretrain(str(pretrained), str(work / "vectors.txt")).load()
    shared = {
        "lang": "de", "shorthand": f"de_{_NAME}", "save_name": f"{_NAME}.pt", "device": "cpu",
        "wordvec_pretrain_file": pretrained,
    }  # fmt: skip
    files = {
        "train_file": treebank, "eval_file": treebank, "output_file": work / "parsed.conllu",
        "max_steps": 10, "eval_interval": 10,
    }  # fmt: skip
    _run(
        tagger, **shared, **files, **_SMALL, save_dir=models / "pos",
        composite_deep_biaff_hidden_dim=8, lr=0.01,
    )  # fmt: skip
    _run(parser, "--no_checkpoint", **shared, **files, **_SMALL, save_dir=models / "depparse")
    # Retagging would download a tagger.
    _run(
        constituency_parser, "--no_retag", "--no_multistage", "--no_checkpoint", **shared,
        **_SMALL_CONSTITUENCY, save_dir=models / "constituency", train_file=brackets,
        eval_file=brackets, epochs=1, epoch_size=30, train_batch_size=10,
    )  # fmt: skip


def _write_resources(models: Path) -> None:
    """List the models as Stanza's own ``resources.json`` does."""
    with_vectors = {"dependencies": [{"model": "pretrain", "package": _NAME}]}
    trained = ("tokenize", "mwt", "pos", "depparse", "constituency")
    entry: dict = {
        name: {_NAME: {"md5": "", **(with_vectors if name not in ("tokenize", "mwt") else {})}}
        for name in trained
    }
    entry["lang_name"] = "German"
    entry["pretrain"] = {_NAME: {"md5": ""}}
    entry["packages"] = {"default": {**dict.fromkeys(trained, _NAME), "lemma": "identity"}}
    resources = {"de": entry, "german": {"alias": "de"}, "url": "https://example.invalid"}
    (models / "resources.json").write_text(json.dumps(resources), encoding="utf-8")
