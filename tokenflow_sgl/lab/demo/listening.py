"""Asks a server on a virtual clock all questions at once, and listens to the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from tokenflow_sgl.errors import FailedError
from tokenflow_sgl.lab.demo.dialogue import APART_S, MOST_TOKENS, ReaderOfWords
from tokenflow_sgl.lab.demo.spoken import Spoken
from tokenflow_sgl.lab.replay.virtual import STAMP_KEY

WARM_UP, WARM_UP_TOKENS = 4, 6
"""Requests before, for the server to do its lazy work and to learn its step times."""


class WordsError(FailedError):
    """A server did not answer as it should; the message has its words."""


class WordsListener:
    """One server's readers.

    Args:
        readers: Who asks, in their order.
        changed: Called whenever something has come.

    Attributes:
        answers: Theirs.
    """

    def __init__(self, readers: Sequence[ReaderOfWords], changed: Callable[[], None]) -> None:
        self.answers = [Spoken(each, APART_S * number) for number, each in enumerate(readers)]
        self._changed = changed

    @property
    def reached_s(self) -> float:
        """The latest moment of the server up to which all is known; infinite at the end."""
        if all(each.complete for each in self.answers):
            return float("inf")
        return max((each.times[-1] for each in self.answers if each.times), default=0.0)

    async def listen(self, url: str) -> None:
        """Ask, and return when all answers have ended.

        Raises:
            WordsError: An answer failed.
        """
        limit = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(url, timeout=limit) as session:
            await asyncio.gather(*(self._warm(session, each) for each in range(WARM_UP)))
            await asyncio.gather(*(self._one(session, each) for each in range(len(self.answers))))

    async def _warm(self, session: aiohttp.ClientSession, number: int) -> None:
        limits = {"temperature": 0, "max_new_tokens": WARM_UP_TOKENS}
        body = {"text": f"{number} and one is", "sampling_params": limits}
        async with session.post("/generate", json=body) as response:
            await response.read()

    async def _one(self, session: aiohttp.ClientSession, index: int) -> None:
        answer = self.answers[index]
        custom = {
            "tokenflow_rate": answer.asking.rate,
            "emulated_arrival": {"at_s": answer.asked_s, "index": index, "of": len(self.answers)},
        }
        limits = {"temperature": 0, "max_new_tokens": MOST_TOKENS, "custom_params": custom}
        body = {"text": answer.asking.prompt, "stream": True, "sampling_params": limits}
        try:
            async with session.post("/generate", json=body) as response:
                if response.status != 200:
                    raise WordsError(f"HTTP {response.status}: {await response.text()}")
                async for line in response.content:
                    data = line.removeprefix(b"data: ").strip()
                    if line.startswith(b"data: ") and data != b"[DONE]":
                        self._take(answer, json.loads(data))
        except (aiohttp.ClientError, OSError) as error:
            raise WordsError(f"the server went away: {error}") from error
        if not answer.complete:
            raise WordsError(f"the answer to {answer.asking.name} has no end")

    def _take(self, answer: Spoken, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            raise WordsError(str(chunk["error"]))
        meta = chunk["meta_info"]
        new = int(meta["completion_tokens"]) - len(answer.ids)
        if new > 0:
            answer.take(chunk["output_ids"][-new:], meta[STAMP_KEY][-new:], chunk["text"])
        if (reason := meta["finish_reason"]) is not None:
            if reason["type"] == "abort":
                raise WordsError(f"the server gave up an answer: {reason.get('message')}")
            answer.complete = True
        self._changed()
