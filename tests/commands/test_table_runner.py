"""The runner of a table's rows: what it runs, what it leaves out, and what it says of failures."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from contextlib import redirect_stderr, redirect_stdout

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from tests.support.commands import losses
from tests.support.commands import run as run_command
from tests.support.repository import REPOSITORY
from tests.support.warm_start import python

sys.path.insert(0, str(REPOSITORY / "scripts"))
from rows import KINDS, Run, Step, load_rows, plan, share_out, titles
from table import (
    Runner,
    choose_gpus,
    data_fingerprints,
    main,
    parse_arguments,
    repair_last_checkpoint,
    whole_fingerprint,
)
from tqdm import tqdm

TABLES = REPOSITORY / "configs" / "tables"
SETTINGS = {
    name: [TABLES / "multi30k_table1.yaml", TABLES / f"multi30k_table1.{name}.yaml"]
    for name in ("tuned", "paper")
}
ROWS = load_rows(SETTINGS["tuned"])


def write_table(folder, **content):
    path = folder / "table.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def test_a_later_file_changes_what_all_rows_share_and_single_rows(tmp_path):
    table = write_table(
        tmp_path,
        model={"layers": 4, "dropout": 0.3},
        rows={
            "a": {"title": "A", "paper": 1.5},
            "b": {"title": "B", "model": {"layers": 6, "_name": "transformer"}},
            "c": {"title": "C"},
        },
    )
    assert load_rows([table])["c"] == {"title": "C", "model": {"layers": 4, "dropout": 0.3}}
    setting = tmp_path / "setting.yaml"
    setting.write_text("model: {dropout: 0.1}\nrows: {a: {paper: 28.90, model: {layers: 2}}}\n")
    rows = load_rows([table, setting])
    assert rows["a"]["model"] == {"layers": 2, "dropout": 0.1}
    assert rows["b"]["model"] == {"layers": 6, "dropout": 0.1, "_name": "transformer"}
    assert titles([table, setting], numbers=True) == {
        "a": {"title": "A", "paper": "28.90"},
        "b": {"title": "B"},
        "c": {"title": "C"},
    }
    assert titles([table, setting], numbers=False)["a"] == {"title": "A"}


def run_of(folder, name, *scripts, trains=True):
    """A run whose steps are little shell scripts."""
    steps = [
        Step(f"step{number}", ["bash", "-c", script], folder / name / f"step{number}.txt", trains)
        for number, script in enumerate(scripts)
    ]
    return Run(name, 1, folder / name, steps, {})


@pytest.fixture
def planned(tmp_path):
    """Plan a run with changes of the command line and of its row; its steps print their name."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train.de-en.de.bin", "dict.de.txt"):
        (data / name).write_text(name)

    def made(row=None, **changes):
        settings = {
            "data": data,
            "source_lang": "de",
            "target_lang": "en",
            "out": tmp_path / "runs",
        }
        settings |= {"average": 1, "max_update": 9, "max_epoch": None, "raw": None, "parser": None}
        settings |= {"subsets": "test", "precision": "fp32", "gpus_per_run": 1}
        settings |= {"train_flags": "", "generate_flags": ""}
        table = {
            "task": {"_name": "translation"},
            "optimization": {"update_freq": [2]},
            **(row or {}),
        }
        run = plan(argparse.Namespace(**settings | changes), "row", table, 1)
        for step in run.steps:
            step.command = ["echo", step.name]
        return run

    return made


def run_all(*runs):
    runner = Runner([], jobs=1)
    runner.run(runs)
    return runner.failures.get("row, seed 1", "")


@pytest.mark.fast(1)
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_of_other_options_or_data_is_refused_and_kept(planned, tmp_path, is_finished):
    folder = tmp_path / "runs" / "row" / "seed1"
    assert not run_all(planned())
    if not is_finished:
        (folder / "generate-test.txt").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for changes, first, second in (
        ({"train_flags": "--lr 0.1"}, "train: --lr (none)", "train: --lr 0.1"),
        ({"max_update": 8}, "train: --max-update 9", "train: --max-update 8"),
        ({"row": {"model": {"_name": "a"}}}, "train: --arch (none)", "train: --arch a"),
        ({"generate_flags": "--beam 2"}, "translate test: --beam 5", "translate test: --beam 2"),
    ):
        reason = run_all(planned(**changes))
        assert reason.startswith(f"{folder} was made with {first}; this run has {second}")
        assert f"give another --out, or remove {folder} to begin this run anew" in reason
    (tmp_path / "data" / "dict.de.txt").write_text("other symbols")
    data_fingerprints.cache_clear()
    assert f"{folder} was made with DATA/dict.de.txt" in run_all(planned())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["model.pt", "folder"])
def test_a_file_that_a_flag_names_is_compared_by_its_content(planned, tmp_path, name):
    path, logs = tmp_path / name, tmp_path / "logs"
    path.mkdir() if name == "folder" else path.write_text("weights")
    logs.mkdir()
    flags = {"train_flags": f"--finetune-from-model '{path}' --tensorboard-logdir '{logs}'"}
    assert not run_all(planned(**flags))
    (logs / "events").write_text("more")
    assert not run_all(planned(**flags))
    (path / "weights" if name == "folder" else path).write_text("others")
    whole_fingerprint.cache_clear()
    assert f"FILE/train --finetune-from-model {name} " in run_all(planned(**flags))
    shutil.rmtree(path) if name == "folder" else path.unlink()
    assert not run_all(planned(**flags))


def test_only_a_training_that_continues_must_keep_its_precision(planned, tmp_path):
    key = tmp_path / "runs" / "row" / "seed1" / "key.json"
    assert not run_all(planned())
    before = key.read_bytes()
    more = planned(precision="bf16", subsets="test,test1")
    assert not run_all(more)
    assert not more.left()
    assert set(json.loads(before)) < set(json.loads(key.read_bytes()))
    assert "train: --bf16" not in json.loads(key.read_bytes())
    key.with_name("train.done").unlink()
    assert "was made with train: --bf16 (none); this" in run_all(planned(precision="bf16"))


def test_a_run_goes_on_with_more_steps_data_and_gpus_and_elsewhere(planned, tmp_path):
    assert not run_all(planned())
    (tmp_path / "runs" / "row" / "seed1" / "train.done").unlink()
    (tmp_path / "data" / "test1.de-en.de.bin").write_text("more")
    data_fingerprints.cache_clear()
    (tmp_path / "data").rename(tmp_path / "moved")
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    changes = {"subsets": "test,test1", "gpus_per_run": 2, "data": tmp_path / "moved"}
    run = planned(**changes, out=tmp_path / "elsewhere")
    assert [step.name for step in run.left()] == ["train", "translate test1"]
    assert not run_all(run)
    assert not run.left()


def test_a_run_of_an_earlier_version_goes_on(planned, tmp_path):
    assert not run_all(planned())
    (tmp_path / "runs" / "row" / "seed1" / "key.json").unlink()
    assert not run_all(planned(max_update=8))


PHRASES = {
    "translation": {"_name": "phrase_transformer"},
    "tagging": {"_name": "labeller", "encoder": "phrase_transformer"},
}


@pytest.mark.parametrize("model", PHRASES.values(), ids=PHRASES)
@pytest.mark.parametrize("has_key", [True, False])
def test_a_run_from_before_an_option_is_a_run_with_the_value_of_that_time(
    planned, tmp_path, model, has_key
):
    """As kept results are: a key and a log that do not know the option, or no key."""
    folder = tmp_path / "runs" / "row" / "seed1"
    assert not run_all(planned({"model": model}))
    key = json.loads((folder / "key.json").read_text())
    assert key.pop("train: --phrase-residual") == "both"
    (folder / "key.json").write_text(json.dumps(key))
    if not has_key:
        (folder / "key.json").unlink()
    reason = run_all(planned({"model": model}))
    assert reason.startswith(f"{folder} was made with train: --phrase-residual each; this run has ")
    residual_run = planned({"model": model | {"phrase_residual": "each"}})
    assert not run_all(residual_run)
    assert not residual_run.left()
    assert "--phrase-residual both" in run_all(planned({"model": model}))


def test_a_log_that_knows_an_option_says_its_value(planned, tmp_path):
    model = PHRASES["translation"]
    assert not run_all(planned({"model": model}))
    folder = tmp_path / "runs" / "row" / "seed1"
    (folder / "key.json").unlink()
    options = "{'_name': None, 'common': {'seed': 1}, 'model': {'phrase_residual': both}}"
    line = f"2026-11-28 10:00:00 | INFO | fairseq_cli.train | {options}\n"
    (folder / "train.log").write_text(line)
    assert not run_all(planned({"model": model}))
    assert "--phrase-residual both" in run_all(
        planned({"model": model | {"phrase_residual": "each"}})
    )


def test_a_later_option_of_another_encoder_is_in_no_key(planned, tmp_path):
    model = {"_name": "labeller", "encoder": "structural_transformer"}
    assert not run_all(planned({"model": model}))
    key = (tmp_path / "runs" / "row" / "seed1" / "key.json").read_text()
    assert "phrase-residual" not in key
    assert "structural_transformer" in key


@pytest.mark.parametrize(
    "changes",
    [
        {"row": {"checkpoint": {"no_save_optimizer_state": True}}},
        {"train_flags": "--no-save-optimizer-state --lr 1"},
    ],
)
def test_a_training_keeps_the_optimizers_state_until_it_has_ended(planned, changes):
    flags = {"row": changes.get("row"), "train_flags": changes.get("train_flags", "")}
    assert "--no-save-optimizer-state" not in str(planned(**flags).steps[0])
    run = planned(**flags)
    run.folder.mkdir(parents=True)
    saved = "{'model': {}, 'last_optimizer_state': {'step': 1}}"
    script = f"import sys, torch; torch.save({saved}, sys.argv[1])"
    checkpoint = run.folder / "checkpoint_last.pt"
    save = Step(
        "train", [python(), "-c", script, str(checkpoint)], run.steps[0].output, trains=True
    )
    stops = Step("train", ["bash", "-c", f"{shlex.join(save.command)}; exit 1"], save.output, True)
    for step, entries in ((stops, {"model", "last_optimizer_state"}), (save, {"model"})):
        run.steps = [step]
        run_all(run)
        assert set(torch.load(checkpoint, weights_only=True)) == entries
    assert [path.name for path in run.folder.glob("checkpoint*")] == ["checkpoint_last.pt"]


def test_a_failed_row_says_why_and_does_not_stop_the_others(tmp_path):
    (tmp_path / "blocked").write_text("a file where the run's folder should be")
    runner = Runner([], jobs=2)
    good = [run_of(tmp_path, f"good{number}", "echo one", "echo two") for number in range(3)]
    good[0].options = {"optimization": {"lr": [0.5]}}
    bad = run_of(tmp_path, "bad", "echo the reason; exit 3", "echo never", trains=False)
    runner.run([bad, run_of(tmp_path, "blocked", "echo one"), *good])
    assert sorted(runner.failures) == ["bad, seed 1", "blocked, seed 1"]
    assert "step0 ended with status 3" in runner.failures["bad, seed 1"]
    assert f"File exists: '{tmp_path}/blocked'" in runner.failures["blocked, seed 1"]
    assert [path for step in bad.steps for path in (step.output,) if path.exists()] == []
    for run in good:
        assert (run.folder / "step1.txt").read_text() == "two\n"
    assert OmegaConf.load(good[0].folder / "row.yaml") == good[0].options


def test_a_finished_step_is_not_run_again_and_a_failed_one_is(tmp_path):
    fails_once = f"echo x; [ -e '{tmp_path}/mark' ] || {{ touch '{tmp_path}/mark'; exit 1; }}"
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


#: A runner whose only step writes its process number and sleeps; it imports no more than it needs.
_SLEEPER = """
import signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from rows import Run, Step
from table import Runner, stop_when_told
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, which may run the tests, ignores it
stop_when_told()
folder = Path(sys.argv[3]) / "row"
sleep = ["bash", "-c", "echo $$ >pipe; exec sleep 60"]
Runner([], 1).run([Run("row", 1, folder, [Step("step0", sleep, folder / "step0.txt", True)], {})])
"""


@pytest.fixture
def sleeper(tmp_path):
    """The process of a runner, and a descriptor of its step's process."""
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", _SLEEPER, str(REPOSITORY), str(REPOSITORY / "scripts")]
    with subprocess.Popen(
        [*command, str(tmp_path)], cwd=tmp_path, stderr=subprocess.DEVNULL
    ) as runner:
        step = os.pidfd_open(int((tmp_path / "pipe").read_text()))
        yield runner, step
        runner.kill()
        if not has_ended(step, 0):
            signal.pidfd_send_signal(step, signal.SIGKILL)
        os.close(step)


def has_ended(step, seconds):
    return bool(select.select([step], [], [], seconds)[0])


@pytest.mark.fast(1)
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_runner_that_is_told_to_stop_stops_its_training(sleeper, sent):
    runner, step = sleeper
    runner.send_signal(sent)
    assert runner.wait(30) == 128 + sent
    assert has_ended(step, 0)


def test_a_training_that_outlives_its_runner_keeps_the_run(sleeper, tmp_path):
    killed, step = sleeper
    killed.kill()
    killed.wait()
    runner = Runner([], 1)
    runner.run([run_of(tmp_path, "row", "echo second")])
    assert f"(process {killed.pid} on" in runner.failures["row, seed 1"]
    assert "or a command that it started) is at work in" in runner.failures["row, seed 1"]
    signal.pidfd_send_signal(step, signal.SIGKILL)
    assert has_ended(step, 30)
    runner = Runner([], 1)
    runner.run([run_of(tmp_path, "row", "echo second")])
    assert not runner.failures


def test_a_short_row_gives_way_to_longer_ones(tmp_path):
    rows = {"long": {}, "short": {"nice": 2, "model": {"_name": "transformer"}}}
    table = write_table(tmp_path, task={"_name": "translation"}, rows=rows)
    arguments = ["run", str(table), "--data", str(tmp_path), "-s", "de", "-t", "en"]
    options = parse_arguments([*arguments, "--out", str(tmp_path / "runs"), "--average", "1"])
    runs = [plan(options, name, row, 1) for name, row in load_rows([table]).items()]
    assert "nice" not in json.dumps([[run.key, run.options] for run in runs])
    # In its session, and the session's among others, if this system shares cores among sessions.
    of_session = "/proc/$$/autogroup"
    waits = (
        f"until [ ! -e {of_session} ] || grep -q 'nice 2' {of_session}; do sleep 0.1; done; nice"
    )
    runs[0].steps = run_of(tmp_path / "runs", "long", "nice").steps
    runs[1].steps = run_of(tmp_path / "runs", "short", waits).steps
    for run in runs:
        run.folder = tmp_path / "runs" / run.row
        Runner([], jobs=1).do(run, tqdm(file=io.StringIO()), dict(os.environ))
    first, second = ((run.folder / "step0.txt").read_text() for run in runs)
    assert int(second) - int(first) == min(2, 19 - int(first))


def test_gpus_are_shared_out_and_hidden_where_none_is_asked_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # each waits for the other
    ends = {"a": f"echo >'{tmp_path}/pipe'", "b": f"read <'{tmp_path}/pipe'"}
    Runner(["2", "5"], jobs=2).run(
        [run_of(tmp_path, name, f"echo $CUDA_VISIBLE_DEVICES; {end}") for name, end in ends.items()]
    )
    devices = {(tmp_path / name / "step0.txt").read_text().strip() for name in "ab"}
    assert devices == {"2", "5"}
    Runner([], jobs=1).run([run_of(tmp_path, "c", "echo [$CUDA_VISIBLE_DEVICES]")])
    assert (tmp_path / "c" / "step0.txt").read_text() == "[]\n"
    together = run_of(tmp_path, "d", *["echo $CUDA_VISIBLE_DEVICES"] * 2)
    together.steps[1].trains = False
    Runner(["2,5"], jobs=1).run([together])
    assert [step.output.read_text() for step in together.steps] == ["2,5\n", "2\n"]


@pytest.mark.parametrize(
    ("visible", "given", "expected"),
    [
        ("", ["--gpus", "none"], []),
        ("", ["--gpus", "0,1"], ["0", "1"]),
        ("", [], ["0", "1", "2", "3"]),
        ("3,5,6,7", ["--gpus", "1,0"], ["5", "3"]),
        ("GPU-8932f937,GPU-1b21,2,3", ["--gpus-per-run", "2"], ["GPU-8932f937,GPU-1b21", "2,3"]),
    ],
)
def test_gpus_are_counted_among_those_that_the_user_lets_be_seen(
    visible, given, expected, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert choose_gpus(parse_arguments(["run", "table.yaml", *given])) == expected


def ending(updates, epochs=None):
    """Options that say when a training ends."""
    return {"optimization": {"max_update": updates, "max_epoch": epochs}}


def test_a_training_ends_at_its_updates_or_epochs_whichever_come_first(tmp_path):
    def most(updates, epochs):
        return Run("row", 1, tmp_path, [], ending(updates, epochs)).updates(289)

    assert most(8000, 6) == 6 * 289
    assert most(1000, 6) == 1000
    assert most(None, 6) == 6 * 289
    assert most(8000, None) == 8000
    assert most(None, None) is None


def test_what_a_training_did_before_it_was_stopped_is_no_measure_of_its_speed(tmp_path):
    line = "| train_inner | epoch 003:     50 / 289 loss=4.633, num_updates={}, lr=0.001"
    log = tmp_path / "row" / "train.log"
    log.parent.mkdir()
    log.write_text(line.format(628) + "\n")
    ended = "| train | epoch 003 | loss 4.6 | num_updates 712 | lr 0.001"
    printed = f"echo '{line.format(700)}'; echo '{ended}'"
    steps = [Step("train", ["bash", "-c", printed], log, True)]
    with tqdm(total=9, initial=5, file=io.StringIO()) as bar:
        Runner([], jobs=1).do(
            Run("row", 1, log.parent, steps, ending(8000)), bar, {"CUDA_VISIBLE_DEVICES": ""}
        )
        assert (bar.initial, bar.n, bar.total) == (628, 712, 712), "it ended early, and is all done"


def test_a_last_checkpoint_that_was_truncated_gives_way_to_the_newest_whole_one(tmp_path):
    for name in ("checkpoint_1_100.pt", "checkpoint_2_200.pt"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("name", name)
    os.utime(tmp_path / "checkpoint_1_100.pt", (1, 1))
    (tmp_path / "checkpoint_3_300.pt").write_bytes(b"truncated")
    last = tmp_path / "checkpoint_last.pt"
    last.write_bytes(b"truncated")
    repair_last_checkpoint(tmp_path)
    assert last.read_bytes() == (tmp_path / "checkpoint_2_200.pt").read_bytes()
    repair_last_checkpoint(tmp_path)
    assert zipfile.ZipFile(last).read("name") == b"checkpoint_2_200.pt"


def test_a_training_that_ended_and_was_not_marked_is_not_resumed(tmp_path):
    """A training that reached its updates inside an epoch would be resumed for one more update."""
    run = run_of(tmp_path, "row", "echo translated")
    run.folder.mkdir()
    log = run.folder / "train.log"
    begun, ended = (
        f"2026-01-01 00:00:00 | INFO | fairseq_cli.train | {text}\n"
        for text in ("{'_name': None, 'common': {}}", "done training in 1.0 seconds")
    )
    with zipfile.ZipFile(run.folder / "checkpoint_last.pt", "w") as archive:
        archive.writestr("name", "whole")
    run.steps.insert(0, Step("train", ["bash", "-c", "echo more updates"], log, trains=True))
    for text, resumed in ((begun + ended, False), (begun + ended + begun, True)):
        log.write_text(text)
        run.steps[0].done.unlink(missing_ok=True)
        run_all(run)
        assert ("more updates" in log.read_text()) == resumed
        assert run.steps[0].done.exists()


def test_gpus_divide_the_steps_of_an_update_or_are_refused():
    row = {"optimization": {"update_freq": [8, 4]}}
    share_out(row, 4, "row")
    assert row == {"optimization": {"update_freq": [2, 1]}}
    with pytest.raises(SystemExit, match=r"row row has update_freq 2,1 on one GPU, which 2 cannot"):
        share_out(row, 2, "row")
    with pytest.raises(SystemExit, match="has update_freq 1 on one GPU"):
        share_out({}, 2, "row")


def command(
    *arguments, files=SETTINGS["tuned"], action="run", data="D", languages=True, fails=False
):
    """Run the command in this process; return what it printed, and the reason if it stopped."""
    words = [action, *files, *(["--data", data] if data else [])]
    words += [*(["-s", "de", "-t", "en"] if languages else []), *arguments]
    output, reason = io.StringIO(), None
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(output):
        patch.chdir(REPOSITORY)
        try:
            main([*map(str, words)])
        except SystemExit as end:
            reason = end.code
    assert bool(reason) == fails, reason
    return f"{output.getvalue()}{reason or ''}"


ROW = "task: {_name: translation}\nrows: {row: {title: Row}}\n"
LABELS = "steps: labelling\ntask: {_name: syntax_labelling}\nrows: {row: {title: Row}}\n"
THREE = f"{ROW}checkpoint: {{keep_last_epochs: 3}}\n"
SEARCH = f"{THREE}generation: {{lenpen: 0.6, beam: 4}}\n"
EARLY = f"{ROW}early: 90\ncheckpoint: {{keep_last_epochs: 1}}\noptimization: {{max_update: 200}}\n"
PATIENT = f"{ROW}checkpoint: {{keep_last_epochs: 10, patience: 10}}\n"
BEST = f"{LABELS}checkpoint: {{best_checkpoint_metric: accuracy}}\n"
#: 20 updates of at most 2,000 tokens are 2 epochs of the 16,000 of the test's data.
EPOCHS = f"{THREE}dataset: {{max_tokens: 1000}}\noptimization: {{update_freq: [2]}}\n"


@pytest.mark.parametrize(
    ("text", "arguments", "expected", "unexpected"),
    [
        (SEARCH, "", ["--last 3 ", "--beam 4 ", "--lenpen 0.6 "], "generation"),
        # Of two flags the last one holds.
        (SEARCH, "--average 1 --generate-flags '--beam 2'",
         ["fairseq-phrase-average OUT/row/seed1/checkpoint_last.pt --out", "--beam 4 .*--beam 2 "],
         "--last"),
        (THREE, "--average 5", ["--keep-last-epochs 5 "], "--keep-last-epochs 3"),
        (EARLY, "", ["average OUT/row/seed1 --updates 90 --out OUT/row/seed1/updates90.pt",
                     "--path OUT/row/seed1/updates90.pt .*generate-updates90.txt",
                     "--gen-subset test .*generate-updates90.txt"], "updates90.*updates90.*updates90"),
        (EARLY, "--max-update 90", ["fairseq-train"], "updates90"),
        # The best is followed by the patience's 10; of the 9 others, 4 are before it.
        (PATIENT, "", ["fairseq-phrase-average OUT/row/seed1 --around-best 10 --out",
                       "--keep-last-epochs 15 --patience 10 "], "--last "),
        (PATIENT, "--average 3", ["--around-best 3 "], "--last "),
        (PATIENT, "--average 1", ["--keep-last-epochs 10 "], "--around-best"),
        (ROW, "--gpus-per-run 1", ["fairseq-generate.*--distributed-world-size 1 "], "train.*world"),
        *((BEST, average, ["fairseq-phrase-average OUT/row/seed1/checkpoint_best.pt --out",
                           "--best-checkpoint-metric accuracy"], "--last ")
          for average in ("", "--average 1")),  # which --max-update sets
        (ROW, "--generate-flags '--lenpen 0.7'", ["--lenpen 0.7"], "--lenpen 0.7.*--lenpen"),
        (f"{ROW}model: {{share: true, bias: false, size: null, betas: '(0,1)', at: [2, 4]}}\n", "",
         ["--share --betas '.0,1.' --at 2,4 "], "--bias|--size|None|True"),
    ],
)  # fmt: skip
def test_a_row_becomes_commands(text, arguments, expected, unexpected, tmp_path):
    (tmp_path / "table.yaml").write_text(text)
    words = ["--out", "OUT", "--dry-run", *shlex.split(arguments)]
    printed = command(*words, files=[tmp_path / "table.yaml"])
    assert not [pattern for pattern in expected if not re.search(pattern, printed)], printed
    assert not re.search(unexpected, printed)


NO_ROWS = "expected names of rows below rows:"


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (None, "--rows transformer,nobody", r"no row nobody: the table has transformer, .*phrase_k2"),
        (None, "--rows transformer --gpus 99", "--gpus 99: this machine has.*--gpus none trains on"),
        (None, "--rows 1 --gpus-per-run 0", "--gpus-per-run 0: expected at least 1"),
        (None, "--rows 0", f"--rows 0: expected 1 to {len(ROWS)}: the table has transformer"),
        (None, "--rows 99", f"--rows 99: expected 1 to {len(ROWS)}: the table has transformer"),
        (None, "--baselines tree,tre", "--baselines: no row tre: the table has transformer, "),
        (None, "--baselines ''", "--baselines: no row : the table has transformer, "),
        (None, "--tokenize 13b", "--tokenize 13b: expected one of 13a"),
        (None, "--seeds one", "argument --seeds: invalid numbers value: 'one'"),
        (None, "--train-flags \"'--lr 1\"", "--train-flags '--lr 1: No closing quotation"),
        (None, "--generate-flags \"--lenpen '1\"", "--generate-flags --lenpen '1: No closing quot"),
        (ROW, "--generate-flags '--beem 4'", "fairseq-generate: unrecognized arguments: --beem 4"),
        (ROW, "--generate-flags '--lenpen long'", "fairseq-generate: argument --lenpen: invalid"),
        (LABELS, "--generate-flags '--max-token many'", "fairseq-phrase-label: argument --max-token"),
        (f"{ROW}steps: nothing", "", "row row has steps 'nothing': expected one of translation"),
        (BEST, "--average 5", "--average 5: this table uses the checkpoint with the best accuracy"),
        (EPOCHS, "--max-epoch 2", "3 checkpoints are to be averaged, and with this --max-epoch the "),
        (EPOCHS, "--average 5 --max-epoch 4", "write only 4, one an epoch: give --average 4"),
        (EPOCHS, "--train-flags '--max-epoch 2'", "this --max-epoch the training may write only 2"),
        (EPOCHS, "--max-epoch 6 --train-flags '--save-interval 3'", "may write only 2,"),
        (EPOCHS, "--train-flags '--patience 1'", "this --patience the training may write only 2"),
        (EPOCHS, "--max-update 2 --average 3 --data D", "with this --max-update the training may"),
        (EPOCHS, "--max-update 20", "with this --max-update the training may write "),
        ("model: {dropout: 0.1", "", r'table\.yaml", line 1'),
        ("model: {dropout: 0.1}", "", "has no rows"),
        ("rows: [transformer, mine]", "", NO_ROWS),
        ("rows: {mine: transformer}", "", NO_ROWS),
        ("", "", r"No such file or directory: '.*/table\.yaml'"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_before_any_training(text, arguments, message, tmp_path):
    files, data = SETTINGS["tuned"], tmp_path / "data"
    if text is not None:
        files = [tmp_path / "table.yaml"]
        if text:
            files[0].write_text(text)
    data.mkdir()
    (data / "train.de-en.en.bin").write_bytes(bytes(4 * 16_000))
    words = ["--out", tmp_path / "out", *shlex.split(arguments)]
    assert re.search(message, command(*words, files=files, data=data, fails=True))
    assert not (tmp_path / "out").exists()
    if text == EPOCHS:  # 40 updates are five epochs
        assert command("--max-update", "40", "--dry-run", files=files, data=data)


def test_a_training_needs_data_and_languages():
    assert "a training needs -s, -t" in command("--dry-run", languages=False, fails=True)
    assert "a training needs --data" in command("--dry-run", data=None, fails=True)


def test_a_precision_needs_a_gpu_only_where_a_training_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "table.yaml").write_text(ROW)
    run = tmp_path / "rows" / "row" / "seed1"

    def output(action, folder, *options, fails=False) -> str:
        words = ["--precision", "bf16", *options, "--out", folder]
        return command(*words, action=action, files=[tmp_path / "table.yaml"], fails=fails)

    message = "--precision bf16 needs a GPU, and none is here or named: --precision "
    assert message in output("names", tmp_path, fails=True)
    assert message in output("run", tmp_path / "rows", fails=True)
    run.mkdir(parents=True)
    for name in ("train.done", "average.txt", "generate-test.txt"):
        (run / name).touch()
    assert output("names", tmp_path) == "row\n"
    assert re.fullmatch("(.*1/1.*)?", output("run", tmp_path / "rows").strip())
    assert message in output("run", tmp_path / "rows", "--seeds", "1,2", fails=True)


def test_a_row_of_a_plugin_is_trained_and_used_with_it(tmp_path):
    (tmp_path / "table.yaml").write_text(
        "model: {_name: labeller}\ntask: {_name: syntax_labelling}\ncommon: {log_format: simple}\n"
        "rows: {wire: {steps: labelling, common: {user_dir: examples/methods}}, "
        "translated: {common: {user_dir: examples/methods}}, tree: {steps: labelling}}\n"
    )
    printed = command("--average", "1", "--dry-run", files=[tmp_path / "table.yaml"])
    plugins = {}
    for line in re.findall("^fairseq.*", printed, re.MULTILINE):
        row, plugin = re.search(r"runs/(\w+)/", line)[1], re.findall(r"--user-dir (\S+)", line)
        plugins.setdefault(row, {})[line.split()[0]] = plugin
    plugin, average = ["examples/methods"], {"fairseq-phrase-average": []}
    assert plugins == {
        "wire": {"fairseq-train": plugin, **average, "fairseq-phrase-label": plugin},
        "translated": {"fairseq-train": plugin, **average, "fairseq-generate": plugin},
        "tree": {"fairseq-train": ["fairseq_phrase"], **average, "fairseq-phrase-label": []},
    }


def test_rows_and_seeds_are_chosen_each_once(tmp_path):
    assert command("--rows", "2", action="names") == "transformer,linear_k2\n"
    assert command(action="names") == f"{','.join(ROWS)}\n"
    assert command("--rows", "tree,phrase_k2", action="names") == "tree,phrase_k2\n"
    trees = [TABLES / "true_trees.yaml", TABLES / "true_trees.en-tr.yaml"]
    assert command(action="names", files=trees).endswith("_planting adapted parsed\n")
    # Two runs at a time would share a folder, and one of them would fail.
    twice = command("--rows", "tree,tree", "--seeds", "2,2", "--dry-run")
    assert twice == command("--rows", "tree", "--seeds", "2", "--dry-run")
    assert twice.count("fairseq-train D ") == 1
    for files in SETTINGS.values():
        printed = command("--out", tmp_path, "--dry-run", "--seeds", "1,2", files=files)
        assert printed.count("fairseq-train D ") == 2 * len(ROWS) == 50
        assert not list(tmp_path.iterdir())


def test_a_row_says_what_kind_of_steps_it_has(tmp_path, monkeypatch):
    def labelling(args, options, folder):
        return [Step("score", ["score", options["model"]["_name"]], folder / "score.txt")]

    (tmp_path / "table.yaml").write_text(f"model: {{_name: tagger}}\n{LABELS}")
    monkeypatch.setitem(KINDS, "labelling", labelling)
    printed = command("--dry-run", "--out", "OUT", files=[tmp_path / "table.yaml"])
    assert printed == "# row, seed 1\nscore tagger >OUT/row/seed1/score.txt\n"


@pytest.mark.parametrize("setting", ["", ".paper_size"])
def test_learning_curves_write_and_read_the_checkpoint_of_the_early_translation(setting):
    files = dict.fromkeys(TABLES / f"learning_curves{name}.yaml" for name in ("", setting))
    script = (REPOSITORY / "scripts" / "learning_curves.sh").read_text()
    for row in load_rows([*files]).values():
        early, checkpoint = row["early"], row["checkpoint"]
        assert early % checkpoint["save_interval_updates"] == 0
        assert checkpoint["keep_interval_updates_pattern"] == early
        assert early < row["optimization"]["max_update"]
        assert early % row["dataset"]["validate_interval_updates"] == 0
        assert re.findall(r"--early generate-updates(\d+)\.txt", script) == [str(early)]


@pytest.mark.parametrize("task", ["sst5", "sst2"])
def test_the_rows_of_sst_learn_what_an_unknown_word_is(task):
    # With all phrases in training a word occurs at least twice, so that --min-count 2 leaves no unknown
    # words there.
    files = [TABLES / "sst_imdb_table.yaml", TABLES / f"sst_imdb_table.{task}.yaml"]
    assert all(row["model"].get("word_dropout", 0.0) > 0 for row in load_rows(files).values())


def test_the_control_has_the_parameters_of_phrase_k2_in_either_setting():
    for files in SETTINGS.values():
        rows = load_rows(files)
        size = rows["phrase_k2"]["model"]["encoder_embed_dim"]
        widened = [
            rows[name]["model"]["encoder_ffn_embed_dim"]
            for name in ("phrase_k2", "transformer_equal_parameters")
        ]
        second_attention = 4 * size * (size + 1) + 2 * size  # of a layer, with its norm
        added = (widened[1] - widened[0]) * (2 * size + 1)
        assert 0 <= added - second_attention < size


def test_hydra_trains_from_the_options_that_a_run_keeps(data_directory, tmp_path):
    row = ROWS["phrase_k2"] | {"common": {"user_dir": str(REPOSITORY / "fairseq_phrase")}}
    row["common"] |= {"cpu": True, "log_format": "simple", "log_interval": 1}
    row["model"] |= {f"{side}coder_layers": 1 for side in ("en", "de")}
    row["optimization"] |= {"max_update": 2}
    path = write_table(tmp_path, rows={"row": row})
    args = argparse.Namespace(
        data=data_directory, source_lang="de", target_lang="en", out=tmp_path, subsets="test", raw=None,
        average=1, max_update=2, max_epoch=None, precision="fp32", train_flags="",
        generate_flags="", gpus_per_run=1,
    )  # fmt: skip
    planned = plan(args, "row", load_rows([path])["row"], seed=7)
    OmegaConf.save(planned.options, tmp_path / "row.yaml")
    log = run_command(
        "fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "row",
        f"++task.data={data_directory}", "++task.source_lang=de", "++task.target_lang=en",
        f"++checkpoint.save_dir={tmp_path}", f"hydra.run.dir={tmp_path}",
    )  # fmt: skip
    assert sorted(losses(log)) == [1, 2]
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert state["cfg"]["model"]["_name"] == "phrase_transformer"
    assert state["cfg"]["common"]["seed"] == 7


def test_what_runs_is_ended_when_the_runner_is_stopped(tmp_path):
    """As by Ctrl-C: a run that goes on is terminated, and one that waits does not begin."""
    os.mkfifo(tmp_path / "began")
    os.mkfifo(tmp_path / "never")
    waits = f"trap 'echo ended; exit 1' TERM; echo >'{tmp_path}/began'; read <'{tmp_path}/never'"
    runner = Runner([], jobs=1)

    def interrupt():
        (tmp_path / "began").read_text()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    # pytest-xdist's workers ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            runner.run([run_of(tmp_path, "a", waits), run_of(tmp_path, "b", "echo never")])
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert not (tmp_path / "a" / "step0.done").exists()
    assert not (tmp_path / "b").exists()
    assert runner.failures == {}
