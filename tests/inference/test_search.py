"""The search for translations of lines in batches."""

from __future__ import annotations

import pytest
import torch
from fairseq.search import DiverseBeamSearch
from fairseq.sequence_generator import SequenceGenerator

import fairseq_phrase
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference import search
from fairseq_phrase.inference.search import Hypothesis, joined_hypotheses, word_translations
from fairseq_phrase.testing import LENGTHS, build_model, make_batch
from tests.support.small_checkpoints import make_checkpoint, make_data


@pytest.fixture
def translator(tmp_path):
    data = make_data(tmp_path / "data")
    checkpoint = make_checkpoint(tmp_path / "a.pt", data, "--arch", "transformer")
    return fairseq_phrase.load(checkpoint, data, device="cpu")


def test_how_long_a_translation_may_be_does_not_depend_on_other_lines(translator):
    """This model ends no translation, so each one is as long as it may be."""
    lines = ["der", "Hund " * 100]
    together = [hypotheses[0] for hypotheses in translator.hypotheses(lines, beam=1)]
    assert [hypothesis.tokens for hypothesis in together] == [201, 401]
    alone = [
        hypotheses[0] for line in lines for hypotheses in translator.hypotheses([line], beam=1)
    ]
    assert alone == together


def test_a_translation_may_be_twice_as_long_as_its_source():
    lengths = (1, 100, 101, 200, 201)
    assert [search.longest_target(length) for length in lengths] == [200, 200, 400, 400, 600]


def test_diverse_beams_do_not_depend_on_other_sentences(dictionary):
    """fairseq-generate numbers sentences by the test set, not by the batch."""
    model = build_model("transformer", dictionary)
    diverse = DiverseBeamSearch(dictionary, num_groups=2, diversity_strength=3.0)
    generator = SequenceGenerator(
        [model], dictionary, beam_size=4, max_len_b=9, search_strategy=diverse
    )

    def beams(tokens, numbers):
        inputs = {"src_tokens": tokens, "src_lengths": tokens.ne(dictionary.pad()).sum(1)}
        sample = {"id": torch.tensor(numbers), "net_input": inputs}
        generated = generator.generate([model], sample)
        return [
            [hypothesis["tokens"].tolist() for hypothesis in hypotheses] for hypotheses in generated
        ]

    tokens = make_batch(dictionary, LENGTHS)["src_tokens"]
    alone = [
        beams(row[row != dictionary.pad()][None], [number]) for number, row in enumerate(tokens)
    ]
    alone = [beams for (beams,) in alone]
    assert beams(tokens, [2, 0, 4, 3, 1]) == alone
    assert beams(tokens, [40, 7, 12, 3, 25]) == alone


def test_words_are_translated_by_a_file(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("a b\nc\td\n")
    assert word_translations(file) == {"a": "b", "c": "d"}
    file.write_text("a b\nc\n")
    with pytest.raises(UserError, match=f"{file}, line 2: expected a word and its translation"):
        word_translations(file)


def test_segments_of_a_line_are_aligned_one_after_the_other():
    hypotheses = [
        Hypothesis("a b", -1, 3, [(0, 0), (2, 1)], (3, 2)),
        Hypothesis("c", -1, 2, [(1, 0)]),
    ]
    (joined,) = joined_hypotheses([[hypothesis] for hypothesis in hypotheses], 1)
    assert joined.alignment == [(0, 0), (2, 1), (4, 2)]


def test_segments_of_chinese_lines_are_joined_without_a_space():
    hypotheses = [
        Hypothesis("我。", -1, 3, [(0, 0)], (1, 1)),
        Hypothesis("你 a", -1, 2, [(0, 0), (1, 1)], (2, 2)),
    ]
    hypotheses += [Hypothesis("b", -1, 2, [(0, 0)], (1, 1)), Hypothesis("", -1, 1)]
    (joined,) = joined_hypotheses([[hypothesis] for hypothesis in hypotheses], 1)
    assert joined.text.rstrip() == "我。你 a b"
    assert joined.alignment == [(0, 0), (1, 0), (2, 1), (3, 2)]
