"""``tokenflow top``: one look at a server's metrics, and servers that have none."""

from __future__ import annotations

import importlib

from busy_server import page, work
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.observe import ScrapeError, parse

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
