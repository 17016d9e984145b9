"""Draw docs/demo.png: the page of fairseq-phrase-demo in Chromium, with a tree that was edited.

python docs/demo.py NAME=CHECKPOINT... [options of fairseq-phrase-demo]

The picture there shows the model of docs/tutorials/translate.md:

python docs/demo.py trees=checkpoints/trees/checkpoint_best.pt \\
    --data data-bin/synthetic --source-parser spacy:de_core_news_sm
"""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

SENTENCE = "Der Mann wird manchmal die Zeitung vom Anwalt stehlen."
#: A word, and the two heads that it can have. It gets the one that the parser did not choose.
DEPENDENT, HEADS = "Anwalt", ("Zeitung", "stehlen")
WIDTH, HEIGHT, COLOURS = 1250, 920, 96


def free_port() -> int:
    """Return a port that no program uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def picture(address: str) -> bytes:
    """Translate the sentence, give the word its other head, and return the page as PNG."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as browser:
        metrics = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        waiting = WebDriverWait(browser, 120)

        def is_settled(page: webdriver.Chrome) -> bool:
            return page.find_element(By.TAG_NAME, "body").get_attribute("aria-busy") == "false"

        browser.get(address)
        field = browser.find_element(By.ID, "text")
        waiting.until(lambda page: page.execute_script("return state.models.length"))
        field.clear()
        field.send_keys(SENTENCE)
        field.submit()
        waiting.until(lambda page: DEPENDENT in page.find_element(By.ID, "arcs").text)
        waiting.until(is_settled)
        names = [word.text for word in browser.find_elements(By.CSS_SELECTOR, "#arcs .word")]
        parsed = names[browser.execute_script("return state.heads")[names.index(DEPENDENT)]]
        for name in (DEPENDENT, next(head for head in HEADS if head != parsed)):
            browser.find_elements(By.CSS_SELECTOR, "#arcs .word")[names.index(name)].click()
        waiting.until(lambda page: page.find_elements(By.CSS_SELECTOR, "#arcs .edited"))
        waiting.until(is_settled)
        return bytes(browser.get_screenshot_as_png())


def main(arguments: list[str]) -> None:
    """Serve the models, and draw the page."""
    port = free_port()
    command = ["fairseq-phrase-demo", *arguments, "--port", str(port)]
    server = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        lines = []
        for line in server.stdout or ():
            lines.append(line)
            if "http://" in line:
                break
        else:
            sys.exit("".join(lines))
        image = Image.open(io.BytesIO(picture(f"http://127.0.0.1:{port}/"))).convert("RGB")
    finally:
        server.terminate()
        server.wait()
    image.quantize(COLOURS).save(Path(__file__).with_suffix(".png"), optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
