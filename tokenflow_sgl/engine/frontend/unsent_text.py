"""How many output tokens of a chat have gone out, where a parser has kept a part of their text.

Chunks can have many tokens (`--stream-interval`), and a parser may begin to keep text in the middle
of one. What it sends it sends in order, and mostly as it was. So what goes out is looked for in the
text that came, from where the last piece ended; what a parser drops is passed over. The earliest
place at which a piece stands is at most where it really was: never too many tokens are counted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tokenflow_sgl.engine.frontend.token_texts import CONTEXT, TokenTexts

MOST_KEPT = 1 << 16
"""Characters of unsent text in which a piece is looked for; the last chunk may have more."""


class _Stretch(NamedTuple):
    """What one chunk brought: its text, its tokens and some before, and where in the output."""

    text: str
    ids: Sequence[int]
    before: Sequence[int]
    begins: int
    ends: int


class UnsentText:
    """Counts the tokens of one stream whose text has been sent.

    Attributes:
        tokens: Output tokens whose text has gone out; never less than before. Where that cannot be
            told it is too small, but for a chunk of one token, of which a part is taken for all.

    Args:
        texts: Tells where a token's text ends.
    """

    def __init__(self, texts: TokenTexts) -> None:
        self.tokens = 0
        self._texts = texts
        self._made = 0
        self._tail: Sequence[int] = ()
        self._stretches: deque[_Stretch] = deque()
        self._text, self._given = "", 0

    def passed(self, text: str, ids: Sequence[int], made: int, pieces: Iterable[str]) -> None:
        """A chunk came, and this went out for it.

        Args:
            text: What is new in it.
            ids: Its tokens; fewer than are new in it if they are not known.
            made: Output tokens up to its end.
            pieces: What the client got since the chunk before, in order.
        """
        new, pieces = made - self._made, list(pieces)
        if pieces and new == 1:
            self._stretches.clear()
            self._text, self._given, self.tokens = "", 0, made
        else:
            if text:  # of tokens without any nothing can go out
                self._stretches.append(_Stretch(text, ids, self._tail, self._made, made))
                self._text += text
            if pieces:
                self._find(pieces)
                self._count()
            self._forget()
        self._made, self._tail = made, [*self._tail, *ids][-CONTEXT:]

    def _find(self, pieces: Iterable[str]) -> None:
        for piece in pieces:
            at = self._text.find(piece, self._given)
            # Written anew by the parser: it stands for about as much as it is long.
            end = (self._given if at < 0 else at) + len(piece)
            self._given = min(end, len(self._text))

    def _count(self) -> None:
        while self._stretches and self._given >= len(self._stretches[0].text):
            self.tokens = self._stretches[0].ends
            self._drop_first()
        if not self._stretches or not self._given:
            return
        first = self._stretches[0]
        if len(first.ids) == first.ends - first.begins:
            ends = self._texts.ends(first.before, first.ids, first.text)
            end = ends[found - 1] if (found := bisect_right(ends, self._given)) else 0
            # Of tokens with one end only the first is known to end there.
            certain = bisect_left(ends, end) + 1 if end else 0
            self.tokens = max(self.tokens, first.begins + certain)

    def _drop_first(self) -> None:
        length = len(self._stretches.popleft().text)
        self._text = self._text[length:]
        self._given = max(self._given - length, 0)

    def _forget(self) -> None:
        """Text that is kept for very long is no more looked through; its tokens do not count."""
        while len(self._text) > MOST_KEPT and len(self._stretches) > 1:
            self._drop_first()
