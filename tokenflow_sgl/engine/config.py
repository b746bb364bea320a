"""The live engine's configuration: one record, from which flags and docs are generated."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenflow_sgl.engine.frontend.terms import RateClasses, RateError, check_rate
from tokenflow_sgl.policy.config import ConfigError, WorkingSetConfig, check_ranges, setting
from tokenflow_sgl.qos.rates import DEFAULT_CLASS, NAMED_RATES

ATTRIBUTE = "_tokenflow"
"""Underscore attribute of SGLang's ServerArgs that carries the configuration.

Underscore attributes survive its pickling and stay writable after it is resolved.
"""
HIDDEN, SHOWN = "hidden", "shown"
CHOICES = {"hicache": ("auto", "off"), "mixed_chunk": ("auto", "off"), "thinking": (HIDDEN, SHOWN)}
"""What settings may be that are one of a few words."""


@dataclass(frozen=True, slots=True)
class TokenFlowConfig:
    """Everything that `--tokenflow-*` can say. Absent from ServerArgs: scheduler off."""

    policy: str = setting(
        "working-set",
        "policy: working-set, paper (TokenFlow's Eq. 3 to 6 as printed), stock (never "
        "intervenes), or package.module:Class of your own",
    )
    hicache: str = setting(
        "auto",
        "auto: switch HiCache on, so that KV of paused streams is kept in host memory (SGLang's "
        "own --hicache-* options apply); off: leave it as SGLang's options say",
    )
    mixed_chunk: str = setting(
        "auto",
        "auto: under stress, running streams decode in the same step as a prefill, as with "
        "SGLang's --enable-mixed-chunk, where its prefill graphs allow it, so that a resume costs "
        "the others no step; off: leave it as SGLang's option says",
    )
    default_rate: str = setting(
        DEFAULT_CLASS,
        "rate of requests that state none: tokens per second, or the name of a class",
    )
    rate_class: tuple[str, ...] = setting(
        (), "another rate class as NAME=TOKENS_PER_SECOND; may be repeated"
    )
    thinking: str = setting(
        HIDDEN,
        "hidden: readers do not see the reasoning of a model that thinks, so a stream is served as "
        "one that waits for its first text until its thinking has ended; shown: they read it, too",
    )
    lengths: str = setting(
        "learned",
        "what tells how long answers get: learned (from those that ended and those under way), "
        "limit (each is as long as its client allows), or package.module:Class of your own",
    )
    length_caution: float = setting(
        0.8,
        "of learned lengths: probability with which the mean length is at most what admission "
        "counts on; matters until some dozen answers have ended",
        low=0.5,
        high=0.99,
    )
    lengths_file: str = setting(
        "",
        "of learned lengths: file in which they survive a restart; read at the start if it is "
        "there, written every minute; data-parallel replicas have one each (FILE, FILE.1, ...); "
        "empty: every start learns anew",
    )
    decision_log: str = setting(
        "",
        "file for tokenflow explain: a JSON line for every pass that pauses, admits, starts or "
        "resumes streams, with their request ids and the figures behind the decision; rotated at "
        "32 MiB, five files; empty: no log",
    )
    check_ranks: bool = setting(
        False,
        "for debugging, with several tensor-parallel ranks: compare each rank's decisions and "
        "actions with the leader's in every pass, and end the server with a sentence if they "
        "differ",
    )
    working_set: WorkingSetConfig = field(default_factory=WorkingSetConfig)

    def __post_init__(self) -> None:
        check_ranges(self)
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name} is {value!r}; allowed is {' or '.join(allowed)}")
        for name in ("lengths_file", "decision_log"):
            value = getattr(self, name)
            if value and not Path(value).absolute().parent.is_dir():
                raise ConfigError(f"{name} is {value!r}; allowed is a file in a folder that exists")
        if self.lengths_file and self.lengths != "learned":
            raise ConfigError(
                f"lengths_file is {self.lengths_file!r} and lengths {self.lengths!r}; allowed is "
                "such a file with learned lengths"
            )
        self.rates()

    def rates(self) -> RateClasses:
        """The rate classes and the default rate; raises `ConfigError` on a bad one."""
        classes = dict(NAMED_RATES)
        for item in self.rate_class:
            name, separator, value = item.partition("=")
            if not separator or not name.isidentifier():
                raise ConfigError(f"rate_class is {item!r}; allowed is NAME=TOKENS_PER_SECOND")
            classes[name] = _number(value, "rate_class", item)
        try:
            if self.default_rate in classes:
                return RateClasses(classes, default=classes[self.default_rate])
            default = check_rate(
                _number(self.default_rate, "default_rate", self.default_rate), "default_rate"
            )
        except RateError as error:
            raise ConfigError(str(error)) from None
        return RateClasses(classes, default=default)


def _number(text: str, name: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ConfigError(f"{name} is {whole!r}; allowed is a rate in tokens/s or a class name")
    return value


def settings() -> list[tuple[str, Any, dataclasses.Field[Any]]]:
    """All settings as (name, default, field), the policy's after the engine's own."""
    own = [item for item in dataclasses.fields(TokenFlowConfig) if item.name != "working_set"]
    return [
        (item.name, item.default, item) for item in [*own, *dataclasses.fields(WorkingSetConfig)]
    ]


def build(values: dict[str, Any]) -> TokenFlowConfig:
    """A configuration from settings by name; unknown names raise `ConfigError`."""
    own = {item.name for item in dataclasses.fields(TokenFlowConfig)} - {"working_set"}
    policy = {item.name for item in dataclasses.fields(WorkingSetConfig)}
    unknown = sorted(set(values) - own - policy)
    if unknown:
        raise ConfigError(
            f"unknown setting tokenflow_{unknown[0]}; allowed are "
            + ", ".join(f"tokenflow_{name}" for name in sorted(own | policy))
        )
    return TokenFlowConfig(
        **{name: value for name, value in values.items() if name in own},
        working_set=WorkingSetConfig(
            **{name: value for name, value in values.items() if name in policy}
        ),
    )


def config_of(server_args: Any) -> TokenFlowConfig | None:
    """The configuration that rides on `server_args`, or None while the scheduler is off."""
    config: TokenFlowConfig | None = getattr(server_args, ATTRIBUTE, None)
    return config
