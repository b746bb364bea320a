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
from headroom_proxy import FIELD, NEW_SERVER, STALE_S, STANDING_STILL, Proxy, Ranks, work_of

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


def test_the_fullest_rank_says_what_a_server_can_take() -> None:
    """Its readers wait first: SGLang gives ranks requests in turn."""

    async def main() -> None:
        servers = [Server(3207), Server(1500)]
        servers[0].other_ranks = [{FIELD: 646, "dp_rank": 1}]
        async with proxied(*servers) as (client, proxy):
            assert proxy.known.tokens == {0: 2 * 646.0, 1: 1500.0}
            await client.post("/generate", data=request())
            assert [len(each.asked) for each in servers] == [0, 1]

    asyncio.run(main())


def load_of(tokens: int | None, rank: int = 0, written: float | None = None) -> dict:
    return {FIELD: tokens, "dp_rank": rank, "timestamp": written}


def test_a_rank_that_has_not_served_is_new_and_no_emptier_than_that() -> None:
    assert Ranks().read([load_of(900), load_of(None, 1)]) == 2 * 900
    assert Ranks().read([load_of(None), load_of(None, 1)]) == 2 * NEW_SERVER
    assert Ranks().read([load_of(-50), load_of(900, 1), load_of(800, 2)]) == -150


def test_a_rank_that_is_missing_is_remembered_until_it_counts_as_standing_still() -> None:
    now = [0.0]
    ranks = Ranks(lambda: now[0])
    assert ranks.read([load_of(900, 0, 1.0), load_of(400, 1, 1.0)]) == 800
    now[0] = STALE_S
    assert ranks.read([load_of(700, 0, 2.0)]) == 800, "its place and its number are kept"
    now[0] += 0.1
    assert ranks.read([load_of(700, 0, 3.0)]) == 2 * STANDING_STILL
    assert ranks.read([load_of(700, 0, 4.0), load_of(600, 1, 4.0)]) == 1200
    assert ranks.read([load_of(700, 0, 5.0), load_of(500, 1, 5.0)]) == 1000


def test_figures_that_do_not_change_get_old_with_the_time_that_they_were_written() -> None:
    now = [0.0]
    ranks = Ranks(lambda: now[0])
    still = [load_of(900, 0, 7.0), load_of(400, 1, 7.0)]
    assert ranks.read(still) == 800
    now[0] = STALE_S + 0.1
    assert ranks.read([load_of(900, 0, 8.0), load_of(400, 1, 7.0)]) == 2 * STANDING_STILL
    assert ranks.read([load_of(900, 0, 9.0), load_of(400, 1, 9.0)]) == 800, "the same, but new"
    untimed = Ranks(lambda: now[0])
    assert untimed.read([load_of(5)]) == 5
    now[0] *= 2
    assert untimed.read([load_of(5)]) == 5


def test_a_server_with_a_rank_that_stands_still_is_the_last_choice() -> None:
    async def main() -> None:
        now = 0.0
        servers = [Server(5000), Server(-200)]
        servers[0].load["timestamp"] = 3.0
        async with proxied(*servers) as (client, proxy):
            proxy._ranks[0] = Ranks(lambda: now)
            await proxy._read(0)
            now = STALE_S + 1.0
            await proxy._read(0)
            await client.post("/generate", data=request())
            assert [len(each.asked) for each in servers] == [0, 1]
            proxy.known.read(1, None)
            async with client.post("/generate", data=request()) as answer:
                assert (answer.status, len(servers[0].asked)) == (200, 1), "none is better"

    asyncio.run(main())


def test_a_server_that_comes_back_is_known_anew() -> None:
    async def main() -> None:
        server = Server(1000)
        server.other_ranks = [{FIELD: 300, "dp_rank": 1}]
        async with proxied(server) as (_, proxy):
            assert proxy.known.tokens == {0: 600.0}
            load, server.load = server.load, {}
            await proxy._read(0)
            assert proxy.known.tokens == {}
            server.load, server.other_ranks = load, []
            await proxy._read(0)
            assert proxy.known.tokens == {0: 1000.0}, "it has one rank now"

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
