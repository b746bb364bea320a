"""What the examples say when a server refuses them, is not there, or answers briefly."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from tokenflow_sgl.lab.demo.server import free_port

CLIENTS = ("openai_client", "voice", "looking_away", "even_stream")


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    """It answers each request with `status` and `body`; its `url`."""
    given = SimpleNamespace(status=401, kind="application/json", body=b'{"error": "Unauthorized"}')

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(given.status)
            self.send_header("content-type", given.kind)
            self.send_header("content-length", str(len(given.body)))
            self.end_headers()
            self.wfile.write(given.body)

        def log_message(self, *_: object) -> None:
            """Not on the test's output."""

    with HTTPServer(("127.0.0.1", 0), Answer) as listens:
        thread = threading.Thread(target=listens.serve_forever)
        thread.start()
        given.url = f"http://127.0.0.1:{listens.server_port}"
        yield given
        listens.shutdown()
        thread.join()


def run(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--url", url])
    importlib.import_module(name).main()


@pytest.mark.parametrize("name", CLIENTS)
def test_a_wrong_key_is_said_in_a_sentence(name, server, monkeypatch) -> None:
    with pytest.raises(SystemExit) as ended:
        run(name, server.url, monkeypatch)
    assert str(ended.value.code).startswith("The request failed: Error code: 401")
    assert "Unauthorized" in str(ended.value.code)


def test_no_server_is_said_in_a_sentence(monkeypatch) -> None:
    with pytest.raises(SystemExit) as ended:
        run("looking_away", f"http://127.0.0.1:{free_port()}", monkeypatch)
    assert ended.value.code == "The request failed: Connection error."


def chunk(**delta: str) -> str:
    """A piece of an answer, as a server sends it."""
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    told = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return f"data: {json.dumps({**told, 'choices': [choice]})}\n\n"


def answers(server: SimpleNamespace, *pieces: str) -> None:
    """The server sends these pieces to whoever asks."""
    server.status, server.kind = 200, "text/event-stream"
    server.body = "".join([*pieces, "data: [DONE]\n\n"]).encode()


def test_an_answer_too_short_to_look_away_from_is_not_said_to_have_rested(
    server, monkeypatch, capsys
) -> None:
    answers(server, *[chunk(reasoning_content="hm")] * 30, chunk(content="Yes."))
    run("looking_away", server.url, monkeypatch)
    assert capsys.readouterr().out == "Yes.\n[1 pieces of text: too few to look away after 10]\n"


def test_the_openai_client_says_that_the_model_thinks(server, monkeypatch, capsys) -> None:
    thoughts = [chunk(reasoning_content="hm")] * 3
    answers(server, *thoughts, chunk(content="Yes"), chunk(content="."))
    run("openai_client", server.url, monkeypatch)
    first, text, last = capsys.readouterr().out.splitlines()
    assert (first, text) == ("[thinking]", "Yes.")
    assert last.startswith("[first text after ")
    answers(server, *thoughts)
    run("openai_client", server.url, monkeypatch)
    said = "[no text within 200 tokens: --max-tokens allows more, answer complete after "
    assert said in capsys.readouterr().out
