"""Checks in fairseq's functions that build what a checkpoint names."""

from __future__ import annotations

from argparse import Namespace

import pytest
from fairseq.data import encoders
from fairseq.registry import REGISTRIES
from omegaconf import OmegaConf

from fairseq_phrase.checkpoints.loading import register_all
from fairseq_phrase.checkpoints.trust import check_trusted
from fairseq_phrase.errors import UserError
from fairseq_phrase.repairs.checkpoints import override_options

register_all()
#: The options of fairseq's segmenters that name files.
FILES = {
    "byte_bpe": ["sentencepiece_model_path"],
    "fastbpe": ["bpe_codes"],
    "gpt2": ["gpt2_encoder_json", "gpt2_vocab_bpe"],
    "bert": ["bpe_vocab_file"],
    "hf_byte_bpe": ["bpe_merges", "bpe_vocab"],
    "sentencepiece": ["sentencepiece_model"],
    "subword_nmt": ["bpe_codes"],
}


def of_a_checkpoint(name, layout):
    """A checkpoint's segmenter after the check of its options, which name files."""
    theirs = dict.fromkeys(FILES[name], "/theirs/file")
    if layout == "args":
        state = {"args": Namespace(bpe=name, **theirs)}
        check_trusted(state, "a.pt")
        return state["args"]
    state = {"cfg": OmegaConf.create({"bpe": {"_name": name, **theirs}})}
    check_trusted(state, "a.pt")
    return state["cfg"].bpe


def test_all_segmenters_with_files_are_here():
    assert FILES.keys() == REGISTRIES["bpe"]["dataclass_registry"].keys() - {"syntax"}


@pytest.mark.parametrize("layout", ["cfg", "args"])
@pytest.mark.parametrize("name", FILES)
def test_a_segmenter_whose_files_a_checkpoint_names_asks_for_them(name, layout, monkeypatch):
    monkeypatch.setattr("fairseq.file_utils.get_from_cache", None)  # nothing is downloaded
    monkeypatch.setattr("transformers.BertTokenizer.from_pretrained", None)
    flags = " ".join(f"--{option.replace('_', '-')} FILE" for option in FILES[name])
    message = f"^--bpe {name} lacks {' and '.join(FILES[name])}: give {flags}, in Python "
    with pytest.raises(UserError, match=message):
        encoders.build_bpe(of_a_checkpoint(name, layout))


def test_a_file_that_the_user_names_is_read(tmp_path):
    (tmp_path / "codes").write_text("#version: 0.2\na b\n")
    state = {"cfg": OmegaConf.create({"bpe": of_a_checkpoint("subword_nmt", "cfg")})}
    override_options(state, {"bpe_codes": str(tmp_path / "codes"), "beam": 3})
    assert encoders.build_bpe(state["cfg"].bpe).encode("abc") == "ab@@ c"
    assert "beam" not in state["cfg"].bpe
