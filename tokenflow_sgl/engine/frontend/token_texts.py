"""Where, in a text that came for several tokens at once, the text of each of them ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

CONTEXT = 5
"""Tokens before the new ones that are decoded with them: a token's text can depend on those."""
LONGEST = 16
"""Tokens without a certain text behind which no more is looked for: the last one has it."""
_UNFINISHED = "\ufffd"
"""What decoding makes of bytes that are no character yet."""


class TokenTexts:
    """Tells which text the tokens of one request stand for.

    Args:
        tokenizer: The model's; None: the server was started without, and there are no texts.
        sampling: The request's sampling parameters.
    """

    def __init__(self, tokenizer: Any, sampling: Any) -> None:
        self._decode: Callable[..., str] | None = getattr(tokenizer, "decode", None)
        given = sampling if isinstance(sampling, dict) else {}
        self._how = {
            name: bool(given.get(name, True))
            for name in ("skip_special_tokens", "spaces_between_special_tokens")
        }

    def ends(self, before: Sequence[int], new: Sequence[int], text: str) -> list[int]:
        """Characters of the text up to the end of each token; the last one has all that are left.

        A token of which that cannot be told has none, and the next one has them.

        Args:
            before: Tokens before these, at least the last `CONTEXT` of them if there are so many.
            new: The tokens, at least one.
            text: What SGLang's detokenizer made of them.
        """
        ends: list[int] = []
        context, pending, done = list(before[-CONTEXT:]), list[int](), 0
        # Bytes before that are no character yet have had no text.
        known = self._text(context).rstrip(_UNFINISHED)
        for token in new[:-1]:
            if text and len(pending) < LONGEST:
                pending.append(token)
                whole = self._text([*context, *pending])
                found = whole.removeprefix(known)
                certain = whole.startswith(known) and not found.endswith(_UNFINISHED)
                if certain and text.startswith(found, done):
                    done += len(found)
                    context, pending = [*context, *pending][-CONTEXT:], []
                    known = self._text(context)
            ends.append(done)
        return [*ends, len(text)]

    def _text(self, ids: list[int]) -> str:
        return self._decode(ids, **self._how) if ids and self._decode is not None else ""
