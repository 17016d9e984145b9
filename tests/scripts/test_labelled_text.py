"""``scripts/labelled_text.py``: treebanks, chunks, sentiments and reviews as text and labels."""

from __future__ import annotations

import sys

import pytest

from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.parsers.ptb import BracketFiles
from fairseq_phrase.text import read_lines
from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
from labelled_text import main

CONLLU = """# text = Don't stop &amp; go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\tSpaceAfter=No
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tstop\tstop\tVERB\tVB\t_\t0\troot\t0:root\t_
3.1\tstop\tstop\tVERB\tVB\t_\t_\t_\t0:root\t_
4\t&amp;\tand\tCCONJ\tCC\t_\t5\tcc\t_\t_
5\t10 000\t10000\tNUM\tCD\t_\t3\tconj\t_\t_
"""


def lines_of(folder, suffix, split="train"):
    return (folder / f"{split}.{suffix}").read_text(encoding="utf-8").splitlines()


def write_splits(folder, names, text):
    folder.mkdir()
    for name in names:
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_treebanks_words_and_tags(tmp_path):
    names = [f"xx-ud-{split}.conllu" for split in ("train", "dev", "test")]
    source = write_splits(tmp_path / "treebank", names, f"{CONLLU}\n{CONLLU}")
    out = tmp_path / "out"
    main(["conllu", str(source), str(out), "--column", "xpos"])
    assert lines_of(out, "en") == ["Do n't stop &amp; 10▁000"] * 2
    assert lines_of(out, "tag") == ["VB RB VB CC CD"] * 2
    text, trees = out / "train.en", out / "train.en.conllu"
    # As preprocessing with --labels word reads them: without Moses' escapes.
    plain = (line.replace("&amp;", "&") for line in read_lines(text))
    (sentence, _) = ConlluFiles().read(trees, plain)
    assert sentence.words == ["Do", "n't", "stop", "&", "10▁000"]
    assert sentence.tree.heads.tolist() == [2, 2, 2, 4, 2]
    main(["conllu", str(source), str(out), "--label-suffix", "upos"])
    assert lines_of(out, "upos")[0] == "AUX PART VERB CCONJ NUM"


NAMES = [f"xx-ud-{split}.conllu" for split in ("train", "dev", "test")]


@pytest.mark.parametrize(
    ("column", "empty", "message"),
    [
        (
            "xpos",
            ("VB", "RB", "CC", "CD"),
            "all 5 labels of train are _: column xpos of .* is empty",
        ),
        ("upos", ("AUX", "PART", "VERB", "CCONJ", "NUM"), "column upos of .* is empty"),
        ("upos", ("Do", "n't", "stop", "&amp;", "10 000"), "all 5 words of train are _"),
    ],
)
def test_an_empty_column_is_refused_and_nothing_is_written(tmp_path, column, empty, message):
    text = CONLLU
    for value in empty:
        text = text.replace(f"\t{value}\t", "\t_\t")
    source, out = write_splits(tmp_path / "in", NAMES, text), tmp_path / "out"
    with pytest.raises(SystemExit, match=message):
        main(["conllu", str(source), str(out), "--column", column])
    assert not out.exists()
    # Only the test set has none.
    (source / NAMES[0]).write_text(CONLLU)
    (source / NAMES[1]).write_text(CONLLU)
    with pytest.raises(SystemExit, match="of test are _"):
        main(["conllu", str(source), str(out), "--column", column])
    assert not out.exists()


def test_words_without_a_label_are_counted(tmp_path, capsys):
    text = CONLLU.replace("\tVB\t", "\t_\t").replace("\tCC\t", "\t\t").replace("RB", "R B")
    source, out = write_splits(tmp_path / "in", NAMES, text), tmp_path / "out"
    main(["conllu", str(source), str(out), "--column", "xpos"])
    assert lines_of(out, "tag") == ["_ R▁B _ _ CD"]
    assert "train: 1 lines; 3 of 5 labels are _" in capsys.readouterr().out
    main(["conllu", str(source), str(out)])
    assert "train: 1 lines\n" in capsys.readouterr().out


TREE = """( (S (NP-SBJ (DT The) (NN dog))
     (VP (VBZ sees) (NP (-NONE- *T*-1)) (PRN (-LRB- -LRB-) (NN 1\\/2) (-RRB- -RRB-)))))
( (S (NP (NN Dogs)) (VP (VBP bark)) ))
"""


@pytest.mark.parametrize(
    ("sections", "counts"),
    [
        ([0, 18, 19, 21, 22, 24], [4, 4, 4]),
        ([0] * 8 + [1] * 2, [16, 2, 2]),
    ],
    ids=["all sections", "a sample"],
)
def test_the_penn_treebanks_sections(tmp_path, sections, counts):
    names = [f"wsj_{section:02}{number:02}.mrg" for number, section in enumerate(sections)]
    source = write_splits(tmp_path / "wsj", names, TREE)
    out = tmp_path / "out"
    main(["ptb", str(source), str(out)])
    sizes = [len(lines_of(out, "en", split)) for split in ("train", "valid", "test")]
    assert sizes == counts
    assert lines_of(out, "en")[:2] == ["The dog sees ( 1/2 )", "Dogs bark"]
    assert lines_of(out, "tag")[0] == "DT NN VBZ -LRB- NN -RRB-"
    sentence = next(BracketFiles().read(out / "train.en.ptb", read_lines(out / "train.en")))
    assert sentence.words == ["The", "dog", "sees", "(", "1/2", ")"]
    assert "NP" in sentence.constituents.labels


def test_chunks_and_their_trees(tmp_path):
    text = "He PRP B-NP\nsees VBZ B-VP\nthe DT B-NP\n( ( I-NP\ndog NN I-NP\n. . O\n\n" * 10
    source = write_splits(tmp_path / "conll", ["train.txt", "test.txt"], text)
    out = tmp_path / "out"
    main(["conll2000", str(source), str(out)])
    sizes = [len(lines_of(out, "en", split)) for split in ("train", "valid", "test")]
    assert sizes == [9, 1, 10]
    assert lines_of(out, "tag")[0] == "B-NP B-VP B-NP I-NP I-NP O"
    sentence = next(BracketFiles().read(out / "train.en.ptb", read_lines(out / "train.en")))
    spans = sentence.constituents.spans.tolist()
    assert [2, 5] in spans
    main(["conll2000", str(source), str(out), "--column", "pos"])
    assert lines_of(out, "tag")[0] == "PRP VBZ DT ( NN ."


SENTIMENTS = "(3 (2 The) (4 (3 very) (4 good)))\n(2 (2 a) (1 \\*))\n"


def test_sentiments_of_sentences_and_phrases(tmp_path):
    names = ["train.txt", "dev.txt", "test.txt"]
    source = write_splits(tmp_path / "sst", names, SENTIMENTS)
    out = tmp_path / "out"
    main(["sst", str(source), str(out)])
    assert lines_of(out, "en") == ["The very good", "a *"]
    assert lines_of(out, "class") == ["3", "2"]
    # No sentiment is left in the trees.
    assert lines_of(out, "en.ptb")[0] == "(X (X The) (X (X very) (X good)))"
    main(["sst", str(source), str(out), "--classes", "2", "--phrases", "train"])
    assert lines_of(out, "en") == ["very", "good", "very good", "The very good", "*"]
    assert lines_of(out, "class") == ["1", "1", "1", "1", "0"]
    assert lines_of(out, "en", "test") == ["The very good"]
    parses = list(BracketFiles().read(out / "train.en.ptb", read_lines(out / "train.en")))
    assert [sentence.words for sentence in parses] == [line.split() for line in lines_of(out, "en")]


def test_a_phrase_with_white_space_in_a_word_keeps_its_tree(tmp_path):
    source = write_splits(
        tmp_path / "sst", ["train.txt", "dev.txt", "test.txt"], "(3 (2 about) (2 8\u00a01/2))\n"
    )
    out = tmp_path / "out"
    main(["sst", str(source), str(out), "--phrases", "train"])
    assert lines_of(out, "en") == ["about", "8▁1/2", "about 8▁1/2"]
    parses = list(BracketFiles().read(out / "train.en.ptb", read_lines(out / "train.en")))
    assert [sentence.words for sentence in parses] == [line.split() for line in lines_of(out, "en")]


def test_reviews(tmp_path):
    text = "".join(
        f"{'pos' if number < 10 else 'neg'}\t7\t{number}\tGood<br /><br />film {number}\n"
        for number in range(20)
    )
    source = write_splits(tmp_path / "imdb", ["train.tsv", "test.tsv"], text)
    out = tmp_path / "out"
    main(["imdb", str(source), str(out)])
    assert lines_of(out, "en", "valid") == ["Good film 0", "Good film 10"]
    assert len(lines_of(out, "en")) == 18
    main(["imdb", str(source), str(out), "--slice", "4"])
    assert lines_of(out, "class", "test") == ["pos", "pos", "neg", "neg"]


def write_review_files(folder, count):
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            (folder / split / label).mkdir(parents=True)
            for number in range(count):
                text = f"Good<br /><br />{label}\n{number}\n"
                path = folder / split / label / f"{number}_7.txt"
                path.write_text(text, encoding="utf-8")
    return folder


def test_reviews_in_files_of_their_own_are_those_of_the_table(tmp_path):
    source, out = write_review_files(tmp_path / "imdb", 12), tmp_path / "out"
    main(["imdb", str(source), str(out)])
    assert lines_of(out, "en", "test")[:3] == ["Good pos 0", "Good pos 1", "Good pos 2"]
    assert lines_of(out, "en", "test")[-1] == "Good neg 11"
    assert lines_of(out, "class", "test") == ["pos"] * 12 + ["neg"] * 12
    assert lines_of(out, "en", "valid") == ["Good pos 0", "Good pos 10", "Good neg 8"]


@pytest.mark.parametrize("count", [3, 12])
def test_every_split_and_slice_of_review_files_has_both_labels(tmp_path, count):
    source, out = write_review_files(tmp_path / "imdb", 20), tmp_path / "out"
    main(["imdb", str(source), str(out)])
    assert lines_of(out, "class", "valid") == ["pos", "pos", "neg", "neg"]
    assert lines_of(out, "class").count("pos") == 18
    main(["imdb", str(source), str(out), "--slice", str(count)])
    for split in ("train", "valid", "test"):
        assert set(lines_of(out, "class", split)) == {"pos", "neg"}


@pytest.mark.parametrize(
    ("format", "names", "text"),
    [
        ("conllu", ["a-train.conllu", "a-dev.conllu", "a-test.conllu"], f"{CONLLU}\n" * 20),
        ("ptb", [f"wsj_{section:02}00.mrg" for section in (0, 19, 22)], TREE * 10),
        ("conll2000", ["train.txt", "test.txt"], "He PRP B-NP\nsees VBZ B-VP\n\n" * 20),
        ("sst", ["train.txt", "dev.txt", "test.txt"], SENTIMENTS * 10),
        (
            "probing",
            ["depth.va.txt", "depth.te.txt"],
            "".join(f"a b {number}\t3\n" for number in range(40)),
        ),
    ],
)
def test_a_slice_is_of_the_training_text_alone(tmp_path, format, names, text):
    source, full, out = write_splits(tmp_path / "in", names, text), tmp_path / "a", tmp_path / "b"
    main([format, str(source), str(full)])
    main([format, str(source), str(out), "--slice", "5"])
    files = sorted(path.name for path in full.iterdir())
    assert files == sorted(path.name for path in out.iterdir())
    for name in files:
        if not name.startswith("train"):
            assert (out / name).read_bytes() == (full / name).read_bytes()
    texts = set(lines_of(full, "en"))
    for suffix in [name.removeprefix("train.") for name in files if name.startswith("train")]:
        if suffix != "en.conllu":
            assert len(lines_of(out, suffix)) == 5
    assert texts.issuperset(lines_of(out, "en"))


def test_a_slice_of_no_text_is_refused(tmp_path, refused):
    assert "--slice" in refused(main, ["sst", str(tmp_path), str(tmp_path / "out"), "--slice", "0"])


def test_probing_tasks(tmp_path):
    source = write_splits(tmp_path / "probing", ["depth.va.txt"], "a b\t3\n" * 10)
    (source / "depth.te.txt").write_text("c d\t3\n" * 10)
    out = tmp_path / "out"
    main(["probing", str(source), str(out)])
    sizes = [len(lines_of(out, "en", split)) for split in ("train", "valid", "test")]
    assert sizes == [8, 2, 10]
    assert lines_of(out, "class")[0] == "3"


@pytest.mark.parametrize(
    ("format", "files", "message"),
    [
        ("conllu", {}, "expected one file *-train.conllu or .gz, found 0"),
        ("conllu", {"x-train.conllu": "1\tx"}, "line 1: expected 10 columns, found 2"),
        ("conllu", {"x-train.conllu": "x" + "\t_" * 9}, "expected word 1 next, found 'x'"),
        ("conllu", {"x-train.conllu": "2\ta\ta" + "\t_" * 7}, "expected word 1 next, found '2'"),
        ("conllu", {"x-train.conllu": "1" + "\t0" * 13}, "this is CoNLL-2009"),
        ("ptb", {"wsj_0001.mrg": "#BOS 1"}, "this is NEGRA export"),
        ("ptb", {"wsj_0001.mrg": "(S (X a))\n(S (X b)"}, "wsj_0001.mrg, line 2: column 1: this br"),
        ("ptb", {}, "has no files wsj_*.mrg"),
        ("conll2000", {"train.txt": "a b"}, "train.txt, line 1: expected word, tag and chunk"),
        ("sst", {"train.txt": "(good)"}, "train.txt, line 1: expected a tree with labels 0 to 4"),
        ("imdb", {"train.tsv": "pos"}, "expected label, rating, number and text"),
    ],
)
def test_another_format_is_named(tmp_path, format, files, message):
    for name in ("x-dev.conllu", "x-test.conllu") if "x-train.conllu" in files else ():
        (tmp_path / name).write_text("")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name.replace("train", "dev")).write_text(text)
        (tmp_path / name.replace("train", "test")).write_text(text)
    with pytest.raises(SystemExit) as stopped:
        main([format, str(tmp_path), str(tmp_path / "out")])
    assert message in str(stopped.value)
