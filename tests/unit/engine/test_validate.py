"""What is looked at of a request before SGLang's own routes serve it, whichever way it came."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from fakes.sglang import Request as Scheduled
from fastapi import HTTPException
from sglang.srt.entrypoints import http_server
from sglang.srt.entrypoints.grpc_bridge import _GrpcRequest
from starlette.requests import Request

from tokenflow_sgl.engine.config import ATTRIBUTE, TokenFlowConfig
from tokenflow_sgl.engine.frontend import validate
from tokenflow_sgl.engine.frontend.validate import check_http, check_openai, terms_of
from tokenflow_sgl.engine.terms import NOT_STREAMED

FORM = "multipart/form-data; boundary=x"
MISPLACED = {"tokenflow_rate": 5}


class Serving:
    """One of SGLang's routes of OpenAI's interface, with the scheduler on."""

    def __init__(self) -> None:
        config = {ATTRIBUTE: TokenFlowConfig()}
        self.tokenizer_manager = SimpleNamespace(server_args=SimpleNamespace(**config))

    def create_error_response(self, message: str) -> str:
        return message


def request(body: bytes, content_type: str | None, **headers: str) -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    named = {**headers, **({} if content_type is None else {"content-type": content_type})}
    pairs = [(name.replace("_", "-").encode(), text.encode()) for name, text in named.items()]
    return Request({"type": "http", "method": "POST", "headers": pairs}, receive)


def answer(raw: object, body: SimpleNamespace | None = None) -> object:
    async def served(_serving: object, _body: object, _raw: object) -> str:
        return "served"

    return asyncio.run(check_openai(served, Serving(), body or SimpleNamespace(), raw))


@pytest.mark.parametrize(
    "content_type",
    [None, "application/json", "Application/JSON ; charset=utf-8", "application/a+json"],
)
def test_a_rate_at_the_top_of_a_json_body_is_refused(content_type) -> None:
    said = str(answer(request(json.dumps(MISPLACED).encode(), content_type)))
    assert said.startswith("'tokenflow_rate' stands in the request")
    assert answer(request(b'{"model": "m"}', content_type)) == "served"


def test_a_form_that_sglang_has_read_is_served() -> None:
    """The body of a transcription: asking Starlette for it again raises."""
    form = request(b"--x--\r\n", FORM)

    async def read() -> None:
        async for _ in form.stream():
            pass
        with pytest.raises(RuntimeError, match="Stream consumed"):
            await form.json()

    asyncio.run(read())
    assert answer(form) == "served"


def test_headers_of_a_form_are_checked() -> None:
    assert answer(request(b"", FORM, x_slo_ttft_ms="soon")) == (
        "x-slo-ttft-ms is 'soon'; it must be a number of milliseconds."
    )


def test_what_comes_by_grpc_is_served_and_its_headers_are_read() -> None:
    body = SimpleNamespace(custom_params={"tokenflow_rate": 5})
    assert answer(_GrpcRequest({"X-SLO-TTFT-MS": "3000"}), body) == "served"
    assert body.custom_params == {"tokenflow_ttft_slo": 3.0, "tokenflow_rate": 5}
    assert str(answer(_GrpcRequest({"x-slo-ttft-ms": "soon"}), body)).startswith("x-slo-ttft-ms is")
    assert answer(_GrpcRequest(), body) == "served"


def refused_later() -> SimpleNamespace:
    """What the scheduler refuses, SGLang's routes answer without Retry-After."""
    return SimpleNamespace(status_code=429, headers={})


def test_what_the_scheduler_refuses_says_when_to_come_again(monkeypatch) -> None:
    async def openai(_serving: object, _body: object, _raw: object) -> SimpleNamespace:
        return refused_later()

    raw = request(b"{}", "application/json")
    found = asyncio.run(check_openai(openai, Serving(), SimpleNamespace(), raw))
    assert found.headers == {"Retry-After": "1"}

    async def generate(obj: object, _raw: object) -> None:
        raise HTTPException(obj.status, detail="as many as it may")

    state = SimpleNamespace(tokenizer_manager=Serving().tokenizer_manager)
    monkeypatch.setattr(http_server, "get_global_state", lambda: state)
    monkeypatch.setattr(validate, "pass_door", lambda manager, obj: None)
    obj = SimpleNamespace(sampling_params={}, status=429)
    found = asyncio.run(check_http(generate, obj, raw))
    assert (found.status_code, found.headers["Retry-After"]) == (429, "1")
    assert b"as many as it may" in found.body
    obj.status = 503
    with pytest.raises(HTTPException, match="503"):
        asyncio.run(check_http(generate, obj, raw))


@pytest.mark.parametrize(
    ("other", "stream", "refused"),
    [("--smg-grpc-mode", True, True), ("--smg-grpc-mode", False, False), (None, True, False)],
)
def test_a_deposit_that_nothing_would_deliver_is_refused(other, stream, refused) -> None:
    ended: list[str] = []
    req = SimpleNamespace(
        sampling_params=SimpleNamespace(custom_params={"tokenflow_deposit": True}),
        stream=stream,
        set_finish_with_abort=ended.append,
    )
    asked = terms_of(req, TokenFlowConfig().known_classes, other)
    said = "tokenflow_deposit is true; it must be false with --smg-grpc-mode: token deposits are"
    assert [text.startswith(said) for text in ended] == [True] * refused
    assert asked.deposit is (stream and not refused)


@pytest.mark.parametrize(
    ("params", "stream", "name", "rate", "why"),
    [
        (None, True, "default", 10.0, None),
        ({"tokenflow_class": "listening"}, True, "listening", 5.0, None),
        ({"tokenflow_rate": 20}, True, "custom", 20.0, None),
        ({"tokenflow_rate": 20}, False, NOT_STREAMED.name, NOT_STREAMED.rate, None),
        ({"tokenflow_rate": -1}, True, "default", 10.0, "tokenflow_rate is -1"),
        ({"tokenflow_rate": -1}, False, "default", 10.0, "tokenflow_rate is -1"),
    ],
)
def test_the_scheduler_reads_terms_once_and_ends_what_states_bad_ones(
    params, stream, name, rate, why
) -> None:
    req = Scheduled(stream=stream)
    req.sampling_params.custom_params = params
    asked = terms_of(req, TokenFlowConfig().known_classes)
    assert (asked.name, asked.rate) == (name, rate)
    assert req.to_finish is why is None or req.to_finish.startswith(why)
