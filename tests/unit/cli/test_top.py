"""``tokenflow top``: one look at a server's metrics, and servers that have none."""

from __future__ import annotations

import importlib
import signal
import socket
import subprocess
import sys
import time

import pytest
from busy_server import page, work
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.observe import ScrapeError, fetch, parse

command = importlib.import_module("tokenflow_sgl.cli.top")


def test_once(recorder, monkeypatch) -> None:
    before = page()
    work(recorder)
    pages = iter([before, page()])
    monkeypatch.setattr("tokenflow_sgl.lab.observe.metrics_page.scrape", lambda url: next(pages))
    monkeypatch.setattr(command.time, "sleep", lambda seconds: None)
    result = CliRunner().invoke(app, ["top", "http://server:1", "--once"], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    assert "12 running" in result.output


def test_a_server_that_is_not_there_or_knows_nothing(monkeypatch) -> None:
    monkeypatch.setattr(
        "tokenflow_sgl.lab.observe.metrics_page.scrape", lambda url: parse("sglang:x 1\n")
    )
    result = CliRunner().invoke(app, ["top", "http://server:1"])
    assert result.exit_code == 1
    assert "--scheduler tokenflow" in result.output

    def refuse(url):
        raise ScrapeError("nobody answers")

    monkeypatch.setattr("tokenflow_sgl.lab.observe.metrics_page.scrape", refuse)
    assert CliRunner().invoke(app, ["top", "http://server:1"]).output == "nobody answers.\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["http://a:1", "http://b:1"], "for 2 servers add --web"),
        (["--decision-log", "decisions.jsonl"], "for a decision log add --web"),
        (["--web", "--once"], "leave out --web"),
        (["--web", "http://me:secret@a:1"], "leave out all before @"),
        (["--web", "--port", "70000"], "--port"),
        (["--web", *[f"http://a:{port}" for port in range(1, 66)]], "at most 64"),
    ],
)
def test_what_cannot_be_watched_is_refused(options, said) -> None:
    result = CliRunner().invoke(app, ["top", *options], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert said in result.output
    assert "secret" not in result.output


def test_a_port_that_is_taken_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(app, ["top", "--web", "--port", port])
    assert result.exit_code == 1
    assert f"cannot listen on port {port} of 127.0.0.1" in result.output


def test_the_page_is_served_until_it_is_interrupted() -> None:
    """A real process; its one server is not there."""
    start = "from tokenflow_sgl.cli import main; main()"
    command = [sys.executable, "-c", start, "top", "http://127.0.0.1:9", "--web"]
    process = subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        told = process.stdout.readline()
        url = told.split()[-1]
        assert told == f"Watching 1 server: open {url}\n"
        assert b"Does not answer" in until(url, b"Does not answer")
        process.send_signal(signal.SIGINT)
        _, failed = process.communicate(timeout=60)
        assert (process.returncode, failed) == (0, "")
    finally:
        process.kill()
        process.communicate()


def until(url: str, text: bytes) -> bytes:
    """The page once it has this text."""
    for _ in range(600):
        if text in (page := fetch(url, missing="")):
            return page
        time.sleep(0.1)
    raise AssertionError(page)
