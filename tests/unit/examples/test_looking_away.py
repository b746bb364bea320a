"""What examples/looking_away.py tells a server, and what it says where it is refused."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from behind_proxy import serving
from looking_away import set_rate


def told(rid: str, key: str) -> tuple[str, str]:
    """Id and body that reach a server which has one stream and a key."""
    heard: list[tuple[str, str]] = []

    async def stream(request: web.Request) -> web.Response:
        if request.headers["Authorization"] != "Bearer right":
            return web.json_response({"error": "Unauthorized"}, status=401)  # as SGLang says it
        if request.match_info["rid"] != "mine":
            return web.json_response({"error": {"message": "It is unknown."}}, status=404)
        heard.append((request.match_info["rid"], await request.text()))
        return web.Response(status=204)

    async def main() -> None:
        app = web.Application()
        app.add_routes([web.post("/tokenflow/streams/{rid}", stream)])
        async with serving(app) as url:
            await asyncio.to_thread(set_rate, url, rid, 0.0, key)

    asyncio.run(main())
    [only] = heard
    return only


def test_a_rate_reaches_the_stream() -> None:
    rid, body = told("mine", "right")
    assert (rid, json.loads(body)) == ("mine", {"rate": 0.0})


@pytest.mark.parametrize(
    ("rid", "key", "said"),
    [
        ("mine", "wrong", 'HTTP 401: {"error": "Unauthorized"}'),
        ("lost", "right", 'HTTP 404: {"error": {"message": "It is unknown."}}'),
        ("other/path", "right", "HTTP 404: 404: Not Found"),  # as of a server without the route
    ],
)
def test_a_refusal_is_said(rid, key, said) -> None:
    with pytest.raises(SystemExit) as ended:
        told(rid, key)
    assert ended.value.code == f"The server refuses the rate, {said}"
