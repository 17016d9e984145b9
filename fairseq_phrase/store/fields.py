"""What a parse is made of on disk: the table of its fields."""

from __future__ import annotations

from collections.abc import Collection

#: What a parse is made of, in the order of the files: per subword the index of its word; per word
#: the index of its head, its relation and its tag, as ``dict.{deprel,tag}.txt`` number them; per
#: constituent its first word, one past its last and its label, as ``dict.constituent.txt`` does.
FIELDS = ("words", "heads", "deprels", "tags", "spans")
_PER_WORD = ("heads", "deprels", "tags")
#: The dictionaries of the labels, by field.
LABEL_FILES = {
    "deprels": "dict.deprel.txt",
    "tags": "dict.tag.txt",
    "spans": "dict.constituent.txt",
}
REMEDIES = {
    "words": "any --parser",
    "heads": "a dependency parser (--parser spacy:MODEL, stanza:LANG or conllu)",
    "deprels": "a dependency parser (--parser spacy:MODEL, stanza:LANG or conllu)",
    "tags": "a parser that tags (--parser spacy:MODEL, stanza:LANG, conllu or ptb)",
    "spans": "a constituency parser (--parser stanza:LANG or ptb), or a dependency parser and "
    "--constituents from-dependencies",
}


def shared_index(field_name: str, fields: Collection[str]) -> str | None:
    """Name the field whose ``.idx`` file a field is read by; None where it has its own.

    Args:
        field_name: one of :data:`FIELDS`.
        fields: all that are in the data directory.
    """
    first = next((name for name in _PER_WORD if name in fields), None)
    return first if field_name in _PER_WORD and field_name != first else None
