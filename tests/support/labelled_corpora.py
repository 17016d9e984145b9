"""A small corpus with a label for each word and each sentence, and gold trees of both kinds."""

from __future__ import annotations

import random
from pathlib import Path

from fairseq_phrase.cli.preprocess import main as preprocess

LINES = {"train": 200, "valid": 24, "test": 21}
_WORDS = {
    "DET": ["the", "a", "every"],
    "ADJ": ["big", "small", "old", "yellow", "quick"],
    "NOUN": ["dog", "cat", "light", "watch", "farmer", "horse"],
    "VERB": ["sees", "watch", "light", "admires"],
}


def write_corpus(folder: Path, seed: int = 1) -> Path:
    """Write ``train.en``, ``.tag``, ``.class``, and ``.en.conllu`` and ``.en.ptb`` beside the text.

    "watch" and "light" are nouns or verbs, depending on their place. The class says how many
    adjectives a sentence has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    for split, count in LINES.items():
        files: dict[str, list[str]] = {
            suffix: [] for suffix in ("en", "tag", "class", "en.conllu", "en.ptb")
        }
        for _ in range(count):
            subject, verb, thing = _noun_phrase(rng), ("VERB", rng.choice(_WORDS["VERB"])), []
            if rng.random() < 0.7:
                thing = _noun_phrase(rng)
            words = [*subject, verb, *thing]
            files["en"].append(" ".join(word for _, word in words))
            files["tag"].append(" ".join(tag for tag, _ in words))
            files["class"].append(str(sum(tag == "ADJ" for tag, _ in words)))
            files["en.conllu"].append(_conllu(words, len(subject)))
            parts = [f"(NP {_leaves(subject)})", f"(VP {_leaves([verb])}"]
            parts[1] += f" (NP {_leaves(thing)}))" if thing else ")"
            files["en.ptb"].append(f"(S {' '.join(parts)})")
        for suffix, lines in files.items():
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{suffix}").write_text(text, encoding="utf-8")
    return folder


def make_data(folder: Path, out: Path, labels: str, *options: object) -> Path:
    """Preprocess the corpus; ``labels`` is word or sentence."""
    suffix = {"word": "tag", "sentence": "class"}[labels]
    prefixes = [f"--{split}pref={folder / split}" for split in LINES]
    preprocess(
        ["-s", "en", "-t", suffix, "--labels", labels, *prefixes, "--destdir", str(out)]
        + [str(option) for option in options]
    )
    return out


def _noun_phrase(rng: random.Random) -> list[tuple[str, str]]:
    tags = ["DET", *["ADJ"] * rng.choice([0, 0, 1, 2]), "NOUN"]
    return [(tag, rng.choice(_WORDS[tag])) for tag in tags]


def _leaves(words: list[tuple[str, str]]) -> str:
    return " ".join(f"({tag} {word})" for tag, word in words)


def _conllu(words: list[tuple[str, str]], verb: int) -> str:
    rows = []
    for number, (tag, word) in enumerate(words, start=1):
        head, relation = verb + 1, "arg"
        if tag == "VERB":
            head, relation = 0, "root"
        elif tag != "NOUN":
            later = range(number, len(words))
            head, relation = next(i + 1 for i in later if words[i][0] == "NOUN"), "mod"
        rows.append(f"{number}\t{word}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_")
    return "\n".join([*rows, ""])
