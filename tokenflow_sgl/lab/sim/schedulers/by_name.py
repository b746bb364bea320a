"""What a simulation can compare: SGLang's own settings, our policy, and the papers', by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenflow_sgl.choices import Contender
from tokenflow_sgl.contract import LengthPredictor, Policy
from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.engine_options import EngineOptions, SimulationError
from tokenflow_sgl.lab.sim.policed import PolicedScheduler
from tokenflow_sgl.lab.sim.schedulers.cache_aware import HrrnScheduler, LongestPrefixScheduler
from tokenflow_sgl.lab.sim.schedulers.earliest_deadline import EarliestDeadlineScheduler
from tokenflow_sgl.lab.sim.schedulers.fair import FairScheduler
from tokenflow_sgl.lab.sim.schedulers.fcfs import FcfsScheduler
from tokenflow_sgl.lab.sim.schedulers.priority import PriorityScheduler
from tokenflow_sgl.lab.sim.schedulers.qoserve import QoServeScheduler
from tokenflow_sgl.lab.sim.schedulers.shortest import ShortestPrefillScheduler
from tokenflow_sgl.lab.sim.schedulers.vllm import MOST_RUNNING, VllmScheduler
from tokenflow_sgl.policy import ConfigError, WorkingSetConfig, make_policy
from tokenflow_sgl.policy.named_class import load_class

SMALL_CHUNK = 2048
"""Tokens of a step of `chunked` at most, prefilled and decoded ones together."""
WHOLE = 1 << 20
"""Chunk of `vllm`: prompts are prefilled as a whole."""
DECODE_INTERVAL = 22
"""Decode steps between two prefills of `prefill-interval`: the one value that SGLang 0.5.23 ships,
for Qwen3-VL on Hopper."""


@dataclass(frozen=True, slots=True)
class _Made:
    """What makes its scheduler of tokenflow's parameters, and SGLang's settings with it."""

    make: Callable[[SimulatedCore, WorkingSetConfig, LengthPredictor], FcfsScheduler]
    settings: Mapping[str, Any]


def _sglang(make: Callable[[SimulatedCore], FcfsScheduler], **settings: Any) -> _Made:
    """SGLang's own scheduling, without HiCache."""
    return _Made(lambda core, config, lengths: make(core), {"host_tokens": 0, **settings})


def _policed(name: str) -> _Made:
    """Under a policy of the registry."""
    return _Made(
        lambda core, config, lengths: PolicedScheduler(
            core, make_policy(name, config), lengths, config
        ),
        {},
    )


_CONTENDERS: Mapping[Contender, _Made] = {
    Contender.fcfs: _sglang(FcfsScheduler),
    Contender.fcfs_hicache: _Made(lambda core, config, lengths: FcfsScheduler(core), {}),
    Contender.chunked: _sglang(
        FcfsScheduler, enable_mixed_chunk=True, chunked_prefill_size=SMALL_CHUNK
    ),
    Contender.prefill_interval: _sglang(FcfsScheduler, prefill_decode_interval=DECODE_INTERVAL),
    Contender.shortest_prefill: _sglang(ShortestPrefillScheduler),
    Contender.lpm: _sglang(LongestPrefixScheduler),
    Contender.hrrn: _sglang(HrrnScheduler),
    Contender.hrrn_hicache: _Made(lambda core, config, lengths: HrrnScheduler(core), {}),
    Contender.priority: _sglang(PriorityScheduler),
    Contender.vtc: _sglang(FairScheduler),
    Contender.edf: _sglang(EarliestDeadlineScheduler),
    Contender.qoserve: _sglang(QoServeScheduler),
    Contender.vllm: _sglang(
        VllmScheduler,
        chunked_prefill_size=WHOLE,
        max_running_requests=MOST_RUNNING,
        overlap=False,
    ),
    Contender.tokenflow: _policed("working-set"),
    Contender.paper: _policed("paper"),
    Contender.andes: _policed("andes"),
    Contender.least_slack: _policed("least-slack"),
    Contender.round_robin: _policed("round-robin"),
}

POLICIES = tuple(str(name) for name in _CONTENDERS)
"""All names. Those before `tokenflow` never pause a stream, and run without HiCache unless they end
in `-hicache`."""


def settings_of(policy: str | Policy, options: EngineOptions) -> EngineOptions:
    """SGLang's settings with those that belong to a policy.

    Raises:
        SimulationError: There is no such policy.
    """
    return dataclasses.replace(options, **_contender(policy).settings)


def make_scheduler(
    policy: str | Policy, core: SimulatedCore, config: WorkingSetConfig, lengths: LengthPredictor
) -> FcfsScheduler:
    """The scheduler under a policy.

    Args:
        policy: One of `POLICIES`, package.module:Class, or a policy.
        core: The engine's state.
        config: Parameters of tokenflow's policy.
        lengths: Tells a policy how long answers get.

    Raises:
        SimulationError: There is no such policy.
    """
    return _contender(policy).make(core, config, lengths)


def name_of(policy: str | Policy) -> str:
    """What a policy is called in reports."""
    return policy if isinstance(policy, str) else type(policy).__name__


def _contender(policy: str | Policy) -> _Made:
    if isinstance(policy, str):
        if policy in POLICIES:
            return _CONTENDERS[Contender(policy)]
        try:
            made: Policy = load_class(policy, "policy", POLICIES, ("decide",))
        except ConfigError as error:
            raise SimulationError(str(error)) from None
    else:
        made = policy
    return _Made(lambda core, config, lengths: PolicedScheduler(core, made, lengths), {})
