"""fairseq's tokenizer and BPE for raw source lines: ``--tokenizer syntax --bpe syntax``.

They make the same words and subwords as preprocessing. The task builds them from its data directory
(:meth:`fairseq_phrase.tasks.syntax_translation.SyntaxTranslationTask.build_tokenizer`). With
``--syntax-data`` they also work without the task.

fairseq's hub interface (``TransformerModel.from_pretrained``) makes a task and then the tokenizer and the
BPE, without a connection between them. So both use the data of the task that was made last
(:func:`use_data_of`). The text that they return carries its raw line
(:class:`~fairseq_phrase.batch.raw_tokens.CutText`), so that the task can parse it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from fairseq.data.encoders import register_bpe, register_tokenizer
from fairseq.dataclass import FairseqDataclass

from fairseq_phrase.batch.raw_lines import SourceEncoder, segmenter_of
from fairseq_phrase.batch.raw_tokens import CutText, line_of
from fairseq_phrase.choices import WHOLE_WORDS
from fairseq_phrase.errors import UserError
from fairseq_phrase.store.manifest import Manifest


@dataclass
class SyntaxEncoderConfig(FairseqDataclass):
    """Options of the tokenizer and the BPE: the data directory and the parser."""

    syntax_data: Optional[str] = field(  # noqa: UP045 - fairseq reads this type
        default=None,
        metadata={"help": "data directory with syntax.LANG.json; by default the task's own"},
    )
    syntax_lang: Optional[str] = field(  # noqa: UP045 - fairseq reads this type
        default=None, metadata={"help": "the parsed language; by default the task's source"}
    )
    syntax_parser: Optional[str] = field(  # noqa: UP045 - fairseq reads this type
        default=None, metadata={"help": "cut words with this parser instead of the manifest's"}
    )


class _Source(NamedTuple):
    """A data directory, its parsed language, and a parser that replaces its own, or None."""

    directory: str
    language: str
    parser: str | None


_of_last_task: _Source | None = None


def use_data_of(directory: str, language: str, parser: str | None = None) -> None:
    """Set the data that the tokenizer and the BPE use by default.

    Args:
        directory: the data directory.
        language: the parsed language.
        parser: cut words with this parser, not the manifest's.
    """
    global _of_last_task
    _of_last_task = _Source(directory, language, parser)


def _source_of(cfg: SyntaxEncoderConfig) -> _Source:
    """Return the data and parser for a tokenizer or BPE.

    Raises:
        UserError: neither the options nor a task name the data.
    """
    if cfg.syntax_data and cfg.syntax_lang:
        return _Source(cfg.syntax_data.split(":")[0], cfg.syntax_lang, cfg.syntax_parser)
    if cfg.syntax_data or cfg.syntax_lang or _of_last_task is None:
        raise UserError(
            "--tokenizer syntax and --bpe syntax need --task syntax_translation, or both "
            "--syntax-data DIR and --syntax-lang LANG"
        )
    return _of_last_task._replace(parser=cfg.syntax_parser or _of_last_task.parser)


@register_tokenizer("syntax", dataclass=SyntaxEncoderConfig)
class SyntaxTokenizer:
    """Cut a raw line into the parser's words, with a space between them.

    A word that white space precedes in the line begins with ``▁``, so that the line can be restored. Only
    the parser's tokenizer is loaded.
    """

    def __init__(self, cfg: SyntaxEncoderConfig):
        self._encoder = SourceEncoder.of_data(*_source_of(cfg))

    def encode(self, x: str) -> str:
        """Cut a raw line into words."""
        return CutText.of(" ".join(self._encoder.tokenize(x)), x)

    def decode(self, x: str) -> str:
        """Return the text unchanged, because the BPE has restored its spaces."""
        return x


@register_bpe("syntax", dataclass=SyntaxEncoderConfig)
class SyntaxBPE:
    """Cut the words of :class:`SyntaxTokenizer` into subwords; join subwords into text."""

    def __init__(self, cfg: SyntaxEncoderConfig):
        directory, language, _ = _source_of(cfg)
        manifest = Manifest.load(directory, language)
        self._segmenter = segmenter_of(directory, manifest)
        self._joins = manifest.bpe == "subword_nmt"
        self._is_whole = manifest.bpe == WHOLE_WORDS
        self._whole_lines = manifest.whole_lines

    def encode(self, x: str) -> str:
        """Cut words, or a whole line if the data were cut so, into subwords with spaces between them."""
        if self._whole_lines:
            pieces = self._segmenter.line_pieces(x)
        else:
            pieces = [p for word in x.split(" ") for p in self._segmenter.word_pieces(word)]
        return CutText.of(" ".join(pieces), line_of(x))

    def decode(self, x: str) -> str:
        """Join subwords to text; whole words stay apart."""
        if self._is_whole:
            return x
        if self._joins:
            return f"{x} ".replace("@@ ", "").rstrip()
        return x.replace(" ", "").replace("▁", " ").strip()
