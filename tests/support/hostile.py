"""Text as the world holds it, for hypothesis: what breaks parsers, tokenizers and line counts."""

from __future__ import annotations

from hypothesis import strategies as st

from fairseq_phrase.syntax.constituency import ConstituencyTree

#: Emoji with joiners and skin tones, zero-width and bidirectional marks, line and paragraph
#: separators, tabs, brackets, NUL, combining marks, expansions under NFKC, fairseq's and
#: SentencePiece's own signs, Moses' escapes.
SNIPPETS = (
    "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪", "\u200b", "\u200d", "\u2060", "\ufeff", "\u202e", "\u2066", "\u200f",
    "\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1f", "\t", "\r", "\u00a0", "\u3000",
    "\0", "\x7f", "(", ")", "[", "]", "-LRB-", "e\u0301", "\u0301", "n\u0303\u0323", "\u0489",
    "…", "½", "ﬁ", "¨", "Ａ", "ℌ", "▁", "▁▁", "<s>", "</s>", "<pad>", "<unk>", "&apos;", "@@", "#",
    "Haus", "der", "zum", "läuft", ".", ",", "U.S.", "2,5", "ß", "中文", "ภาษา", "עברית", "a" * 80,
)  # fmt: skip

#: Lines for a parser: ordinary ones, an empty one, an odd one and a long one, three times each.
LINES = ["Ein Hund läuft .", "", "Zwei  Katzen", "\0 \u2028 👩‍👩‍👧", "x " * 50] * 3


def lines(max_size: int = 12) -> st.SearchStrategy[str]:
    """Lines of text: anything but the line feed that ends them, and lone surrogates."""
    any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))
    part = st.one_of(st.sampled_from(SNIPPETS), any_text, st.sampled_from([" ", "  "]))
    return st.lists(part, max_size=max_size).map("".join)


@st.composite
def trees(draw: st.DrawFn, max_words: int = 25, min_words: int = 1) -> list[int]:
    """Heads of a random tree over 1 to ``max_words`` words, projective or not; the root its own."""
    order = draw(st.permutations(range(draw(st.integers(min_words, max_words)))))
    heads = [0] * len(order)
    for place, word in enumerate(order):
        heads[word] = order[draw(st.integers(0, place - 1))] if place else word
    return heads


@st.composite
def bracketings(
    draw: st.DrawFn, max_words: int = 15
) -> tuple[list[tuple[int, int]], list[str], int]:
    """Spans, labels and number of words of a random tree or several, children before parents.

    N-ary, over 0 to ``max_words`` words, with unary chains, bare words and words in no tree.
    """
    count = draw(st.integers(0, max_words))
    tops = [(word, word + 1) for word in range(count)]
    spans, labels = [], []
    for _ in range(draw(st.integers(0, 12)) if count else 0):
        first = draw(st.integers(0, len(tops) - 1))
        last = draw(st.integers(first, len(tops) - 1))
        spans.append((tops[first][0], tops[last][1]))
        tops[first : last + 1] = [spans[-1]]
        labels.append(draw(st.sampled_from(["S", "NP", "VP", "PRP$", ".", "-LRB-", "日本", "é"])))
    return spans, labels, count


def constituents(max_words: int = 15) -> st.SearchStrategy[ConstituencyTree]:
    """A constituency tree, or several, as :func:`bracketings` makes them."""
    return bracketings(max_words).map(lambda bracketing: ConstituencyTree(*bracketing))
