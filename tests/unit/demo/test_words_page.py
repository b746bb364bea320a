"""The demo's page in the browser: what it says of each reader, served to this machine alone."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.demo.dialogue import ReaderOfWords
from tokenflow_sgl.lab.demo.spoken import Spoken
from tokenflow_sgl.lab.demo.words_page import BEFORE, moment, words_page

MIA = ReaderOfWords("Mia", 2.0, "Why?")


def spoken(*times: float, said: str = "w") -> Spoken:
    answer = Spoken(MIA, 1.0)
    for number, at in enumerate(times):
        answer.take([number], [at], f" {said}{number}")
    answer.complete = True
    return answer


def got(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_moment_in_words() -> None:
    found = moment({"stock": [spoken(9.0)], "tokenflow": [spoken(2.0, 2.0, 7.0)]}, 4.0)
    assert found.verdict == "Have words to read, of 1 readers: stock 0, tokenflow 1"
    first, second = found.sides
    assert (first.name, first.counts) == ("stock", "1 waiting")
    assert (first.rows[0].tone, first.rows[0].state) == ("wait", "waits for 3.0 s")
    assert (second.rows[0].tone, second.rows[0].state) == ("bad", "stalled for 1.0 s")
    assert second.rows[0].text == "w0 w1"


@pytest.mark.parametrize(
    ("now_s", "tone", "state"),
    [
        (0.5, "", "has not asked"),
        (2.1, "reads", "reads, 1 more to read"),
        (9.0, "good", "has read"),
    ],
)
def test_what_a_reader_does(now_s, tone, state) -> None:
    row = moment({"one": [spoken(2.0, 2.0)]}, now_s).sides[0].rows[0]
    assert row.tone == tone
    assert row.state.startswith(state)


def test_it_is_served_until_the_demo_ends() -> None:
    with words_page() as (page, url):
        assert BEFORE.verdict in got(url)[1]
        page.show({"stock": [spoken(2.0, said="<script>")], "tokenflow": [spoken(2.0)]}, 3.0)
        status, text = got(url)
        assert status == 200
        assert "&lt;script&gt;0" in text, "what a model says is escaped"
        assert got(f"{url}/page.css")[0] == got(f"{url}/page.js")[0] == 200
        assert got(url, Host="evil.example")[0] == 403
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)


def test_a_page_without_words_is_a_usage_error() -> None:
    found = CliRunner().invoke(app, ["demo", "--web"])
    assert found.exit_code == 2
    assert "add --text" in found.output
