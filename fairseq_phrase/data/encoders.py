"""fairseq's tokenizer and BPE for raw source lines: ``--tokenizer syntax --bpe syntax``.

They make the words and subwords that preprocessing made. The task builds them from its data
directory (:meth:`fairseq_phrase.tasks.syntax_translation.SyntaxTranslationTask.build_tokenizer`), and
they can stand alone with ``--syntax-data``.
"""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.data.encoders import register_bpe, register_tokenizer
from fairseq.dataclass import FairseqDataclass

from fairseq_phrase.data.source import SourceEncoder, segmenter_of
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.store import Manifest


@dataclass
class SyntaxEncoderConfig(FairseqDataclass):
    """Where the words and subwords come from."""

    syntax_data: Optional[str] = field(  # noqa: UP045 - fairseq reads this type
        default=None,
        metadata={"help": "data directory with syntax.LANG.json; by default the task's own"},
    )
    syntax_lang: Optional[str] = field(  # noqa: UP045 - fairseq reads this type
        default=None, metadata={"help": "the parsed language; by default the task's source"}
    )
    syntax_parser: Optional[str] = field(  # noqa: UP045 - fairseq reads this type
        default=None, metadata={"help": "cut words with this parser, not the manifest's"}
    )


def _data_of(cfg: SyntaxEncoderConfig) -> tuple[str, str]:
    """Return the data directory and the language.

    Raises:
        UserError: one of them is missing.
    """
    if not cfg.syntax_data or not cfg.syntax_lang:
        raise UserError(
            "--tokenizer syntax and --bpe syntax need --task syntax_translation, or both "
            "--syntax-data DIR and --syntax-lang LANG"
        )
    return cfg.syntax_data.split(":")[0], cfg.syntax_lang


@register_tokenizer("syntax", dataclass=SyntaxEncoderConfig)
class SyntaxTokenizer:
    """Cut a raw line into the parser's words, a space between them.

    ``▁`` stands in front of words that white space precedes in the line, so that the line can be had
    back. The parser's tokenizer alone is loaded.
    """

    def __init__(self, cfg: SyntaxEncoderConfig):
        directory, language = _data_of(cfg)
        self._encoder = SourceEncoder.of_data(directory, language, cfg.syntax_parser)

    def encode(self, x: str) -> str:
        """Raw line to words."""
        return " ".join(self._encoder.tokenize(x))

    def decode(self, x: str) -> str:
        """Leave text as it is: the BPE has restored its spaces."""
        return x


@register_bpe("syntax", dataclass=SyntaxEncoderConfig)
class SyntaxBPE:
    """Cut the words of :class:`SyntaxTokenizer` into subwords; join subwords into text."""

    def __init__(self, cfg: SyntaxEncoderConfig):
        directory, language = _data_of(cfg)
        manifest = Manifest.load(directory, language)
        self._segmenter = segmenter_of(directory, manifest)
        self._joins = manifest.bpe == "subword_nmt"
        self._whole_lines = manifest.whole_lines

    def encode(self, x: str) -> str:
        """Words, or a whole line where the data's were cut so, to subwords, a space between them."""
        if self._whole_lines:
            return " ".join(self._segmenter.line_pieces(x))
        return " ".join(
            piece for word in x.split(" ") for piece in self._segmenter.word_pieces(word)
        )

    def decode(self, x: str) -> str:
        """Subwords to text."""
        if self._joins:
            return f"{x} ".replace("@@ ", "").rstrip()
        return x.replace(" ", "").replace("▁", " ").strip()
