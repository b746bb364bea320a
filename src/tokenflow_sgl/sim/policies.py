"""What a simulation can compare: SGLang's own settings, our policy, and the papers', by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenflow_sgl.policy import Policy, WorkingSetConfig, WorkingSetPolicy
from tokenflow_sgl.policy.baselines import (
    AndesPolicy,
    LeastSlackPolicy,
    OrderedPolicy,
    PaperConfig,
    PaperPolicy,
    RoundRobinPolicy,
)
from tokenflow_sgl.sim.core import Core
from tokenflow_sgl.sim.fair import FairScheduler
from tokenflow_sgl.sim.options import EngineOptions, SimulationError
from tokenflow_sgl.sim.policed import PolicedScheduler
from tokenflow_sgl.sim.priority import PriorityScheduler
from tokenflow_sgl.sim.stock import StockScheduler

SMALL_CHUNK = 2048
"""Tokens of a step of `chunked` at most, prefilled and decoded ones together."""


@dataclass(frozen=True, slots=True)
class _Contender:
    """What makes its scheduler of tokenflow's parameters, and SGLang's settings with it."""

    make: Callable[[Core, WorkingSetConfig], StockScheduler]
    settings: Mapping[str, Any]


def _sglang(make: Callable[[Core], StockScheduler], **settings: Any) -> _Contender:
    """SGLang's own scheduling, without HiCache."""
    return _Contender(lambda core, config: make(core), {"host_tokens": 0, **settings})


def _policed(make: Callable[[WorkingSetConfig], tuple[Policy, float]]) -> _Contender:
    """Under a policy that preempts, with the seconds between two of its plans."""
    return _Contender(lambda core, config: PolicedScheduler(core, *make(config)), {})


def _ranked(kind: Callable[[], OrderedPolicy]) -> _Contender:
    policy = kind()
    return _policed(lambda config: (policy, policy.interval))


_CONTENDERS: Mapping[str, _Contender] = {
    "fcfs": _sglang(StockScheduler),
    "chunked": _sglang(StockScheduler, enable_mixed_chunk=True, chunked_prefill_size=SMALL_CHUNK),
    "priority": _sglang(PriorityScheduler),
    "vtc": _sglang(FairScheduler),
    "tokenflow": _policed(lambda config: (WorkingSetPolicy(config), config.cycle)),
    "paper": _policed(lambda config: (PaperPolicy(), PaperConfig().interval)),
    "andes": _ranked(AndesPolicy),
    "least-slack": _ranked(LeastSlackPolicy),
    "round-robin": _ranked(RoundRobinPolicy),
}

POLICIES = tuple(_CONTENDERS)
"""All names; the first four are SGLang's own scheduler under its settings, without HiCache."""


def settings_of(name: str, options: EngineOptions) -> EngineOptions:
    """SGLang's settings with those that belong to a policy.

    Raises:
        SimulationError: There is no such policy.
    """
    if name not in _CONTENDERS:
        raise SimulationError(f"policy is {name!r}; allowed is {', '.join(POLICIES)}")
    return dataclasses.replace(options, **_CONTENDERS[name].settings)


def make_scheduler(name: str, core: Core, config: WorkingSetConfig) -> StockScheduler:
    """The scheduler of one of `POLICIES`; `config` has the parameters of tokenflow's policy."""
    return _CONTENDERS[name].make(core, config)
