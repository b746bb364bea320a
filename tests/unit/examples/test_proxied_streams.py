"""What examples/headroom_proxy.py does with what clients say of streams that are under way."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web
from behind_proxy import Server, proxied, until
from headroom_proxy import rid_of

ODD = "chat/1 %41?é"
"""An id that must be quoted in a path."""


def path_of(rid: str) -> str:
    return f"/tokenflow/streams/{quote(rid, safe='')}"


class Streaming(Server):
    """Answers until it is told to end; it knows the streams that it has been given an id for."""

    def __init__(self, headroom: float) -> None:
        super().__init__(headroom, self.stream)
        self.go_on = asyncio.Event()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        rid = json.loads(self.bodies[-1]).get("rid", "given by the server")
        self.streams.add(rid)
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"data: 1\n\n")
        await self.go_on.wait()
        self.streams.remove(rid)
        return answer


def asked(**more: object) -> bytes:
    return json.dumps({"input_ids": [1, 2], **more}).encode()


def test_what_is_said_of_a_stream_goes_to_the_server_that_has_it() -> None:
    async def main() -> None:
        servers = [Streaming(1000), Streaming(3000)]
        async with proxied(*servers) as (client, proxy):
            async with client.post("/generate", data=asked(rid=ODD)) as answer:
                assert proxy.streams == {ODD: 1}
                for method, body in (("POST", '{"weight": 2}'), ("DELETE", "")):
                    async with client.request(method, path_of(ODD), data=body) as said:
                        assert (said.status, await said.read()) == (204, b"")
                servers[1].go_on.set()
                await answer.read()
            assert servers[1].heard == [(ODD, "POST", '{"weight": 2}'), (ODD, "DELETE", "")]
            assert servers[0].heard == []
            await until(lambda: not proxy.streams)

    asyncio.run(main())


def test_of_an_unknown_id_the_servers_are_asked_in_turn() -> None:
    async def main() -> None:
        servers = [Streaming(1000), Streaming(3000), Streaming(2000)]
        async with proxied(*servers) as (client, proxy):
            async with client.post("/generate", data=asked()) as answer:
                assert proxy.streams == {}
                async with client.post(path_of("given by the server"), data="{}") as said:
                    assert said.status == 204
                servers[1].go_on.set()
                await answer.read()
            assert [len(each.heard) for each in servers] == [1, 1, 0]
            async with client.delete(path_of("gone")) as said:
                assert said.status == 404
                message = (await said.json())["error"]["message"]
                assert message == "Stream 'gone' is unknown: no server has it."
            assert [len(each.heard) for each in servers] == [2, 2, 1]

    asyncio.run(main())


def test_a_refusal_comes_back_as_it_is() -> None:
    async def main() -> None:
        server = Streaming(1000)
        server.streams.add("mine")
        async with proxied(server) as (client, _):
            headers = {"Authorization": "Bearer wrong"}
            async with client.delete(path_of("mine"), headers=headers) as said:
                assert (said.status, said.content_type) == (401, "application/json")
                assert (await said.json())["error"]["message"] == "no access"

    asyncio.run(main())


def test_servers_that_do_not_answer_are_passed_over() -> None:
    async def main() -> None:
        away, steady = Streaming(1000), Streaming(3000)
        steady.streams.add("mine")

        async def broken(request: web.Request) -> web.Response:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        away.told = broken  # type: ignore[method-assign]
        async with proxied(away, steady) as (client, _):
            assert (await client.post(path_of("mine"), data="{}")).status == 204
        async with proxied(away) as (client, _):
            assert (await client.post(path_of("mine"), data="{}")).status == 503

    asyncio.run(main())


def test_without_an_answer_of_each_server_no_stream_is_called_unknown() -> None:
    async def main() -> None:
        away, steady = Streaming(1000), Streaming(3000)
        async with proxied(away, steady) as (client, proxy):
            proxy.known.read(1, None)  # it was too busy to tell its headroom
            steady.streams.add("mine")
            assert (await client.post(path_of("mine"), data="{}")).status == 204

            async def broken(request: web.Request) -> web.Response:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()

            steady.told = broken  # type: ignore[method-assign]
        async with proxied(away, steady) as (client, _):
            said = await client.post(path_of("mine"), data="{}")
            assert said.status == 503
            message = (await said.json())["error"]["message"]
            assert message == "Stream 'mine': no server that answers has it, some do not."

    asyncio.run(main())


@pytest.mark.parametrize("up", ["../..", "%2e%2e/%2e%2e", "x/../../..", "..%2f.."])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_no_path_leads_out_of_the_streams(up, method) -> None:
    async def main() -> None:
        server = Streaming(1000)
        async with proxied(server) as (client, _):
            url = client._base_url
            reader, writer = await asyncio.open_connection(url.host, url.port)
            path = f"/tokenflow/streams/{up}/flush_cache"
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            status = (await reader.readline()).split()[1]
            writer.close()
            assert status == b"404"
            assert server.strayed == []
            assert len(server.heard) == 1, "it was asked of a stream that it does not have"

    asyncio.run(main())


@pytest.mark.parametrize("leaves", [False, True])
def test_nothing_is_kept_of_streams_that_have_ended(leaves) -> None:
    """However many they were, and whichever end closed the connection."""

    async def main() -> None:
        servers = [Streaming(1e6), Streaming(1e6)]
        async with proxied(*servers) as (client, proxy):
            answers: list[aiohttp.ClientResponse] = []
            for number in range(20):
                answers.append(await client.post("/generate", data=asked(rid=f"r{number}")))
            assert len(proxy.streams) == 20
            if leaves:
                for answer in answers:
                    answer.close()
            for server in servers:
                server.go_on.set()
            for answer in answers if not leaves else ():
                await answer.read()
            await until(lambda: not proxy.streams)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "rid"),
    [
        (b'{"rid": "a"}', "a"),
        (b'{"rid": ["a", "b"]}', None),
        (b'{"rid": 5}', None),
        (b'{"text": "rid"}', None),
        (b'["rid"]', None),
        (b'{"rid": ', None),
        (b"[" * 100_000 + b'"rid"', None),
        (b"", None),
    ],
)
def test_the_id_that_a_client_gives(body, rid) -> None:
    assert rid_of(body) == rid
