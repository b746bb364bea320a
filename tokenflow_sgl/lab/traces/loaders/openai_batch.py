"""Batches of OpenAI's API, which SGLang and vLLM take, too: requests, and their answers.

JSON Lines. A request has `custom_id`, `method`, `url` and `body`; an answer has `custom_id` and
`response`, in whose body `usage` has the numbers of tokens. Neither has times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.traces.generators.arrivals import ARRIVALS, Arrivals
from tokenflow_sgl.lab.traces.generators.request_lengths import MAX_TOKENS
from tokenflow_sgl.lab.traces.loaders.conversations import ChatTurn, Conversation, trace_of
from tokenflow_sgl.lab.traces.loaders.intake import draw_starts, empty_reason
from tokenflow_sgl.lab.traces.loaders.source import Progress, Records
from tokenflow_sgl.lab.traces.loaders.text_lengths import NEEDED, TextMeasure, tokens_of
from tokenflow_sgl.lab.traces.parameters import spell
from tokenflow_sgl.lab.traces.request import Trace, TraceError

LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields of a body that limit the answer, the first one that is there counts."""
_PROMPTS = ("instructions", "messages", "prompt", "input")
_FAILED = "an error: the request failed"
_UNANSWERED = "no answer to it"
_NO_USAGE = "no usage in the answer"
_NO_LIMIT = "no limit of the answer"


@dataclass(frozen=True, slots=True)
class BatchLengths:
    """What becomes of the lengths that a file of requests does not have.

    Attributes:
        answers: The batch's output file; None: there is none.
        by_limit: Whether each answer is as long as its request's limit.
        measure: Counts the tokens of prompts; not needed with `answers`.
    """

    answers: Path | None = None
    by_limit: bool = False
    measure: TextMeasure | None = None

    def __post_init__(self) -> None:
        if self.answers is not None and (self.by_limit or self.measure is not None):
            raise TraceError(
                "answers has all lengths, so outputs, tokenizer and chars_per_token are not allowed"
                " beside it"
            )


@dataclass(frozen=True, slots=True)
class _Usage:
    """Tokens of a prompt, of its answer, and how many of these are thinking; or why there are none.

    limit: Of the answer, as the client set it.
    """

    prompt: int = 0
    output: int = 0
    reasoning: int = 0
    limit: int | None = None
    drop: str | None = None


def load_openai_batch(
    path: Path,
    *,
    arrivals: Arrivals,
    lengths: BatchLengths,
    seed: int = 0,
    progress: Progress | None = None,
) -> Trace:
    """Load a batch: its input file, or its output file, which has all lengths.

    Args:
        path: JSON Lines file, or .jsonl.gz.
        arrivals: When requests arrive: the file has no times.
        lengths: Where the lengths of an input file come from.
        seed: Seed of the arrivals.
        progress: Told how far reading is.

    Raises:
        TraceError: A file cannot be read or is malformed, or lacks lengths.
    """
    records = Records(path, progress, kind="openai-batch")
    answers = _answers(lengths.answers, progress)
    found: list[ChatTurn] = []
    dropped: Counter[str] = Counter()
    rows = counted = 0
    for row in _unique(records):
        rows += 1
        if row.get("body") is not None:
            usage = _request(records, row, lengths, answers)
            counted += answers is None
        else:
            usage = _answer(records, row)
        reason = usage.drop or empty_reason(usage.prompt, usage.output)
        if reason:
            dropped[reason] += 1
            continue
        # A server may count a token more than the limit.
        limit = None if usage.limit is None else max(usage.limit, usage.output)
        found.append(ChatTurn(usage.prompt, usage.output, limit=limit, reasoning=usage.reasoning))
    starts = draw_starts(arrivals, seed, len(found)).tolist() if found else []
    conversations = [
        Conversation(start, [turn], single=True) for start, turn in zip(starts, found, strict=True)
    ]
    notes = [
        f"OpenAI batch; it has no times: requests arrive by {spell(ARRIVALS, arrivals)}, seed "
        f"{seed}."
    ]
    if counted and lengths.measure is not None:
        notes.append(
            f"The texts of prompts are counted by {lengths.measure.said()}, without what a chat "
            "template adds, tools and images; each answer is as long as its limit."
        )
    return trace_of(records, conversations, rows, dropped, notes)


def _unique(records: Records) -> Iterator[dict[str, Any]]:
    """The rows; no id of theirs is there twice."""
    seen: set[str] = set()
    for row in records.rows():
        if "custom_id" not in row or not ("body" in row or "response" in row):
            missing = "custom_id" if "custom_id" not in row else "body"
            records.misfit(
                "the column is missing; a line of a batch has custom_id, and body (a request) or "
                "response (an answer)",
                missing,
            )
        name = records.text(row, "custom_id")
        if name in seen:
            records.error("is there twice in the file", "custom_id")
        seen.add(name)
        yield row


def _answers(path: Path | None, progress: Progress | None) -> Mapping[str, _Usage] | None:
    """The answers of an output file by their id; None: there is no such file."""
    if path is None:
        return None
    records = Records(path, progress, kind="openai-batch")
    found = {}
    for row in _unique(records):
        if "response" not in row:
            records.error(
                "the column is missing; answers must be the batch's output file", "response"
            )
        found[records.text(row, "custom_id")] = _answer(records, row)
    return found


def _answer(records: Records, row: dict[str, Any]) -> _Usage:
    """Lengths that an answer says."""
    response = row.get("response")
    if row.get("error") is not None or not isinstance(response, dict):
        return _Usage(drop=_FAILED)
    body = response.get("body")
    if response.get("status_code", 200) != 200 or not isinstance(body, dict):
        return _Usage(drop=_FAILED)
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return _Usage(drop=_NO_USAGE)
    # /v1/responses has other names than /v1/chat/completions and /v1/completions.
    asked, made = ("input_tokens", "output_tokens")
    if "prompt_tokens" in usage:
        asked, made = ("prompt_tokens", "completion_tokens")
    prompt = records.count(usage, asked)
    output = records.count(usage, made) if usage.get(made) is not None else 0
    details = usage.get(f"{made}_details")
    reasoning = 0
    if isinstance(details, dict) and details.get("reasoning_tokens") is not None:
        reasoning = records.count(details, "reasoning_tokens")
    return _Usage(prompt, output, min(reasoning, output))


def _request(
    records: Records,
    row: dict[str, Any],
    lengths: BatchLengths,
    answers: Mapping[str, _Usage] | None,
) -> _Usage:
    """Lengths of a request: from its answer, or from its texts and its limit."""
    body = row["body"]
    if not isinstance(body, dict):
        records.fail("body", body, "an object")
    limit = None
    for column in LIMITS:
        if body.get(column) is not None:
            limit = records.count(body, column, low=1)
            break
    if answers is not None:
        usage = answers.get(row["custom_id"], _Usage(drop=_UNANSWERED))
        return _Usage(usage.prompt, usage.output, usage.reasoning, limit, usage.drop)
    if not lengths.by_limit:
        _lacks(
            records,
            "has requests without the lengths of their answers: give the batch's output file, as "
            "answers=PATH, load that file alone, or take each limit for the length, as "
            "outputs=limit",
        )
    if lengths.measure is None:
        _lacks(records, f"has texts and no numbers of tokens: {NEEDED}")
    assert lengths.measure is not None
    prompt = tokens_of(lengths.measure, [body.get(name) for name in _PROMPTS])
    if prompt > MAX_TOKENS:
        records.error(f"has more than {MAX_TOKENS} tokens", "body")
    return _Usage(prompt, limit or 0, limit=limit, drop=None if limit else _NO_LIMIT)


def _lacks(records: Records, problem: str) -> None:
    records.line = 0
    records.error(problem)
