"""What a scenario is: which server, how it is disturbed, and what its run must show."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum

Flags = tuple[str, ...]


class Group(StrEnum):
    """Which file of tests/live runs a scenario: each is one worker's at a time."""

    PLAIN = "test_identity"
    MODELS = "test_identity_models"
    DRAFTS = "test_identity_drafts"
    DRAFTS_IN_WINDOWS = "test_identity_drafts_in_windows"
    TOGETHER = "test_identity_together"
    DECODE = "test_decode_server"
    COMPRESSED_DECODE = "test_compressed_decode"


@dataclass(frozen=True, slots=True)
class Model:
    """A tiny model, and how it is served.

    Attributes:
        flags: Of every server with it.
        ample: Memory in which nothing is ever short.
        like: The model whose answers it gives, "": its own. It only has more layers, for drafts.
        tokens: Of an answer, at most.
        long: Its prompts are some pages of 256 tokens long.
    """

    flags: Flags = ()
    ample: Flags = ("--max-total-tokens", "4000")
    like: str = ""
    tokens: int = 64
    long: bool = False


@dataclass(frozen=True, slots=True)
class Drafts:
    """Speculation.

    Attributes:
        algorithm: SGLang's name of it.
        model: The draft model's folder, "": it needs none, or SGLang takes the model's own layer.
        flags: SGLang's options for it.
    """

    algorithm: str
    model: str
    flags: Flags


class Check(Enum):
    """What else a run must show."""

    TAILS = "a pause leaves at most a page and a token to be copied"
    ARRIVALS = "ranks know when requests have come"
    OWN_PAUSES = "each rank pauses streams of its own"
    ALL_RESUMED = "every stream that was paused has been resumed"
    LOADED = "what was paused came back from the host's copy, and nothing was computed again"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A server whose streams are paused, and whose every token must be undisturbed SGLang's.

    Attributes:
        name: Unique.
        feature: Of the page on compatibility (`table.FEATURES`).
        group: The file that runs it.
        model: The tiny model, of `table.MODELS`.
        flags: Of the server, or of both servers of a pair.
        decode: Of a pair's decode server; None: it is one server that prefills and decodes.
        drafts: Speculation, if any.
        policy: What forces pauses; "": the shipped policy makes them.
        env: Of the server that pauses.
        streams: Whether answers are streamed, of each time that all prompts are asked.
        priorities: Whether requests state some.
        pauses: At least so many for each prompt, or the run has disturbed nothing.
        recomputed: Tokens that a resume computes again, at most; None: not looked at.
        prefetched: Whether KV is loaded ahead; None: not looked at.
        least: Other counters of ours that must have reached so much.
        accepted: Of each time that the prompts are asked: tokens per step of drafts, as a part of
            what is accepted without pauses.
        taken_over: Drafts that must be accepted for each prompt, or no state behind one was used.
        checks: What else is looked at.
        control: What is broken on purpose to show that this comparison notices it, of
            `table.CONTROLS`.
        often: Whether `make test` runs it, or only the slow tests.
    """

    name: str
    feature: str
    group: Group
    control: str
    model: str = "qwen3"
    flags: Flags = ()
    decode: Flags | None = None
    drafts: Drafts | None = None
    policy: str = "forced:PreemptEvery"
    env: dict[str, str] = field(default_factory=dict)
    streams: tuple[bool, ...] = (False, True)
    priorities: bool = False
    pauses: int = 4
    recomputed: int | None = None
    prefetched: bool | None = None
    least: dict[str, float] = field(default_factory=dict)
    accepted: tuple[float, ...] = ()
    taken_over: int = 0
    checks: tuple[Check, ...] = ()
    often: bool = False


class Shows(Enum):
    """By what a control is noticed."""

    TOKENS = "other tokens"
    TOKENS_OR_END = "other tokens, or the server ends"
    RECOMPUTED = "the same tokens, but more of them computed again than a resume may"
    ACCEPTED = "the same tokens, but fewer drafts accepted"


@dataclass(frozen=True, slots=True)
class Control:
    """A scenario whose server is broken on purpose (`server_side/broken_server.py`).

    Attributes:
        scenario: Its name.
        broken: What is broken there.
        says: The same, in words.
        shows: By what it is noticed.
        below: With `Shows.ACCEPTED`: of what is accepted undisturbed, less than this part is.
        unchecked: SGLang's own checks of its memory are off, or they would notice it first.
        often: As of a scenario.
    """

    scenario: str
    broken: str
    says: str
    shows: Shows = Shows.TOKENS
    below: float = 0.9
    unchecked: bool = False
    often: bool = False
