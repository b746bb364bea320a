"""The same trace under many settings of the policy, over the machine's cores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import pyarrow as pa

from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.report import Figures, figures
from tokenflow_sgl.lab.sim.engine_options import EngineOptions, SimulationError
from tokenflow_sgl.lab.sim.run import simulate
from tokenflow_sgl.lab.sim.study.spread import Spread
from tokenflow_sgl.lab.traces import Trace
from tokenflow_sgl.policy import ConfigError, WorkingSetConfig
from tokenflow_sgl.qos.classes import SHIPPED_CLASSES, QosClasses

Setting = Mapping[str, float | bool]
"""Values of some of the policy's parameters, by their names."""
Row = dict[str, float | bool]


@dataclass(frozen=True, slots=True)
class Setup:
    """What all runs of a sweep or a search share.

    Attributes:
        trace: The requests and their times.
        profile: The device.
        options: SGLang's settings.
        known_lengths: Whether the server knows when each answer ends; see `simulate`.
        classes: Of the server.
        config: Parameters of the policy that no setting changes.
    """

    trace: Trace
    profile: DeviceProfile
    options: EngineOptions
    known_lengths: bool = False
    classes: QosClasses = SHIPPED_CLASSES
    config: WorkingSetConfig = field(default_factory=WorkingSetConfig)


COLUMNS: Mapping[str, Callable[[Figures], float]] = {
    "effective_throughput": lambda found: found.throughput.effective,
    "token_throughput": lambda found: found.throughput.token,
    "mean_ttft_s": lambda found: found.latency.ttft.mean,
    "p99_ttft_s": lambda found: found.latency.ttft.p99,
    "mean_stall_s": lambda found: found.readers.stall_mean,
    "mean_waiting_s": lambda found: found.latency.ttft.mean + found.readers.stall_mean,
}
"""What a sweep says of each run; waiting is TTFT plus stalls."""


def parse_sweep(texts: Sequence[str]) -> Sequence[Setting]:
    """All combinations of KEY=A,B,C texts.

    Raises:
        SimulationError: A key is no parameter of the policy, is given twice, or a value is none.
    """
    axes: dict[str, list[float | bool]] = {}
    kinds = {item.name: type(item.default) for item in fields(WorkingSetConfig)}
    kinds = {name: kind for name, kind in kinds.items() if kind is not str}  # words are no axis
    for text in texts:
        key, separator, values = text.partition("=")
        name = key.strip().replace("-", "_")
        if name not in kinds or not separator:
            raise SimulationError(
                f"sweep is {text!r}; allowed is KEY=VALUE,VALUE... with a KEY of {', '.join(kinds)}"
            )
        if name in axes:
            raise SimulationError(f"sweep has {name} twice")
        axes[name] = [_value(kinds[name], name, value) for value in values.split(",")]
    settings = [dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())]
    for setting in settings:
        try:
            config_of(setting)
        except ConfigError as error:
            raise SimulationError(f"sweep: {error}") from None
    return settings


def sweep(
    setup: Setup,
    settings: Sequence[Setting],
    *,
    spread: Spread,
    done: Callable[[], None] | None = None,
) -> pa.Table:
    """Simulate tokenflow's policy under each setting.

    Args:
        setup: What is the same for all.
        settings: What is changed.
        spread: Where the runs are done.
        done: Called as each run ends.

    Returns:
        A row per setting, in their order: its values, then `COLUMNS`.
    """
    rows: list[Row] = []
    for setting, found in zip(settings, spread(row_of, setup, settings), strict=True):
        rows.append({**setting, **found})
        if done is not None:
            done()
    return pa.Table.from_pylist(rows)


def row_of(setup: Setup, setting: Setting) -> Row:
    """`COLUMNS` of the run under one setting."""
    simulation = simulate(
        setup.trace,
        setup.profile,
        setup.options,
        config=config_of(setting, setup.config),
        known_lengths=setup.known_lengths,
        classes=setup.classes,
    )
    found = figures(simulation.run)
    return {name: column(found) for name, column in COLUMNS.items()}


def config_of(setting: Setting, shared: WorkingSetConfig | None = None) -> WorkingSetConfig:
    """The policy's parameters with these changed.

    Args:
        setting: The changes.
        shared: What they are changes of; None: those shipped.

    Raises:
        ConfigError: One is outside its range.
    """
    whole = {item.name for item in fields(WorkingSetConfig) if isinstance(item.default, int)}
    given = {
        name: int(value) if name in whole and not isinstance(value, bool) else value
        for name, value in setting.items()
    }
    return replace(shared or WorkingSetConfig(), **given)  # type: ignore[arg-type]


def _value(kind: type, name: str, text: str) -> float | bool:
    text = text.strip()
    if kind is bool and text in ("true", "false"):
        return text == "true"
    try:
        if kind is not bool:
            return float(text)
    except ValueError:
        pass
    allowed = "true or false" if kind is bool else "a number"
    raise SimulationError(f"sweep has {name}={text!r}; allowed is {allowed}")
