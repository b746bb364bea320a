"""The servers that are compared, what they are asked with, and what is broken on purpose."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from identity.scenario import Flags
from identity.table import LATE, NO_HICACHE, NO_OVERLAP, PAGES, WRITE_BACK
from servers.tuned import CHECK_RANKS

from words.questions import Question

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
# Readers so slow that even a busy machine gets well before them.
SHIPPED = ("--scheduler", "tokenflow", "--tokenflow-default-rate", "0.2")
CHUNKS = ("--chunked-prefill-size", "128")
# A question and its answer are 50 tokens, behind 20 that all share.
SMALL = (*CHUNKS, "--max-total-tokens", "256", "--hicache-ratio", "6")
"""The device holds what five of the ten need, the host the rest."""
RANKS = ("--tp-size", "3")
"""It has nine heads and three of keys and values, which two ranks cannot share."""
PARSER = ("--reasoning-parser", "deepseek-r1")
ENDED = (*PARSER, "--enable-custom-logit-processor", *NO_OVERLAP)
"""With overlap a processor may not know the last token yet: what it does depends on the batch."""
ENDING = json.dumps({"callable": b"cending_thoughts\nEnding\n.".hex()})
"""SGLang's way to name a processor: a pickle, here of a name alone."""
ADAPTER = "mild"
LAYERS = (
    *("--tokenflow-layerwise", "layer_plans_made_up:AnyLayers"),
    *("--tokenflow-layerwise-ratio", "4", "--disable-radix-cache", *CHUNKS),
)


class Asked(StrEnum):
    """How questions are asked; each has a truth of its own."""

    PLAIN = "plain"
    STRUCTURED = "structured"
    ADAPTED = "adapted"
    RANKS = "ranks"
    HALF = "half"
    THINKING = "thinking"
    ENDING = "ending"


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
    },
    "required": ["name", "tags", "year"],
}
STRUCTURE: dict[str, dict[str, Any]] = {
    "JSON": {"json_schema": json.dumps(PERSON)},
    "code": {"regex": "def [a-z_]{3,16}\\([a-z, ]{0,12}\\):\n    return [a-z_ +*]{3,40}"},
    "English": {"regex": "([A-Z][a-z ,']{10,60}\\. ){1,3}"},
}


def asked(kind: Asked, tokens: int, *, stream: bool = False) -> Any:
    """What a question is asked with. tokens: of an answer, at most."""

    def how(question: Question) -> dict[str, Any]:
        more: dict[str, Any] = {"max_new_tokens": tokens, "stream": stream}
        match kind:
            case Asked.STRUCTURED:
                more |= STRUCTURE[question.kind]
            case Asked.THINKING:
                more["require_reasoning"] = True  # it never ends its thought
            case Asked.ENDING:
                more |= {"require_reasoning": True, "custom_logit_processor": ENDING}
                more["custom_params"] = {"thinks": 3 + question.number % 5}
            case Asked.ADAPTED:
                more["lora_path"] = ADAPTER
            case Asked.HALF:
                more["temperature"] = 0.0  # in bfloat16 tokens often have the same logit
        return more

    return how


@dataclass(frozen=True, slots=True)
class Case:
    """A server that is compared.

    Attributes:
        flags: Its options.
        pauses: Of each question, on average, at least.
        kind: How it is asked.
        env: Its environment.
        greedy: Only questions that are not sampled.
        every: Whether the whole vocabulary is looked at at every token: drafts are verified
            elsewhere.
        least: Counters of ours that must have reached so much.
        most: Those that must not have reached more.
        same: Greatest difference of log probabilities that may be.
        stream: Whether answers are streamed: only then they have a reader.
        seeded: Whether a seed says what is drawn.
    """

    flags: Flags
    pauses: float = 3
    kind: Asked = Asked.PLAIN
    env: dict[str, str] = field(default_factory=lambda: dict(LATE))
    greedy: bool = False
    every: bool = True
    least: dict[str, float] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    same: float = 1e-5
    stream: bool = False
    seeded: bool = True


NGRAM = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4")
LOADED = {"resume_loaded_tokens_total": 1}
MOVED = {"layers_moved_tokens_total": 1}
FEW_CASES = {
    "HiCache": Case((*FORCED, *SMALL), pauses=2, least=LOADED),
    "memory pressure": Case((*SHIPPED, *SMALL), pauses=0.25, stream=True, least=LOADED),
    "NGRAM": Case(
        (*FORCED, *SMALL, "--max-running-requests", "8", *NGRAM),
        pauses=1,
        greedy=True,
        every=False,
    ),
    "structured output": Case((*FORCED, *SMALL), pauses=2, kind=Asked.STRUCTURED, least=LOADED),
    "layer-wise KV": Case(
        (*LAYERS, "--max-total-tokens", "2048", *PAGES),
        pauses=0,
        greedy=True,
        least=MOVED,
        seeded=False,
        env={**LATE, "TOKENFLOW_TEST_LAYERS": os.devnull},
    ),
}
"""By name: of `make test`, with some of the questions."""
ROUNDED = 1e-4
"""SGLang computes adapters in float32, and sums of ranks round once more: 2e-5 was measured."""
MORE_CASES = {
    "HiCache, pages of 16, no overlap": Case(
        (*FORCED, *SMALL, *PAGES, *NO_OVERLAP), pauses=1, least=LOADED
    ),
    "no HiCache": Case((*FORCED, *CHUNKS, *NO_HICACHE), pauses=1, env={}),
    "written back": Case(
        (*FORCED, *SMALL, *WRITE_BACK, "--hicache-ratio", "3"), pauses=1, least=LOADED
    ),
    "in parts": Case((*FORCED[:3], "forced:PreemptInChunks", *SMALL), pauses=0.5, least=LOADED),
    "LoRA": Case((*FORCED, *SMALL), pauses=1, kind=Asked.ADAPTED, least=LOADED, same=ROUNDED),
    "three ranks": Case(
        (*FORCED, *SMALL, CHECK_RANKS), pauses=1, kind=Asked.RANKS, least=LOADED, same=ROUNDED
    ),
    "thinking": Case(
        (*FORCED, *SMALL),
        pauses=1,
        kind=Asked.THINKING,
        stream=True,
        least={**LOADED, "reasoning_tokens_total": 200},
    ),
    "a thought that ends": Case(
        (*FORCED, *SMALL),
        pauses=1,
        kind=Asked.ENDING,
        stream=True,
        least={**LOADED, "reasoning_tokens_total": 60},
        most={"reasoning_tokens_total": 140},  # of about 200
    ),
    "bfloat16": Case((*FORCED, *SMALL), pauses=1, kind=Asked.HALF, least=LOADED),
}
"""By name: slow, more servers."""
CONTROLS = {
    "no-copy": "the host believes that it has the KV",
    "no-landing": "a stream reads KV that is still being copied",
}
"""What is broken on purpose, in words."""
