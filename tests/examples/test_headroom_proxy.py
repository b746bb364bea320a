"""examples/headroom_proxy.py in front of servers that only pretend, without SGLang."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from pathlib import Path

import aiohttp
import headroom_proxy
import pytest
from aiohttp import web
from behind_proxy import OFTEN, ONCE, SECONDS, Server, proxied, serving, until
from headroom_proxy import FIELD, NEW_SERVER, Proxy, work_of

from tokenflow_sgl.policy.headroom import WITHIN

PROGRAM = Path(headroom_proxy.__file__)


def request(prompt: int = 100, limit: int = 50) -> bytes:
    sampling = {"max_new_tokens": limit, "custom_params": {"tokenflow_rate": 20}}
    return json.dumps({"input_ids": [1] * prompt, "sampling_params": sampling}).encode()


def test_newcomers_go_to_the_most_headroom_less_what_was_sent() -> None:
    async def main() -> None:
        servers = [Server(1000), Server(1200)]
        async with proxied(*servers) as (client, _):
            # 150 tokens each: 1200, 1050, then 1000 against 900, 850 against 900, and so on.
            got = []
            for _ in range(6):
                before = len(servers[0].asked)
                async with client.post("/generate", data=request()) as answer:
                    assert await answer.text() == "done"
                got.append(0 if len(servers[0].asked) > before else 1)
            assert got == [1, 1, 0, 1, 0, 1]

    asyncio.run(main())


def test_a_new_reading_replaces_what_was_known() -> None:
    async def main() -> None:
        servers = [Server(1000), Server(2000)]
        async with proxied(*servers, read_every=OFTEN) as (client, proxy):
            servers[0].load[FIELD] = 3000
            await until(lambda: proxy.known.tokens[0] == 3000)
            await client.post("/generate", data=request())
            assert [len(each.asked) for each in servers] == [1, 0]

    asyncio.run(main())


def test_servers_that_have_not_served_share_a_burst() -> None:
    async def main() -> None:
        servers = [Server(None), Server(None)]
        async with proxied(*servers) as (client, _):
            await asyncio.gather(*(client.post("/generate", data=request()) for _ in range(6)))
            assert [len(each.asked) for each in servers] == [3, 3]

    asyncio.run(main())


def test_an_answer_arrives_piece_by_piece_and_unchanged() -> None:
    go_on = asyncio.Event()
    pieces = [b'data: {"text": "a"}\n\n', b"data: [DONE]\n\n"]

    async def stream(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(status=201, headers={"X-Own": "1"})
        answer.content_type = "text/event-stream"
        await answer.prepare(request)
        await answer.write(pieces[0])
        await go_on.wait()  # which the client does when it has the first piece
        await answer.write(pieces[1])
        return answer

    async def main() -> None:
        server = Server(answer=stream)
        sent, headers = request(), {"Authorization": "Bearer k", "Content-Type": "a/b"}
        async with (
            proxied(server) as (client, _),
            client.post("/generate?x=1", data=sent, headers=headers) as answer,
        ):
            async with asyncio.timeout(SECONDS):
                assert await answer.content.readany() == pieces[0]
            go_on.set()
            assert await answer.content.read() == pieces[1]
            assert (answer.status, answer.headers["X-Own"]) == (201, "1")
            assert answer.content_type == "text/event-stream"
            assert server.bodies == [sent]
            [asked] = server.asked
            assert asked.path_qs == "/generate?x=1"
            assert {name: asked.headers[name] for name in headers} == headers

    asyncio.run(main())


@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_goes_away_is_gone_for_the_server(begun) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        if begun:
            answer = web.StreamResponse()
            await answer.prepare(request)
            await answer.write(b"data: 1\n\n")
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> None:
        server = Server(answer=stream)
        async with proxied(server) as (client, _):
            asking = asyncio.create_task(client.post("/generate", data=request()))
            await until(lambda: bool(server.bodies))
            if begun:
                answer = await asking
                await answer.content.readany()
                answer.close()
            else:
                asking.cancel()
            async with asyncio.timeout(SECONDS):
                await server.left.wait()

    asyncio.run(main())


def test_an_answer_that_breaks_off_does_not_end_well() -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"data: 1\n\n")
        request.transport.abort()
        return answer

    async def main() -> None:
        async with (
            proxied(Server(answer=stream)) as (client, _),
            client.post("/generate", data=request()) as answer,
        ):
            with pytest.raises(aiohttp.ClientError):
                await answer.content.read()

    asyncio.run(main())


def test_a_server_that_breaks_off_before_its_answer_is_a_bad_gateway() -> None:
    async def nothing(request: web.Request) -> web.StreamResponse:
        request.transport.abort()
        return web.Response()

    async def main() -> None:
        server = Server(answer=nothing)
        async with proxied(server) as (client, _):
            async with client.post("/generate", data=request()) as answer:
                assert answer.status == 502
                assert "broke off" in (await answer.json())["error"]["message"]
            assert len(server.asked) == 1, "it may have begun: it is not sent twice"

    asyncio.run(main())


def test_a_server_that_does_not_answer_is_left_out_until_it_does(capsys) -> None:
    async def main() -> None:
        steady, coming = Server(1000), Server(5000)
        async with contextlib.AsyncExitStack() as stack:
            away = contextlib.AsyncExitStack()
            url = await away.enter_async_context(serving(coming.app()))
            port = int(url.rpartition(":")[2])
            urls = [await stack.enter_async_context(serving(steady.app())), url]
            proxy = Proxy(urls, ONCE)
            base = await stack.enter_async_context(serving(proxy.app()))
            client = await stack.enter_async_context(aiohttp.ClientSession(base))
            await away.aclose()
            # No reading has told: the request itself finds out, and goes to the other one.
            async with client.post("/generate", data=request()) as answer:
                assert (answer.status, len(steady.asked)) == (200, 1)
            async with client.get("/health") as health:
                assert (await health.json())["servers"] == {urls[0]: 850.0}
            async with serving(coming.app(), port):
                await proxy._read(1)
                async with client.post("/generate", data=request()):
                    assert len(coming.asked) == 1

    asyncio.run(main())
    said = capsys.readouterr().err
    assert said.count("does not answer") == 1
    assert said.count(": answers\n") == 3


def test_without_any_server_requests_are_refused() -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            with socket.create_server(("127.0.0.1", 0)) as free:
                url = f"http://127.0.0.1:{free.getsockname()[1]}"
            base = await stack.enter_async_context(serving(Proxy([url], ONCE).app()))
            client = await stack.enter_async_context(aiohttp.ClientSession(base))
            async with client.post("/generate", data=request()) as answer:
                assert answer.status == 503
                assert (await answer.json())["error"]["message"] == "No server answers."
            async with client.get("/health") as health:
                assert health.status == 503

    asyncio.run(main())


def test_questions_about_the_model_are_passed_on_and_take_nothing_off() -> None:
    async def main() -> None:
        async with proxied(Server(1000)) as (client, proxy):
            async with client.get("/v1/models") as answer:
                assert await answer.text() == "done"
            assert proxy.known.tokens == {0: 1000.0}
            assert (await client.post("/flush_cache")).status == 404

    asyncio.run(main())


CHAT = [{"role": "user", "content": "x" * 400}]
PARTS = [{"content": [{"type": "text", "text": "x" * 80}, {"type": "image_url"}]}]
READING = 10.0 * WITHIN


@pytest.mark.parametrize(
    ("asked", "work"),
    [
        ({"messages": CHAT}, 100 + READING),
        ({"messages": CHAT, "max_tokens": 50}, 150),
        ({"messages": CHAT, "max_completion_tokens": 50}, 150),
        ({"messages": PARTS, "max_tokens": 5}, 25),
        ({"prompt": "x" * 40, "custom_params": {"tokenflow_rate": 2}}, 10 + 2 * WITHIN),
        ({"prompt": ["x" * 40, "x" * 40], "max_tokens": 5}, 25),
        ({"prompt": "", "custom_params": {"tokenflow_class": "listening"}}, 5 * WITHIN),
        ({"prompt": "", "custom_params": {"tokenflow_class": "of the operator"}}, READING),
        ({"text": "x" * 40, "sampling_params": {"max_new_tokens": 7}}, 17),
        ({"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 7}}, 10),
        ({"prompt": "", "custom_params": {"tokenflow_rate": "fast"}}, 0),
        ({"prompt": "", "custom_params": {"tokenflow_rate": float("nan")}}, 0),
        ({"prompt": "", "custom_params": {"tokenflow_rate": 1e300}}, NEW_SERVER),
        ({"prompt": "", "max_tokens": -(10**9)}, 0),
        ({"prompt": "", "max_tokens": 10**400}, 0),
        ([1], 0),
    ],
)
def test_the_work_of_a_request(asked, work) -> None:
    assert work_of(json.dumps(asked).encode()) == work


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_request_has_no_work(body) -> None:
    assert work_of(body) == 0.0


async def refused(*options: str) -> tuple[int | None, str]:
    """Exit code and last words of the proxy as a program, which must not start."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), *options), stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert "Traceback" not in said.decode()
    return process.returncode, said.decode().rstrip().splitlines()[-1]


def test_a_server_that_reports_no_headroom_is_said_at_the_start() -> None:
    async def main() -> None:
        stock = Server()
        del stock.load[FIELD]
        async with serving(stock.app()) as url:
            code, said = await refused(url)
        assert code == 1
        assert said == (
            f"No proxy: {url} has no {FIELD} in /v1/loads: does it run --scheduler tokenflow?"
        )

    asyncio.run(main())


def test_a_port_that_is_taken_is_said() -> None:
    async def main() -> None:
        async with serving(Server().app()) as url:
            code, said = await refused(url, "--port", url.rpartition(":")[2])
        assert code == 1
        assert said.startswith("No proxy: ")
        assert "address already in use" in said

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["localhost:30001"], "server is 'localhost:30001'; allowed is http://HOST:PORT"),
        (["http://a", "--port", "70000"], "port is '70000'; allowed is 1 to 65535"),
    ],
)
def test_bad_options_are_said(monkeypatch, capsys, options, message) -> None:
    monkeypatch.setattr(sys, "argv", ["headroom_proxy.py", *options])
    with pytest.raises(SystemExit) as ended:
        headroom_proxy.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
