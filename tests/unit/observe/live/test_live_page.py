"""The page as a browser gets it: escaped, guarded, of any state of its servers."""

from __future__ import annotations

import asyncio
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from watched_pages import STOCK, server, tokenflow, watching

from tokenflow_sgl.lab.observe.live.live_page import Watched, application

EVIL = "<script>alert(1)</script>&\"'"


def got(watched: Watched, *paths: str, host: str = "127.0.0.1", method: str = "GET", **headers):
    """Status, headers and text of these paths, from a page that listens on `host`."""

    async def ask():
        async with TestClient(TestServer(application(watched, host))) as client:
            answers = []
            for path in paths:
                async with client.request(method, path, headers=headers) as answer:
                    answers.append((answer.status, answer.headers, await answer.text()))
            return answers

    return asyncio.run(ask())


def text(watched: Watched) -> str:
    ((status, _, page),) = got(watched, "/")
    assert status == 200
    return page


class Elements(HTMLParser):
    """Which elements a page has, with what attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        self.found.append((tag, dict(attrs)))


def test_one_server_and_its_verdict() -> None:
    page = text(watching(server([tokenflow(40, 12)])))
    assert "<title>12 of 40 readers stall</title>" in page
    assert "one:30000" in page
    assert "tokenflow-decision-log" in page, "how decisions can be seen"


def test_a_fleet_in_which_one_is_down_and_one_is_stock() -> None:
    servers = [
        server([tokenflow(40, 12)], "http://a:1"),
        server([tokenflow(10, 0)], "http://b:1"),
        server([STOCK], "http://c:1"),
        server([""], "http://d:1"),
    ]
    page = text(watching(*servers))
    assert "12 of 50 readers stall" in page
    assert "4 servers: 2 with tokenflow, 1 stock SGLang, 1 silent" in page
    assert page.count('<section class="card"') == 4
    assert "Next: see whether it is up" in page


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        (["", ""], "No server answers"),
        ([STOCK, ""], "No server knows its readers"),
        ([tokenflow(stalled="+Inf"), ""], "Figures of a server make no sense"),
    ],
)
def test_verdicts_without_readers(pages, said) -> None:
    assert f"<title>{said}</title>" in text(watching(*(server([each]) for each in pages)))


def test_two_servers_are_compared_in_words() -> None:
    servers = [
        server([tokenflow(), tokenflow(ended=(70, 30))], "http://a:1"),
        server([tokenflow(), tokenflow(ended=(97, 3))], "http://b:1"),
    ]
    page = text(watching(*servers))
    assert "<h2>b:1 against a:1</h2>" in page
    assert "Readers that stalled: 3% on b:1, 30% on a:1: fewer" in page


def log_of(folder: Path, rid: str) -> Path:
    line = {
        "time": 1.0,
        "preempt": [{"rid": rid, "cause": rid}],
        "candidates": [],
        "admit": [],
        "take_up": [],
        "load": [],
    }
    path = folder / "decisions.jsonl"
    path.write_text(json.dumps(line) + "\n")
    return path


def test_texts_of_servers_and_logs_are_no_html(tmp_path: Path) -> None:
    label = EVIL.replace('"', r"\"")
    more = f'tokenflow:mode{{mode="{label}"}} 1\n'
    more += f'tokenflow:buffer_percentile_seconds{{qos_class="{label}",percentile="10"}} 1\n'
    more += f'tokenflow:preemptions_total{{cause="{label}"}} 9\n'
    watched = watching(
        server([tokenflow(), tokenflow(more=more)], f"http://{EVIL}:1"),
        logs=[log_of(tmp_path, EVIL)],
    )
    page = text(watched)
    assert page.count("&lt;script&gt;alert(1)") >= 5
    scripts = [attrs for tag, attrs in Elements(page).found if tag == "script"]
    assert scripts == [{"src": "/page.js", "defer": None}]


def test_a_log_shows_the_newest_first_with_reasons(tmp_path: Path) -> None:
    page = text(watching(server([tokenflow()]), logs=[log_of(tmp_path, "memory")]))
    assert "because the next decode steps would not have fitted" in page


def test_a_file_that_is_no_log_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    page = text(watching(server([tokenflow()]), logs=[tmp_path / "x.jsonl"]))
    assert "is not one of a log of decisions" in page


def test_nothing_of_another_host_is_loaded_or_let_in() -> None:
    answers = got(watching(server([tokenflow()])), "/", "/page.css", "/page.js", "/missing")
    assert [status for status, *_ in answers] == [200, 200, 200, 404]
    for _, headers, body in answers:
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert "Access-Control-Allow-Origin" not in headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "http://" not in body and "https://" not in body
    for tag, attrs in Elements(answers[0][2]).found:
        assert "style" not in attrs and not [each for each in attrs if each.startswith("on")], tag


def test_a_name_that_was_made_to_lead_here_gets_nothing() -> None:
    watched = watching(server([tokenflow()]))
    for host, status in (("evil.example:8765", 403), ("localhost:8765", 200), ("[::1]:1", 200)):
        ((found, *_),) = got(watched, "/", Host=host)
        assert found == status, host
    # Who listens elsewhere has names that only they know.
    ((found, *_),) = got(watched, "/", host="0.0.0.0", Host="metrics.example")
    assert found == 200


def test_it_only_reads() -> None:
    for method in ("POST", "PUT", "DELETE"):
        ((status, *_),) = got(watching(server([tokenflow()])), "/", method=method)
        assert status == 405
