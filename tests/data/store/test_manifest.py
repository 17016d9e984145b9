"""The manifest's identity: every field and every option that makes data is compared, or free."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest

from fairseq_phrase.cli import attach as attach_command
from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.data.preprocessing import existing_parses
from fairseq_phrase.data.preprocessing import preprocess as preprocessing
from fairseq_phrase.data.preprocessing.manifests import begin_manifest
from fairseq_phrase.data.preprocessing.options import Options
from fairseq_phrase.data.store.identity import (
    OF_EACH_MODEL,
    OF_OTHER_DECODERS,
    USES,
    Entry,
    Identity,
    Tolerance,
    check_identity,
)
from fairseq_phrase.data.store.manifest import (
    FREE_FIELDS,
    Manifest,
    SplitRecord,
    data_identity,
    parser_entries,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.parsers.registry import BUILT_IN

WHOLE = Manifest(
    language="de",
    parser="mine:left",
    parser_version="mine 1",
    fields=["words", "tags", "spans"],
    constituents="parser",
    tokenized=False,
    bpe="huggingface",
    bpe_model="tokenizer.json",
    dictionary="0",
    bpe_digest="ab",
    target_bpe="sentencepiece",
    target_model="spm.model",
    target_digest="12",
    protected=["<2de>"],
    parser_digest="cd",
    parser_stamp="ef",
    labels={"tags": "1:ab"},
    labelling="word",
    splits={"test.de-en": SplitRecord(1, 2, 3, {})},
)


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, dict):
        return {"spans": "1:cd"}
    return value + type(value)([1] if isinstance(value, int) else "x") if value != 2 else 3


@pytest.mark.parametrize("field", [field.name for field in fields(Manifest)])
def test_every_field_is_compared_or_free(field) -> None:
    changed_manifest = replace(WHOLE, **{field: changed(getattr(WHOLE, field))})
    assert getattr(changed_manifest, field) != getattr(WHOLE, field)
    first, two = (
        {name: entry.value for name, entry in manifest.identity().entries.items()}
        for manifest in (WHOLE, changed_manifest)
    )
    assert (first == two) == (field in FREE_FIELDS)


def test_what_is_free_or_apart_is_a_field_and_has_a_reason() -> None:
    names = {manifest_field.name for manifest_field in fields(Manifest)}
    for reasons in (FREE_FIELDS, existing_parses.APART):
        assert reasons.keys() <= names
        assert all(reasons.values())


#: Other values of fields whose content is checked when a manifest is loaded.
VALID = {
    "fields": [*WHOLE.fields, "heads"],
    "splits": {"valid.de-en": SplitRecord(1, 2, 3, {})},
    "part": dict.fromkeys(("number", "of", "text", "run"), "1"),
}
KEPT = {
    "labelling", "target_bpe", "target_model", "target_digest", "part", "parser_version",
    "parser_digest", "parser_stamp",
}  # fmt: skip


@pytest.mark.parametrize(
    "field", sorted({field.name for field in fields(Manifest)} - {"language", "format"})
)
def test_every_field_of_parses_that_stay_is_kept_or_compared(field, tmp_path) -> None:
    earlier = replace(WHOLE, **{field: VALID.get(field) or changed(getattr(WHOLE, field))})
    earlier.save(tmp_path)
    parses = existing_parses.EarlierParses(tmp_path, "de", {})
    manifest, compared = replace(WHOLE), []
    options = SimpleNamespace(
        check=lambda before, now, *names: compared.append(before.entries != now.entries)
    )
    assert parses.staying == earlier.splits
    if field not in existing_parses.APART:
        name = "--protected-tokens" if field == "protected" else field.replace("_", " ")
        with pytest.raises(UserError, match=f"made with {name} "):
            parses.check(manifest, options)
        return
    parses.check(manifest, options)
    assert (getattr(manifest, field) == getattr(earlier, field)) == (field in KEPT)
    assert compared == [field in ("parser_version", "parser_digest")]


def test_a_field_that_is_added_later_is_compared_without_a_line() -> None:
    later = make_dataclass("Later", [("a_new_option", str, "off")], bases=(Manifest,))
    old = Manifest(
        **{
            manifest_field.name: getattr(WHOLE, manifest_field.name)
            for manifest_field in fields(Manifest)
        }
    )
    values = vars(old)
    assert later(**values).identity().entries["a-new-option"].value == "off"
    with pytest.raises(UserError, match="differ in a-new-option off and on: give --a-new-option"):
        check_identity(old.identity(), later(**values, a_new_option="on").identity(), "use")
    check_identity(old.identity(), later(**values).identity(), "use")


@pytest.mark.parametrize(
    ("parser", "digest", "name"),
    [
        ("mine:left", "", "mine:left"),
        ("mine:left", "ab", "mine:left"),
        ("mine", "", "mine"),
        ("mine:", "", "mine"),
        ("mine:/a/folder", "ab", "mine"),
        ("mine:/a/folder", "", "mine:/a/folder"),
        ("spacy:de_core_news_sm", "ab", "spacy"),
        ("conllu:words", "", "conllu"),
    ],
)
def test_a_parser_has_a_name_that_is_valid_on_other_machines(parser, digest, name) -> None:
    assert parser_entries(parser, "1", digest, "none")["parser-name"].value == name


def test_all_parsers_of_this_project_have_their_arguments_in_their_versions() -> None:
    names = {parser: parser_entries(parser, "1", "", "none") for parser in BUILT_IN}
    assert {entries["parser-name"].value for entries in names.values()} == BUILT_IN.keys()
    for parser in BUILT_IN:
        assert parser_entries(f"{parser}:x", "1", "", "none") == names[parser]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("parser", "mine:ok", "parser-name mine:left and mine:ok"),
        ("constituents", "from-dependencies", "constituents parser and from-dependencies"),
    ],
)
@pytest.mark.parametrize("use", USES)
def test_what_parsed_is_compared_as_a_parsers_version_is(use, field, value, message, caplog):
    other_record = replace(WHOLE, **{field: value}).identity(f"{use} {value}")
    check_identity(WHOLE.identity(), other_record, use)
    assert f"differ in {message} " in caplog.text
    with pytest.raises(UserError, match=f"differ in {message}: parse with the training's parser"):
        check_identity(WHOLE.identity(), other_record, use, Tolerance(strict=True))


def check_without(parts: Sequence[str], other: Manifest, use: str) -> None:
    check_identity(WHOLE.identity().without(parts), other.identity().without(parts), use)


@pytest.mark.parametrize("use", USES)
def test_labels_of_words_and_of_sentences_do_not_go_together(use) -> None:
    changed_manifest = replace(WHOLE, labelling="sentence")
    for parts in ((), OF_EACH_MODEL):
        with pytest.raises(UserError, match="differ in labels word and sentence: "):
            check_without(parts, changed_manifest, use)
    check_without(OF_OTHER_DECODERS, changed_manifest, use)  # an encoder is the same for both


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_digest": "34"}, r"target-subword-model spm\.model \(12\) and spm\.model \(34\)"),
        ({"target_bpe": "subword_nmt"}, "target-segmenter sentencepiece and subword_nmt"),
    ],
)
@pytest.mark.parametrize("use", USES)
def test_the_targets_subword_model_is_compared_where_the_target_is(use, changes, message) -> None:
    changed_manifest = replace(WHOLE, **changes)
    for parts in ((), OF_EACH_MODEL):
        with pytest.raises(UserError, match=f"differ in {message}: "):
            check_without(parts, changed_manifest, use)
    check_without(OF_OTHER_DECODERS, changed_manifest, use)


def test_older_records_and_manifests_are_read(tmp_path, caplog) -> None:
    new = {"target_model", "target_digest"}
    WHOLE.save(tmp_path)
    path = Manifest.path(tmp_path, "de")
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in content.items() if key not in new}))
    manifest = Manifest.load(tmp_path, "de")
    assert manifest == replace(WHOLE, target_model="", target_digest="")
    entries = dict(WHOLE.identity().entries)
    for name in ("parser-name", "constituents", "labels", "target-segmenter"):
        del entries[name]
    older = Identity(entries, is_whole=False, where="old")
    for newer in (manifest.identity("new"), WHOLE.identity("new")):
        check_identity(older, newer, "use", Tolerance(strict=True))
        check_identity(newer, older, "use", Tolerance(strict=True))
    assert "old does not record its target-segmenter, labels" in caplog.text


def test_a_manifest_of_a_stranger_is_refused_in_one_printable_line(tmp_path) -> None:
    WHOLE.save(tmp_path)
    path = Manifest.path(tmp_path, "de")
    for text, message in (
        ("[" * 100_000, "is damaged (it is nested more than 50 times): run"),
        ('{"format": "\\u001b[2J\\u202e"}', r"has format \x1b[2J\u202e, but"),
    ):
        path.write_text(text)
        with pytest.raises(UserError) as refused:
            Manifest.load(tmp_path, "de")
        assert f"{path} {message}" in str(refused.value)


#: Values of JSON, of each type.
VALUES: list[Any] = [3, True, "x", None, [], [3], ["x"], {}, {"x": 3}, {"x": "y"}, {"x": None}]


@pytest.mark.parametrize("kind", [Manifest, SplitRecord])
def test_a_field_of_another_type_is_refused_by_name(kind, tmp_path) -> None:
    WHOLE.save(tmp_path)
    path = Manifest.path(tmp_path, "de")
    for field, of in get_type_hints(kind).items():
        fitting = {str: ["x"], int: [3], bool: [True], list[str]: [[], ["x"]]}.get(of)
        if fitting is None:  # a dictionary
            inner = get_args(of)[1]
            fitting = [{}, *({"x": v} for v in (3, "y", None) if inner is Any or type(v) is inner)]
        for value in VALUES:
            content = json.loads(path.read_text())
            (content if kind is Manifest else content["splits"]["test.de-en"])[field] = value
            (tmp_path / "syntax.de.json").write_text(json.dumps(content))
            if any(value == v and type(value) is type(v) for v in fitting):
                with suppress(UserError):  # for another reason
                    Manifest.load(tmp_path, "de").identity()
            else:
                with pytest.raises(UserError, match=r"syntax\.de\.json (is damaged|has )"):
                    Manifest.load(tmp_path, "de")
            WHOLE.save(tmp_path)


def test_a_manifest_of_another_language_is_refused(tmp_path) -> None:
    WHOLE.save(tmp_path)
    Manifest.path(tmp_path, "de").rename(Manifest.path(tmp_path, "en"))
    with pytest.raises(
        UserError, match=r"syntax\.en\.json is damaged \(it is of the language de\)"
    ):
        Manifest.load(tmp_path, "en")


def test_another_model_of_the_target_in_a_data_directory_is_noticed(tmp_path) -> None:
    WHOLE.save(tmp_path)
    (tmp_path / "spm.model").write_bytes(b"another")
    with pytest.raises(UserError, match=r"spm\.model is not the subword model that split the text"):
        data_identity(tmp_path, "de", "en")


@pytest.mark.parametrize(
    ("changes", "digest"),
    [({}, "12"), ({"target_bpe": "", "target_digest": ""}, "ab"), ({"target_bpe": "none"}, None)],
)
def test_a_source_without_parses_has_the_model_that_segmented_it(tmp_path, changes, digest) -> None:
    replace(WHOLE, **changes).save(tmp_path)
    record = data_identity(tmp_path, "en", "de")
    assert record.value("subword-model") == digest
    assert "segmenter" not in record.entries
    check_identity(record, record.only("languages"), "use")


def test_a_model_of_the_target_outside_of_the_directory_is_not_read(tmp_path) -> None:
    replace(WHOLE, target_model="../spm.model").save(tmp_path)
    with pytest.raises(UserError, match=r"the subword model \.\./spm\.model is not a file of this"):
        Manifest.load(tmp_path, "de")


# The options of fairseq-phrase-preprocess and fairseq-phrase-attach


@dataclass(frozen=True)
class Recorded:
    """An option whose value is in the manifest.

    Attributes:
        arguments: those that change it.
        entry: the entry of the manifest's identity that they change.
        base: arguments of both runs.
        language: the language whose manifest has it.
    """

    arguments: str
    entry: str
    base: str = "--parser conllu"
    language: str = "de"


BOTH = "--parser conllu --parse both"
RECORDED = {
    "parser": Recorded("--parser factored:tags", "parser", ""),
    "target_parser": Recorded("--target-parser ptb", "parser-name", BOTH, "en"),
    "constituents": Recorded("--constituents from-dependencies", "constituents"),
    "source_tokenized": Recorded("--source-tokenized", "segmenter"),
    "target_tokenized": Recorded("--target-tokenized", "segmenter", BOTH, "en"),
    "protected": Recorded("--protected-tokens <2de>", "segmenter"),
    "labels": Recorded("--labels sentence", "labels"),
    "bpe": Recorded("--bpe none", "segmenter"),
    "sentencepiece_model": Recorded("--sentencepiece-model FILE", "subword-model"),
    "bpe_codes": Recorded("--bpe-codes FILE", "subword-model", "--bpe subword_nmt"),
}
#: Options that determine content which the record has: files, and what makes them.
CONTENT = {
    **dict.fromkeys(("source_lang", "target_lang", "only_source"), "language entries"),
    **dict.fromkeys(("vocab_size", "sentencepiece_lines", "seed"), "subword-model"),
    **dict.fromkeys(("normal_form", "character_coverage", "byte_fallback"), "subword-model"),
    **dict.fromkeys(
        ("srcdict", "tgtdict", "min_count", "joined_dictionary", "copy_words"),
        "dictionary entries; check_slots",
    ),
    "labeldict": "entries of labels",
    "parse": "a manifest for each parsed language",
    "lang": "a manifest for each parsed language",
}
FREE_OPTIONS = {
    **dict.fromkeys(("trainpref", "validpref", "testpref", "max_length", "parts"), "the data"),
    **dict.fromkeys(("on_error", "max_flat"), "lines without a parse, counted for each split"),
    **dict.fromkeys(("destdir", "data", "list_left_out"), "a path"),
    **dict.fromkeys(("strict", "allow_difference"), "what may differ, in `allowed`"),
    **dict.fromkeys(("workers", "engine", "ray_address"), "where it runs; the bytes are the same"),
}


@pytest.mark.parametrize("command", [preprocess_command, attach_command])
def test_every_option_is_recorded_or_free(command) -> None:
    options = {action.dest for action in command.make_parser()._actions} - {"help", "version"}
    decided = [*RECORDED, *CONTENT, *FREE_OPTIONS]
    assert len(decided) == len(set(decided))
    assert options <= set(decided)


def identity_of_run(arguments: str, language: str, folder: Path, monkeypatch) -> Identity:
    """Return the identity of the manifest that a run of preprocessing would write."""
    options_of_runs: list[Options] = []
    # The options are compared; nothing is made.
    monkeypatch.setattr(
        preprocessing, "preprocess", lambda options: options_of_runs.append(options) or {}
    )
    common = ["-s", "de", "-t", "en", "--trainpref", "x", "--destdir", str(folder)]
    words = [str(folder / "model") if word == "FILE" else word for word in arguments.split()]
    preprocess_command.main([*common, *words])
    (options,) = options_of_runs
    pipeline = ParsingPipeline(options.parsing[language])
    model = options.bpe_model
    return begin_manifest(options, language, pipeline, folder / "dict", model).identity()


@pytest.mark.parametrize("option", RECORDED)
def test_a_recorded_option_changes_its_entry(option, tmp_path, monkeypatch) -> None:
    for name in ("model", "dict"):
        (tmp_path / name).write_text("content")
    case = RECORDED[option]
    first, second = (
        identity_of_run(arguments, case.language, tmp_path, monkeypatch)
        for arguments in (case.base, f"{case.base} {case.arguments}")
    )
    assert first.entries.get(case.entry) != second.entries.get(case.entry)


def test_differences_that_were_allowed_are_listed_once() -> None:
    options = Options("de", "en", Path("data"), {}, {}, allow_difference="protected-tokens")
    first, second = (
        Identity({"protected-tokens": Entry(value, value, "data")}, where="dict")
        for value in ("<2de>", "none")
    )
    for _ in range(2):
        options.check(first, replace(second, allowed=tuple(options.allowed)))
    assert options.allowed == ["protected-tokens <2de> and none (dict)"]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (("sentencepiece", "a"), ("", ""), {"de": "a", "en": "a"}),
        (("sentencepiece", ""), ("", ""), {"de": None, "en": None}),
        (("sentencepiece", "a"), ("subword_nmt", "b"), {"de": "a", "en": "b"}),
        (("sentencepiece", "a"), ("subword_nmt", ""), {"de": "a", "en": None}),
        (("sentencepiece", ""), ("subword_nmt", "b"), {"de": None, "en": "b"}),
        (("sentencepiece", "a"), ("none", ""), {"de": "a", "en": "none"}),
        (("none", ""), ("sentencepiece", "b"), {"de": "none", "en": "b"}),
        (("none", ""), ("", ""), {"de": "none", "en": "none"}),
    ],
)
def test_the_subword_model_of_each_language_is_its_own_or_unknown(source, target, expected):
    manifest = Manifest(
        language="de", parser="none", parser_version="", fields=["words"], constituents="none",
        tokenized=False, bpe=source[0], bpe_model="a.model", bpe_digest=source[1], dictionary="",
        target_bpe=target[0], target_model="b.model", target_digest=target[1],
    )  # fmt: skip
    for language, digest in expected.items():
        entry = manifest.subword_model_of(language)
        assert (None if entry is None else entry.value) == digest
        if entry is not None:
            is_source = language == "de" or not target[0]
            assert entry.part == ("text" if is_source else "target-text")
            name = "a.model" if is_source else "b.model"
            assert name in entry.label or digest == "none"
