"""``fairseq-phrase-demo``: its answers, its limits, and the page in a real browser."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import threading
from dataclasses import replace

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from fairseq_phrase.cli.demo import main, named_paths
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference import search
from fairseq_phrase.inference.translator import load
from fairseq_phrase.lab.demo import server
from fairseq_phrase.lab.demo.server import make_app
from fairseq_phrase.syntax.sentence import Edge
from fairseq_phrase.text import read_lines
from tests.support.shared import Checkpoints

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def text(synthetic_corpus):
    """A sentence of the test set with several words."""
    every = list(read_lines(synthetic_corpus / "test.de"))
    return next(line for line in every if every.count(line) == 1 and len(line.split()) > 6)


@pytest.fixture(scope="module")
def checkpoints(data_directory, tmp_path_factory):
    """An encoder that reads trees and fairseq's own, after a few updates."""
    task = ["--task", "syntax_translation"]
    return Checkpoints(
        tmp_path_factory,
        data_directory,
        {
            "tree": [*task, "--arch", "tree_transformer_tiny"],
            "plain": [*task, "--arch", "transformer"],
        },
    )


@pytest.fixture(scope="module")
def models(checkpoints, data_directory, synthetic_corpus):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "LONGEST", 10)
        loaded = {
            name: load(path, data_directory, source_parser=f"gold:{synthetic_corpus}/test.de")
            for name, path in checkpoints.items()
        }
        yield loaded


@pytest.fixture
def client(models):
    return TestClient(make_app(models), base_url="http://127.0.0.1")


def test_the_page_begins_with_a_sentence_of_the_data(client, models, synthetic_corpus):
    start = client.get("/api/start").json()
    assert start["models"] == list(models)
    lines = [
        line
        for split in ("train", "valid", "test")
        for line in read_lines(synthetic_corpus / f"{split}.de")
    ]
    assert start["example"] in lines


def ask(client, **question):
    return client.post("/api/translate", json=question)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "text/json"]
)
def test_a_page_of_another_site_cannot_ask(client, kind):
    """A browser sends these for every page, and JSON only after asking the server."""
    question = json.dumps({"model": "plain", "text": "a"})
    answer = client.post("/api/translate", content=question, headers={"Content-Type": kind})
    assert answer.status_code == 415
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = client.options("/api/translate", headers=preflight)
    assert "access-control-allow-origin" not in answer.headers


def test_an_answer_has_translation_trees_and_attention_of_every_layer_and_head(
    client, models, text
):
    answer = ask(client, model="tree", text=text).json()
    assert answer["translation"] == models["tree"].translate(text)
    (sentence,) = models["tree"].parse([text])
    assert answer["words"] == sentence.words
    assert answer["heads"] == sentence.tree.heads.tolist()
    assert answer["reads_trees"]
    nodes = len(answer["attention"]["nodes"])
    (weights,) = answer["attention"]["blocks"].values()
    config = models["tree"].models[0].cfg.encoder
    assert [len(heads) for heads in weights] == [config.attention_heads] * config.layers
    assert all(len(row) == nodes for row in weights[0][0])
    assert sum(weights[0][0][0]) == pytest.approx(1.0, abs=0.01 * nodes)


def test_an_answer_has_the_edges_of_graphs(client, models, text, monkeypatch):
    (sentence,) = models["tree"].parse([text])
    parsed = replace(sentence, edges={"enhanced": [Edge(1, 0, "x"), Edge(1, 1, "root")]})
    monkeypatch.setattr(models["tree"], "parse", lambda lines: [parsed])
    answer = ask(client, model="tree", text=text).json()
    assert answer["graphs"] == {"enhanced dependencies": [[1, 0, "x"], [1, 1, "root"]]}


def test_edited_heads_change_what_the_model_reads(client, text):
    answer = ask(client, model="tree", text=text).json()
    root = next(word for word, head in enumerate(answer["heads"]) if word == head)
    flat = [root] * len(answer["words"])
    edited = ask(client, model="tree", text=text, heads=flat).json()
    assert edited["heads"] == flat
    # The constituents of this corpus are made of the dependency trees.
    assert edited["constituents"] != answer["constituents"]
    assert edited["attention"]["blocks"] != answer["attention"]["blocks"]


def test_fairseqs_own_encoder_has_no_attention_but_the_rest(client, text):
    answer = ask(client, model="plain", text=text).json()
    assert answer["attention"] is None
    assert answer["no_attention"] == "its attention cannot be shown"
    assert not answer["reads_trees"]
    assert answer["heads"]


@pytest.mark.parametrize(
    ("question", "status", "said"),
    [
        ({"model": "none", "text": "a"}, 404, "no model none"),
        ({"model": "tree", "text": "x" * 1001}, 422, "1001 characters, 1000 fit"),
        ({"model": "tree", "text": "   "}, 422, "empty"),
        ({"model": "tree", "text": "a", "heads": "x"}, 422, "heads: Input should be a valid array"),
        ({"model": "tree", "text": "a", "heads": ["\ud800"]}, 422, "Invalid JSON"),
        ({"model": "tree", "text": "a", "heads": [float("nan")]}, 422, "heads.0: "),
        ({"model": "tree", "text": "a", "more": 1}, 422, "more: Extra inputs are not permitted"),
        ({"model": "\ud800", "text": "a"}, 422, ""),
        ({"model": "tree", "text": "\udfff"}, 422, ""),
        ([1], 422, "should be an object"),
    ],
)
def test_bad_questions_are_refused_with_a_reason(client, question, status, said):
    kind = {"Content-Type": "application/json; charset=utf-8"}
    answer = client.post("/api/translate", content=json.dumps(question), headers=kind)
    assert answer.status_code == status
    assert said in str(answer.json()["detail"])


def test_a_large_request_is_refused_before_it_is_read(client):
    received, sent = [], []

    async def receive():
        received.append(1 << 15)
        return {"type": "http.request", "body": b" " * (1 << 15), "more_body": len(received) < 1600}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/api/translate", "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
    }  # fmt: skip
    asyncio.run(client.app(scope, receive, send))
    assert sent[0]["status"] == 413
    assert b"at most 65536 bytes" in sent[1]["body"]
    assert sum(received) < 1 << 17


def test_heads_that_are_no_tree_are_refused(client, text):
    words = len(ask(client, model="tree", text=text).json()["words"])
    circle = [1, 0] + [0] * (words - 2)
    answer = ask(client, model="tree", text=text, heads=circle)
    assert answer.status_code == 422
    assert "not a tree" in answer.json()["detail"]
    huge = ask(client, model="tree", text=text, heads=[10**30] * words)
    assert huge.status_code == 422
    assert "heads" in huge.json()["detail"]
    assert "heads were given" in ask(client, model="tree", text=text, heads=[0]).json()["detail"]


def test_length_and_time_are_limited(models, text, monkeypatch):
    client = TestClient(make_app(models), base_url="http://127.0.0.1")
    monkeypatch.setattr(server, "MOST_WORDS", 3)
    assert "at most 3 fit" in ask(client, model="tree", text=text).json()["detail"]
    # A search that takes long.
    monkeypatch.setattr(server, "answer", lambda *arguments: threading.Event().wait(1))
    monkeypatch.setattr(server, "SECONDS", 0.1)
    answer = ask(client, model="tree", text=text)
    assert answer.status_code == 503
    assert "no answer within 0.1 seconds" in answer.json()["detail"]


def test_eight_sentences_wait_and_a_ninth_is_refused(models, text, monkeypatch):
    goes_on = threading.Event()
    # A search that ends when the test says so.
    monkeypatch.setattr(server, "answer", lambda *arguments: {"waited": goes_on.wait(30)})
    app = make_app(models)

    async def statuses(count):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            url, question = "/api/translate", {"model": "tree", "text": text}
            answers = [asyncio.create_task(client.post(url, json=question)) for _ in range(count)]
            await asyncio.wait(answers, return_when="FIRST_COMPLETED", timeout=1)
            goes_on.set()
            return [(await answer).status_code for answer in answers]

    for count in (7, 8, 9):
        goes_on.clear()
        refused = max(0, count - 8)
        assert asyncio.run(statuses(count)) == [200] * (count - refused) + [503] * refused


def test_the_page_is_reached_by_this_machines_names_alone(models):
    app = make_app(models)
    assert TestClient(app, base_url="http://localhost").get("/").status_code == 200
    assert TestClient(app, base_url="http://elsewhere.example").get("/").status_code == 400
    page = TestClient(app, base_url="http://127.0.0.1").get("/")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert "http" not in page.text.replace("http-equiv", "")  # nothing from the internet


def test_models_are_named_after_their_rows(tmp_path):
    paths = [tmp_path / row / "seed1" / "average.pt" for row in ("a", "b")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.touch()
    assert list(named_paths(map(str, paths))) == ["a", "b"]
    assert named_paths([f"x={paths[0]}"]) == {"x": str(paths[0])}
    with pytest.raises(UserError, match="two models are named 'a'"):
        named_paths([str(paths[0]), str(paths[0])])


def test_a_missing_checkpoint_is_one_message(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path / "none.pt"), "--port", str(free_port())])
    assert stopped.value.code == 2
    assert "none.pt" in capsys.readouterr().err


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "reads the parses of a text from a file: give"),
        (["--source-parser", "spacy:de_nowhere"], "python -m spacy download de_nowhere"),
    ],
)
@pytest.mark.parametrize("name", ["plain", "tree"])
def test_a_missing_parser_is_named_before_the_page_is_served(
    name, flags, message, checkpoints, data_directory, capsys, monkeypatch
):
    """The page parses every sentence, also for a model that reads no trees."""
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: None)
    with pytest.raises(SystemExit) as stopped:
        main([
            str(checkpoints[name]), "--data", str(data_directory), "--port", str(free_port()), *flags,
        ])  # fmt: skip
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "http" not in printed.out


@pytest.fixture
def address(models):
    """A running server."""
    port = free_port()
    running = uvicorn.Server(uvicorn.Config(make_app(models), port=port, log_level="error"))
    thread = threading.Thread(target=running.run)
    thread.start()
    yield f"http://127.0.0.1:{port}/"
    running.should_exit = True
    thread.join()


@pytest.fixture
def browser():
    """Debian's chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,1000"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="apt-get install chromium chromium-driver"
)
def test_a_tree_is_edited_in_a_browser_and_what_is_typed_is_no_markup(address, browser, text):
    waiting = WebDriverWait(browser, 60)

    def settled(found):
        body = found.find_element(By.TAG_NAME, "body")
        return body.get_attribute("aria-busy") == "false"

    def words():
        return browser.find_elements(By.CSS_SELECTOR, "#arcs .word")

    browser.get(address)
    waiting.until(lambda found: found.execute_script("return state.models.length") == 2)
    field = browser.find_element(By.ID, "text")
    waiting.until(lambda found: field.get_attribute("value"))  # an example, which is translated
    waiting.until(lambda found: len(found.find_elements(By.TAG_NAME, "article")) == 2)
    waiting.until(settled)
    busy = (
        "document.body.ariaBusy = 'true';"
        "return getComputedStyle(document.querySelector('button'), '::after').content"
    )
    assert "…" in browser.execute_script(busy)
    field.clear()
    field.send_keys(text)
    field.submit()
    waiting.until(lambda found: len(found.find_elements(By.TAG_NAME, "article")) == 2)
    waiting.until(settled)
    assert [word.text for word in words()] == text.replace(".", " .").split()
    assert not browser.find_elements(By.CSS_SELECTOR, "#arcs .edited")
    before = browser.execute_script("return [...state.heads]")
    # The second word gets the last one as its head.
    words()[1].click()
    words()[-1].click()
    waiting.until(lambda found: found.find_elements(By.CSS_SELECTOR, "#arcs .edited"))
    waiting.until(settled)
    after = browser.execute_script("return state.heads")
    assert after != before
    assert after[1] == len(after) - 1
    browser.find_element(By.ID, "reset").click()
    waiting.until(lambda found: not found.find_elements(By.CSS_SELECTOR, "#arcs .edited"))
    waiting.until(settled)
    # A node shows what it attends to.
    browser.execute_script("document.querySelector('.node').focus()")
    assert "attends to" in browser.find_element(By.CSS_SELECTOR, ".weights").text
    field.clear()
    field.send_keys("<b id='markup'>x</b>")
    field.submit()
    waiting.until(settled)
    assert not browser.find_elements(By.ID, "markup")
    problems = [entry for entry in browser.get_log("browser") if "422" not in entry["message"]]
    assert problems == []


@pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="apt-get install chromium chromium-driver"
)
def test_trees_of_right_to_left_words_are_mirrored(address, browser):
    browser.get(address)
    for words, is_mirrored in (
        ("رأى الولد .", True),
        ("שלום עולם", True),
        ("ein Hund שלום", False),
    ):
        places = browser.execute_script(
            "const words = arguments[0].split(' ');"
            "return wordMiddles({words, tags: []}, words.map((_, word) => [0, word, 'x']))[0];",
            words,
        )
        assert places == sorted(places, reverse=is_mirrored)
