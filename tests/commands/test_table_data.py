"""What the scripts of tables make their data with: downloads, slices, the IWSLT archive, the curve."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fairseq_phrase.errors import UserError
from tests.support.report_table import table_lines
from tests.support.repository import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))
import curve
import download
import iwslt14
import parallel_trees

CONTENT = bytes(range(256)) * 400
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class _Files(BaseHTTPRequestHandler):
    """Serves CONTENT, parts of it too; /broken stops half-way, /whole knows no parts."""

    def do_GET(self):
        self.server.ranges.append(self.headers["Range"])
        start = 0
        if self.headers["Range"] and self.path != "/whole":
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
            if start >= len(CONTENT):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
                self.end_headers()
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : len(CONTENT) // 2 if self.path == "/broken" else None])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """A server on this machine, with a list of the ranges that it was asked for."""
    with HTTPServer(("127.0.0.1", 0), _Files) as served:
        served.ranges = []
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def url(server, path: str) -> str:
    return f"http://127.0.0.1:{server.server_port}/{path}"


@pytest.mark.parametrize("rest", ["file", "whole"], ids=["resumed", "from the start"])
def test_a_download_that_breaks_off_says_so_and_is_finished_the_next_time(server, tmp_path, rest):
    file = tmp_path / "data" / "file.tgz"
    with pytest.raises(SystemExit, match=r"broke off after 51,200 of 102,400 bytes; run again"):
        download.download(url(server, "broken"), file, SHA256)
    assert not file.exists()
    download.download(url(server, rest), file, SHA256)
    assert file.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=51200-"]
    download.download(url(server, rest), file, SHA256)
    assert len(server.ranges) == 2


def test_a_whole_partial_download_is_finished_and_a_longer_one_refused(server, tmp_path):
    partial = tmp_path / "file.partial"
    partial.write_bytes(CONTENT + b"more")
    with pytest.raises(SystemExit, match="416"):
        download.download(url(server, "file"), tmp_path / "file", SHA256)
    partial.write_bytes(CONTENT)
    download.download(url(server, "file"), tmp_path / "file", SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_download_of_another_checksum_is_refused(server, tmp_path):
    with pytest.raises(SystemExit, match=f"is not what it was .sha256 {SHA256}, expected 0+"):
        download.download(url(server, "file"), tmp_path / "file", "0" * 64)
    assert not list(tmp_path.iterdir())


def test_a_checksum_that_nobody_knows_is_recorded_and_then_holds(server, tmp_path, capsys):
    file = tmp_path / "file"
    download.download(url(server, "file"), file, None)
    assert "no checksum is known" in capsys.readouterr().out
    assert (tmp_path / "file.sha256").read_text() == f"{SHA256}  file\n"
    file.unlink()
    download.download(url(server, "file"), file, None)
    file.unlink()
    (tmp_path / "file.sha256").write_text(f"{'1' * 64}  file\n")
    with pytest.raises(SystemExit, match="is not what it was"):
        download.download(url(server, "file"), file, None)


def test_a_download_without_checksum_or_https_is_refused(tmp_path):
    """A file that nobody knows could be another's on its way."""
    with pytest.raises(SystemExit, match="use https, or give --sha256"):
        download.download("http://example.invalid/file", tmp_path / "file", None)


def test_a_server_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"cannot download http://127\.0\.0\.1:9/file: "):
        download.download("http://127.0.0.1:9/file", tmp_path / "file", SHA256)


def sliced(*arguments: object) -> list[str]:
    command = [sys.executable, "scripts/slice.py", *map(str, arguments)]
    process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return process.stdout.splitlines()


def test_slices_are_the_first_lines_or_others_or_one_of_several(tmp_path):
    lines = [f"line {number}" for number in range(20)]
    (tmp_path / "text.de").write_text("\n".join(lines) + "\n")
    assert sliced(tmp_path / "text", "de", 3) == lines[:3]
    assert sliced(tmp_path / "text", "de", 3, "--from", 15) == lines[15:18]
    assert sliced(tmp_path / "text", "de", "--every", 8) == lines[::8]
    assert sliced(tmp_path / "text", "de", 2, "--every", 4) == ["line 0", "line 4"]


@pytest.fixture
def iwslt_archive(tmp_path):
    """An archive like IWSLT 2014's: two talks of 25 sentences each, and five test sets of one."""
    path = tmp_path / "de-en.tgz"
    with tarfile.open(path, "w:gz") as archive:

        def add(name: str, text: str) -> None:
            content = text.encode()
            entry = tarfile.TarInfo(f"de-en/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))

        for language in ("de", "en"):
            talks = "".join(
                f"<url>http://talk</url>\n<keywords>a, b</keywords>\n<talkid>{talk}</talkid>\n"
                f"<title>Title {language}</title>\n<description>About {language}</description>\n"
                + "".join(f" {language} {talk}.{number} \n" for number in range(23))
                for talk in range(2)
            )
            add(f"train.tags.de-en.{language}", talks)
            for name in (
                "TED.dev2010",
                "TEDX.dev2012",
                "TED.tst2010",
                "TED.tst2011",
                "TED.tst2012",
            ):
                segment = f"{name} R&amp;D, {language}"
                xml = f'<doc>\n<seg id="1"> {segment} </seg>\n</doc>\n'
                add(f"IWSLT14.{name}.de-en.{language}.xml", xml)
    with tarfile.open(path) as archive:
        yield archive


def test_the_iwslt_archive_gives_parallel_text(iwslt_archive):
    for language in ("de", "en"):
        train, dev, test = (
            list(iwslt14.side(iwslt_archive, "de-en", split, language))
            for split in ("train", "dev", "test")
        )
        assert len(train) == 48
        assert train[:3] == [f"Title {language}", f"About {language}", f"{language} 0.0"]
        assert dev == [f"{language} 0.20", f"{language} 1.18"]
        assert test[0] == f"TED.dev2010 R&D, {language}"
        assert len(test) == 5


def test_the_authors_text_of_iwslt_is_of_moses_tokens_and_lengths(iwslt_archive, tmp_path):
    iwslt14.write_moses(iwslt_archive, "de-en", tmp_path)
    for language in ("de", "en"):
        train, dev, test = (
            (tmp_path / f"{split}.{language}").read_text("utf-8").splitlines()
            for split in ("train", "dev", "test")
        )
        assert train[:3] == [f"title {language}", f"about {language}", f"{language} 0.0"]
        assert dev == [f"{language} 0.20", f"{language} 1.18"]
        assert test[0] == f"ted.dev2010 r &amp; d , {language}"


def test_the_authors_lengths_of_pairs():
    assert iwslt14.is_kept(("a " * 175, "b " * 117))
    for pair in (("a " * 176, "b " * 150), ("a " * 4, "b b"), ("", "b"), ("a " * 175, "b " * 116)):
        assert not iwslt14.is_kept(pair)
        assert not iwslt14.is_kept(pair[::-1])


def test_an_archive_without_the_pair_is_named(iwslt_archive):
    with pytest.raises(SystemExit, match=r"has no en-fr/train\.tags\.en-fr\.en"):
        list(iwslt14.side(iwslt_archive, "en-fr", "train", "en"))


def test_the_curve_has_a_column_for_each_share_and_gaps_where_a_row_is_missing(tmp_path):
    heading = "row,title,paper,runs,left_out,BLEU_mean,BLEU_sd\n"
    for name, rows in (
        ("half", "a,Model A,,2,0,10.004,0.5\n"),
        ("whole", "a,Model A,,2,0,20.0,1.25\nb,Model B,,1,0,30.0,\nc,Model C,,0,1,,\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.csv").write_text(heading + rows)
    reports = {
        Fraction(1, 2): curve.read_report(tmp_path / "half"),
        Fraction(1): curve.read_report(tmp_path / "whole"),
    }
    text = curve.table(reports, "Curve")
    assert text.startswith("**Curve**\n\n| model ")
    assert table_lines(text) == [
        ["model", "1/2", "1"],
        ["Model A", "10.00 ± 0.50", "20.00 ± 1.25"],
        ["Model B", "-", "30.00"],
    ]
    curve.plot(reports, "Curve", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1/4"], "1/4: expected SHARE=DIR"),
        (["half=DIR"], "half=DIR: expected SHARE=DIR"),
        (["0=DIR"], "0=DIR: expected SHARE=DIR"),
        (["1/4=ONE", "2/8=TWO"], "ONE and TWO are both of the share 1/4"),
        (["1/4=/nowhere"], r"No such file .*/nowhere/report\.csv"),
    ],
)
def test_reports_of_which_no_curve_can_be_made_are_named(arguments, message):
    with pytest.raises(SystemExit, match=message):
        curve.read_reports(arguments)


# Parallel treebanks


TREE = "# text = {0}\n1\t{0}\t_\t_\t_\t_\t0\troot\t_\t_\n\n"


def test_parallel_trees_become_texts_beside_their_trees(tmp_path):
    for language, words in (("en", "one two three"), ("tr", "bir iki üç")):
        trees = "".join(map(TREE.format, words.split()))
        for split in ("train", "valid", "test"):
            (tmp_path / f"{split}.{language}.conllu.gz").write_bytes(gzip.compress(trees.encode()))
    parallel_trees.main([str(tmp_path), "en", "tr", f"{tmp_path}/out", "--pairs", "2"])
    assert (tmp_path / "out" / "train.tr").read_text("utf-8") == "bir\niki\n"
    assert (tmp_path / "out" / "test.tr").read_text("utf-8") == "bir\niki\nüç\n"
    trees = (tmp_path / "out" / "train.en.conllu").read_text("utf-8")
    assert trees == TREE.format("one") + TREE.format("two")


@pytest.mark.parametrize(
    ("turkish", "message"),
    [
        (TREE.format("bir"), "train.tr.conllu has 1: expected the same sentences in the same"),
        ("1\tbir\n", "train.tr.conllu, line 1: a tree without a line '# text = …'"),
    ],
)
def test_trees_that_are_not_parallel_are_refused(turkish, message, tmp_path):
    (tmp_path / "train.en.conllu").write_text(TREE.format("one") + TREE.format("two"))
    (tmp_path / "train.tr.conllu").write_text(turkish)
    with pytest.raises(UserError, match=re.escape(message)):
        parallel_trees.main([str(tmp_path), "en", "tr", f"{tmp_path}/out"])
    assert not [*tmp_path.glob("out*")]


# Corpora that scripts look for

ROWS = [
    line.split() for line in (REPOSITORY / "scripts/corpora.txt").read_text().splitlines()
    if not line.startswith("#")
]  # fmt: skip
LISTED = [row[:3] for row in ROWS]
FURTHER = {row[1] for row in ROWS if row[3:] == ["further"]}


def of_data_sh(folder, commands, **environment):
    """Run commands with the functions of scripts/data.sh in a folder; return what they print."""
    for link in ("scripts", "setup.py", "pyproject.toml"):
        if not (folder / link).exists():
            (folder / link).symlink_to(REPOSITORY / link)
    script = f'. scripts/common.sh; . scripts/data.sh; download() {{ echo "$@"; }}; {commands}'
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip


def find_corpus(folder, name, **environment):
    """Call find_corpus of scripts/data.sh in a folder; return its status, the folder, the downloads."""
    commands = f"status=0; find_corpus {name} || status=$?; echo $status; echo $FOUND"
    *downloads, status, found = of_data_sh(folder, commands, **environment)
    return status, found, downloads


def test_every_listed_file_has_a_checksum_and_an_address_that_does_not_change():
    for checksum, file, address in LISTED:
        assert re.fullmatch("[0-9a-f]{64}", checksum)
        assert re.fullmatch(
            r"https://raw.githubusercontent.com/[^/]+/[^/]+/[0-9a-f]{40}/\S+"
            r"|https://deb.debian.org/debian/pool/\S+_[\d.-]+_all\.deb",
            address,
        )
        assert file.endswith(address.rpartition(".")[2])


def test_a_corpus_is_found_where_all_its_files_are(tmp_path):
    project, data = tmp_path / "project", tmp_path / "data" / "geo"
    project.mkdir()
    data.mkdir(parents=True)
    settings = {"FAIRSEQ_PHRASE_DATA": str(data.parent)}
    (data / "geo880_train600.tsv").touch()
    status, folder, downloads = find_corpus(project, "geo", **settings)
    assert (status, folder) == ("0", "data/geo")
    assert [line.split()[1] for line in downloads] == [
        "data/geo/geo880_train600.tsv",
        "data/geo/geo880_test280.tsv",
    ]
    assert [line.split()[::2] for line in downloads] == [
        [address, checksum] for checksum, file, address in LISTED if file.startswith("geo/")
    ]
    (data / "geo880_test280.tsv.gz").touch()
    assert find_corpus(project, "geo", **settings) == ("0", str(data), [])


def test_a_folder_may_lack_further_files_and_a_download_has_them(tmp_path):
    project, data = tmp_path / "project", tmp_path / "data"
    (data / "multi30k").mkdir(parents=True)
    project.mkdir()
    names = [file for _, file, _ in LISTED if file.startswith("multi30k/")]
    assert set(names[: len(FURTHER)]) == FURTHER, "what a table cannot lack is downloaded last"
    *_, downloads = find_corpus(project, "multi30k", FAIRSEQ_PHRASE_DATA=str(data))
    assert [line.split()[1] for line in downloads] == [f"data/{name}" for name in names]
    for name in set(names) - FURTHER:
        (data / name).touch()
    for suffix in (".gz", ""):
        result = find_corpus(project, "multi30k", FAIRSEQ_PHRASE_DATA=str(data))
        assert result == ("0", f"{data}/multi30k", []), suffix
        for file in (data / "multi30k").iterdir():
            file.rename(file.with_name(file.name.removesuffix(".gz")))


def test_tests_are_those_of_the_folder_and_of_data_that_are_there(tmp_path):
    text, data = tmp_path / "multi30k", tmp_path / "data-bin"
    command = f"SOURCE=fr TARGET=tag; find_tests '{data}' '{text}' one two three; echo ${{SETS[*]}}"
    assert of_data_sh(tmp_path, f"DRY_RUN=1; {command}") == ["one two three"]
    text.mkdir()
    for name in ("two.fr", "three.fr.gz", "three.tag"):
        (text / name).touch()
    missing = f"# missing: the test set two is not in {text}, and is left out"
    assert of_data_sh(tmp_path, command) == [missing, "one three"]
    data.mkdir()
    manifest = data / "kept.syntax.en.json"
    manifest.write_text('{"splits": {"test": {}, "test1": {}}}')
    assert of_data_sh(tmp_path, command) == [missing, "one three"]
    manifest.write_text('{"splits": {"test": {}}}')
    assert of_data_sh(tmp_path, command) == ["one"]


def test_data_alone_keep_the_texts_that_another_machine_lacks(tmp_path):
    project, data, out = tmp_path / "project", tmp_path / "data", tmp_path / "out"
    project.mkdir()
    (data / "sst").mkdir(parents=True)
    (data / "sst" / "pairs").mkdir()
    named = {"val.en.gz", "test_2016.en.gz", "late.en", "tune.de.gz", "pairs/tgt.incorrect.de"}
    for name in ("train.en.gz", "lately.en", *named):
        (data / "sst" / name).write_text(name)
    settings = {"FAIRSEQ_PHRASE_DATA": str(data), "OUT": str(out), "DRY_RUN": ""}
    keep = "sst; SETS=(test_2016 late) DEV=$FOUND/tune; keep_texts"
    assert find_corpus(project, keep, **settings) == ("0", f"{data}/sst", [])
    folder = out / "corpora" / "sst"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.*")} == named
    assert find_corpus(project, "sst", **settings) == ("0", f"{out}/corpora/sst", [])
    again = settings | {"DATA_ONLY": "1"}
    assert find_corpus(project, "sst", **again) == ("0", f"{data}/sst", [])
    shutil.rmtree(data)
    assert find_corpus(project, "sst", **settings) == ("0", f"{out}/corpora/sst", [])
