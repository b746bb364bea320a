"""A metrics page, read and understood; pages that are none."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tokenflow_sgl.lab.observe import ScrapeError, fetch, parse, scrape

PAGE = """
# HELP tokenflow:preemptions_total Preemptions by cause.
# TYPE tokenflow:preemptions_total counter
tokenflow:preemptions_total{cause="memory",tp_rank="0",dp_rank="0"} 3.0
tokenflow:preemptions_total{cause="memory",tp_rank="0",dp_rank="1"} 2.0
tokenflow:preemptions_total{cause="park",tp_rank="0",dp_rank="0"} 4.0
# HELP tokenflow:transfer_seconds Copies.
# TYPE tokenflow:transfer_seconds histogram
tokenflow:transfer_seconds_sum{direction="store"} 5.0
tokenflow:transfer_seconds_count{direction="store"} 10.0
tokenflow:transfer_seconds_bucket{direction="store",le="0.1"} 2.0
tokenflow:transfer_seconds_bucket{direction="store",le="0.3"} 6.0
tokenflow:transfer_seconds_bucket{direction="store",le="1.0"} 8.0
tokenflow:transfer_seconds_bucket{direction="store",le="+Inf"} 10.0
# HELP sglang:num_running_reqs Running.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs 2.0
"""


def test_series_add_up_over_the_labels_that_are_not_asked_for() -> None:
    seen = parse(PAGE)
    assert seen.total("preemptions_total") == 9
    assert seen.total("preemptions_total", cause="memory") == 5
    assert seen.by("preemptions_total", "cause") == {"memory": 5, "park": 4}
    assert seen.total("sglang:num_running_reqs") == 2
    assert seen.has("preemptions_total")


def test_a_server_that_does_not_know_does_not_hide_what_others_do() -> None:
    page = '# TYPE tokenflow:x gauge\ntokenflow:x{rank="0"} NaN\ntokenflow:x{rank="1"} 7\n'
    assert parse(page).total("x") == parse(page).most("x") == 7.0
    assert math.isnan(parse(page).total("x", rank="0"))


def test_the_most_of_series_that_do_not_add_up() -> None:
    assert parse(PAGE).most("preemptions_total", cause="memory") == 3
    assert math.isnan(parse(PAGE).most("resumes_total"))


def test_what_is_not_there_is_not_known() -> None:
    seen = parse(PAGE)
    assert not seen.has("resumes_total")
    assert math.isnan(seen.total("resumes_total"))
    assert math.isnan(seen.total("preemptions_total", cause="none"))
    assert seen.by("resumes_total", "cause") == {}
    assert math.isnan(seen.quantile("transfer_seconds", 0.5, direction="load"))


def test_quantiles_are_linear_inside_their_bucket() -> None:
    seen = parse(PAGE)
    assert seen.quantile("transfer_seconds", 0.5, direction="store") == pytest.approx(0.25)
    assert seen.quantile("transfer_seconds", 0.1, direction="store") == pytest.approx(0.05)
    assert seen.quantile("transfer_seconds", 0.99, direction="store") == 1.0, "the last bound"


def test_what_was_gained_since_an_earlier_look() -> None:
    later = PAGE.replace('dp_rank="0"} 3.0', 'dp_rank="0"} 7.0').replace(
        'le="0.1"} 2.0', 'le="0.1"} 3.0'
    )
    later = later.replace('dp_rank="1"} 2.0', 'dp_rank="1"} 1.0')  # that one was started again
    gained = parse(later).since(parse(PAGE))
    assert gained.by("preemptions_total", "cause") == {"memory": 4 + 1, "park": 0}
    assert gained.total("transfer_seconds_bucket", le="0.1") == 1
    assert parse(PAGE).since(parse("")).total("preemptions_total") == 9


@pytest.fixture
def server():
    """Answers with `server.status` and `server.text`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(server.status if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(server.text.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.status, server.text = 200, PAGE
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_is_asked(server, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert scrape(server.url + "/").total("preemptions_total") == 9


@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        (404, "", "HTTP 404; start the server with --enable-metrics"),
        (500, "", "HTTP 500"),
        (200, "tokenflow:mode{ 3", "is no metrics page"),
        (200, "x" * 300, "longer than 200 bytes"),
    ],
)
def test_bad_pages_are_named(server, monkeypatch, status, text, message) -> None:
    monkeypatch.setattr("tokenflow_sgl.lab.observe.metrics_page.MAX_PAGE_BYTES", 200)
    server.status, server.text = status, text
    with pytest.raises(ScrapeError, match=message):
        scrape(server.url)


def test_no_redirect_is_followed(server) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", f"{server.url}/metrics")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{proxy.server_port}/api"
        with pytest.raises(ScrapeError, match=r"HTTP 302 and leads to 'http://.*/metrics'\. Next:"):
            fetch(url, missing="", data=b"{}", headers={"authorization": "Bearer x"})
        thread.join()
    assert asked == ["/api"]


def test_an_answer_without_end_is_left(monkeypatch) -> None:
    """A server that sends a byte now and then, which no timeout of the socket ends."""
    monkeypatch.setattr("tokenflow_sgl.lab.observe.metrics_page.TIMEOUT_SECONDS", 0.2)
    left = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                with contextlib.suppress(OSError):
                    while not left.wait(0.02):
                        connection.sendall(b"#")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(ScrapeError, match=r"its answer has no end within 0\.2 s"):
                scrape(f"http://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            left.set()
            thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\ntokenflow:mode 1\n",
    ],
)
def test_what_is_no_http_is_a_sentence(answer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ScrapeError, match="is no HTTP, or broke off"):
            scrape(f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "localhost:30000",
            "/metrics' is no URL of a server; one looks like http://127.0.0.1:30000",
        ),
        ("file:///etc/passwd", "is no URL of a server"),
        ("http://127.0.0.1:9", r"no server answers at http://127.0.0.1:9/metrics \(.*refused"),
        ("http://[::1", "is no URL of a server"),
    ],
)
def test_bad_urls_are_named(url, message) -> None:
    with pytest.raises(ScrapeError, match=message):
        scrape(url)
