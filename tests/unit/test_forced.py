"""What translations must have: constraints, prefixes and terms, beside their lines."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from fairseq.search import LexicallyConstrainedBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.token_generation_constraints import pack_constraints

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.constraints import (
    ConstrainedSearch,
    Glossary,
    ParallelTexts,
    Requirements,
    word_translations,
)
from fairseq_phrase.inference.search import Hypothesis, joined_hypotheses
from fairseq_phrase.testing import make_dictionary

LONGEST = 6


def tokens_of(text, slots, where):
    """Letters are subwords; x is unknown."""
    if "x" in text:
        raise UserError(f"{where}: x is unknown")
    return torch.tensor([ord(letter) for letter in text.replace(" ", "")], dtype=torch.long)


def cut(texts):
    """Two subwords for a word of two or more letters."""
    found = []
    for text in texts:
        words = [[word[:1] + "@@", word[1:]] if word[1:] else [word] for word in text.split()]
        numbers = [number for number, pieces in enumerate(words) for _ in pieces]
        pieces = [piece for pieces in words for piece in pieces]
        found.append(
            SimpleNamespace(subwords=pieces, words=torch.tensor(numbers), num_words=len(words))
        )
    return found


def glossary(terms):
    return Glossary(terms, cut, lambda pieces: pieces.replace("@@ ", ""), tokens_of)


def pieces(texts, glossary=None, **given):
    """The constraints and the prefix of each piece, as texts; ``|`` cuts a line into pieces."""
    beside = ParallelTexts(**given)
    made = Requirements(beside, tokens_of, tokens_of, glossary)
    found = []
    for number, line in enumerate(beside.lines(texts), start=1):
        own = made.segments(
            line, number, cut(line.text.split("|")), lambda _: (), lambda _: LONGEST
        )
        found += [
            (["".join(map(chr, one)) for one in piece.constraints], "".join(map(chr, piece.prefix)))
            for piece in own
        ]
    return found


def test_each_line_has_what_is_beside_it():
    found = pieces(["l", "m", "n"], constraints=["", "ab\tc", " "], prefix=["", "d", "e f"])
    assert found == [([], ""), (["ab", "c"], "d"), ([], "ef")]


def test_only_the_first_piece_of_a_long_line_has_the_prefix():
    assert pieces(["l|m"], prefix=["a"]) == [([], "a"), ([], "")]


def test_terms_are_words_and_the_longest_is_taken():
    terms = glossary({"ab": "p", "ab cd": "q", "c": "r"})
    assert pieces(["ab cd c|ab x abc|cc"], glossary=terms) == [
        (["q", "r"], ""),
        (["p"], ""),
        ([], ""),
    ]
    assert pieces(["c c"], glossary=terms, constraints=["t"]) == [(["t", "r", "r"], "")]


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ({"constraints": "a\n"}, "{file} has 1 lines, and the source has more"),
        ({"prefix": "a\n\nb\n"}, "{file}, line 3: the source has 2 lines"),
        ({"constraints": "ax\n\n"}, "{file}, line 1: x is unknown"),
        ({"prefix": "\nabcdefg\n"}, "{file}, line 2: the prefix has 7 subwords, .* may have 6"),
        (
            {"constraints": "abcd\tabc\n\n"},
            "{file}, line 1: the constraints of line 1 and its .* 7",
        ),
        (
            {"constraints": "\na\n"},
            "{file}, line 2: the source line is longer than the model reads",
        ),
        ({"target": "a\n"}, "{file} has 1 lines, and the source has more"),
        ({"target": "a\na\n"}, "{file}, line 2: the source line is longer than the model reads"),
        ({"target": "ax\n\n"}, "{file}, line 1: x is unknown"),
        ({"glossary": "l\ta\nm\n"}, "{file}, line 2: expected a term, a tab and its translation"),
        ({"glossary": "l\t\n"}, "{file}, line 1: expected a term, a tab and its translation"),
        ({"glossary": "l\ta\nl\tb\n"}, "{file}, line 2: 'l' is translated by 'a' in another line"),
        ({"glossary": "l\ta\nm\tx\n"}, "{file}, line 2: x is unknown"),
        ({"glossary": "l\tabcdefg\n"}, "{file}, line 1: the constraints of line 1 .* 7 subwords"),
    ],
)
def test_mistakes_name_their_file_and_line(beside, message, tmp_path):
    file = tmp_path / "beside.txt"
    ((name, text),) = beside.items()
    file.write_text(text)
    with pytest.raises(UserError, match=message.format(file=file)):
        pieces(["l", "m|n"], **{name: glossary(file) if name == "glossary" else file})


def test_words_are_translated_by_a_file(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("a b\nc\td\n")
    assert word_translations(file) == {"a": "b", "c": "d"}
    file.write_text("a b\nc\n")
    with pytest.raises(UserError, match=f"{file}, line 2: expected a word and its translation"):
        word_translations(file)


def test_pieces_of_a_line_are_aligned_one_after_the_other():
    pieces = [Hypothesis("a b", -1, 3, [(0, 0), (2, 1)], (3, 2)), Hypothesis("c", -1, 2, [(1, 0)])]
    (whole,) = joined_hypotheses([[piece] for piece in pieces], 1)
    assert whole.alignment == [(0, 0), (2, 1), (4, 2)]


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


def generated(prefix, constraints, search, **options):
    """What fairseq's generator finds for a source: tokens and summed log probabilities."""
    dictionary = make_dictionary(20)
    model = Bigrams(dictionary)
    generator = SequenceGenerator(
        [model], dictionary, beam_size=6, normalize_scores=False,
        search_strategy=search(dictionary), **options,
    )  # fmt: skip
    sample = {"net_input": {"src_tokens": torch.tensor([[4, 2]]), "src_lengths": torch.tensor([2])}}
    (found,) = generator.generate(
        [model],
        sample,
        constraints=pack_constraints([list(map(torch.tensor, constraints))]),
        **prefix,
    )
    logs = model.scores.log_softmax(-1)
    return [(tuple(one["tokens"].tolist()), one["score"].item()) for one in found], logs


@pytest.mark.parametrize("prefix", [[4], [5, 0], [6, 7], [8, 9, 10, 11]])
@pytest.mark.parametrize("constraints", [[[6]], [[7], [12, 13]], [[6], [7], [8]]])
def test_the_search_after_a_prefix_is_fairseqs_search_that_begins_there(prefix, constraints):
    def own(dictionary):
        search = ConstrainedSearch(dictionary)
        search.prefix = len(prefix)
        return search

    found, logs = generated(
        {"prefix_tokens": torch.tensor([prefix])}, constraints, own, max_len_b=12 + len(prefix)
    )
    # The next token depends on the last one only.
    rest = [one for one in constraints if not set(one) <= set(prefix)]
    expected, _ = generated(
        {"bos_token": prefix[-1]}, rest, lambda one: LexicallyConstrainedBeamSearch(one, "unordered"),
        max_len_b=12, min_len=1 if rest else 0,
    )  # fmt: skip
    score = sum(logs[pair].item() for pair in itertools.pairwise([2, *prefix]))
    assert [one for one, _ in found] == [(*prefix, *one) for one, _ in expected]
    assert [one for _, one in found] == pytest.approx(
        [score + one for _, one in expected], abs=1e-4
    )


def test_without_a_prefix_the_search_is_fairseqs():
    constraints = [[6], [7, 4]]
    own, _ = generated({}, constraints, ConstrainedSearch, max_len_b=12)
    fairseqs, _ = generated(
        {}, constraints, lambda one: LexicallyConstrainedBeamSearch(one, "unordered"), max_len_b=12
    )
    assert own == fairseqs
