"""The page's server: a FastAPI application over loaded models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from typing import Any

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.translator import Translator
from fairseq_phrase.lab.demo.answers import answer, example_of
from fairseq_phrase.optional_packages import optional_packages

with optional_packages("the page needs FastAPI", "fastapi uvicorn"):
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.responses import Response
    from pydantic import BaseModel, ConfigDict, ValidationError
    from starlette.middleware.trustedhost import TrustedHostMiddleware

_FILES = {"": "page.html", "page.js": "page.js", "page.css": "page.css"}
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
#: The page loads nothing from elsewhere, and no other page may frame it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
# Limits of a request's size, of the number of waiting requests, and of the seconds that one waits for its
# turn and its answer.
_MOST_BYTES, _MOST_CHARACTERS, MOST_WORDS, _MOST_WAITING, SECONDS = 1 << 16, 1000, 60, 8, 60


class Question(BaseModel):
    """A request: a sentence for a model, perhaps with an edited tree."""

    model_config = ConfigDict(extra="forbid")

    model: str
    text: str
    heads: list[int] | None = None


async def _question(request: Request) -> Question:
    """Read a request; a request that is too large is refused before all of it has arrived."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "expected the content type application/json")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, f"a request has at most {_MOST_BYTES} bytes")
    try:
        return Question.model_validate_json(body)
    except ValidationError as error:
        flaws = error.errors(include_url=False, include_context=False, include_input=False)
        where = ".".join(map(str, flaws[0]["loc"]))
        message = f"{where}: {flaws[0]['msg']}" if where else flaws[0]["msg"]
        raise HTTPException(422, message) from None


def make_app(
    models: Mapping[str, Translator], *, hosts: Sequence[str] = ("127.0.0.1", "localhost")
) -> FastAPI:
    """Make the application.

    Args:
        models: loaded models by the name that the page shows.
        hosts: the names by which the server may be addressed. A page of another site cannot reach it by
            another name.
    """
    app = FastAPI(title="fairseq_phrase", openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    # One sentence at a time: a model uses all cores.
    worker = ThreadPoolExecutor(1, thread_name_prefix="model")
    waiting = 0

    @app.get("/api/start")
    async def start() -> dict[str, Any]:
        return {"models": list(models), "example": example_of(next(iter(models.values())))}

    @app.post("/api/translate")
    async def translate(request: Request) -> dict[str, Any]:
        nonlocal waiting
        question = await _question(request)
        if question.model not in models:
            raise HTTPException(404, f"there is no model {question.model[:100]}")
        if len(question.text) > _MOST_CHARACTERS:
            count = len(question.text)
            raise HTTPException(422, f"the text has {count} characters, {_MOST_CHARACTERS} fit")
        if waiting >= _MOST_WAITING:
            raise HTTPException(503, "too many sentences are waiting: try again")
        text = " ".join(question.text.split())
        work = partial(answer, models[question.model], text, question.heads, MOST_WORDS)
        waiting += 1
        try:
            running = asyncio.get_running_loop().run_in_executor(worker, work)
            return await asyncio.wait_for(running, SECONDS)
        except asyncio.TimeoutError:
            message = f"no answer within {SECONDS} seconds: try a shorter sentence"
            raise HTTPException(503, message) from None
        except UserError as error:
            raise HTTPException(422, str(error)) from None
        finally:
            waiting -= 1

    @app.get("/")
    @app.get("/{name}")
    async def page(name: str = "") -> Response:
        if name == "favicon.ico":  # browsers ask for it
            return Response(status_code=204)
        if name not in _FILES:
            raise HTTPException(404, "there is no such page")
        file = _FILES[name]
        content = files("fairseq_phrase.lab.demo").joinpath(file).read_bytes()
        return Response(content, media_type=_TYPES[file.rpartition(".")[2]], headers=_HEADERS)

    return app
