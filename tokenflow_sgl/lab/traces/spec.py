"""One string that names a trace: a workload, or a file and how to read it.

    h200-a                                            a workload of the paper
    burst.jsonl                                       a file in the native format
    azure:PATH?start=0&duration=600&speed=2           FORMAT:PATH?key=value&key=value

docs/traces.md has the table of formats and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenflow_sgl.lab.traces import loaders, quantised_times, transform
from tokenflow_sgl.lab.traces.generators.reading_rates import parse_rates
from tokenflow_sgl.lab.traces.loaders.recognised import begins_json, seems
from tokenflow_sgl.lab.traces.request import Trace, TraceError
from tokenflow_sgl.lab.traces.spec_settings import SpecSettings
from tokenflow_sgl.lab.traces.workloads import WORKLOADS


@dataclass(frozen=True, slots=True)
class _Request:
    """What a loader needs: the file, the settings, the seed."""

    path: Path
    settings: SpecSettings
    seed: int
    progress: loaders.Progress | None


Loader = Callable[[], Trace]
"""Loads the file; made before unknown keys are refused, so that a misspelt key costs no time."""


def _native(request: _Request) -> Loader:
    sort = request.settings.flag("sort", False)
    return lambda: loaders.load_native(request.path, sort=sort, progress=request.progress)


def _azure(request: _Request) -> Loader:
    sort = request.settings.flag("sort", False)
    return lambda: loaders.load_azure(request.path, sort=sort, progress=request.progress)


def _burstgpt(request: _Request) -> Loader:
    sort = request.settings.flag("sort", False)
    model, log_type = request.settings.text("model"), request.settings.text("log_type")
    return lambda: loaders.load_burstgpt(
        request.path, model=model, log_type=log_type, sort=sort, progress=request.progress
    )


def _mooncake(request: _Request) -> Loader:
    sort = request.settings.flag("sort", False)
    quantised = request.settings.flag("quantised", False)
    blocks = _blocks(request.settings)
    return lambda: loaders.load_mooncake(
        request.path,
        spread=not quantised,
        seed=request.seed,
        sort=sort,
        block_tokens=blocks,
        progress=request.progress,
    )


def _blocks(settings: SpecSettings) -> int:
    """Tokens of a prefix block."""
    blocks = settings.count("blocks")
    if blocks is not None and not 1 <= blocks <= loaders.MOST_BLOCK_TOKENS:
        raise settings.fail(
            f"blocks is {blocks}; allowed is a number of tokens from 1 to "
            f"{loaders.MOST_BLOCK_TOKENS}"
        )
    return blocks or loaders.BLOCK_TOKENS


def _aiperf(request: _Request) -> Loader:
    arrivals = request.settings.arrivals()
    blocks = _blocks(request.settings)
    return lambda: loaders.load_aiperf(
        request.path,
        arrivals=arrivals,
        seed=request.seed,
        block_tokens=blocks,
        progress=request.progress,
    )


def _bailian(request: _Request) -> Loader:
    return lambda: loaders.load_bailian(request.path, progress=request.progress)


def _sharegpt(request: _Request) -> Loader:
    arrivals = request.settings.needed_arrivals("conversations")
    think_s = request.settings.number("think") or 0.0
    measure = _measure(request.settings)
    if begins_json(request.path):
        return lambda: loaders.load_sharegpt_texts(
            request.path,
            measure=measure,
            arrivals=arrivals,
            seed=request.seed,
            think_s=think_s,
            progress=request.progress,
        )
    if measure is not None:
        raise request.settings.fail(
            "tokenizer and chars_per_token count texts; this file is no JSON with conversations"
        )
    return lambda: loaders.load_sharegpt(
        request.path,
        arrivals=arrivals,
        seed=request.seed,
        think_s=think_s,
        progress=request.progress,
    )


def _measure(settings: SpecSettings) -> loaders.TextMeasure | None:
    """What counts the tokens of texts; None: it is not given."""
    tokenizer, chars = settings.text("tokenizer"), settings.number("chars_per_token")
    if tokenizer is not None and chars is not None:
        raise settings.fail("tokenizer and chars_per_token exclude each other")
    if chars is not None:
        return loaders.CharsPerToken(chars)
    return None if tokenizer is None else loaders.TokenizerFile(Path(tokenizer))


def _inference_perf(request: _Request) -> Loader:
    return lambda: loaders.load_inference_perf(request.path, progress=request.progress)


def _openai_batch(request: _Request) -> Loader:
    arrivals = request.settings.needed_arrivals("requests")
    answers, outputs = request.settings.text("answers"), request.settings.text("outputs")
    if outputs not in (None, "limit"):
        raise request.settings.fail(f"outputs is {outputs!r}; allowed is limit")
    lengths = loaders.BatchLengths(
        None if answers is None else Path(answers),
        by_limit=outputs is not None,
        measure=_measure(request.settings),
    )
    return lambda: loaders.load_openai_batch(
        request.path,
        arrivals=arrivals,
        lengths=lengths,
        seed=request.seed,
        progress=request.progress,
    )


def _otel(request: _Request) -> Loader:
    settings = request.settings
    sessions = settings.choice("sessions", loaders.SpanSessions, loaders.SpanSessions.conversation)
    measure = _measure(settings)
    return lambda: loaders.load_otel(
        request.path, sessions=sessions, measure=measure, progress=request.progress
    )


def _bench(request: _Request) -> Loader:
    arrivals = request.settings.arrivals()
    run = request.settings.count("run")
    return lambda: loaders.load_bench(
        request.path, arrivals=arrivals, seed=request.seed, run=run, progress=request.progress
    )


def _agent(request: _Request) -> Loader:
    think = request.settings.choice("think", loaders.Think)
    provider_rate = request.settings.number("provider_rate")
    arrivals = request.settings.arrivals()
    return lambda: loaders.load_agent(
        request.path,
        think=think,
        provider_rate=provider_rate,
        arrivals=arrivals,
        seed=request.seed,
        progress=request.progress,
    )


_RATES_END, _LENGTHS_END = "_rates.csv", "_lengths.jsonl.gz"


def _servegen(request: _Request) -> Loader:
    settings = request.settings
    start_s, duration_s = settings.number("start"), settings.number("duration")
    lengths = settings.text("lengths")
    if start_s is None or duration_s is None:
        raise settings.fail("start and duration must be given, in seconds: a day is too much")
    if request.path.is_dir() and lengths is None:
        return lambda: loaders.load_servegen_chunks(
            request.path,
            start_s=start_s,
            duration_s=duration_s,
            seed=request.seed,
            progress=request.progress,
        )
    if lengths is None:
        if not request.path.name.endswith(_RATES_END):
            raise settings.fail(
                f"lengths must be given, or PATH must end in {_RATES_END} and have a file ending "
                f"in {_LENGTHS_END} beside it"
            )
        lengths = str(request.path).removesuffix(_RATES_END) + _LENGTHS_END
    return lambda: loaders.load_servegen(
        request.path,
        Path(lengths),
        start_s=start_s,
        duration_s=duration_s,
        seed=request.seed,
        progress=request.progress,
    )


FORMATS: Mapping[str, Callable[[_Request], Loader]] = {
    "native": _native,
    "azure": _azure,
    "burstgpt": _burstgpt,
    "mooncake": _mooncake,
    "aiperf": _aiperf,
    "bailian": _bailian,
    "sharegpt": _sharegpt,
    "servegen": _servegen,
    "agent": _agent,
    "bench": _bench,
    "inference-perf": _inference_perf,
    "openai-batch": _openai_batch,
    "otel": _otel,
}
"""Formats of files by the name that a spec uses."""


def open_trace(spec: str, *, progress: loaders.Progress | None = None) -> Trace:
    """Make the trace that a spec string names.

    Args:
        spec: The name of a workload, the path of a native file (`.jsonl` or `.jsonl.gz`), or
            `FORMAT:PATH`; each may be followed by `?key=value&key=value`, where `%26` stands for
            an ampersand in a value.
        progress: Told how far reading a file is.

    Raises:
        TraceError: The spec is not understood, its file cannot be used, or there is no request
            in it.
    """
    name, _, options = spec.partition("?")
    settings = SpecSettings(spec, options)
    seed = settings.count("seed") or 0
    if seed < 0:
        raise settings.fail(f"seed is {seed}; allowed is a whole number of at least 0")
    if name in WORKLOADS:
        workload, scale = WORKLOADS[name], settings.number("scale")
        duration_s = settings.number("duration") if workload.burst is None else None
        steps = _transforms(settings, seed)
        settings.finish()
        trace = workload.trace(seed, 1.0 if scale is None else scale, duration_s)
    else:
        kind, path = _split(spec, name)
        loader = FORMATS[kind](_Request(path, settings, seed, progress))
        steps = _transforms(settings, seed)
        settings.finish()
        trace = loader()
    for step in steps:
        trace = step(trace)
    if not trace.requests:
        raise settings.fail("has no requests")
    return trace


def other_draw(spec: str, number: int) -> str | None:
    """A workload drawn anew, with a seed so much greater; None for a file, which is one draw."""
    name, _, options = spec.partition("?")
    if name not in WORKLOADS:
        return None
    parts = [part for part in options.split("&") if part]
    given = [part.partition("=")[2] for part in parts if part.startswith("seed=")]
    seed = int(given[0]) if given and given[0].isdecimal() else 0
    kept = [part for part in parts if not part.startswith("seed=")]
    return f"{name}?{'&'.join([*kept, f'seed={seed + number}'])}"


def _split(spec: str, name: str) -> tuple[str, Path]:
    """Format and path of a file."""
    kind, colon, rest = name.partition(":")
    if colon and kind in FORMATS and rest:
        return kind, Path(rest)
    if name.endswith((".jsonl", ".jsonl.gz")) and not (colon and "/" not in kind):
        return "native", Path(name)
    seen = seems(Path(name), "") if Path(name).is_file() else ""
    raise TraceError(
        f"{spec}: no such trace{seen}; allowed are a workload ({', '.join(WORKLOADS)}), PATH.jsonl "
        f"in the native format, or FORMAT:PATH with FORMAT one of {', '.join(FORMATS)}"
    )


def _transforms(settings: SpecSettings, seed: int) -> Sequence[Callable[[Trace], Trace]]:
    """What is done to the trace after loading, always in this order."""
    steps: list[Callable[[Trace], Trace]] = []
    step_s = settings.number("spread")
    if step_s is not None:
        steps.append(lambda trace: quantised_times.spread(trace, step_s, seed))
    start_s, duration_s = settings.number("start"), settings.number("duration")
    if (start_s is None) != (duration_s is None):
        raise settings.fail("start and duration must be given together, in seconds")
    if start_s is not None and duration_s is not None:
        steps.append(lambda trace: transform.window(trace, start_s, duration_s))
    speed = settings.number("speed")
    if speed is not None:
        steps.append(lambda trace: transform.speed_up(trace, speed))
    max_context = settings.count("max_context")
    if max_context is not None:
        steps.append(lambda trace: transform.fit_context(trace, max_context))
    share = settings.number("share")
    if share is not None:
        steps.append(lambda trace: transform.sample(trace, share, seed))
    limit = settings.count("limit")
    if limit is not None:
        steps.append(lambda trace: transform.limit(trace, limit))
    readers = settings.text("readers")
    if readers is not None:
        mix = parse_rates(readers)
        steps.append(lambda trace: transform.with_rates(trace, mix, seed))
    ttft_s, tbt_s = settings.number("ttft_slo"), settings.number("tbt_slo")
    if ttft_s is not None or tbt_s is not None:
        steps.append(lambda trace: transform.with_slos(trace, ttft_s, tbt_s))
    return steps
