"""Checks and preparations before the first request: the trace, the records, the prompts."""

from __future__ import annotations

from tokenflow_sgl.choices import Api
from tokenflow_sgl.lab.replay.prompts import ChatPrompts, Prompts, TokenPrompts
from tokenflow_sgl.lab.replay.records import Record
from tokenflow_sgl.lab.replay.replay_options import ReplayError, ReplayOptions
from tokenflow_sgl.lab.replay.target import Target, words_to_tokens
from tokenflow_sgl.lab.traces.request import Trace
from tokenflow_sgl.qos.reader import HIGHEST_RATE, LOWEST_RATE


def check_trace(trace: Trace, options: ReplayOptions) -> None:
    """Refuse a trace that cannot be replayed, before any request to the server.

    Raises:
        ReplayError: The trace is empty, does not state a request's rate, or states one that no
            server takes although the options say that rates are sent.
    """
    if not trace.requests:
        raise ReplayError(f"trace {trace.name} has no requests")
    rates = [request.rate for request in trace.requests if request.rate is not None]
    if len(rates) < len(trace.requests):
        raise ReplayError(
            f"trace {trace.name} states no rate for {len(trace.requests) - len(rates)} of its "
            f"{len(trace.requests)} requests: say how fast they are read with --rate, or what the "
            "server's classes are with --classes"
        )
    refused = [rate for rate in rates if not LOWEST_RATE <= rate <= HIGHEST_RATE]
    if options.send_rates and refused:
        raise ReplayError(
            f"{len(refused)} of {len(rates)} requests of {trace.name} state rates that servers "
            f"refuse: the first is read at {refused[0]:g} tokens/s; servers take {LOWEST_RATE:g} "
            f"to {HIGHEST_RATE:g}. Give another --rate, or --no-send-rates to keep them to yourself"
        )


def make_records(trace: Trace) -> list[Record]:
    """A record for every request of a trace that `check_trace` has passed, nothing sent yet."""
    return [
        Record(request, request.rate, request.arrival_s)
        for request in trace.requests
        if request.rate is not None
    ]


async def make_prompts(target: Target, options: ReplayOptions, notes: list[str]) -> Prompts:
    """The maker of the prompts; adds to the notes how they are made.

    Raises:
        ReplayError: Neither the options nor the server say which token ids there are.
    """
    if options.api is Api.chat:
        measured = await words_to_tokens(target, options.seed)
        if measured is None:
            notes.append("The server does not count prompt tokens: a word was taken for a token.")
            return ChatPrompts(options.seed)
        per_word, overhead = measured
        notes.append(
            f"Prompts are words of {per_word:.2f} tokens on average, as the server counts them; "
            f"its chat template adds {overhead:.0f} tokens."
        )
        return ChatPrompts(options.seed, tokens_per_word=per_word, overhead=overhead)
    token_ids = options.token_ids
    if token_ids is None:
        if target.vocabulary is None:
            raise ReplayError(
                f"{target.url} does not say how many token ids its model has: "
                "give a range for the prompts with --token-ids LO:HI"
            )
        # Special tokens stand at either end of the usual vocabularies.
        token_ids = (target.vocabulary // 10, max(1, target.vocabulary * 9 // 10))
    notes.append(f"Prompts are drawn from the token ids {token_ids[0]} to {token_ids[1] - 1}.")
    return TokenPrompts(options.seed, *token_ids)
