"""Output of one request that SGLang's front end has given out and the client has not got yet.

SGLang answers with chunks: of all output so far or, with `--incremental-streaming-output`, of what
is new. Here they are put together and cut into others of the same kind, at any token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tokenflow_sgl.engine.frontend.token_texts import CONTEXT, TokenTexts

Chunk = dict[str, Any]
IDS = "output_ids"


class _Place(NamedTuple):
    """A place in the output: how much is before it."""

    tokens: int
    characters: int


_BEGINNING = _Place(0, 0)


class HeldOutput:
    """Output of a stream that is held back until its reader needs it.

    Attributes:
        made: Output tokens that have come.
        reasoning: The first so many of them are what SGLang calls reasoning.

    Args:
        texts: Tells where a token's text ends.
        lists: Names of the lists in `meta_info` that have an entry for each output token.
        incremental: Each chunk has what is new only.
    """

    def __init__(
        self, texts: TokenTexts, lists: Callable[[], Iterable[str]], *, incremental: bool
    ) -> None:
        self.made = self.reasoning = 0
        self._texts, self._lists, self._incremental = texts, lists, incremental
        self._last: Chunk = {}
        self._text = ""  # from `_begins` on, and so are the columns
        self._columns: dict[str, list[Any]] = {}
        self._begins = self._given = _BEGINNING
        self._ends: deque[_Place] = deque()
        self._context: list[int] = []

    def add(self, chunk: Chunk) -> int:
        """Take in a chunk that is not the last one; returns how many tokens are new in it."""
        meta = chunk["meta_info"]
        new = int(meta["completion_tokens"]) - self.made
        self.made += new
        self.reasoning = int(meta.get("reasoning_tokens") or 0)
        self._last = chunk
        before, text = len(self._text), chunk.get("text") or ""
        self._text = self._text + text if self._incremental else text
        columns = {IDS: chunk.get(IDS) or []}
        columns |= {name: meta[name] for name in self._lists() if meta.get(name) is not None}
        for name, column in columns.items():
            if self._incremental:
                self._columns.setdefault(name, []).extend(column)
            else:
                self._columns[name] = column  # SGLang's own, which goes on growing
        if new > 0:
            self._mark(new, self._text[before:])
        return new

    def _mark(self, new: int, text: str) -> None:
        """Note where each of the new tokens ends."""
        place = self.made - self._begins.tokens
        ids = self._columns[IDS][max(place - new, 0) : place]
        behind = self._begins.characters + len(self._text) - len(text)
        if len(ids) == new:
            ends = self._texts.ends(self._context, ids, text)
        else:  # more tokens than ids: the text goes with the last of them
            ends = [0] * (new - 1) + [len(text)]
        self._context = [*self._context, *ids][-CONTEXT:]
        first = self.made - new + 1
        self._ends.extend(_Place(first + n, behind + end) for n, end in enumerate(ends))

    def cut(self, tokens: int) -> Chunk:
        """A chunk of the next so many tokens that wait, at least one of at most all."""
        for _ in range(tokens):
            self._given = self._ends.popleft()
        return self._chunk()

    def rest(self) -> Chunk | None:
        """A chunk of all that waits, for a client that gets in each one what is new only.

        None: nothing waits, or the last chunk, which is passed on as it is, says all anyway.
        """
        if not self._incremental or not (self._ends or self._text):
            return None
        self._ends.clear()
        self._given = _Place(self.made, self._begins.characters + len(self._text))
        return self._chunk()

    def _chunk(self) -> Chunk:
        """The chunk of the output up to `_given`."""
        tokens, characters = (
            given - begins for given, begins in zip(self._given, self._begins, strict=True)
        )
        columns = {name: column[:tokens] for name, column in self._columns.items()}
        meta = {
            **self._last["meta_info"],
            "completion_tokens": self._given.tokens,
            "reasoning_tokens": min(self.reasoning, self._given.tokens),
        }
        chunk = {**self._last, IDS: columns.pop(IDS), "meta_info": meta}
        if "text" in chunk:
            chunk["text"] = self._text[:characters]
        for name, column in columns.items():
            meta[name] = column
            if (length := f"{name}_length") in meta:
                meta[length] = self._given.tokens
        if self._incremental:
            self._text = self._text[characters:]
            for column in self._columns.values():
                del column[:tokens]
            self._begins = self._given
        return chunk
