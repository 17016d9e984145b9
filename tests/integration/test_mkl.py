"""MKL with AVX-512 on processors that are not Intel's: made once, and as exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))

import mkl_on_amd

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


def common(tmp_path, **variables):
    """Run ``ensure_environment`` with the tests' own environment; return what it prints."""
    code = '. scripts/common.sh; ensure_environment ""; echo "preloaded: ${LD_PRELOAD:-}"'
    folder = os.path.dirname(sys.executable)
    own = {"FAIRSEQ_PHRASE_READY": "1", "XDG_CACHE_HOME": str(tmp_path), "LD_PRELOAD": ""}
    own["PATH"] = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", code],
        cwd=REPOSITORY,
        env=os.environ | own | variables,
        text=True,
        capture_output=True,
    )


def test_the_scripts_load_it_once_and_say_so(tmp_path):
    first = common(tmp_path, FAIRSEQ_PHRASE_MKL="avx512")
    assert first.returncode == 0, first.stderr
    library = tmp_path / "fairseq_phrase" / "mkl_avx512.so"
    assert f"preloaded: {library}\n" in first.stdout
    assert first.stdout.count("MKL uses AVX-512") == 1
    written = library.stat().st_mtime_ns
    again = common(tmp_path, FAIRSEQ_PHRASE_MKL="avx512", LD_PRELOAD=str(library))
    assert f"preloaded: {library}\n" in again.stdout
    assert "MKL uses" not in again.stdout
    assert library.stat().st_mtime_ns == written


def test_a_folder_that_cannot_be_written_stops_no_script(tmp_path):
    (tmp_path / "fairseq_phrase").write_text("not a folder\n")
    said = common(tmp_path, FAIRSEQ_PHRASE_MKL="avx512")
    assert (said.returncode, said.stdout) == (0, "preloaded: \n")
    assert "MKL stays as it is: " in said.stderr


def test_it_is_switched_off_by_name(tmp_path):
    assert common(tmp_path, FAIRSEQ_PHRASE_MKL="as-it-is").stdout == "preloaded: \n"
    assert not list(tmp_path.iterdir())
    wrong = common(tmp_path, FAIRSEQ_PHRASE_MKL="yes")
    assert wrong.returncode == 1
    assert "FAIRSEQ_PHRASE_MKL=yes: expected as-it-is or avx512" in wrong.stderr


@pytest.mark.parametrize(
    ("processor", "wanted"),
    [
        ("vendor_id : AuthenticAMD\nflags : fpu avx2 avx512f avx512cd\n", True),
        ("vendor_id : AuthenticAMD\nflags : fpu avx2\n", False),
        ("vendor_id : GenuineIntel\nflags : fpu avx512f\n", False),
    ],
)
def test_it_is_for_amd_processors_with_avx512(processor, wanted, monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(processor)
    monkeypatch.delenv("FAIRSEQ_PHRASE_MKL", raising=False)
    monkeypatch.setattr(mkl_on_amd, "PROCESSOR", tmp_path / "cpuinfo")
    assert mkl_on_amd.is_wanted() is wanted


@pytest.mark.parametrize("choice", ["avx512", "as-it-is"])
def test_benchmarks_load_it_as_scripts_do(choice, tmp_path):
    code = "import os, measuring; measuring.use_avx512(); print(os.environ['LD_PRELOAD'])"
    own = {"XDG_CACHE_HOME": str(tmp_path), "LD_PRELOAD": "", "FAIRSEQ_PHRASE_MKL": choice}
    said = subprocess.check_output(
        [sys.executable, "-c", code], cwd=REPOSITORY / "benchmarks", env=os.environ | own, text=True
    )
    library = tmp_path / "fairseq_phrase" / "mkl_avx512.so"
    assert said == (f"{library}\n" if choice == "avx512" else "\n")


def test_products_and_gradients_are_as_exact_as_without_it(tmp_path):
    command = [sys.executable, "scripts/mkl_on_amd.py", str(tmp_path)]
    environment = os.environ | {"FAIRSEQ_PHRASE_MKL": "avx512"}
    library = subprocess.check_output(command, cwd=REPOSITORY, env=environment, text=True).strip()
    assert library == str(tmp_path / "mkl_avx512.so")
    errors = []
    for preloaded in ("", library):
        environment = os.environ | {"LD_PRELOAD": preloaded}
        code = [sys.executable, "-c", ERRORS]
        errors.append(json.loads(subprocess.check_output(code, env=environment, text=True)))
    for without, found in zip(*errors, strict=True):
        assert found <= 2 * without + 1e-7
