"""Beam search for translations that have required texts."""

from __future__ import annotations

import itertools

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.search import LexicallyConstrainedBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.token_generation_constraints import pack_constraints

from fairseq_phrase.inference.constrained_search import (
    ConstrainedSearch,
    RequiredText,
    WrittenTexts,
)
from fairseq_phrase.testing import make_dictionary


class Bigrams(torch.nn.Module):
    """A language model of bigrams, as fairseq's generator uses a decoder."""

    def __init__(self, dictionary):
        super().__init__()
        torch.manual_seed(1)
        self.scores = torch.randn(len(dictionary), len(dictionary), dtype=torch.float64)

    def forward(self, tokens, **_):
        return self.scores[tokens], None

    def get_normalized_probs(self, output, log_probs, sample=None):
        return output[0].log_softmax(-1)

    def max_decoder_positions(self):
        return 100


def generated(model, dictionary, search, given, **options):
    """What fairseq's generator finds for a source: tokens and summed log probabilities."""
    generator = SequenceGenerator(
        [model], dictionary, beam_size=6, normalize_scores=False, search_strategy=search, **options
    )
    sample = {"net_input": {"src_tokens": torch.tensor([[4, 2]]), "src_lengths": torch.tensor([2])}}
    (hypotheses,) = generator.generate([model], sample, **given)
    return [
        (tuple(hypothesis["tokens"].tolist()), hypothesis["score"].item())
        for hypothesis in hypotheses
    ]


def by_fairseq(constraints, given=None, **options):
    """The hypotheses of fairseq's search."""
    dictionary = make_dictionary(20)
    packed = pack_constraints([list(map(torch.tensor, constraints))])
    search = LexicallyConstrainedBeamSearch(dictionary, "unordered")
    given = {"constraints": packed, **(given or {})}
    return generated(Bigrams(dictionary), dictionary, search, given, **options)


def by_this(constraints, prefix=(), **options):
    """The hypotheses of this search, where each subword is a word."""
    dictionary = make_dictionary(20)
    search = ConstrainedSearch(dictionary, words_of)
    search.begin(
        [[RequiredText(words_of(constraint), (*constraint,)) for constraint in constraints]],
        len(prefix),
    )
    prefix_tokens = {"prefix_tokens": torch.tensor([prefix])} if prefix else {}
    return generated(Bigrams(dictionary), dictionary, search, prefix_tokens, **options)


def words_of(tokens):
    return " ".join(chr(ord("A") + token) for token in tokens)


@pytest.mark.parametrize("prefix", [[4], [5, 0], [6, 7], [8, 9, 10, 11]])
@pytest.mark.parametrize("constraints", [[[6]], [[7], [12, 13]], [[6], [7], [8]]])
def test_the_search_after_a_prefix_is_fairseqs_search_that_begins_there(prefix, constraints):
    hypotheses = by_this(constraints, prefix, max_len_b=12 + len(prefix))
    # The next token depends on the last one only.
    remaining = [constraint for constraint in constraints if not set(constraint) <= set(prefix)]
    expected = by_fairseq(
        remaining, {"bos_token": prefix[-1]}, max_len_b=12, min_len=1 if remaining else 0
    )  # fmt: skip
    logs = Bigrams(make_dictionary(20)).scores.log_softmax(-1)
    score = sum(logs[pair].item() for pair in itertools.pairwise([2, *prefix]))
    assert [tokens for tokens, _ in hypotheses] == [(*prefix, *tokens) for tokens, _ in expected]
    assert [score for _, score in hypotheses] == pytest.approx(
        [score + score_of_rest for _, score_of_rest in expected], abs=1e-4
    )


@pytest.mark.parametrize("constraints", [[[6], [7, 4]], [[5, 6, 7]], [[6], [6]]])
def test_without_a_prefix_the_search_is_fairseqs(constraints):
    assert by_this(constraints, max_len_b=12) == by_fairseq(constraints, max_len_b=12)


def state_of(subwords, *texts):
    """The state of a hypothesis of subwords with SentencePiece's marks of spaces, and their numbers.

    Args:
        texts: what it requires; each character is a subword.
    """
    numbers: dict[str, int] = {}

    def text_of(tokens):
        names = [*numbers]
        return "".join(names[token] for token in tokens).replace("▁", " ").strip()

    def numbered(names):
        return tuple(numbers.setdefault(name, len(numbers)) for name in names)

    required = []
    for text in texts:
        parts = [*text.replace(" ", "▁")]
        required.append(RequiredText(text, numbered(["▁" + parts[0], *parts[1:]]), numbered(parts)))
    state = WrittenTexts(required, text_of)
    for token in numbered(subwords):
        state = state.advance(token)
    return state, numbers


@pytest.mark.parametrize(
    ("subwords", "texts"),
    [
        (["▁我", "养猫"], ["猫"]),  # with the word before it in one subword
        (["▁", "ทำแม่น้ำ", "วันนี้"], ["แม่น้ำ"]),
        (["▁用", "GPU"], ["GPU"]),
        (["▁(", "cat"], ["cat"]),
        (["▁well-", "cat"], ["cat"]),
        (["▁«", "cat", "▁in"], ["cat in"]),
        (["▁l'", "an"], ["an"]),
        (["▁ca", "t"], ["cat"]),  # in other subwords than the text alone
        (["▁树屋", "▁屋"], ["屋", "树屋"]),
        (["▁cat", "▁(", "cat"], ["cat", "cat"]),
    ],
)
def test_texts_are_written_by_any_subwords_where_a_word_begins(subwords, texts):
    state, _ = state_of(subwords, *texts)
    assert state.finished
    assert state.bank == sum(map(len, texts))


@pytest.mark.parametrize(
    ("subwords", "texts", "bank"),
    [
        (["▁con", "cat"], ["cat"], 0),
        (["▁15"], ["5"], 0),
        (["▁", "แม่น้ำ"], ["แม"], 0),  # its last letter has a mark
        (["▁कि", "क"], ["क"], 0),  # the mark before it belongs to its word
        (["▁ca", "t"], ["cat", "cat"], 3),
        (["▁树屋"], ["屋", "树屋"], 2),
        (["▁ab"], ["ab", "a"], 2),
        (["▁养", "猫"], ["猫x"], 1),  # begun
    ],
)
def test_other_occurrences_do_not_count(subwords, texts, bank):
    state, _ = state_of(subwords, *texts)
    assert not state.finished
    assert state.bank == bank


@pytest.mark.parametrize(
    ("subwords", "following"),
    [
        ([], {"▁猫"}),
        (["▁"], {"▁猫", "猫"}),
        (["▁养"], {"▁猫", "猫"}),
        (["▁养", "猫"], {"▁猫", "猫", "x"}),
        (["▁猫"], {"▁猫", "猫", "x"}),
        (["▁养", "猫", "x"], {"▁猫"}),
    ],
)
def test_texts_begin_with_and_without_a_space_in_front(subwords, following):
    state, numbers = state_of(subwords, "猫x")
    names = [*numbers]
    assert {names[token] for token in state.next_tokens()} == following


def test_within_a_word_no_text_begins_without_a_space():
    for subword, is_boundary in [("▁con", False), ("▁(", True), ("▁con-", True), ("▁3", False)]:
        state, numbers = state_of([subword], "cat")
        assert (numbers["c"] in state.next_tokens()) == is_boundary


class Lines(Bigrams):
    """A language model of a few lines of subwords: their prefixes, and little else."""

    def __init__(self, dictionary, lines):
        super().__init__(dictionary)
        self.lines = [[dictionary.eos(), *line, dictionary.eos()] for line in lines]

    def forward(self, tokens, **_):
        scores = torch.zeros(len(tokens), 1, len(self.scores), dtype=torch.float64)
        for row, written in zip(scores, tokens.tolist(), strict=True):
            for line in self.lines:
                if line[: len(written)] == written and written != line:
                    row[0, line[len(written)]] += 12
        return scores, None


LINES = ["▁ 我 养猫", "▁ 我 养 鱼", "▁ 鱼 养 我", "▁ a ▁( cat", "▁ a ▁( dog", "▁ dog ▁( a"]


@pytest.mark.parametrize(
    ("text", "after_space", "line"),
    [("猫", "▁猫", 0), ("鱼", "▁ 鱼", 1), ("cat", "▁cat", 3), ("dog", "▁ dog", 4)],
)
def test_a_translation_that_has_the_text_stays_as_it_is(text, after_space, line):
    dictionary = Dictionary()
    for subword in sorted(
        {part for line in LINES for part in line.split()} | {"猫", "▁猫", "▁cat"}
    ):
        dictionary.add_symbol(subword)
    lines = [[*map(dictionary.index, line.split())] for line in LINES]
    model = Lines(dictionary, lines[line // 3 * 3 : line // 3 * 3 + 3] + 3 * [lines[line]])
    required = RequiredText(
        text, (*map(dictionary.index, after_space.split()),), (dictionary.index(text),)
    )

    def text_of(tokens):
        return "".join(dictionary[token] for token in tokens).replace("▁", " ").strip()

    search = ConstrainedSearch(dictionary, text_of)
    search.begin([[required]])
    ((best, _), *_) = generated(model, dictionary, search, {}, max_len_b=12)
    assert best == (*lines[line], dictionary.eos())
