"""Writing a synthetic corpus: plain text, CoNLL-U and bracketed trees for every split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from fairseq_phrase.errors import MAX_WORDS, UserError
from fairseq_phrase.synthetic.corpus import distinct_groups, take
from fairseq_phrase.synthetic.tree import Sentence
from fairseq_phrase.text import written_together


def write_corpus(
    out: str | Path,
    sizes: Mapping[str, int],
    seed: int,
    *,
    source_lang: str = "de",
    target_lang: str = "en",
    max_words: int = MAX_WORDS,
    overwrite: bool = False,
) -> None:
    """Write ``{split}.{lang}``, ``{split}.{lang}.conllu`` and ``{split}.{lang}.ptb``.

    The same number identifies a line, a CoNLL-U sentence and a tree that belong together. The splits have
    no source text in common. Files appear under their names only when all of them are complete.

    Args:
        out: the directory; made if missing.
        sizes: number of sentence pairs by split; nothing is written for 0. Splits are drawn in this
            order: a split does not change with the sizes of later splits.
        seed: the same seed gives the same bytes.
        overwrite: replace the corpus that is in the directory; otherwise an existing corpus is an error.
    """
    directory = Path(out)
    check_directory(directory, sizes, (source_lang, target_lang), overwrite)
    groups = distinct_groups(seed, source_lang, target_lang, max_words)
    with written_together(directory) as folder, text_files(folder) as file:
        for split, size in sizes.items():
            pairs = take(groups, size)
            for number, pair in enumerate(tqdm(pairs, split, size, unit=" sentences"), start=1):
                for language, sentence in ((source_lang, pair.source), (target_lang, pair.target)):
                    name = f"{split}.{language}"
                    file(name).write(sentence.text + "\n")
                    file(f"{name}.conllu").write(conllu(sentence, f"{split}-{number}"))
                    file(f"{name}.ptb").write(sentence.brackets + "\n")


def check_directory(
    directory: Path, sizes: Mapping[str, int], languages: tuple[str, str], overwrite: bool
) -> None:
    """Check that there is something to write and that two corpora are not mixed.

    Raises:
        UserError: no sentence is requested; or the directory has files of a corpus, and they must not or
            would not be replaced.
    """
    if not any(sizes.values()):
        raise UserError(f"nothing to write: 0 sentences in {', '.join(sizes)}")
    there = {
        split: [name for name in _names(split, languages) if (directory / name).exists()]
        for split in sizes
    }
    found = [name for names in there.values() for name in names]
    if found and not overwrite:
        raise UserError(
            f"{directory} holds a corpus already ({', '.join(found[:3])}, ...): name another folder, or "
            "replace it with --overwrite"
        )
    stay = [name for split, size in sizes.items() if not size for name in there[split]]
    if stay:
        raise UserError(
            f"{directory} would keep {', '.join(stay)} of another corpus: remove them, or ask for "
            "sentences of that split"
        )


def _names(split: str, languages: tuple[str, str]) -> list[str]:
    return [f"{split}.{language}{end}" for language in languages for end in ("", ".conllu", ".ptb")]


@contextmanager
def text_files(folder: Path) -> Iterator[Callable[[str], TextIO]]:
    """Open each file of a folder at its first use, and close all files at the end."""
    with ExitStack() as stack:

        @cache
        def file(name: str) -> TextIO:
            path = folder / name
            return stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))

        yield file


def conllu(sentence: Sentence, sent_id: str) -> str:
    """Write one sentence in CoNLL-U, with the empty line that ends it."""
    lines = [f"# sent_id = {sent_id}", f"# text = {sentence.text}"]
    last = len(sentence.words) - 1
    for index, word in enumerate(sentence.words):
        head = 0 if sentence.heads[index] == index else sentence.heads[index] + 1
        is_joined = not sentence.space_after[index] and index != last
        columns = (
            *(str(index + 1), word, sentence.lemmas[index], sentence.tags[index]),
            *(sentence.xpos[index], "_", str(head), sentence.deprels[index], "_"),
            "SpaceAfter=No" if is_joined else "_",
        )
        lines.append("\t".join(columns))
    return "\n".join(lines) + "\n\n"
