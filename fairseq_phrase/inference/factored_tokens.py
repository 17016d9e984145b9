"""Source tokens as text, with the labels of source factors, as CTranslate2 reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_phrase.data.batches.source_batches import SourceTask
from fairseq_phrase.errors import UserError
from fairseq_phrase.fairseq_types import Dictionary
from fairseq_phrase.models.source_factors import SUBWORDS, factored_embedding
from fairseq_phrase.syntax.sentence import EncodedSentence

#: CTranslate2's separator of a token and its labels.
SEPARATOR = "￨"
_BLANK, _UNKNOWN = "<blank>", "<unk>"


def vocabulary(dictionary: Dictionary) -> list[str]:
    """Return the symbols of a dictionary with CTranslate2's name of padding."""
    padding: int = dictionary.pad()
    return [
        _BLANK if index == padding else symbol for index, symbol in enumerate(dictionary.symbols)
    ]


def factor_rows(task: SourceTask, factor: str) -> dict[str, int]:
    """Return the row of each label in the embeddings of a source factor.

    A special token has the row of a token without a label, as the end of sentence in this package.
    """
    padding = task.source_dictionary.pad()
    rows = dict.fromkeys(("<s>", _BLANK, "</s>", _UNKNOWN), padding)
    if factor == SUBWORDS:
        return rows | {"I": 2, "B": 3, "E": 4, "O": 5}
    labels = task.label_dictionary(factor)
    numbers = range(labels.nspecial, len(labels))
    return rows | {_UNKNOWN: labels.unk()} | {labels.symbols[number]: number for number in numbers}


def token_texts(
    task: SourceTask, model: Any, sentences: Sequence[EncodedSentence]
) -> list[list[str]]:
    """Return the tokens of sentences, without the end of sentence; see :func:`batch_texts`."""
    net_input = task.source_text.batch(sentences)["net_input"]
    return batch_texts(task, model, net_input)


def batch_texts(task: SourceTask, model: Any, net_input: Mapping[str, Any]) -> list[list[str]]:
    """Return the tokens of a batch, without the end of sentence, each with its labels.

    Raises:
        UserError: a token or a label contains :data:`SEPARATOR`, and the model has factors.
    """
    tokens: Any = net_input["src_tokens"]
    padding, names = task.source_dictionary.pad(), vocabulary(task.source_dictionary)
    columns: list[tuple[Sequence[str] | Mapping[int, str], Any]] = [(names, tokens)]
    embedding = factored_embedding(model.encoder)
    if embedding is not None:
        for factor, labels in embedding.labels(net_input).items():
            label_names = {row: label for label, row in factor_rows(task, factor).items()}
            columns.append((label_names | {padding: _BLANK}, labels))
    texts = []
    for is_token, *rows in zip(
        tokens.ne(padding), *(indices for _, indices in columns), strict=True
    ):
        pairs = zip(columns, rows, strict=True)
        parts = [[names[n] for n in row[is_token][:-1].tolist()] for (names, _), row in pairs]
        for text in (
            name for part in parts for name in part if len(parts) > 1 and SEPARATOR in name
        ):
            raise UserError(
                f"'{text}' contains {SEPARATOR}, which CTranslate2 takes as a separator"
            )
        texts.append(
            [SEPARATOR.join(labels_of_token) for labels_of_token in zip(*parts, strict=True)]
        )
    return texts
