"""Values of options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from fairseq_phrase.cli import label, translate
from fairseq_phrase.cli.arguments import model_of, positive, protected, seed, share
from fairseq_phrase.errors import UserError


def test_protected_tokens_are_names_or_a_file(tmp_path):
    assert protected("<2de>,[en_XX],</g1>,a.b,<2de>") == ("<2de>", "[en_XX]", "</g1>", "a.b")
    path = tmp_path / "tokens.txt"
    path.write_text("<2de>\n<2en>\n")
    assert protected(str(path)) == ("<2de>", "<2en>")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{0}/none.txt", r"there is no file .*none\.txt"),
        ("none.txt", r"there is no file none\.txt"),
        ("{0}/latin1.txt", r"latin1\.txt, line 2: not UTF-8"),
        ("<2de>,<s>", "'<s>' cannot be protected"),
        ("a b", "'a b' cannot be protected"),
    ],
)
def test_what_cannot_be_protected_is_named(tmp_path, text, message):
    (tmp_path / "latin1.txt").write_bytes(b"<2de>\n<\xfc>\n")
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        protected(text.format(tmp_path))


@pytest.mark.parametrize("text", ["-1", str(2**32), "one"])
def test_seeds_have_the_range_of_the_libraries(text):
    assert (seed("0"), seed(str(2**32 - 1))) == (0, 2**32 - 1)
    with pytest.raises(argparse.ArgumentTypeError, match=f"from 0 to 4294967295, not {text}"):
        seed(text)


@pytest.mark.parametrize("command", [translate, label])
def test_files_may_follow_options(command):
    args = command.make_parser().parse_args(["DATA", "--path", "model.pt", "text"])
    files = args.inputs if command is label else args.inputs[1:]
    assert list(map(Path, files)) == [Path("text")]


@pytest.mark.parametrize(
    ("bpe", "option", "is_allowed"),
    [
        ("sentencepiece", "sentencepiece_model", True), ("sentencepiece", "bpe_codes", False),
        ("subword_nmt", "sentencepiece_model", False), ("subword_nmt", "bpe_codes", True),
        ("none", "sentencepiece_model", False), ("none", "bpe_codes", False),
        ("of-a-package", "sentencepiece_model", False), ("of-a-package", "bpe_codes", True),
    ],
)  # fmt: skip
def test_a_subword_model_goes_with_its_kind_of_subwords(bpe, option, is_allowed):
    options = {"bpe": bpe, "sentencepiece_model": None, "bpe_codes": None, option: Path("model")}
    if is_allowed:
        assert model_of(options) == Path("model")
        assert options == {"bpe": bpe}
        return
    flag = option.replace("_", "-")
    with pytest.raises(UserError, match=f"--{flag} needs --bpe "):
        model_of(options)


@pytest.mark.parametrize("bpe", ["sentencepiece", "subword_nmt", "none"])
def test_without_a_subword_model_there_is_none(bpe):
    assert model_of({"bpe": bpe, "sentencepiece_model": None, "bpe_codes": None}) is None


def test_a_share_is_from_0_to_1():
    assert [share(text) for text in ("0", "0.5", "1")] == [0, 0.5, 1]
    for text in ("-0.01", "1.01", "nan", "5%"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"from 0 to 1, not {text}"):
            share(text)


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [("-1", False), ("0", False), ("1", True), ("7", True), ("2k", False), ("2.5", False)],
)
def test_a_positive_number_is_at_least_one(text, is_allowed):
    if is_allowed:
        assert positive(text) == int(text)
        return
    with pytest.raises(argparse.ArgumentTypeError, match=f"expected a positive number, not {text}"):
        positive(text)
