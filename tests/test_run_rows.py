"""The runner of a table's rows: what it runs, what it leaves out, and what it says of failures."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile

import pytest
import yaml
from conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))
from rows import Run, Step, flags, load_row, share_out
from run_rows import Runner, advance, device_names, repair_last_checkpoint
from tqdm import tqdm

TABLE = REPOSITORY / "configs" / "multi30k_table1"
ROWS = sorted(path for path in TABLE.glob("*/*.yaml") if path.stem != "base")


def test_a_row_holds_what_it_builds_on_and_what_is_its_own(tmp_path):
    base = {"model": {"dropout": 0.3, "layers": 4}, "optimizer": {"_name": "adam"}}
    row = {"defaults": ["base", "_self_"], "model": {"_name": "transformer", "layers": 2}}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    (tmp_path / "row.yaml").write_text(yaml.safe_dump(row))
    assert load_row(tmp_path / "row.yaml") == {
        "model": {"dropout": 0.3, "layers": 2, "_name": "transformer"},
        "optimizer": {"_name": "adam"},
    }


def test_options_become_the_flags_that_fairseq_train_takes():
    row = {
        "task": {"_name": "syntax_translation", "data": "???"},
        "model": {"_name": "transformer", "share_all_embeddings": True, "no_such": False},
        "optimization": {"lr": [0.005], "update_freq": [2, 4], "max_update": None},
        "optimizer": {"_name": "adam", "adam_betas": "(0.9,0.98)"},
    }
    assert flags(row) == [
        "--task", "syntax_translation", "--arch", "transformer", "--share-all-embeddings",
        "--lr", "0.005", "--update-freq", "2,4", "--optimizer", "adam", "--adam-betas",
        "(0.9,0.98)",
    ]  # fmt: skip


def run_of(folder, name, *scripts, appends=True):
    """A run whose steps are little shell scripts."""
    steps = [
        Step(f"step{number}", ["bash", "-c", script], folder / name / f"step{number}.txt", appends)
        for number, script in enumerate(scripts)
    ]
    return Run(name, 1, folder / name, steps)


def test_a_failed_row_says_why_and_does_not_stop_the_others(tmp_path):
    runner = Runner([], jobs=2)
    runner.run(
        [
            run_of(tmp_path, "bad", "echo the reason; exit 3", "echo never"),
            *(run_of(tmp_path, f"good{number}", "echo one", "echo two") for number in range(3)),
        ]
    )
    assert list(runner.failures) == ["bad, seed 1"]
    assert "step0 ended with status 3" in runner.failures["bad, seed 1"]
    assert "the reason" in runner.failures["bad, seed 1"]
    assert not (tmp_path / "bad" / "step1.txt").exists()
    for number in range(3):
        assert (tmp_path / f"good{number}" / "step1.txt").read_text() == "two\n"


def test_a_folder_that_cannot_be_written_fails_its_row_alone(tmp_path):
    (tmp_path / "bad").write_text("a file where the run's folder should be")
    runner = Runner([], jobs=1)
    runner.run([run_of(tmp_path, "bad", "echo one"), run_of(tmp_path, "good", "echo one")])
    assert list(runner.failures) == ["bad, seed 1"]
    assert f"File exists: '{tmp_path}/bad'" in runner.failures["bad, seed 1"]
    assert (tmp_path / "good" / "step0.txt").read_text() == "one\n"


def test_a_finished_step_is_not_run_again_and_a_failed_one_is(tmp_path):
    fails_once = f"echo x; [ -e {tmp_path}/mark ] || {{ touch {tmp_path}/mark; exit 1; }}"
    run = run_of(tmp_path, "row", "echo once", fails_once)
    for failures in (1, 0):
        runner = Runner([], jobs=1)
        runner.run([run])
        assert len(runner.failures) == failures
    assert (tmp_path / "row" / "step0.txt").read_text() == "once\n"
    assert (tmp_path / "row" / "step1.txt").read_text() == "x\nx\n"
    written = (tmp_path / "row" / "commands.sh").read_text()
    Runner([], jobs=1).run([run_of(tmp_path, "row", "echo other", "echo commands")])
    assert (tmp_path / "row" / "commands.sh").read_text() == written


def test_output_that_is_not_whole_is_not_taken_for_finished(tmp_path):
    run = run_of(tmp_path, "row", "echo half; exit 1", appends=False)
    Runner([], jobs=1).run([run])
    assert not run.steps[0].output.exists()


def test_gpus_are_shared_out_and_hidden_where_none_is_asked_for(tmp_path):
    script = "echo $CUDA_VISIBLE_DEVICES; sleep 1"
    Runner(["2", "5"], jobs=2).run([run_of(tmp_path, name, script) for name in "ab"])
    seen = {(tmp_path / name / "step0.txt").read_text().strip() for name in "ab"}
    assert seen == {"2", "5"}
    Runner([], jobs=1).run([run_of(tmp_path, "c", "echo [$CUDA_VISIBLE_DEVICES]")])
    assert (tmp_path / "c" / "step0.txt").read_text() == "[]\n"


def test_gpus_are_counted_among_those_that_the_user_lets_be_seen():
    assert device_names(["0", "1"], "") == ["0", "1"]
    assert device_names(["1", "0"], "3,5") == ["5", "3"]
    assert device_names(["0"], "GPU-8932f937") == ["GPU-8932f937"]


def test_gpus_that_train_together_train_only(tmp_path):
    seen = "echo $CUDA_VISIBLE_DEVICES"
    folder = tmp_path / "row"
    steps = [
        Step(name, ["bash", "-c", seen], folder / f"{name}.txt", appends=name == "train")
        for name in ("train", "translate")
    ]
    Runner(["2,5"], jobs=1).run([Run("row", 1, folder, steps)])
    assert (folder / "train.txt").read_text() == "2,5\n"
    assert (folder / "translate.txt").read_text() == "2\n"


def test_a_training_ends_at_its_updates_or_epochs_whichever_come_first(tmp_path):
    def most(updates, epochs):
        return Run("row", 1, tmp_path, [], updates, epochs).updates(289)

    assert most(8000, 6) == 6 * 289
    assert most(1000, 6) == 1000
    assert most(None, 6) == 6 * 289
    assert most(8000, None) == 8000
    assert most(None, None) is None


def test_the_bar_of_a_training_goes_to_the_end_of_its_epochs(tmp_path):
    line = (
        "| train_inner | epoch 003:     50 / 289 loss=4.633, ppl=13.08, num_updates=628, lr=0.001\n"
    )
    log = tmp_path / "train.log"
    log.write_text(line * 3)
    with tqdm(total=8000, file=io.StringIO()) as bar:
        advance(bar, log, Run("row", 1, tmp_path, [], 8000, 6))
        assert (bar.n, bar.total, bar.postfix) == (628, 6 * 289, "loss 4.633")


def test_what_a_training_did_before_it_was_stopped_is_no_measure_of_its_speed(tmp_path):
    line = "| train_inner | epoch 003:     50 / 289 loss=4.633, num_updates={}, lr=0.001"
    log = tmp_path / "row" / "train.log"
    log.parent.mkdir()
    log.write_text(line.format(628) + "\n")
    ended = "| train | epoch 003 | loss 4.6 | num_updates 712 | lr 0.001"
    printed = f"echo '{line.format(700)}'; sleep 1; echo '{ended}'"
    steps = [Step("train", ["bash", "-c", printed], log, True)]
    with tqdm(total=9, initial=5, file=io.StringIO()) as bar:
        Runner([], jobs=1)._do(
            Run("row", 1, log.parent, steps, 8000), bar, {"CUDA_VISIBLE_DEVICES": ""}
        )
        assert (bar.initial, bar.n, bar.total) == (628, 712, 712), "it ended early, and is all done"


def test_a_last_checkpoint_that_was_cut_short_gives_way_to_the_newest_whole_one(tmp_path):
    for name in ("checkpoint_1_100.pt", "checkpoint_2_200.pt"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("name", name)
    os.utime(tmp_path / "checkpoint_1_100.pt", (1, 1))
    (tmp_path / "checkpoint_3_300.pt").write_bytes(b"cut short")
    last = tmp_path / "checkpoint_last.pt"
    last.write_bytes(b"cut short")
    repair_last_checkpoint(tmp_path)
    assert last.read_bytes() == (tmp_path / "checkpoint_2_200.pt").read_bytes()
    repair_last_checkpoint(tmp_path)
    assert zipfile.ZipFile(last).read("name") == b"checkpoint_2_200.pt"


def test_gpus_divide_the_steps_of_an_update_or_are_refused():
    row = {"optimization": {"update_freq": [8, 4]}}
    share_out(row, 4, "row")
    assert row == {"optimization": {"update_freq": [2, 1]}}
    with pytest.raises(SystemExit, match=r"row row has update_freq 2,1 on one GPU, which 2 cannot"):
        share_out(row, 2, "row")
    with pytest.raises(SystemExit, match="has update_freq 1 on one GPU"):
        share_out({}, 2, "row")


def command(*arguments):
    script = str(REPOSITORY / "scripts" / "run_rows.py")
    return subprocess.run(
        [sys.executable, script, "--data", "D", "-s", "de", "-t", "en", *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )


def test_gpus_that_train_together_must_be_there(tmp_path):
    rows = ["--configs", str(TABLE / "tuned"), "--rows", "transformer", "--out", str(tmp_path)]
    done = command(*rows, "--gpus-per-run", "1", "--dry-run")
    assert "--distributed-world-size 1 " in done.stdout  # of fairseq-generate
    refused = command(*rows, "--gpus-per-run", "0")
    assert "--gpus-per-run 0: expected at least 1" in refused.stderr


def test_a_row_says_how_many_checkpoints_are_averaged_and_how_it_is_translated(tmp_path):
    (tmp_path / "row.yaml").write_text(
        yaml.safe_dump(
            {
                "task": {"_name": "translation"},
                "checkpoint": {"keep_last_epochs": 3},
                "generation": {"lenpen": 0.6, "beam": 4},
            }
        )
    )
    common = ["--configs", str(tmp_path), "--rows", "row", "--out", str(tmp_path), "--dry-run"]
    own = command(*common).stdout
    assert "--last 3 " in own
    assert "--beam 4 " in own
    assert "--lenpen 0.6 " in own
    assert "generation" not in own
    other = command(*common, "--average", "1", "--beam", "2").stdout
    assert f"fairseq-phrase-average {tmp_path}/row/seed1/checkpoint_last.pt --out" in other
    assert "--beam 2 " in other


def test_every_command_of_every_row_can_be_looked_at_before(tmp_path):
    for setting in ("tuned", "paper"):
        names = ",".join(path.stem for path in ROWS if path.parent.name == setting)
        out = ["--out", str(tmp_path), "--dry-run", "--seeds", "1,2"]
        done = command("--configs", str(TABLE / setting), "--rows", names, *out)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("fairseq-train D ") == 2 * len(names.split(","))
        assert not list(tmp_path.iterdir())


def test_an_unknown_row_is_named_with_those_there_are(tmp_path):
    done = command("--configs", str(TABLE / "tuned"), "--rows", "nobody", "--out", str(tmp_path))
    assert done.returncode == 1
    assert "no row nobody" in done.stderr
    assert "phrase_k2" in done.stderr


def test_gpus_that_are_not_there_are_refused(tmp_path):
    done = command("--configs", str(TABLE / "tuned"), "--rows", "transformer", "--gpus", "99",
                   "--out", str(tmp_path))  # fmt: skip
    assert done.returncode == 1
    assert "--gpus 99: this machine has" in done.stderr


@pytest.mark.parametrize("path", ROWS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_two_settings_have_the_same_rows_but_for_their_sizes(path):
    other = TABLE / {"tuned": "paper", "paper": "tuned"}[path.parent.name] / path.name
    ours, theirs = (yaml.safe_load(file.read_text()) for file in (path, other))
    for row in (ours, theirs):
        row["model"].pop("encoder_ffn_embed_dim", None)
    assert ours == theirs
