"""What an emulated storage link is like, as SGLang's extra configuration of a backend says it."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

OF_SGLANG = ("backend_name", "module_path", "class_name", "interface_v1")
"""Keys of the extra configuration that SGLang reads itself and leaves in."""
FIXED = ("seed", "directory", "control", "log")
"""Fields that a control file cannot change: they are read once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """A storage link and what is wrong with it; times are emulated seconds or microseconds.

    Attributes:
        read_gbps: Gigabits per second towards this host.
        write_gbps: Towards the storage; None: as for reading.
        latency_us: Of every call, a query too; it does not occupy the link.
        jitter_us: At most so much is added to a latency, evenly drawn.
        seed: Of the jitter, and of which pages are faulty.
        directory: Folder that keeps the pages over a restart of the server; None: memory.
        checksum: Whether a page that is not what was stored counts as missing.
        slow_factor: Both rates are divided by it.
        missing: Share of pages that a query finds and a read does not.
        corrupt: Share of pages of which one byte is wrong when they are read.
        shifted: Share of pages in whose place the one before them in the call comes.
        raising: Share of calls that raise an error.
        dead_after_pages: Pages after which the link is dead for reading and writing; None: never.
        dead_after_s: Seconds after which it is; None: never. Both count from when they are set.
        dead_reply_s: Seconds until a call over the dead link fails.
        control: JSON file that may change all but `FIXED` fields while the server runs.
        log: File that gets a line of JSON for every call; the rank is appended to its name.
    """

    read_gbps: float = 10.0
    write_gbps: float | None = None
    latency_us: float = 100.0
    jitter_us: float = 0.0
    seed: int = 0
    directory: str | None = None
    checksum: bool = True
    slow_factor: float = 1.0
    missing: float = 0.0
    corrupt: float = 0.0
    shifted: float = 0.0
    raising: float = 0.0
    dead_after_pages: int | None = None
    dead_after_s: float | None = None
    dead_reply_s: float = 0.0
    control: str | None = None
    log: str | None = None

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValueError: A value is not allowed; the message names field, value and what is.
        """
        for name, (allowed, holds) in _ALLOWED.items():
            value = getattr(self, name)
            if not holds(value):
                raise ValueError(f"{name} of the storage link is {value!r}; allowed is {allowed}")

    def rate(self, writing: bool) -> float:
        """Bytes per second."""
        gbps = self.read_gbps
        if writing and self.write_gbps is not None:
            gbps = self.write_gbps
        return gbps * 1e9 / 8 / self.slow_factor

    def changed(self) -> "LinkSettings":
        """These settings with what the control file says now.

        Raises:
            ValueError: It is no JSON object of fields that it may change.
        """
        if self.control is None:
            return self
        try:
            text = Path(self.control).read_text()
        except FileNotFoundError:
            return self
        now = _object(text, f"the control file {self.control}")
        for name in FIXED:
            if name in now:
                raise ValueError(f"{name} of the storage link cannot be changed by a control file")
        return settings_of({**{name: getattr(self, name) for name in FIXED}, **now}, self)


def settings_of(extra: dict[str, Any], base: LinkSettings | None = None) -> LinkSettings:
    """The settings in a backend's extra configuration.

    Args:
        extra: As SGLang hands it on; its own keys are skipped.
        base: What holds for fields that are not named; None: the defaults.

    Raises:
        ValueError: A key is not known, or a value is not allowed.
    """
    names = [field.name for field in fields(LinkSettings)]
    given = {key: value for key, value in extra.items() if key not in OF_SGLANG}
    for key in given:
        if key not in names:
            raise ValueError(
                f"{key!r} is no field of the storage link; allowed are {', '.join(names)}"
            )
    before = {} if base is None else {name: getattr(base, name) for name in names}
    return LinkSettings(**{**before, **given})


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{what} is no JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply to be read") from None
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {value!r}; allowed is a JSON object")
    return value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value < float("inf")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _at_least_0(value: Any) -> bool:
    return _number(value) and value >= 0


def _text(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value != "")


_RATE = "a number above 0"
_TIME = "a number from 0"
_SHARE = ("a share from 0 to 1", lambda value: _at_least_0(value) and value <= 1)
_PATH = ("a path, or null", _text)
_ALLOWED = {
    "read_gbps": (_RATE, _positive),
    "write_gbps": (f"{_RATE}, or null", lambda value: value is None or _positive(value)),
    "latency_us": (_TIME, _at_least_0),
    "jitter_us": (_TIME, _at_least_0),
    "seed": ("a whole number from 0", _whole),
    "directory": _PATH,
    "checksum": ("true or false", lambda value: isinstance(value, bool)),
    "slow_factor": ("a number from 1", lambda value: _number(value) and value >= 1),
    "missing": _SHARE,
    "corrupt": _SHARE,
    "shifted": _SHARE,
    "raising": _SHARE,
    "dead_after_pages": (
        "a whole number from 0, or null",
        lambda value: value is None or _whole(value),
    ),
    "dead_after_s": (f"{_TIME}, or null", lambda value: value is None or _at_least_0(value)),
    "dead_reply_s": (_TIME, _at_least_0),
    "control": _PATH,
    "log": _PATH,
}
