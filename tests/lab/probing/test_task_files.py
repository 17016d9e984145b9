"""Probing tasks: files of both formats, slices, and top constituents from trees."""

from __future__ import annotations

import gzip
from collections import Counter

import pytest

from fairseq_phrase.cli import probe
from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.probing.task_files import GROUPS, Example, ProbingTask, find_tasks, title
from fairseq_phrase.lab.probing.top_constituents import OTHER, from_bracket_files, write_task


def write(path, lines):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as stream:
        stream.write("".join(f"{line}\n" for line in lines))


def test_sentevals_file_has_all_splits(tmp_path):
    write(tmp_path / "tree_depth.txt", ["tr\t5\ta b", "va\t6\tc", "te\t5\td e", "tr\t6\tf"])
    (task,) = find_tasks([tmp_path])
    assert task.name == "tree_depth"
    assert task.train == [Example("a b", "5"), Example("f", "6")]
    assert (task.valid, task.test) == ([Example("c", "6")], [Example("d e", "5")])


def test_a_task_without_training_sentences_takes_four_fifths_of_the_validation(tmp_path):
    write(tmp_path / "bigram_shift.va.txt.gz", [f"text {n}\t{n % 2}" for n in range(100)])
    write(tmp_path / "bigram_shift.te.txt.gz", ["text\t1"])
    (task,), (again,) = find_tasks([tmp_path]), find_tasks([tmp_path])
    assert (len(task.train), len(task.valid), len(task.test)) == (80, 20, 1)
    assert len({example.text for example in [*task.train, *task.valid]}) == 100
    assert task == again != find_tasks([tmp_path], seed=2)[0]


@pytest.mark.parametrize("test", ["other", "same"])
def test_copies_of_a_sentence_are_not_in_training_and_validation(tmp_path, test):
    # As X-Probe's odd_man_out, which has many sentences several times, also with both labels.
    lines = [f"text {n}\t{label}" for n in range(100) for label in ("O", "I", "O")[: 1 + n % 3]]
    write(tmp_path / "a.va.txt", lines)
    write(tmp_path / "a.te.txt", lines if test == "same" else ["text\tO"])
    for seed in range(5):
        (task,) = find_tasks([tmp_path], seed=seed)
        splits = [task.train, task.valid, task.test]
        texts = [{example.text for example in split} for split in splits]
        assert not texts[0] & texts[1]
        count = len(task.train) + len(task.valid)
        assert abs(len(task.train) - count * 4 // 5) <= 2
        assert test == "same" or count == len(lines)


def test_test_sentences_are_not_trained_with(tmp_path, caplog):
    write(tmp_path / "a.va.txt", [f"text {n}\t{n % 2}" for n in range(20)])
    write(tmp_path / "a.te.txt", [f"text {n}\t{n % 2}" for n in range(15, 30)])
    (task,) = find_tasks([tmp_path])
    assert (len(task.train), len(task.valid), len(task.test)) == (12, 3, 15)
    assert not {example.text for example in [*task.train, *task.valid]} & {
        example.text for example in task.test
    }
    assert "a: 5 of 20 validation sentences are also test sentences and are left out" in caplog.text


def test_a_file_that_is_there_twice_is_split_into_three_parts(tmp_path, caplog):
    lines = [f"text {n}\t{n % 2}" for n in range(100)] + ["text 3\t1"] * 10
    for split in ("va", "te"):
        write(tmp_path / f"tree_depth.{split}.txt", lines)
    (task,) = find_tasks([tmp_path])
    assert len(task.test) == 22
    assert not {example.text for example in [*task.train, *task.valid]} & {
        example.text for example in task.test
    }
    assert {example.text for example in [*task.train, *task.valid, *task.test]} == {
        line.split("\t")[0] for line in lines
    }
    assert "110 of 110 validation sentences are also test sentences; a fifth" in caplog.text


def test_tasks_of_several_folders_come_in_the_papers_order(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    names = ["zebra", "odd_man_out", "word_content", "tree_depth"]
    for number, name in enumerate(names):
        folder = folders[number % 2]
        folder.mkdir(exist_ok=True)
        write(folder / f"{name}.txt", ["tr\t1\ta", "va\t1\ta", "te\t1\ta"])
    (folders[0] / "README.md").write_text("no task")
    task_names = [task.name for task in find_tasks(folders)]
    assert task_names == ["word_content", "tree_depth", "odd_man_out", "zebra"]
    assert [task.name for task in find_tasks(folders, ["zebra"])] == ["zebra"]
    assert list(map(title, task_names)) == ["WC", "TrDep", "SoMo", "zebra"]
    assert sum(map(len, GROUPS.values())) == 10


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a.txt": ["tr\t1\tx", "text without a label"]},
            r"a.txt, line 2: 1 columns: expected Sen",
        ),
        ({"a.txt": ["train\t1\tx"]}, r"a.txt, line 1: the split is 'train': expected SentEval's"),
        ({"a.txt": ["tr\t\tx"]}, r"a.txt, line 1: an empty column: expected SentEval's split"),
        ({"a.va.txt": ["va\t1\tx"]}, r"a.va.txt, line 1: 3 columns: expected X-Probe's text and"),
        ({"a.va.txt": ["x\t1", "y\t2"]}, "the task a has no sentences for 'te'"),
        ({"a.va.txt": ["x\t1"], "a.te.txt": ["y\t1"]}, "1 sentences are too few"),
        ({"a.va.txt": ["x\t1"], "a.te.txt": ["x\t1"]}, "1 sentences are too few"),
        ({"a.txt": ["tr\t1\tx"], "a.va.txt": ["x\t1"]}, "are the same task: keep one"),
        ({"notes.md": []}, "is there"),
    ],
)
def test_another_format_is_one_message(tmp_path, files, message):
    for name, lines in files.items():
        write(tmp_path / name, lines)
    with pytest.raises(UserError, match=message):
        find_tasks([tmp_path])


def test_missing_folders_and_tasks_are_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere is not a folder .*SentEval \(TASK.txt\)"):
        find_tasks([tmp_path / "nowhere"])
    write(tmp_path / "a.txt", ["tr\t1\tx", "va\t1\tx", "te\t1\tx"])
    with pytest.raises(UserError, match=r"neither b.txt nor b.va.txt and b.te.txt is there"):
        find_tasks([tmp_path], ["a", "b"])


def test_a_slice_keeps_a_quarter_of_the_other_splits():
    examples = [Example(str(number), "x") for number in range(100)]
    task = ProbingTask("a", examples, examples, examples[:5]).sliced(40, seed=1)
    assert (len(task.train), len(task.valid), len(task.test)) == (40, 10, 5)


def test_texts_are_detokenized():
    examples = [Example('" Go , " he said .', "x")]
    task = ProbingTask("a", examples, examples, examples).detokenized("en")
    assert task.train == task.test == [Example('"Go," he said.', "x")]


def test_the_majority_is_that_of_training():
    train = [Example("", label) for label in "aab"]
    test = [Example("", label) for label in "abbb"]
    assert ProbingTask("a", train, [], test).majority == 0.25


# Top constituents

TREES = [
    "(S (NP (DT the) (NN dog)) (VP (VBZ runs)) (. .))",
    "(ROOT (S (NP (PRP it)) (VP (VBZ is) (NP (NN -LRB-)))))",
    "( (S (S (VP (VB go))) (CC and) (S (VP (VB see))) (. .)) )",
    "(S (VP (VB go)))",
    "(FRAG (NP (NN tea)) (. .))",
    "(S (NP (NN a)) (VP (VB b))) (S (NP (NN c)) (VP (VB d)))",
]


def test_labels_are_the_sequences_below_the_sentence(tmp_path):
    write(tmp_path / "t.ptb", TREES)
    examples = list(from_bracket_files([tmp_path / "t.ptb"], "S"))
    assert [example.label for example in examples] == ["NP_VP_.", "NP_VP", "S_CC_S_.", "VP"]
    assert [example.text for example in examples][:2] == ["the dog runs .", "it is ("]
    assert "NP_." in [example.label for example in from_bracket_files([tmp_path / "t.ptb"], "any")]


def test_trees_of_several_lines_are_read(tmp_path):
    write(
        tmp_path / "t.mrg", ["", "( (S", " (NP (NN a))", "", " (VP (VB b))))", TREES[3], "(S (NP"]
    )
    examples = from_bracket_files([tmp_path / "t.mrg"], "S")
    assert [next(examples).label for _ in range(2)] == ["NP_VP", "VP"]
    with pytest.raises(UserError, match=r"t.mrg, line 7: "):
        next(examples)


def test_rare_sequences_are_other(tmp_path):
    examples = [Example(f"{n} {k}", f"L{n}") for n in range(30) for k in range(30 - n)]
    counts = write_task(examples, tmp_path / "top_constituents.txt")
    assert len(counts) == 21
    assert counts[OTHER] == sum(range(1, 11))
    assert counts["L0"] == 30
    (task,) = find_tasks([tmp_path])
    sizes = (len(task.train), len(task.valid), len(task.test))
    assert sizes == (373, 46, 46)
    labels = Counter(example.label for example in [*task.train, *task.valid, *task.test])
    assert labels == counts


def test_the_command_makes_the_task(tmp_path, capsys):
    write(tmp_path / "t.ptb", [tree.replace("go", f"go{n}") for n in range(9) for tree in TREES])
    probe.main(
        ["--make", "top_constituents", "--trees", str(tmp_path / "t.ptb"), "--out", str(tmp_path)]
    )
    assert "top_constituents.txt: 20 sentences" in capsys.readouterr().out
    assert len((tmp_path / "top_constituents.txt").read_text().splitlines()) == 20


@pytest.mark.parametrize("penalty", ["-1", "nan", "inf", "much"])
def test_a_penalty_that_no_classifier_takes_is_refused(penalty, refused):
    assert f"argument --l2: {'invalid' if penalty == 'much' else 'expected a number'}" in (
        refused(probe.main, ["--path", "a.pt", "--tasks", "x", "--l2", "0.1", penalty])
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--make", "top_constituents"], "needs --out DIR, and --trees FILE or --text FILE"),
        (["--path", "a.pt"], "name checkpoints with --path and folders of tasks with --tasks"),
        (["--path", "a.pt", "--tasks", "x", "--names", "a", "b"], "1 checkpoints, but 2 --names"),
        (["--make", "top_constituents", "--trees", "t.ptb", "--out", "."], "only 4 sentences"),
        (["--make", "top_constituents", "--text", "t.ptb", "--out", "."], "--parser none makes no"),
    ],
)
def test_wrong_arguments_are_one_message(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAIRSEQ_PHRASE_MKL", "as-it-is")  # no advice on the processor
    write(tmp_path / "t.ptb", TREES)
    with pytest.raises(SystemExit) as stopped:
        probe.main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
