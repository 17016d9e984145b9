"""Required texts in scripts without spaces between words, with a real subword model."""

from __future__ import annotations

import itertools
from argparse import Namespace

import pytest
import torch
from fairseq import tasks

from fairseq_phrase import register
from fairseq_phrase.cli import preprocess
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.translator import Translator

NOUNS = ["แม่น้ำ", "เด็ก", "ครู", "หนังสือ", "ดอกไม้", "คำถาม"]
# No line begins with a noun.
THAI = [
    *map(
        "".join,
        itertools.product(
            ["คน", "หมา", "ฉัน"], ["ทำ", "เห็น", "ซื้อ"], NOUNS, ["", "วันนี้", "ทุกวัน", "ประจำ"]
        ),
    )
]
ANIMALS = ["dog", "cat", "horse", "mouse"]
QUOTED = [
    f"we {verb} {mark}{animal}{end}"
    for verb, (mark, end), animal in itertools.product(
        ["call it", "read"], [('"', '"'), ("(", ")"), ("sea-", "")], ANIMALS
    )
]


class KnownLines(torch.nn.Module):
    """A model of some lines, in any subwords: the longer the next subword, the more probable."""

    def __init__(self, lines, dictionary):
        super().__init__()
        self.lines = ["▁" + line.replace(" ", "▁") for line in lines]
        self.end, self.subwords = dictionary.eos(), dictionary.symbols

    def forward(self, tokens, **_):
        scores = torch.zeros(len(tokens), 1, len(self.subwords))
        for row, (_, *written) in zip(scores[:, 0], tokens.tolist(), strict=True):
            text = "".join(self.subwords[token] for token in written)
            for remainder in (line[len(text) :] for line in self.lines if line.startswith(text)):
                for token, subword in enumerate(self.subwords):
                    if remainder.startswith(subword) if remainder else token == self.end:
                        row[token] = 12 + len(subword)
        return scores, None

    def get_normalized_probs(self, output, log_probs, sample=None):
        return output[0].log_softmax(-1)

    def max_decoder_positions(self):
        return 100

    def max_positions(self):
        return 100, 100


@pytest.fixture(scope="module")
def translator_of(tmp_path_factory):
    """Makes a translator that knows some lines."""
    register()

    def make(lines, source, size):
        folder = tmp_path_factory.mktemp("unspaced")
        (folder / "train.de").write_text("".join(f"{line}\n" for line in source), encoding="utf-8")
        (folder / "train.en").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        preprocess.main([
            "-s", "de", "-t", "en", "--trainpref", str(folder / "train"), "--parser", "none",
            "--vocab-size", str(size), "--destdir", str(folder / "data"), "--normal-form", "identity",
        ])  # fmt: skip
        task = tasks.setup_task(Namespace(
            task="syntax_translation", data=str(folder / "data"), source_lang="de", target_lang="en",
            dataset_impl=None,
        ))  # fmt: skip
        return Translator([KnownLines(lines, task.target_dictionary)], task, device="cpu")

    return make


def test_in_thai_terms_and_constraints_have_no_space_in_front(translator_of):
    """The model knows only lines without spaces: others are improbable."""
    source = [f"w{number}" for number in range(len(THAI))]
    translator = translator_of(THAI, source, 70)
    assert translator.translate("w") in THAI
    for noun in NOUNS:
        translation = translator.translate("w", constraints=noun)
        assert noun in translation
        assert translation in THAI
        assert translator.translate("w", glossary={"w": noun}) == translation
    with pytest.raises(UserError, match=r"the target dictionary lacks 'ฬ' of 'เด็กฬ'"):
        translator.translate("w", constraints="เด็กฬ")


def test_terms_of_an_unspaced_source_are_found_within_its_lines(translator_of):
    translator = translator_of(QUOTED, THAI[: len(QUOTED)], 55)
    terms = {"แม่น้ำ": "horse", "แม": "cat", "ครู": "mouse"}  # the second is not a word of the lines
    translations = translator.translate(["คนเห็นแม่น้ำ", "คนเห็นครู"], glossary=terms)
    animals = [[animal for animal in ANIMALS if animal in line] for line in translations]
    assert animals == [["horse"], ["mouse"]]


def test_constraints_follow_opening_marks_without_a_space(translator_of):
    translator = translator_of(QUOTED, [f"w{number}" for number in range(len(QUOTED))], 42)
    for animal in ANIMALS:
        assert translator.translate("w", constraints=animal) in QUOTED
    assert translator.translate("w", constraints="horse\tread") in QUOTED
