"""What a simulation can compare: SGLang's own settings, our policy, and the papers', by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenflow_sgl.contract import Policy
from tokenflow_sgl.policy import ConfigError, WorkingSetConfig, make_policy
from tokenflow_sgl.policy.registry import load_class
from tokenflow_sgl.sim.core import Core
from tokenflow_sgl.sim.engine_options import EngineOptions, SimulationError
from tokenflow_sgl.sim.policed import PolicedScheduler
from tokenflow_sgl.sim.schedulers.fair import FairScheduler
from tokenflow_sgl.sim.schedulers.priority import PriorityScheduler
from tokenflow_sgl.sim.schedulers.stock import StockScheduler

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


def _policed(name: str) -> _Contender:
    """Under a policy of the registry."""
    return _Contender(lambda core, config: PolicedScheduler(core, make_policy(name, config), LearnedLengths()), {})


_CONTENDERS: Mapping[str, _Contender] = {
    "fcfs": _sglang(StockScheduler),
    "chunked": _sglang(StockScheduler, enable_mixed_chunk=True, chunked_prefill_size=SMALL_CHUNK),
    "priority": _sglang(PriorityScheduler),
    "vtc": _sglang(FairScheduler),
    "tokenflow": _policed("working-set"),
    "paper": _policed("paper"),
    "andes": _policed("andes"),
    "least-slack": _policed("least-slack"),
    "round-robin": _policed("round-robin"),
}

POLICIES = tuple(_CONTENDERS)
"""All names; the first four are SGLang's own scheduler under its settings, without HiCache."""


def settings_of(policy: str | Policy, options: EngineOptions) -> EngineOptions:
    """SGLang's settings with those that belong to a policy.

    Raises:
        SimulationError: There is no such policy.
    """
    return dataclasses.replace(options, **_contender(policy).settings)


def make_scheduler(policy: str | Policy, core: Core, config: WorkingSetConfig) -> StockScheduler:
    """The scheduler under a policy.

    Args:
        policy: One of `POLICIES`, package.module:Class, or a policy.
        core: The engine's state.
        config: Parameters of tokenflow's policy.

    Raises:
        SimulationError: There is no such policy.
    """
    return _contender(policy).make(core, config)


def name_of(policy: str | Policy) -> str:
    """What a policy is called in reports."""
    return policy if isinstance(policy, str) else type(policy).__name__


def _contender(policy: str | Policy) -> _Contender:
    if isinstance(policy, str):
        if policy in _CONTENDERS:
            return _CONTENDERS[policy]
        if ":" not in policy:
            raise SimulationError(
                f"policy is {policy!r}; allowed is {', '.join(POLICIES)} or package.module:Class"
            )
        try:
            policy = load_class(policy)
        except ConfigError as error:
            raise SimulationError(str(error)) from None
    made = policy
    return _Contender(lambda core, config: PolicedScheduler(core, made, LearnedLengths()), {})
