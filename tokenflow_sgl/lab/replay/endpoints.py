"""The three endpoints: what a request to each looks like, and what reads its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tokenflow_sgl.choices import Api
from tokenflow_sgl.lab.replay.answers import Answer, ChatAnswer, CompletionsAnswer, GenerateAnswer
from tokenflow_sgl.lab.replay.prompts import Prompt

NO_PREFILL_SERVER = "2.2.2.2"
"""What SGLang calls the prefill server where there is none (its `FAKE_BOOTSTRAP_HOST`)."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is sent to the server with one prompt.

    Attributes:
        limit_tokens: Longest answer.
        answer_tokens: Where an emulated device is to end the answer (the emulator's
            `emulated_output_tokens`); None: not told.
        model: Name of the model, where the endpoint wants one.
        temperature: Sampling temperature.
        ignore_eos: Generate the full length whatever the model says.
        rate: Tokens per second that the reader consumes; None: not told.
        qos_class: Class that is named instead; None: none.
        deadline_s: Seconds in which the whole answer is wanted; None: not told.
        priority: Priority; None: not told.
        arrival: When a server on a virtual clock is to see the request (the emulator's
            `emulated_arrival`); None: when it comes.
        keep: The answer is needed for the next turn's prompt.
        handed_over: A decode server is to take the prompt's KV as if a prefill server had sent it.
    """

    limit_tokens: int
    answer_tokens: int | None = None
    model: str = "default"
    temperature: float = 0.0
    ignore_eos: bool = False
    rate: float | None = None
    qos_class: str | None = None
    deadline_s: float | None = None
    priority: int | None = None
    arrival: Mapping[str, float] | None = None
    keep: bool = False
    handed_over: bool = False

    def sampling(self, length: str) -> dict[str, Any]:
        """The fields that all endpoints share; `length` is the name of the longest answer's."""
        fields: dict[str, Any] = {length: self.limit_tokens, "temperature": self.temperature}
        if self.ignore_eos:
            fields["ignore_eos"] = True
        custom: dict[str, Any] = {}
        if self.qos_class is not None:  # docs/rates.md
            custom["tokenflow_class"] = self.qos_class
        elif self.rate is not None:
            custom["tokenflow_rate"] = self.rate
        if self.deadline_s is not None:
            custom["tokenflow_deadline"] = self.deadline_s
        if self.arrival is not None:  # docs/emulator.md
            custom["emulated_arrival"] = self.arrival
        if self.answer_tokens is not None:  # docs/emulator.md
            custom["emulated_output_tokens"] = self.answer_tokens
        if custom:
            fields["custom_params"] = custom
        return fields

    def outside(self) -> dict[str, Any]:
        """Fields beside the sampling parameters."""
        priority = {} if self.priority is None else {"priority": self.priority}
        host = {"bootstrap_host": NO_PREFILL_SERVER} if self.handed_over else {}
        return {"stream": True, **priority, **host}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint of a server: how it is asked, and how its answers are read.

    Attributes:
        path: Its path on the server.
        prompt_field: The field of the body that has the prompt, a list.
        fields: The other fields of the body.
        answer: Makes the reader of an answer; `keep` as in `Ask`.
    """

    path: str
    prompt_field: str
    fields: Callable[[Ask], dict[str, Any]]
    answer: Callable[..., Answer]

    def body(self, prompt: Prompt, ask: Ask) -> bytes:
        """The JSON body of a request."""
        rest = json.dumps(self.fields(ask)).encode()
        return b'{"%b":[%b],%b' % (self.prompt_field.encode(), prompt.json, rest[1:])


def _generate(ask: Ask) -> dict[str, Any]:
    return {"sampling_params": ask.sampling("max_new_tokens"), **ask.outside()}


def _completions(ask: Ask) -> dict[str, Any]:
    return _chat(ask) | ({"return_token_ids": True} if ask.keep else {})


def _chat(ask: Ask) -> dict[str, Any]:
    return {
        "model": ask.model,
        **ask.sampling("max_tokens"),
        **ask.outside(),
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


ENDPOINTS: Mapping[Api, Endpoint] = MappingProxyType(
    {
        Api.generate: Endpoint("/generate", "input_ids", _generate, GenerateAnswer),
        Api.completions: Endpoint("/v1/completions", "prompt", _completions, CompletionsAnswer),
        Api.chat: Endpoint("/v1/chat/completions", "messages", _chat, ChatAnswer),
    }
)
