"""MKL's fastest kernels on processors that are not Intel's: made once, and as exact."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
import torch

from fairseq_phrase.cli import inspect_data, translate
from fairseq_phrase.repairs import mkl
from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.skipif(
    not torch.backends.mkl.is_available(), reason="this torch multiplies without MKL"
)
#: Prints the largest errors, against float64, of products and of a training step's gradients.
ERRORS = """
import json, torch
torch.manual_seed(0)
left, right = torch.randn(65, 257), torch.randn(257, 129)
errors = [((left @ right).double() - left.double() @ right.double()).abs().max().item()]
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
twin = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).double()
twin.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})
states = torch.randn(5, 33, 64)
layer(states).pow(2).mean().backward()
twin(states.double()).pow(2).mean().backward()
for one, other in zip(layer.parameters(), twin.parameters()):
    errors.append(((one.grad.double() - other.grad).abs().max() / other.grad.abs().max()).item())
print(json.dumps(errors))
"""


@pytest.fixture(autouse=True)
def no_choice(monkeypatch):
    monkeypatch.delenv("FAIRSEQ_PHRASE_MKL", raising=False)


@pytest.fixture
def tmp_path():
    """A folder that LD_PRELOAD can name: pytest's may have a blank in its name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    if mkl.make_library(tmp_path_factory.mktemp("library")) is None:
        pytest.skip("the library is compiled, and no C compiler (cc) works here")


def own_environment(tmp_path):
    """An environment with the packages of this one, that can be changed."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    paths = f"{REPOSITORY}\n{sysconfig.get_path('purelib')}\n"
    (site / "zz_packages.pth").write_text(paths)  # after fairseq_phrase_mkl.pth
    return folder, site


def common(tmp_path, **variables):
    """Run ``ensure_environment`` in an environment that does not load it; return what it prints."""
    environment = tmp_path / "environment"
    if not environment.exists():
        own_environment(tmp_path)
    code = '. scripts/common.sh; ensure_environment ""; echo "preloaded: ${LD_PRELOAD:-}"'
    folder = os.path.dirname(sys.executable)
    variables_of_test = {
        "FAIRSEQ_PHRASE_READY": "1",
        "XDG_CACHE_HOME": str(tmp_path),
        "LD_PRELOAD": "",
    }
    variables_of_test["PATH"] = f"{environment}/bin:{folder}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", code],
        cwd=REPOSITORY,
        env=os.environ | variables_of_test | variables,
        text=True,
        capture_output=True,
    )


@pytest.mark.usefixtures("compiler")
def test_the_scripts_load_it_once_and_say_so(tmp_path):
    first = common(tmp_path, FAIRSEQ_PHRASE_MKL="intel")
    assert first.returncode == 0, first.stderr
    library = tmp_path / "fairseq_phrase" / "mkl_intel_kernels.so"
    assert f"preloaded: {library}\n" in first.stdout
    assert first.stdout.count("MKL computes as on Intel") == 1
    written = library.stat().st_mtime_ns
    again = common(tmp_path, FAIRSEQ_PHRASE_MKL="intel", LD_PRELOAD=str(library))
    assert f"preloaded: {library}\n" in again.stdout
    assert "MKL computes" not in again.stdout
    assert library.stat().st_mtime_ns == written


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file", "Not a directory: "),
        ("with a blank", "with a blank/fairseq_phrase: set XDG_CACHE_HOME"),
    ],
)
def test_a_cache_that_does_not_do_stops_no_script(name, message, tmp_path):
    (tmp_path / "file").write_text("not a folder\n")
    process = common(tmp_path, FAIRSEQ_PHRASE_MKL="intel", XDG_CACHE_HOME=str(tmp_path / name))
    assert (process.returncode, process.stdout) == (0, "preloaded: \n")
    assert "MKL stays as it is: " in process.stderr
    assert message in process.stderr


def test_it_is_switched_off_by_name(tmp_path):
    assert common(tmp_path, FAIRSEQ_PHRASE_MKL="as-it-is").stdout == "preloaded: \n"
    assert not (tmp_path / "fairseq_phrase").exists()
    wrong = common(tmp_path, FAIRSEQ_PHRASE_MKL="yes")
    assert wrong.returncode == 1
    assert "FAIRSEQ_PHRASE_MKL=yes: expected as-it-is or intel" in wrong.stderr


@pytest.mark.parametrize(
    ("processor", "wanted"),
    [
        ("vendor_id : AuthenticAMD\nflags : fpu avx2 avx512f\n", True),
        ("vendor_id : AuthenticAMD\nflags : fpu avx2\n", True),
        ("vendor_id : AuthenticAMD\nflags : fpu avx\n", False),
        ("vendor_id : GenuineIntel\nflags : fpu avx512f\n", False),
    ],
)
def test_it_is_for_amd_processors_with_avx2(processor, wanted, monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(processor)
    monkeypatch.setattr(mkl, "PROCESSOR", tmp_path / "cpuinfo")
    assert mkl.is_wanted() is wanted


def python(environment, *words, **variables):
    """Run the interpreter of an environment; return what it prints."""
    settings = os.environ | {"LD_PRELOAD": "", "PYTHONPATH": ""} | variables
    return subprocess.run(
        [environment / "bin" / "python", *words],
        env=settings,
        text=True,
        capture_output=True,
        cwd=environment,
        check=True,
    ).stdout


PRODUCTS = """
import torch
torch.manual_seed(0)
matrix = torch.randn(300, 300)
print((matrix @ matrix).double().sum().item())
"""
IS_LOADED = ("-c", "from fairseq_phrase.repairs import mkl; print(mkl.is_loaded())")
MODULE = ("-m", "fairseq_phrase.repairs.mkl")


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_an_environment_loads_it_at_every_start_if_the_user_runs_the_command(tmp_path):
    environment, site = own_environment(tmp_path)
    before = sorted(site.iterdir())
    intel = {"FAIRSEQ_PHRASE_MKL": "intel"}
    assert python(environment, *IS_LOADED, **intel) == "False\n"
    assert "computes as on Intel in this environment" in python(
        environment, *MODULE, "--install", **intel
    )
    assert python(environment, *MODULE, "--install", **intel) == ""
    assert python(environment, *IS_LOADED) == "True\n"
    # Nothing is left to preload, and it can be switched off.
    assert python(environment, *MODULE, XDG_CACHE_HOME=str(tmp_path), **intel) == ""
    assert python(environment, *IS_LOADED, FAIRSEQ_PHRASE_MKL="as-it-is") == "False\n"
    # It is loaded before torch: products are the same, to the last bit, as with LD_PRELOAD.
    products = ("-c", PRODUCTS)
    by_line = python(environment, *products)
    assert by_line == python(environment, *products, LD_PRELOAD=str(site / mkl.LIBRARY))
    without = python(environment, *products, FAIRSEQ_PHRASE_MKL="as-it-is")
    assert by_line != without or not mkl.is_wanted()
    python(environment, *MODULE, "--remove")
    assert sorted(site.iterdir()) == before
    assert python(environment, *IS_LOADED) == "False\n"
    assert python(environment, *products) == without


@pytest.mark.usefixtures("compiler")
def test_an_environment_whose_library_is_lost_still_starts(tmp_path):
    environment, site = own_environment(tmp_path)
    python(environment, *MODULE, "--install", FAIRSEQ_PHRASE_MKL="intel")
    (site / mkl.LIBRARY).unlink()
    assert python(environment, *IS_LOADED) == "False\n"


@pytest.mark.usefixtures("compiler")
def test_the_scripts_own_environment_has_it_for_all_commands(tmp_path):
    environment, site = own_environment(tmp_path)
    code = (
        f". scripts/common.sh; OWN_ENVIRONMENT=1 PYTHON={environment}/bin/python; use_intel_kernels"
    )
    settings = {"PYTHONPATH": str(REPOSITORY), "LD_PRELOAD": "", "XDG_CACHE_HOME": str(tmp_path)}

    def use(**variables):
        process = subprocess.run(
            ["bash", "-c", f'{code}; echo "preloaded: ${{LD_PRELOAD:-}}"'],
            cwd=REPOSITORY,
            env=os.environ | settings | variables,
            text=True,
            capture_output=True,
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    assert use(FAIRSEQ_PHRASE_MKL="as-it-is") == "preloaded: \n"
    assert not (site / "fairseq_phrase_mkl.pth").exists()
    # For one script on any processor: the environment stays as it is.
    assert f"preloaded: {tmp_path}/fairseq_phrase/mkl_intel_kernels.so" in use(
        FAIRSEQ_PHRASE_MKL="intel"
    )
    assert not (site / "fairseq_phrase_mkl.pth").exists()
    output = use(FAIRSEQ_PHRASE_MKL="")
    assert output.endswith("preloaded: \n")
    assert (site / "fairseq_phrase_mkl.pth").exists() is mkl.is_wanted()
    assert ("as on Intel in this environment" in output) is mkl.is_wanted()


@pytest.fixture
def amd(monkeypatch, tmp_path):
    """The processor of a user who has not loaded the library."""
    (tmp_path / "cpuinfo").write_text("vendor_id : AuthenticAMD\nflags : fpu avx2 avx512f\n")
    monkeypatch.setattr(mkl, "PROCESSOR", tmp_path / "cpuinfo")
    monkeypatch.setattr(mkl, "is_loaded", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_commands_that_compute_name_the_command(amd, refused, monkeypatch):
    advice = "MKL does not use its fastest kernels"
    for main, arguments, computes in (
        (translate.main, ["data", "--path", "missing.pt"], True),
        (inspect_data.main, ["data"], False),
    ):
        stderr = refused(main, arguments)
        assert stderr.count(f"{mkl.COMMAND} --install") == stderr.count(advice) == computes
    monkeypatch.setenv("FAIRSEQ_PHRASE_MKL", "as-it-is")
    assert advice not in refused(translate.main, ["data", "--path", "missing.pt"])


def test_one_process_of_a_training_logs_it(amd, caplog, monkeypatch):
    with caplog.at_level(logging.INFO):
        mkl.log_advice()
        assert caplog.text.count(f"{mkl.COMMAND} --install") == 1
        monkeypatch.setenv("RANK", "1")
        mkl.log_advice()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.delenv("RANK")
        mkl.log_advice()
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("compiler")
def test_products_and_gradients_are_as_exact_as_without_it(tmp_path):
    library = str(mkl.make_library(tmp_path))
    errors = []
    for preloaded in ("", library):
        environment = os.environ | {"LD_PRELOAD": preloaded, "FAIRSEQ_PHRASE_MKL": "as-it-is"}
        code = [sys.executable, "-c", ERRORS]
        errors.append(json.loads(subprocess.check_output(code, env=environment, text=True)))
    for without, error in zip(*errors, strict=True):
        assert error <= 2 * without + 1e-7
