"""Classes of streams: how fast each is read, what gap its reader tolerates, what its claim is.

A class file (TOML) adds classes to the shipped ones, or replaces some of them:

    default = "chat"

    [classes.chat]
    rate = 20

    [classes.voice]
    rate = 5
    weight = 2

docs/rates.md has the table of fields, and the sources of the shipped rates.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tokenflow_sgl.errors import InputError, shown
from tokenflow_sgl.qos.reader import HIGHEST_RATE, LOWEST_RATE

LONGEST_TOLERANCE = 600.0
"""Seconds: HTTP clients give up a silent stream by then."""
SHORTEST_SLO, LONGEST_SLO = 0.001, 600.0
"""Seconds that an objective may be."""
LONGEST_DEADLINE = 86_400.0
"""Seconds: a day."""
LONGEST_MAX_WAIT = 600.0
"""Seconds: longer waits are not foreseen."""
LEAST_WEIGHT, MOST_WEIGHT = 0.1, 10.0
"""A stream may wait a hundred times as long as another, and no longer."""
LEAST_SHARE, MOST_SHARE = 0.01, 100.0
"""Weights that a tenant can have."""
MOST = 1_000_000
"""Of what a tenant's cap counts."""
SLOS = ("ttft_slo", "tbt_slo", "tpot_slo")
DEADLINE = "deadline"
OBJECTIVES = (*SLOS, DEADLINE)
"""Names of the objectives that a class can have."""
OTHERS = "others"
"""Name in a class file of all tenants that it does not name; each of them is granted as much."""
MOST_NAMED = 63
"""Tenants that a class file names at most."""
UNSAID, OWN_RATE = "default", "custom"
"""Names, in metrics, of requests that state nothing and of those that state a rate of their own."""


class ClassError(InputError):
    """A class cannot be used; the message names the field, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class QosClass:
    """What is expected of the streams of one class.

    Attributes:
        name: As requests and metrics say it.
        rate: Tokens per second that its reader consumes.
        tolerance: Seconds of waiting for text, before the first token or between two, that its
            reader does not mind.
        weight: Its claim relative to other classes, when not all can be served: under contention a
            stream of twice the weight waits half as long.
        reader: Whether the text is read as it comes; otherwise no stall is counted.
        ttft_slo, tbt_slo, tpot_slo: Objectives in seconds: the time to the first token, the longest
            time between two, the mean time per token after the first; None: there is no such one.
        deadline: Seconds from its arrival by which the whole answer is wanted; None: there is none.
        deposit: Whether the server itself delivers one token per `interval`.
        max_wait: Seconds within which the first token is to be expected, else a request is refused;
            0.0: none is; None: as the server says.

    Raises:
        ClassError: A value is of another type, or out of its range.
    """

    name: str
    rate: float
    tolerance: float = 0.0
    weight: float = 1.0
    reader: bool = True
    ttft_slo: float | None = None
    tbt_slo: float | None = None
    tpot_slo: float | None = None
    deadline: float | None = None
    deposit: bool = False
    max_wait: float | None = None

    def __post_init__(self) -> None:
        for field, low, high, unit in (
            ("rate", LOWEST_RATE, HIGHEST_RATE, " tokens per second"),
            ("tolerance", 0.0, LONGEST_TOLERANCE, " seconds"),
            ("weight", LEAST_WEIGHT, MOST_WEIGHT, ""),
            ("max_wait", 0.0, LONGEST_MAX_WAIT, " seconds"),
            *((name, SHORTEST_SLO, LONGEST_SLO, " seconds") for name in SLOS),
            (DEADLINE, SHORTEST_SLO, LONGEST_DEADLINE, " seconds"),
        ):
            value = getattr(self, field)
            if value is None and field in (*OBJECTIVES, "max_wait"):
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            # Written so that NaN fails too.
            if not (number and low <= value <= high):
                raise ClassError(
                    f"{field} is {shown(value)}; allowed is a number from {low:g} to {high:g}{unit}"
                )
            object.__setattr__(self, field, float(value))
        for name in ("reader", "deposit"):
            if not isinstance(value := getattr(self, name), bool):
                raise ClassError(f"{name} is {shown(value)}; allowed is true or false")

    @property
    def interval(self) -> float:
        """Seconds between two tokens with a deposit: the objective's, or else the reader's."""
        return 1.0 / self.rate if self.tbt_slo is None else self.tbt_slo

    @property
    def paced(self) -> QosClass:
        """The classes as the scheduler has to see them: none reads faster than is delivered."""
        if not self.deposit or self.interval * self.rate <= 1.0:
            return self
        return dataclasses.replace(self, rate=max(1.0 / self.interval, LOWEST_RATE))


BY_DEADLINE = QosClass("by-deadline", HIGHEST_RATE, reader=False)
"""Class of requests that state a deadline and neither a rate nor a class: a program wants the whole
answer. No class of a file can be called so."""
SHIPPED: Mapping[str, QosClass] = {
    each.name: each
    for each in (
        # Most adults read 175 to 300 words a minute, 4 to 6.7 tokens per second; some reserve.
        QosClass("reading", 10.0),
        # Reading aloud takes 183 words a minute, 4.1 tokens per second; some reserve.
        QosClass("listening", 5.0),
        # A program, faster than every reader. Proxies cut connections that are silent for 60 s.
        QosClass("agent", 50.0, tolerance=30.0, reader=False),
    )
}
"""The classes that every server knows."""
DEFAULT_CLASS = "reading"
"""Class of a request that states none, where an operator does not choose another."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """What an operator grants one of those who ask.

    Attributes:
        name: As metrics say it; the key of its requests.
        weight: Its claim to a share of the server, relative to other tenants.
        streams: Requests of it at most that the server takes at once; None: any number.
        rests: Of its streams at most whose readers rest at once; None: any number.
        rate: Tokens per second at most that its readers count as reading; None: what they state.

    Raises:
        ClassError: A value is of another type, or out of its range.
    """

    name: str
    weight: float = 1.0
    streams: int | None = None
    rests: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        for field, low, high in (
            ("weight", LEAST_SHARE, MOST_SHARE),
            ("rate", LOWEST_RATE, HIGHEST_RATE),
        ):
            value = getattr(self, field)
            if value is None and field == "rate":
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and low <= value <= high):
                raise ClassError(
                    f"{field} is {shown(value)}; allowed is a number from {low:g} to {high:g}"
                )
            object.__setattr__(self, field, float(value))
        for field, low in (("streams", 1), ("rests", 0)):
            value = getattr(self, field)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MOST:
                raise ClassError(
                    f"{field} is {shown(value)}; allowed is a whole number from {low} to {MOST}"
                )


UNNAMED = Tenant("")
"""What a tenant has that the class file does not name."""


@dataclass(frozen=True, slots=True)
class QosClasses:
    """The classes of a server.

    Attributes:
        known: By name.
        default: For requests that state nothing.
        deposit: Whether streams with a reader have a deposit, whatever their class.
        tenants: What those who ask are granted, by their keys.
        others: What each other one is granted.
    """

    known: Mapping[str, QosClass]
    default: QosClass
    deposit: bool = False
    tenants: Mapping[str, Tenant] = dataclasses.field(default_factory=dict)
    others: Tenant = UNNAMED

    def tenant(self, key: str) -> Tenant:
        """What the tenant of this key is granted."""
        return self.tenants.get(key, self.others)

    @property
    def rates(self) -> dict[str, float]:
        """Tokens per second that a reader of each class consumes."""
        return {name: each.rate for name, each in self.known.items()}

    def with_default(self, default: str | float) -> QosClasses:
        """The classes with the default of this name, or of this rate in tokens per second.

        Raises:
            ClassError: There is no such class, or the rate is out of its range.
        """
        if not isinstance(default, str):
            return dataclasses.replace(self, default=QosClass(UNSAID, default))
        if default not in self.known:
            raise ClassError(
                f"default is {shown(default)}; allowed is a class: {', '.join(sorted(self.known))}"
            )
        return dataclasses.replace(
            self, default=dataclasses.replace(self.known[default], name=UNSAID)
        )


SHIPPED_CLASSES = QosClasses(SHIPPED, SHIPPED[DEFAULT_CLASS]).with_default(DEFAULT_CLASS)
"""What a server without a class file knows."""


def load_classes(path: str | Path) -> QosClasses:
    """The shipped classes, and those of a file; a class of the file replaces one of its name.

    Raises:
        ClassError: The file cannot be read, is no TOML or nested too deeply, or a field is unknown,
            missing or bad; the message names the file and the class.
    """
    try:
        read = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ClassError(f"class file {path} cannot be read: {reason}") from None
    except ValueError as error:
        raise ClassError(f"class file {path} is not TOML: {error}") from None
    except RecursionError:
        raise ClassError(f"class file {path} is nested too deeply to be read") from None
    try:
        return _classes(read)
    except ClassError as error:
        raise ClassError(f"class file {path}: {error}") from None


def _classes(read: Mapping[str, Any]) -> QosClasses:
    _known_fields(read, ("classes", "default", "tenants"))
    tenants = _tenants(read.get("tenants", {}))
    given = read.get("classes", {} if tenants else None)
    if not isinstance(given, dict) or not (given or tenants):
        raise ClassError(
            f"classes is {shown(given)}; allowed is a table for each class, [classes.NAME]"
        )
    known = {**SHIPPED, **{name: _class(name, row) for name, row in given.items()}}
    default = read.get("default", DEFAULT_CLASS)
    if not isinstance(default, str):
        raise ClassError(f"default is {shown(default)}; allowed is the name of a class")
    others = tenants.pop(OTHERS, UNNAMED)
    classes = QosClasses(known, known[DEFAULT_CLASS], tenants=tenants, others=others)
    return classes.with_default(default)


def _tenants(given: Any) -> dict[str, Tenant]:
    if not isinstance(given, dict):
        raise ClassError(
            f"tenants is {shown(given)}; allowed is a table for each tenant, [tenants.NAME]"
        )
    if len(given) > MOST_NAMED:
        raise ClassError(f"tenants are {len(given)}; allowed are {MOST_NAMED} at most")
    return {name: _tenant(name, row) for name, row in given.items()}


def _tenant(name: str, row: Any) -> Tenant:
    try:
        if not isinstance(row, dict):
            raise ClassError(f"it is {shown(row)}; allowed is a table, [tenants.{name}]")
        _known_fields(row, tuple(item.name for item in fields(Tenant) if item.name != "name"))
        return Tenant(name, **row)
    except ClassError as error:
        raise ClassError(f"tenant {name}: {error}") from None


def _class(name: str, row: Any) -> QosClass:
    if not name.isidentifier() or name in (UNSAID, OWN_RATE):
        raise ClassError(
            f"the class name {name!r} cannot be used; allowed are letters, digits and underscores, "
            f"not beginning with a digit, and not {UNSAID} or {OWN_RATE}"
        )
    try:
        if not isinstance(row, dict):
            raise ClassError(f"it is {shown(row)}; allowed is a table, [classes.{name}]")
        _known_fields(row, tuple(item.name for item in fields(QosClass) if item.name != "name"))
        if "rate" not in row:
            raise ClassError("rate is missing; every class states its tokens per second")
        return QosClass(name, **row)
    except ClassError as error:
        raise ClassError(f"class {name}: {error}") from None


def _known_fields(row: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for field in row:
        if field not in allowed:
            raise ClassError(f"the field {field!r} is unknown; allowed are {', '.join(allowed)}")
