"""Parameters of the working-set policy: each declares its default, range and meaning once."""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any

from tokenflow_sgl.errors import InputError


def setting(
    default: Any,
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    words: tuple[str, ...] = (),
    flag: bool = False,
) -> Any:
    """A field of a configuration record that declares what flags, files and docs need of it.

    Args:
        default: Its value unless another is given; of the type that all of its values have.
        text: What it means, for the docs and for `--help`.
        low: Least number that is allowed; None: it is no number.
        high: Largest number that is allowed.
        words: All that it may be, if it is one of a few words.
        flag: Whether a server has a flag for it. All others stand in a tuning file.
    """
    limits = {"low": low, "high": high, "words": words}
    return field(default=default, metadata={"help": text, "flag": flag, **limits})


DEMAND, SLO, BOTH = "demand", "slo", "both"


class ConfigError(InputError):
    """A parameter is out of its range; the message names the field, value and range."""


@dataclass(frozen=True, slots=True)
class WorkingSetConfig:
    """Parameters of `WorkingSetPolicy`. Times in seconds, lengths in tokens.

    The defaults come from simulation over eight burst and overload workloads on two
    devices. Some were set while watching one of these: `burst_eta` (`4090-a`), `eta` (with unknown
    lengths, six of the eight), `overtake` and the slower pace beside many
    newcomers (Azure at 4x, Mooncake), `hysteresis` (all eight, then others of their kinds), and in
    `admission` the margin for unmeasured costs (`4090-b`), the share of stalled readers (Azure at
    4x) and that of a newcomer's own prefill (Mooncake). `park_target`, `safety` and the share of
    ongoing prefills were set on nine workloads of our own, and seen on these eight and Azure at 4x
    meanwhile. `thinking_rate` was set on one window of ServeGen's reasoning traffic, and looked at
    on two others.
    """

    eta: float = setting(
        0.9,
        "share of the engine's time that admission may promise to readers; more admits earlier, "
        "and readers stall in lasting overload",
        low=0.1,
        high=10.0,
        flag=True,
    )
    admission: str = setting(
        DEMAND,
        "which newcomers join the working set: demand, those that can be served in time with all "
        "others; slo, those whose prefills take no running stream its objective of time per token "
        "(LayerKV); both, those that pass both tests",
        words=(DEMAND, SLO, BOTH),
    )
    burst_eta: float = setting(
        1.0,
        "share of the engine's time that may be promised to admit the whole queue at once, after "
        "a burst of arrivals has ended; above 1 trades stalls for early first tokens",
        low=0.1,
        high=10.0,
        flag=True,
    )
    overtake: float = setting(
        0.9,
        "first tokens go to the shortest prefills, until so many times the work has begun since a "
        "request came as first come first served would at most have made one wait for; 0: first "
        "come first served",
        low=0.0,
        high=1000.0,
    )
    priority_weight: float = setting(
        2.0,
        "with SGLang's --enable-priority-scheduling: each step of a request's priority, up to ten "
        "above or below 0, multiplies the weight of its class by this; 1: priorities make no "
        "difference",
        low=1.0,
        high=10.0,
    )
    max_wait: float = setting(
        0.0,
        "refuse a request at once, with HTTP 429, if its first token is expected to come later "
        "than so many seconds from now; a class's max_wait or a request's tokenflow_max_wait "
        "counts in its place; 0: none is refused",
        low=0.0,
        high=600.0,
        flag=True,
    )
    calm: float = setting(
        3.0, "seconds without an arrival after which a burst counts as ended", low=0.0, high=3600.0
    )
    thinking_rate: float = setting(
        40.0,
        "tokens per second that admission counts for a stream that thinks (nothing of it can be "
        "read yet), at most what the engine can decode; more admits fewer streams, which are "
        "paused less often and get tokens before their readers need them",
        low=0.1,
        high=1000.0,
    )
    cycle: float = setting(0.2, "seconds between two plans under stress", low=0.001, high=60.0)
    hysteresis: float = setting(
        6.0,
        "seconds of slack by which a running stream must exceed the paused stream that takes its "
        "place; so many seconds each stream should have unread where streams take turns",
        low=0.0,
        high=3600.0,
    )
    safety: float = setting(
        3.0,
        "seconds of slack, beyond the cost of its switch, that a stream needs to be paused for a "
        "newcomer",
        low=0.0,
        high=3600.0,
    )
    switch_factor: float = setting(
        2.0,
        "buffer conservativeness mu: seconds of slack needed per second of evicting and loading "
        "(section 4.2.1 of the paper)",
        low=1.0,
        high=100.0,
    )
    min_run: float = setting(
        0.5, "seconds that a stream runs before it may be preempted", low=0.0, high=3600.0
    )
    band: float = setting(
        0.10,
        "share of a stream's output that may be unread while further tokens count in full (tau_1 "
        "of the effective throughput)",
        low=0.001,
        high=1.0,
    )
    band_seconds: float = setting(
        3.0, "lower bound of the band (see band), in seconds of reading", low=0.0, high=3600.0
    )
    urgent: float = setting(
        4.0,
        "seconds of slack below which a paused stream may displace even a stream that is beyond "
        "two bands",
        low=0.0,
        high=3600.0,
    )
    prefill_chunk: int = setting(
        2048,
        "most tokens of a prefill step while streams decode; their next tokens wait for the step",
        low=16,
        high=1 << 20,
    )
    prefill_guard: float = setting(
        1.0,
        "time for decode steps between two prefill chunks when a reader would stall, at most, as "
        "a multiple of the last prefill's time",
        low=0.0,
        high=100.0,
    )
    fill: float = setting(
        0.95,
        "share of device and host memory together that admission may promise",
        low=0.1,
        high=1.0,
    )
    pace: bool = setting(
        False,
        "while all streams fit into memory, decode each at about the pace of its reader: a stream "
        "that is ahead is paused, its KV in the prefix tree; each pause costs a switch",
    )
    write_ahead: bool = setting(
        True,
        "proactive writes: copy KV of running streams to the host in the background, so that a "
        "preemption has only the last tokens left to copy; not with write_through_selective",
    )
    load_ahead: bool = setting(
        True,
        "prefetch: load KV that does not fit into the time of the next step beside several steps, "
        "before its stream is resumed, so that no step waits for the link",
    )
    load_chunks: bool = setting(
        False,
        "load-evict overlap: a prefetch for which memory is missing is loaded chunk by chunk, as "
        "memory becomes free; off: it waits for memory for all of it",
    )
    park: bool = setting(
        True,
        "pause streams that are far ahead of their readers when the others run faster without them",
    )
    park_floor: float = setting(
        0.8, "lowest share of the decode throughput that parking may aim at", low=0.1, high=1.0
    )
    park_target: float = setting(
        0.85,
        "throughput, as a share of what decoding the whole batch without interruption would yield, "
        "below which parking pauses fewer streams; prefills and resumes alone cost a part of it",
        low=0.1,
        high=1.0,
    )

    def __post_init__(self) -> None:
        check_settings(self)


def check_settings(config: Any) -> None:
    """Raise `ConfigError` for the first setting of a record that is out of its range.

    The message names the field, its value and what is allowed.
    """
    for item in fields(config):
        if item.metadata and (allowed := allowed_instead(item, getattr(config, item.name))):
            value = getattr(config, item.name)
            raise ConfigError(f"{item.name} is {value!r}; allowed is {allowed}")


def allowed_instead(item: Field[Any], value: Any) -> str | None:
    """What is allowed of a setting, as a sentence goes on with it; None: this value is.

    Args:
        item: A field that `setting` made.
        value: Of the type of its default.
    """
    low, high, words = (item.metadata[name] for name in ("low", "high", "words"))
    if words and value not in words:
        return " or ".join(words)
    # Written so that NaN fails too.
    if low is not None and not low <= value <= high:
        return f"{low:.12g} to {high:.12g}"
    return None
