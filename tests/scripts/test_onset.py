"""``scripts/onset.py``: when a training begins to learn."""

from __future__ import annotations

import csv
import sys

import pytest

from fairseq_phrase.lab.report.training_log import Validation
from tests.support.repository import REPOSITORY
from tests.support.run_folders import LogWriter, write_generation, write_run

sys.path.append(str(REPOSITORY / "scripts"))
from onset import compare, main, onset, table


def curve(*losses: float) -> list[Validation]:
    """Validations every 100 updates with these losses in bits."""
    return [Validation(100 * (i + 1), None, 2.0**nll, None) for i, nll in enumerate(losses)]


@pytest.mark.parametrize(
    ("losses", "update"),
    [
        ((6, 5, 3), 250),  # halfway between 200 and 300
        ((6, 4, 3), 200),
        ((6, 4), 200),  # it falls to the loss, not below it
        ((3, 2), 100),  # before the first validation, which is all that is known
        ((6, 5, 4.5), None),
        ((6, 3, 5, 3), 100 + 100 * 2 / 3),  # the first time
    ],
)
def test_the_onset_is_interpolated_between_validations(losses, update):
    assert onset(curve(*losses), 4.0) == (None if update is None else pytest.approx(update))


def test_a_validation_without_perplexity_is_left_out():
    validations = [Validation(100, 6.0, None, None), *curve(6, 5, 3)[1:]]
    assert onset(validations, 4.0) == pytest.approx(250)


def test_rows_are_compared_where_all_seeds_reach_the_loss():
    onsets = {
        "slow": [900.0, 1000.0, 1100.0], "fast": [300.0, 310.0, 320.0], "once": [300.0],
        "never": [None, 500.0, 500.0],
    }  # fmt: skip
    tests = compare(onsets)
    assert tests.keys() == {"fast"}
    difference, low, high, p = tests["fast"]
    assert difference == pytest.approx(-690)
    # Welch by hand: the standard error is sqrt(10000 / 3 + 100 / 3), with 2.04 degrees of freedom.
    assert low == pytest.approx(-690 - 4.2195 * 58.0230, abs=1.5)
    assert high == pytest.approx(-690 + 4.2195 * 58.0230, abs=1.5)
    assert 0 < p < 0.01
    _, cells = table(onsets, {name: name.title() for name in onsets}, {"slow": [1.25, 2.0]})
    assert cells[0] == ["Slow", "3 of 3", "1000 ± 100", "", "", "", "1.2, 2.0"]
    assert cells[3][:3] == ["Never", "2 of 3", "-"]


def test_the_name_of_the_files_may_have_a_dot(tmp_path):
    """As in ``runs/onset.post_norm``: what follows the dot is no suffix."""
    write_run(tmp_path / "rows" / "k2" / "seed1", ["y"], ["x"], ["y"])  # 6.0 and 5.1 bits
    (tmp_path / "rows.yaml").write_text("k2: {title: Two}\n")
    arguments = [str(tmp_path / "rows"), "--titles", str(tmp_path / "rows.yaml"), "--nll", "5.5"]
    main([*arguments, "--out", str(tmp_path / "onset.v2")])
    assert "| Two " in (tmp_path / "onset.v2.md").read_text()
    row = (tmp_path / "onset.v2.csv").read_text().splitlines()[1]
    assert row.startswith("Two,1 of 1,16,")


def test_a_row_without_variance_is_not_tested():
    """All seeds reach the loss at the first validation."""
    onsets = {"at once": [100.0, 100.0], "equal": [100.0, 100.0], "slow": [900.0, 910.0]}
    tests = compare(onsets)
    assert tests.keys() == {"slow"}
    assert tests["slow"][3] < 0.05


LOG = (
    "2026-01-01 00:00:00 | INFO | fairseq_cli.train | {'_name': None, 'common': {'seed': 1}}\n"
    "2026-01-01 00:00:01 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 4.1 | ppl 8 | "
    "num_updates 100\n"
    "2026-01-01 00:00:02 | INFO | fairseq_cli.train | done training in 1.0 seconds\n"
)
END = "Generate test with beam=4: BLEU4 = 1\n"


@pytest.mark.parametrize(
    ("early", "message"),
    [
        ("D-0\t-1\ta b c d\n" + END, "early.txt has 1 translations, and .*reference has 2 lines$"),
        ("D-0\t-1\ta b c d\nD-1\t-1\ta\n", r"early.txt is not a whole output .*: run it again$"),
        (None, "^error: give --early and --reference together$"),
    ],
)
def test_an_early_translation_of_another_text_is_refused(tmp_path, early, message):
    folder = tmp_path / "rows" / "a" / "seed1"
    folder.mkdir(parents=True)
    (folder / "train.log").write_text(LOG)
    (folder / "early.txt").write_text(early or "")
    (tmp_path / "reference").write_text("a b c d\na b c d\n")
    (tmp_path / "rows.yaml").write_text("rows: {a: {title: A}}")
    arguments = [tmp_path / "rows", "--titles", tmp_path / "rows.yaml", "--nll", "4", "--early"]
    arguments += ["early.txt", "--out", tmp_path / "onset"]
    arguments += ["--reference", tmp_path / "reference"] if early else []
    with pytest.raises(SystemExit, match=message):
        main([*map(str, arguments)])
    assert not (tmp_path / "onset.md").exists()


def test_p_is_corrected_for_as_many_rows_as_are_compared():
    baseline = [900.0, 1000.0, 1100.0]
    rows = {"a": [800.0, 820.0, 830.0], "b": [300.0, 310.0, 320.0], "c": [700.0, 900.0, 950.0]}
    alone = {
        name: compare({"baseline": baseline, name: updates})[name][3]
        for name, updates in rows.items()
    }
    together = compare({"baseline": baseline, **rows, "never": [None, 500.0]})
    # Holm: the smallest p counts three times, the next one twice, and none less than the one before.
    assert alone["b"] < alone["a"] < alone["c"] < 0.5
    expected = [3 * alone["b"], max(3 * alone["b"], 2 * alone["a"])]
    expected.append(max(expected[1], alone["c"]))
    assert [together[name][3] for name in "bac"] == pytest.approx(expected)


REFERENCES = [f"a sentence of {number} words" for number in ("four", "five", "six")]


def write_training(folder, losses, early=None, *, done=True):
    """A run with validations every 100 updates and, if asked for, an early translation."""
    folder.mkdir(parents=True)
    log = LogWriter()
    log.head()
    for number, loss in enumerate(losses, start=1):
        log.valid(100 * number, loss)
    if done:
        log.done()
    log.write(folder / "train.log")
    if early:
        write_generation(folder / "generate-updates100.txt", early, REFERENCES, REFERENCES)


def test_the_command_reads_finished_trainings_in_the_order_of_the_rows(tmp_path, capsys):
    rows = tmp_path / "rows"
    without_end = [text.rpartition(" ")[0] for text in REFERENCES]
    write_training(rows / "slow" / "seed1", (6, 5, 3), without_end)
    write_training(rows / "slow" / "seed2", (6, 4, 3), REFERENCES)
    write_training(rows / "slow" / "seed3", (4, 3), done=False)
    write_training(rows / "fast" / "seed1", (4, 3))
    write_training(rows / "fast" / "seed2", (5, 3))
    write_training(rows / "trained" / "seed1", (4,), done=False)
    names = ("slow", "fast", "trained", "planned")  # not that of the alphabet
    titles = "".join(f"  {name}: {{title: The {name} one}}\n" for name in names)
    (tmp_path / "rows.yaml").write_text(f"rows:\n{titles}")
    (tmp_path / "test.en").write_text("\n".join(REFERENCES) + "\n")
    arguments = ["--titles", tmp_path / "rows.yaml", "--nll", "4", "--out", tmp_path / "onset"]
    early = ["--early", "generate-updates100.txt", "--reference", tmp_path / "test.en"]
    main([*map(str, (rows, *arguments, *early))])
    with open(tmp_path / "onset.csv", newline="") as stream:
        head, slow, fast = csv.reader(stream)
    assert head == ["row", "seeds that reach it", "update", "Δ", "95%", "p", "early BLEU"]
    # Four of five words, all of them right: exp(1 - 5 / 4).
    assert slow == ["The slow one", "2 of 2", "225 ± 35", "", "", "", "77.9, 100.0"]
    assert (fast[:4], fast[-1]) == (["The fast one", "2 of 2", "125 ± 35", "-100"], "-")
    text = (tmp_path / "onset.md").read_text()
    assert text.startswith(
        "**Update at which the validation loss falls to 4 bits per subword**\n\n"
    )
    assert text.index("The slow one") < text.index("The fast one")
    assert text in capsys.readouterr().out
