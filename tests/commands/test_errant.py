"""F0.5 of corrections is errant_compare's."""

from __future__ import annotations

import random
import sys

import errant
import numpy as np
import pytest
import spacy
from errant.commands import compare_m2

from fairseq_phrase.errors import UserError
from fairseq_phrase.metrics.corrections import Errant

WORDS = ["a", "an", "the", "dog", "dogs", "see", "sees", "saw", "one", "good", ",", "."]


def m2_text(rng: random.Random, sources: list[str], annotators: int) -> str:
    """Write M2 with random edits of several annotators; some have none."""
    blocks = []
    for source in sources:
        lines = [f"S {source}"]
        for coder in range(annotators):
            places = sorted(rng.sample(range(len(source.split())), rng.randint(0, 3)))
            for at in places:
                words = rng.choice(["", *WORDS])
                lines.append(f"A {at} {at + 1}|||R:OTHER|||{words}|||REQUIRED|||-NONE-|||{coder}")
            if not places:
                lines.append(f"A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||{coder}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n\n"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """A pipeline for which every word is a noun; ERRANT needs tags."""
    folder = tmp_path_factory.mktemp("pipeline") / "en"
    nlp = spacy.blank("en")
    nlp.add_pipe("attribute_ruler").add([[{}]], {"TAG": "NN", "POS": "NOUN"})
    nlp.to_disk(folder)
    return folder


@pytest.mark.parametrize("annotators", [1, 3])
def test_f05_is_what_errant_compare_says(tmp_path, monkeypatch, capsys, pipeline, annotators):
    rng = random.Random(annotators)
    sources = [" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) for _ in range(80)]
    sources += sources[:9]  # the same sentences, with other edits
    hypotheses = [
        " ".join(word if rng.random() > 0.2 else rng.choice(WORDS) for word in line.split())
        for line in sources
    ]
    hypotheses[5] = ""
    (tmp_path / "one.m2").write_text(m2_text(rng, sources[:50], annotators))
    (tmp_path / "two.m2").write_text(m2_text(rng, sources[50:], annotators))
    metric = Errant(f"{tmp_path / 'one.m2'},{tmp_path / 'two.m2'}@{pipeline}")
    sums = metric(sources, hypotheses, [hypotheses]).sum(0)
    annotator = errant.load("en", spacy.load(pipeline))
    # errant_parallel's file of the outputs, and errant_compare.
    with open(tmp_path / "ours.m2", "w") as stream:
        for source, hypothesis in zip(sources, hypotheses, strict=True):
            stream.write(f"S {source}\n")
            for edit in annotator.annotate(*map(annotator.parse, (source, hypothesis))):
                stream.write(edit.to_m2(0) + "\n")
            stream.write("\n")
    edits = (tmp_path / "one.m2").read_text() + (tmp_path / "two.m2").read_text()
    (tmp_path / "right.m2").write_text(edits)
    files = ["-hyp", str(tmp_path / "ours.m2"), "-ref", str(tmp_path / "right.m2")]
    monkeypatch.setattr(sys, "argv", ["errant_compare", *files])
    compare_m2.main()
    counts = capsys.readouterr().out.split("F0.5\n")[1].split()[:6]
    assert list(sums) == [float(count) for count in counts[:3]]
    assert metric.score(sums) == pytest.approx(100 * float(counts[5]), abs=0.006)
    assert list(metric.score(np.array([[0.0, 0, 0], [0, 1, 0], [0, 0, 1]]))) == [100, 0, 0]


def test_what_errant_lacks_is_named(tmp_path, monkeypatch, pipeline):
    (tmp_path / "x.m2").write_text("S a dog\n\n")
    metric = Errant(f"{tmp_path / 'x.m2'}@{pipeline}")
    assert metric(["a dog"], ["a dog"], [[]]).tolist() == [[0, 0, 0]]
    with pytest.raises(UserError, match="no M2 file has sentence 2, 'a cat'"):
        metric(["a dog", "a cat"], ["a dog", "a cat"], [[]])
    with pytest.raises(UserError, match=r"no-such\.m2"):
        Errant(f"{tmp_path / 'no-such.m2'}@{pipeline}")
    with pytest.raises(UserError, match="no pipeline nowhere"):
        Errant(f"{tmp_path / 'x.m2'}@nowhere")
    monkeypatch.setitem(sys.modules, "errant", None)
    with pytest.raises(UserError, match="ERRANT is not installed"):
        Errant(f"{tmp_path / 'x.m2'}@{pipeline}")
