"""What came back, whatever the route, and what of it is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from attacker.asking import Ask
from attacker.truth import Subject

LOGPROB_TOLERANCE = 1e-3
FULL = "The request queue is full."
BUSY = "The server is busy: the first token may take "
CROWDED = "Your tenant has "


@dataclass
class Sample:
    """One answer: its tokens where the route tells them, its text, and why it ended."""

    text: str = ""
    ids: list[int] | None = None
    reason: str | None = None
    logprobs: list[tuple[float, int]] | None = None


@dataclass
class Reply:
    """A whole answer, or as much of it as was read.

    Attributes:
        status: HTTP status.
        samples: By index.
        error: What it says instead of an answer.
        faults: What no answer may do: lose or repeat a part, go on after its end.
    """

    status: int
    samples: dict[int, Sample] = field(default_factory=dict)
    error: str = ""
    faults: list[str] = field(default_factory=list)

    def whole(self, text: str) -> None:
        """Take in an answer that came at once."""
        if self.status != 200:
            self.error = text
            return
        body = json.loads(text)
        for number, one in enumerate(body if isinstance(body, list) else _choices(body)):
            self._take(one.get("index", number), one, streamed=False)

    def event(self, data: str) -> None:
        """Take in an event of a stream."""
        body = json.loads(data)
        if "error" in body:
            self.error = data
            return
        for one in _choices(body):
            self._take(one.get("index", 0), one, streamed=True)

    def _take(self, index: int, one: dict[str, Any], *, streamed: bool) -> None:
        sample = self.samples.setdefault(index, Sample())
        if sample.reason is not None:
            self.faults.append(f"sample {index} goes on after its end: {one}")
        if "meta_info" in one:
            self._generated(index, sample, one)
            return
        message = one.get("delta") or one.get("message") or one
        part = message.get("text") or message.get("content") or ""
        sample.text = sample.text + part if streamed else part
        sample.reason = one.get("finish_reason")

    def _generated(self, index: int, sample: Sample, one: dict[str, Any]) -> None:
        """Of /generate, whose events hold all tokens so far."""
        about = one["meta_info"]
        ids, text = one.get("output_ids") or [], one.get("text") or ""
        reason = about.get("finish_reason")
        if reason is not None and reason.get("status_code"):
            self.error = json.dumps(reason)
            sample.reason = "error"
            return
        if ids[: len(sample.ids or [])] != (sample.ids or []) or not text.startswith(sample.text):
            self.faults.append(f"sample {index} takes back what it said: {sample} -> {one}")
        # On the way, when the front end is slow, the count may be of an event before.
        if reason is not None and about.get("completion_tokens", len(ids)) != len(ids):
            self.faults.append(f"sample {index}: {about['completion_tokens']} tokens, {ids}")
        sample.ids, sample.text = ids, text
        sample.reason = None if reason is None else reason["type"]
        if about.get("output_token_logprobs") is not None:
            sample.logprobs = [(value, token) for value, token, _ in about["output_token_logprobs"]]


def _choices(body: dict[str, Any]) -> list[dict[str, Any]]:
    choices: list[dict[str, Any]] = body.get("choices", [body])
    return choices


@dataclass(frozen=True)
class Allowed:
    """What an answer may be like on a server, beside what was asked for.

    Attributes:
        refusals: Words with which the server may refuse any request.
        beyond: Tokens by which an aborted answer may exceed its limit.
        torn: What was aborted may be told as an error: it may be on the way between two servers.
    """

    refusals: Sequence[str] = ()
    beyond: int = 0
    torn: bool = False


def judge(ask: Ask, reply: Reply, *, aborted: bool, allowed: Allowed = Allowed()) -> str | None:
    """What is wrong with a reply that was read to its end; None: nothing.

    Args:
        ask: What was asked.
        reply: What came back.
        aborted: Somebody asked for its end while it was served.
        allowed: On that server.
    """
    if reply.faults:
        return "; ".join(reply.faults)
    if reply.error:
        if ask.refusal and ask.refusal in reply.error:
            return None
        if any(each in reply.error for each in allowed.refusals):
            return None
        if allowed.torn and aborted:
            return None
        return f"HTTP {reply.status}: {reply.error[:600]}"
    if ask.subject is None:
        if aborted and {sample.reason for sample in reply.samples.values()} == {"abort"}:
            return None
        return f"not refused: {reply}"
    if sorted(reply.samples) != list(range(ask.samples)):
        return f"samples {sorted(reply.samples)}"
    for sample in reply.samples.values():
        if wrong := _compare(ask, ask.subject, sample, aborted=aborted, beyond=allowed.beyond):
            return wrong
    return None


def _compare(
    ask: Ask, subject: Subject, sample: Sample, *, aborted: bool, beyond: int
) -> str | None:
    text, ids = subject.text(ask.shown), list(subject.ids[: ask.tokens])
    if sample.reason == "abort":
        if not aborted:
            return f"nobody aborted it: {sample}"
        # What is cut off before its end may show the stop string's first part, and with drafts the
        # rest of its last step.
        most = ask.tokens + beyond
        whole, ids = subject.text(most), list(subject.ids[:most])
        if not whole.startswith(sample.text) or (sample.ids or []) != ids[: len(sample.ids or [])]:
            return f"aborted, {sample} is no beginning of {ids}, {whole!r}"
    elif sample.reason != ("stop" if ask.shown < ask.tokens else "length"):
        return f"ended by {sample.reason!r}: {sample} instead of {ids}, {text!r}"
    elif sample.text != text or (sample.ids is not None and sample.ids != ids):
        return f"{sample} instead of {ids}, {text!r}"
    if ask.logprobs and sample.ids:
        return _compare_logprobs(subject, sample)
    return None


def _compare_logprobs(subject: Subject, sample: Sample) -> str | None:
    got, ids = sample.logprobs or [], sample.ids or []
    if [token for _, token in got] != ids:
        return f"log probabilities of {[token for _, token in got]} for {ids}"
    far = [
        number
        for number, (value, _) in enumerate(got)
        if abs(value - subject.logprobs[number]) > LOGPROB_TOLERANCE
    ]
    return f"log probabilities differ at {far}: {got}" if far else None
