"""Put several servers behind one address: each request goes to the one with the most headroom.

    python examples/headroom_proxy.py --port 30000 http://127.0.0.1:30001 http://127.0.0.1:30002

The servers run `--scheduler tokenflow`. Once a second the proxy reads from `/v1/loads` how much
more work each of them can take without making its readers wait. Between two readings it takes off
what it has sent itself. Of a server with `--dp-size` it takes its number of ranks times the least
that one of them has left. Answers stream through unchanged. When a client goes away the proxy
closes the connection to the server, which then ends the answer. A server that does not answer gets
no requests until it does; one whose rank stands still, only where no other is better.

It passes on `/generate`, `/v1/completions`, `/v1/chat/completions`, questions about the model, and
what `/tokenflow/streams/{rid}` is told: to the server that has the stream.
`/health` has each server's headroom, and is 503 when no server answers. Needs the package aiohttp.
Exit codes: 1 if the port is taken or a server reports no headroom, 2 if an option is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from tokenflow_sgl.policy.routing import READ_EVERY, KnownHeadroom, newcomer_work
from tokenflow_sgl.qos.classes import DEFAULT_CLASS, SHIPPED

ANSWERED = ("/generate", "/v1/completions", "/v1/chat/completions")
TOLD = ("/v1/models", "/model_info", "/server_info")
STREAMS = "/tokenflow/streams/{rid:.+}"
FIELD = "tokenflow_headroom_tokens"
NEW_SERVER = 1e6
"""Headroom of a server that has not served yet and does not know its own: about the most that any
has, and finite, so that what is sent to it counts."""
CHARACTERS_PER_TOKEN = 4.0
"""Of a prompt that comes as text: an estimate, which the next reading replaces."""
TIMEOUT_S = 5.0
"""For connecting, and for reading the headroom; an answer may take as long as it takes."""
STALE_S = 10.0
"""Longest that a rank goes without new figures. SGLang writes them with each prefill, every 15
decode steps, and once a second or more often while there is nothing to compute."""
STANDING_STILL = -NEW_SERVER
"""Headroom of a rank without new figures: a server gets requests only where none is better."""
LONGEST_REQUEST = 64 * 2**20
DROPPED = {"connection", "keep-alive", "trailer", "transfer-encoding", "upgrade", "expect"}
"""Headers that are about one connection, and not about what is asked or answered."""


class ProxyError(Exception):
    """It cannot start; the message says why."""


@dataclass(slots=True)
class _Rank:
    """A data-parallel rank: its headroom, when it says that it wrote it, and when that was new."""

    tokens: float
    written: object
    since: float


class Ranks:
    """The ranks of one server as `/v1/loads` tells them; without data parallelism there is one.

    Args:
        clock: Seconds, of any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ranks: dict[int, _Rank] = {}

    def read(self, loads: Sequence[Mapping[str, Any]]) -> float:
        """Headroom of the server, tokens, with what its ranks tell now.

        It is that of the rank with the least, times their number. By default SGLang gives ranks
        requests in turn, whatever each has left, so every rank gets an equal part of what the
        server gets, and the fullest is the first whose readers wait. (With another
        `--load-balance-method` the server can take more than that, up to the sum.)

        A rank that is missing has the headroom that it had. Where one has been missing, or without
        new figures, for `STALE_S`, it stands still, and with it each request that it gets.

        Raises:
            LookupError, TypeError, ValueError: They tell no headroom.
        """
        now = self._clock()
        for place, load in enumerate(loads):
            told, written = load[FIELD], load.get("timestamp")
            number, tokens = load.get("dp_rank", place), NEW_SERVER if told is None else float(told)
            before, since = self._ranks.get(number), now
            if before is not None and written is not None and before.written == written:
                since = before.since
            self._ranks[number] = _Rank(tokens, written, since)
        if not self._ranks:
            raise LookupError("no rank tells its load")
        still = any(now - rank.since > STALE_S for rank in self._ranks.values())
        least = min(rank.tokens for rank in self._ranks.values())
        return len(self._ranks) * (min(least, STANDING_STILL) if still else least)


class Proxy:
    """The servers, and what is known of them.

    Args:
        urls: Of the servers.
        read_every: Seconds between two readings.
        api_key: With which the headroom is read; None: without one.

    Attributes:
        known: Headroom of the servers that answer, by their place in `urls`.
        streams: Servers of the answers under way whose clients gave them an id, by that id.
    """

    def __init__(
        self, urls: Sequence[str], read_every: float = READ_EVERY, api_key: str | None = None
    ) -> None:
        self._urls, self._read_every = urls, read_every
        self._key = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self.known = KnownHeadroom()
        self.streams: dict[str, int] = {}
        self._said: dict[int, str] = {}
        self._ranks = [Ranks() for _ in urls]
        self._session: aiohttp.ClientSession

    def choose(self, work: float) -> int | None:
        """The server of a request that takes `work` tokens of headroom; None: none answers."""
        return self.known.choose(work)

    def _server_of(self, request: web.Request, body: bytes) -> int | None:
        """Questions always go to the first server that answers: its answers fit together."""
        if request.method == "POST":
            return self.choose(work_of(body))
        return min(self.known.tokens, default=None)

    def app(self) -> web.Application:
        """The HTTP application; it runs with `handler_cancellation`."""
        app = web.Application(client_max_size=LONGEST_REQUEST)
        app.add_routes([web.post(path, self._pass_on) for path in ANSWERED])
        app.add_routes([web.get(path, self._pass_on) for path in TOLD])
        app.add_routes([web.get("/health", self._health)])
        app.add_routes([web.post(STREAMS, self._tell), web.delete(STREAMS, self._tell)])
        app.cleanup_ctx.append(self._running)
        return app

    async def _running(self, app: web.Application) -> AsyncIterator[None]:
        # A connection for each request: one that is kept may be closed by the server, whose
        # patience is five seconds, just when the next request is sent on it.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S)
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        ) as self._session:
            servers = range(len(self._urls))
            wrong = await asyncio.gather(*(self._read(server) for server in servers))
            if any(wrong):
                raise ProxyError(" ".join(filter(None, wrong)))
            tasks = [asyncio.create_task(self._watch(server)) for server in servers]
            yield
            for task in tasks:
                task.cancel()

    async def _watch(self, server: int) -> None:
        while True:
            await asyncio.sleep(self._read_every)
            await self._read(server)

    async def _read(self, server: int) -> str | None:
        """Read a server's headroom; returns a sentence if it answers and will never tell it."""
        url, tokens, wrong = self._urls[server], None, None
        said = "answers"
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with self._session.get(
                f"{url}/v1/loads", headers=self._key, timeout=timeout
            ) as answer:
                if answer.status in (401, 403):
                    said = wrong = f"{url} refuses the proxy (HTTP {answer.status}): see --api-key."
                elif answer.status != 200:
                    said = f"answers HTTP {answer.status}"
                else:
                    loads = (await answer.json(content_type=None))["loads"]
                    tokens = self._ranks[server].read(loads)
        except (aiohttp.ClientError, TimeoutError) as error:
            said = f"does not answer: {str(error) or type(error).__name__}"
        except (LookupError, TypeError, ValueError):
            said = wrong = f"{url} has no {FIELD} in /v1/loads: does it run --scheduler tokenflow?"
        if tokens is None:
            self._ranks[server] = Ranks()  # it may come back with others
        self.known.read(server, tokens)
        self._say(server, said)
        return wrong

    def _say(self, server: int, said: str) -> None:
        """Print what has become of a server, once."""
        if self._said.get(server) != said:
            self._said[server] = said
            print(f"{self._urls[server]}: {said}", file=sys.stderr, flush=True)

    async def _health(self, request: web.Request) -> web.Response:
        servers = {self._urls[server]: tokens for server, tokens in self.known.tokens.items()}
        return web.json_response({"servers": servers}, status=200 if servers else 503)

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        """Pass a request on, and its answer back as it comes.

        If the client goes away, this is cancelled, and leaving the block closes the connection.
        """
        body = await request.read()
        rid = rid_of(body)
        while (server := self._server_of(request, body)) is not None:
            url, back = self._urls[server], None
            if rid is not None:
                self.streams[rid] = server
            try:
                async with self._asking(server, request, body) as answer:
                    back = web.StreamResponse(status=answer.status, reason=answer.reason)
                    for name, value in answer.headers.items():
                        if name.lower() not in DROPPED:
                            back.headers.add(name, value)
                    await back.prepare(request)
                    async for piece in answer.content.iter_any():
                        await back.write(piece)
                    await back.write_eof()
                    return back
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                self.known.read(server, None)  # nothing was sent: another one can have it
                self._say(server, f"does not answer: {error}")
            except aiohttp.ClientError as error:
                if back is None:
                    return failure(502, f"{url} broke off: {str(error) or type(error).__name__}.")
                if request.transport is not None:
                    request.transport.abort()  # the client must not take it for the answer's end
                return back
            finally:
                # Of two answers of one id the first that ends goes for both: then all are asked.
                self.streams.pop(rid or "", None)
        return failure(503, "No server answers.")

    def _asking(self, server: int, request: web.Request, body: bytes) -> Any:
        """The same request to a server; a context that gives its answer."""
        return self._session.request(
            request.method,
            # As it came: with "/.." resolved it would lead to paths that are not passed on.
            URL(self._urls[server] + request.path_qs, encoded=True),
            data=body or None,
            headers=passed_on(request.headers),
            allow_redirects=False,
        )

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        """Say something of a stream: to the server that has it, else to all until one knows it."""
        body, rid = await request.read(), request.match_info["rid"]
        likely = [self.streams[rid]] if rid in self.streams else []
        silent = 0  # also one that is too busy to report its headroom may have the stream
        for server in likely + [each for each in range(len(self._urls)) if each not in likely]:
            try:
                async with self._asking(server, request, body) as answer:
                    if answer.status != 404:
                        said, kind = await answer.read(), answer.content_type
                        return web.Response(status=answer.status, body=said, content_type=kind)
            except aiohttp.ClientError as error:
                silent += 1
                self._say(server, f"does not answer: {str(error) or type(error).__name__}")
        if silent == len(self._urls):
            return failure(503, "No server answers.")
        if silent:
            return failure(503, f"Stream {rid!r}: no server that answers has it, some do not.")
        return failure(404, f"Stream {rid!r} is unknown: no server has it.")


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers of a request that go with it."""
    left_out = DROPPED | {"host", "content-length"}
    return {name: value for name, value in headers.items() if name.lower() not in left_out}


def failure(status: int, message: str) -> web.Response:
    """An error of the proxy's own, in OpenAI's form."""
    error = {"message": message, "type": "proxy_error", "code": status}
    return web.json_response({"error": error}, status=status)


def work_of(body: bytes) -> float:
    """What a request takes off a server's headroom, tokens; 0 if it cannot be understood."""
    try:
        asked = json.loads(body)
        sampling = asked.get("sampling_params") or {}
        custom = asked.get("custom_params") or sampling.get("custom_params") or {}
        named = custom.get("tokenflow_class", DEFAULT_CLASS)
        rate = custom.get("tokenflow_rate", SHIPPED.get(named, SHIPPED[DEFAULT_CLASS]).rate)
        limits = (asked.get("max_completion_tokens"), asked.get("max_tokens"))
        limit = next(filter(None, (*limits, sampling.get("max_new_tokens"))), math.inf)
        prompt = [asked.get(name) for name in ("input_ids", "text", "prompt", "messages")]
        work = newcomer_work(tokens_in(prompt), float(rate), float(limit))
    except (AttributeError, OverflowError, RecursionError, TypeError, ValueError):
        return 0.0  # the server will say what is wrong
    # A client may write NaN, or 1e300: one request weighs no more than a server carries.
    return min(work, NEW_SERVER) if work > 0.0 else 0.0


def rid_of(body: bytes) -> str | None:
    """The id that its client gives a request; None: none, or several."""
    try:
        rid = json.loads(body).get("rid") if b'"rid"' in body else None
    except (AttributeError, RecursionError, ValueError):
        return None  # the server will say what is wrong
    return rid if isinstance(rid, str) else None


def tokens_in(what: Any) -> float:
    """Tokens of a prompt: token ids, text, messages, or a list of any of them."""
    if isinstance(what, str):
        return len(what) / CHARACTERS_PER_TOKEN
    if isinstance(what, int):
        return 1.0
    if isinstance(what, list):
        return sum(map(tokens_in, what))
    if isinstance(what, dict):  # a message, or a piece of one
        return tokens_in(what.get("content") or what.get("text"))
    return 0.0


def base_url(text: str) -> str:
    """A server's address as an option."""
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"server is {text!r}; allowed is http://HOST:PORT")
    return text.rstrip("/")


def port(text: str) -> int:
    """A TCP port as an option."""
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 2**16:
        raise argparse.ArgumentTypeError(f"port is {text!r}; allowed is 1 to 65535")
    return int(text)


def main() -> None:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("servers", nargs="+", type=base_url, metavar="URL", help="of a server")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=port, default=30000, help="port to listen on")
    parser.add_argument("--api-key", help="of the servers, to read their headroom with")
    given = parser.parse_args()
    try:
        web.run_app(
            Proxy(given.servers, api_key=given.api_key).app(),
            host=given.host,
            port=given.port,
            print=None,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=TIMEOUT_S,
        )
    except (ProxyError, OSError) as error:
        sys.exit(f"No proxy: {error}")


if __name__ == "__main__":
    main()
