"""Results of other benchmarks as runs: AIPerf, GuideLLM, and those of vLLM and SGLang.

Shapes: AIPerf's `profile_export.jsonl` (docs/tutorials/working-with-profile-exports.md of
ai-dynamo/aiperf), GuideLLM's JSON report (src/guidellm/schemas of vllm-project/guidellm), `vllm
bench serve --save-detailed` and SGLang's `bench_serving --output-details`. What a file does not say
is said in the run, which then is invalid: a report marks it wherever it shows a figure of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

from tokenflow_sgl.lab.runs.run_tables import requests_table, tokens_table
from tokenflow_sgl.lab.runs.store import Run, RunError, RunInfo
from tokenflow_sgl.lab.traces.request import TraceRequest

LARGEST = 1 << 29
"""Bytes of a file that is read."""
MOST_SECONDS = 1e12
"""Largest time that counts as one; seconds."""
MOST_TOKENS = 2**31 - 1

NO_TOKEN_TIMES = (
    "It has no times of single tokens: each answer's tokens are taken to have come evenly between "
    "the first and the last one, so gaps between tokens and stalls are not known."
)
NO_SEND_TIMES = (
    "It does not say when requests were sent: all are taken to have been sent at once, so "
    "throughput and load are not known. Times to first token and gaps are as measured."
)
_SHARED_CHUNKS = (
    "Where an answer has more tokens than chunks, each chunk after the first is taken to have had "
    "about equally many."
)


@dataclass(slots=True)
class _Answer:
    """One request: seconds on the file's clock, tokens in and out, and when each came."""

    sent: float
    ended: float
    prompt: int
    output: int
    times: list[float] = field(default_factory=list)
    error: str | None = None
    warm_up: bool = False


def read_results(path: Path, rate: float) -> list[Run]:
    """The runs of a file of another benchmark, in its order.

    Args:
        path: The file.
        rate: Tokens per second that its readers consume; no such file says it.

    Raises:
        RunError: It is none of them, lacks what a report needs, or has a value that cannot be; the
            message names file, place, and what is allowed.
    """
    values = _values(path)
    first = values[0]
    if "benchmarks" in first and len(values) == 1:
        parts = first["benchmarks"]
        if not isinstance(parts, list) or not parts:
            raise RunError(f"{path}: benchmarks is no list with a benchmark; allowed is one")
        return [_guidellm(path, part, number, rate) for number, part in enumerate(parts, 1)]
    if "metadata" in first and "metrics" in first:
        return [_aiperf(path, values, rate)]
    if {"input_lens", "output_lens", "ttfts", "itls"} <= first.keys():
        several = len(values) > 1
        return [
            _bench(_InFile(path, f"run {number}" if several else ""), value, rate, number, several)
            for number, value in enumerate(values, 1)
        ]
    raise RunError(f"{path}: {_lacks(first)}")


def _lacks(value: Mapping[str, Any]) -> str:
    if "total_input_tokens" in value or "total_output_tokens" in value:
        return (
            "has no details of its requests (input_lens, output_lens, ttfts, itls): run SGLang's "
            "bench_serving with --output-details, or vllm bench serve with --save-result "
            "--save-detailed"
        )
    if "request_latency" in value or "input_config" in value:
        return "has sums of all requests only: give AIPerf's profile_export.jsonl beside it"
    return (
        "is no result that is known; allowed are a folder of a run, AIPerf's profile_export.jsonl, "
        "GuideLLM's JSON report, and detailed results of vLLM's and SGLang's benchmarks"
    )


def _values(path: Path) -> list[dict[str, Any]]:
    """The objects of a file: one, or one a line."""
    try:
        if path.stat().st_size > LARGEST:
            raise RunError(f"{path}: is larger than {LARGEST} bytes, the most that is read")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RunError(f"{path}: is not UTF-8 text") from None
    if not text.strip():
        raise RunError(f"{path}: is empty")
    try:
        found = [json.loads(text)]
    except RecursionError:
        raise RunError(f"{path}: is not JSON that can be used") from None
    except ValueError:
        found = list(_by_line(path, text))
    for number, value in enumerate(found, 1):
        if not isinstance(value, dict):
            raise RunError(f"{path}, line {number}: is no JSON object; allowed is one")
    return found


def _by_line(path: Path, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            raise RunError(
                f"{path}, line {number}: is not JSON; allowed is one object, or one a line"
            ) from None


@dataclass(frozen=True, slots=True)
class _InFile:
    """Where in a file something is, for errors."""

    path: Path
    inside: str = ""

    def fail(self, name: str, value: object, allowed: str) -> NoReturn:
        """Raise `RunError`: this field is not allowed to be that."""
        shown = repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"
        where = f"{self.path}, {self.inside}" if self.inside else str(self.path)
        raise RunError(f"{where}: {name} is {shown[:40]}; allowed is {allowed}")

    def number(self, name: str, value: object, low: float = 0.0) -> float:
        """A finite number of at least `low`."""
        if type(value) not in (int, float) or not low <= value <= MOST_SECONDS * 1e9:  # type: ignore[operator]
            self.fail(name, value, f"a finite number of at least {low:g}")
        return float(value)  # type: ignore[arg-type]

    def tokens(self, name: str, value: object) -> int:
        """A number of tokens."""
        found = self.number(name, value)
        if not found.is_integer() or found > MOST_TOKENS:
            self.fail(name, value, f"a whole number from 0 to {MOST_TOKENS}")
        return int(found)

    def list(self, name: str, value: object, size: int | None = None) -> list[Any]:
        """A list, of so many entries."""
        if not isinstance(value, list) or (size is not None and len(value) != size):
            many = "" if size is None else f" of {size}, as many as input_lens has"
            self.fail(name, len(value) if isinstance(value, list) else value, f"a list{many}")
        return value

    def object(self, name: str, value: object) -> dict[str, Any]:
        """An object."""
        if not isinstance(value, dict):
            self.fail(name, value, "an object")
        return value


# ---- each tool ----------------------------------------------------------------------------


def _aiperf(path: Path, rows: Sequence[dict[str, Any]], rate: float) -> Run:
    answers, shared, unknown = [], False, False
    for number, row in enumerate(rows, 1):
        place = _InFile(path, f"line {number}")
        about = place.object("metadata", row.get("metadata"))
        start = place.number("metadata.request_start_ns", about.get("request_start_ns")) / 1e9
        end = place.number("metadata.request_end_ns", about.get("request_end_ns")) / 1e9
        if end < start:
            place.fail("metadata.request_end_ns", end * 1e9, "no less than request_start_ns")
        metrics = place.object("metrics", row.get("metrics") or {})

        def metric(name: str, metrics: dict[str, Any] = metrics, place: _InFile = place) -> object:
            return place.object(f"metrics.{name}", metrics.get(name) or {}).get("value")

        error = row.get("error")
        prompt = metric("input_sequence_length") or metric("error_isl") or 0
        answer = _Answer(start, end, place.tokens("metrics.input_sequence_length", prompt), 0)
        answer.warm_up = about.get("benchmark_phase") == "warmup"
        answers.append(answer)
        if error is not None or about.get("was_cancelled"):
            code = place.object("error", error or {}).get("code")
            answer.error = f"error {code}" if type(code) is int else "an error"
            continue
        output = metric("output_sequence_length")
        first = place.number("metrics.time_to_first_token", metric("time_to_first_token")) / 1e3
        gaps = metric("inter_chunk_latency")
        answer.output = place.tokens("metrics.output_sequence_length", output)
        if isinstance(gaps, list):
            gaps = [place.number("metrics.inter_chunk_latency", gap) / 1e3 for gap in gaps]
            chunks = list(accumulate(gaps, initial=start + first))
            shared |= answer.output > len(chunks)
            answer.times = _shared(chunks, answer.output)
        else:
            unknown |= answer.output > 2
            answer.times = _even(start + first, end, answer.output)
    notes = [_SHARED_CHUNKS] if shared else []
    invalid = [NO_TOKEN_TIMES] if unknown else []
    return _run(path, (path.stem, "aiperf"), answers, rate, (notes, invalid))


def _guidellm(path: Path, part: object, number: int, rate: float) -> Run:
    place = _InFile(path, f"benchmark {number}")
    requests = place.object("requests", place.object("benchmarks", part).get("requests"))
    answers = []
    for status in ("successful", "incomplete", "errored"):
        for index, each in enumerate(place.list(f"requests.{status}", requests.get(status) or [])):
            here = _InFile(path, f"benchmark {number}, {status} request {index}")
            row = here.object("request", each)
            answers.append(_guidellm_answer(here, row, status))
    name = f"{path.stem} {number}"
    return _run(path, (name, "guidellm"), answers, rate, ([], [NO_TOKEN_TIMES]))


def _guidellm_answer(place: _InFile, row: dict[str, Any], status: str) -> _Answer:
    info = place.object("info", row.get("info"))
    timings = place.object("info.timings", info.get("timings"))
    start = place.number("request_start_time", row.get("request_start_time"))
    end = place.number("request_end_time", row.get("request_end_time"), start)
    answer = _Answer(start, end, place.tokens("prompt_tokens", row.get("prompt_tokens") or 0), 0)
    if status != "successful":
        answer.error = status
        return answer
    answer.output = place.tokens("output_tokens", row.get("output_tokens"))
    first, last = (
        place.number(f"info.timings.{name}", timings.get(name), start)
        for name in ("first_token_iteration", "last_token_iteration")
    )
    answer.times = _even(first, max(first, last), answer.output)
    answer.ended = max(end, last)
    return answer


def _bench(place: _InFile, run: dict[str, Any], rate: float, number: int, several: bool) -> Run:
    prompts = place.list("input_lens", run["input_lens"])
    size = len(prompts)
    outputs, ttfts, itls = (
        place.list(name, run[name], size) for name in ("output_lens", "ttfts", "itls")
    )
    errors = place.list("errors", run.get("errors") or [""] * size, size)
    starts = run.get("start_times")
    invalid = [] if starts is not None else [NO_SEND_TIMES]
    sent = place.list("start_times", starts, size) if starts is not None else [0.0] * size
    answers, shared = [], False
    for row in range(size):
        start = place.number("start_times", sent[row], -MOST_SECONDS)
        answer = _Answer(start, start, place.tokens("input_lens", prompts[row]), 0)
        answers.append(answer)
        if errors[row]:
            answer.error = "an error"
            continue
        answer.output = place.tokens("output_lens", outputs[row])
        first = start + place.number("ttfts", ttfts[row])
        gaps = [place.number("itls", gap) for gap in place.list("itls", itls[row])]
        chunks = list(accumulate(gaps, initial=first))
        shared |= answer.output > len(chunks)
        answer.times = _shared(chunks, answer.output)
        answer.ended = chunks[-1]
    name = f"{place.path.stem} {number}" if several else place.path.stem
    notes = [_SHARED_CHUNKS] if shared else []
    return _run(place.path, (name, "bench"), answers, rate, (notes, invalid))


# ---- what all have in common ----------------------------------------------------------------


def _even(first: float, last: float, count: int) -> list[float]:
    """`count` times from the first to the last one, equally far apart."""
    if count < 2:
        return [first] * count
    return [first + (last - first) * place / (count - 1) for place in range(count)]


def _shared(chunks: list[float], tokens: int) -> list[float]:
    """When each token came, of answers whose chunks came then: the first one has one token."""
    if tokens <= len(chunks):
        return chunks[:tokens]
    if len(chunks) == 1:
        return chunks * tokens
    later = len(chunks) - 1
    found = [chunks[0]]
    for place in range(later):
        count = (tokens - 1) * (place + 1) // later - (tokens - 1) * place // later
        found += [chunks[place + 1]] * count
    return found


def _run(
    path: Path,
    called: tuple[str, str],
    answers: list[_Answer],
    rate: float,
    said: tuple[Sequence[str], Sequence[str]],
) -> Run:
    """The run of these answers.

    Args:
        path: The file.
        called: Name of the run, and what wrote the file.
        answers: In any order.
        rate: Of the readers, tokens per second.
        said: Notes, and why its figures must not be trusted.
    """
    (name, source), (notes, invalid) = called, said
    if not answers:
        raise RunError(f"{path}: {name} has no requests")
    answers.sort(key=lambda answer: answer.sent)
    zero = answers[0].sent
    rows = [
        TraceRequest(each.sent - zero, each.prompt, max(each.output, 1), rate) for each in answers
    ]
    ended = [max(each.ended, *each.times[-1:], each.sent) - zero for each in answers]
    times = [[max(time - zero, 0.0) for time in each.times] for each in answers]
    if not all(map(math.isfinite, ended)):
        raise RunError(f"{path}: {name} has times that are too large to be added")
    measured: dict[str, Any] = {
        "warm_up": [each.warm_up for each in answers],
        "scheduled_s": [each.sent - zero for each in answers],
        "sent_s": [each.sent - zero for each in answers],
        "ended_s": ended,
        "prompt_tokens": [each.prompt for each in answers],
        "output_tokens": [len(each.times) for each in answers],
        "reasoning_tokens": [0] * len(answers),
        "rate": [rate] * len(answers),
        "finish_reason": [None if each.error else "stop" for each in answers],
        "error": [each.error for each in answers],
    }
    owners = [index for index, each in enumerate(times) for _ in each]
    info = RunInfo(
        name=name,
        source=source,
        trace={"name": path.name, "requests": len(answers)},
        target={"notes": list(notes)} if notes else {},
        options={"rate": rate},
        duration_s=max(ended),
        invalid=tuple(invalid),
    )
    return Run(
        info,
        requests_table(rows, measured),
        tokens_table(owners, [time for each in times for time in each]),
    )
