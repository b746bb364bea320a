"""The bodies of a replay's requests: their prompts and parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tokenflow_sgl.choices import Api
from tokenflow_sgl.lab.replay.endpoints import Ask
from tokenflow_sgl.lab.replay.prompts import Prompt
from tokenflow_sgl.lab.replay.replay_parts import ReplayParts
from tokenflow_sgl.lab.traces.output_limits import WARM_UP_LIMIT, client_limits
from tokenflow_sgl.lab.traces.request import TraceRequest, continues
from tokenflow_sgl.lab.traces.schedule import Schedule

_CHAT_MARGIN = 0.1
"""Share of a chat prompt by which the server's count of its tokens may be larger than ours."""


class Bodies:
    """Writes the body of every request, when it is sent or before.

    Args:
        parts: Requests, server, and what goes between them.
        schedule: Which requests follow an answer.
    """

    def __init__(self, parts: ReplayParts, schedule: Schedule) -> None:
        target, options, records = parts.target, parts.options, parts.records
        self._target, self._options, self._endpoint = target, options, parts.endpoint
        self._prompts, self._records, self._schedule = parts.prompts, records, schedule
        self._keep_all = parts.answered is not None  # not only those that a later turn follows
        self._limits = client_limits(
            [record.request for record in records],
            known_lengths=options.known_lengths,
            room=None if target.context is None else self._room(target.context),
        )
        self._device_ends = bool(target.device) and not options.known_lengths
        self._prepared: dict[int, tuple[Prompt, bytes]] = {}

    def keeps(self, index: int) -> bool:
        """Whether the answer's content is needed, and not only its tokens' times."""
        return self._keep_all or self._schedule.has_next(index)

    def burst(self, number: int, arrival: Mapping[str, float] | None = None) -> bytes:
        """The body of a warm-up request, like the trace's request of that number but cut short.

        By its limit: answers that ended there would teach the server that all are as short.
        `arrival` is that of `Ask`.
        """
        record = self._records[number]
        request = record.request
        limit = WARM_UP_LIMIT if self._device_ends else min(request.output_tokens, WARM_UP_LIMIT)
        prompt = self._prompts.burst(number, request.prompt_tokens)
        return self._body(request, limit, record.rate, prompt, keep=False, arrival=arrival)

    def prepare(self, moment_s: float) -> None:
        """Make the bodies of requests that will be due by then, whatever answers come."""
        for index in self._schedule.due_by(moment_s):
            record = self._records[index]
            prompt = self._prompts.fresh(index, record.request)
            body = self._body(
                record.request, self._limits[index], record.rate, prompt, self.keeps(index)
            )
            self._prepared[index] = prompt, body

    def take(self, index: int, arrival: Mapping[str, float] | None = None) -> bytes:
        """The body of a request; `arrival` is that of `Ask`, and prepared bodies have none."""
        record = self._records[index]
        prompt, body = self._prepared.pop(index, (None, b""))
        if prompt is None:
            prompt = self._prompt(index, record.request)
            body = self._body(
                record.request,
                self._limits[index],
                record.rate,
                prompt,
                self.keeps(index),
                arrival,
            )
        record.prompt = prompt if self._schedule.has_next(index) else None
        return body

    def _room(self, context: int) -> list[int]:
        """Output tokens for which each request's prompt leaves room in the server's context."""
        margin = _CHAT_MARGIN if self._options.api is Api.chat else 0.0
        prompts = [record.request.prompt_tokens for record in self._records]
        return [max(context - tokens - math.ceil(tokens * margin), 0) for tokens in prompts]

    def _prompt(self, index: int, request: TraceRequest) -> Prompt:
        """A request's prompt; it starts with the turn before it and its answer where it can."""
        before = self._schedule.previous.get(index)
        if before is not None:
            earlier = self._records[before]
            known, earlier.prompt = earlier.prompt, None  # no other request needs it
            if known and earlier.stream and continues(earlier.request, request):
                prompt = self._prompts.following(index, request, known, earlier.stream.answer)
                if prompt is not None:
                    return prompt
        return self._prompts.fresh(index, request)

    def _body(
        self,
        request: TraceRequest,
        limit: int,
        rate: float,
        prompt: Prompt,
        keep: bool,
        arrival: Mapping[str, float] | None = None,
    ) -> bytes:
        options = self._options
        ask = Ask(
            limit_tokens=limit,
            answer_tokens=request.output_tokens if self._device_ends else None,
            model=self._target.model or "default",
            temperature=options.temperature,
            ignore_eos=options.ignore_eos,
            rate=rate if options.send_rates else None,
            qos_class=request.qos_class if options.send_rates else None,
            deadline_s=request.deadline_s if options.send_rates else None,
            priority=request.priority if options.send_priority else None,
            arrival=arrival,
            keep=keep,
            handed_over=self._target.handed_over,
        )
        return self._endpoint.body(prompt, ask)
