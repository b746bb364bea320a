"""The one place where a decision becomes deeds, for the live engine and for the simulator.

The order: write, preempt, restore ahead, admit, offer. KV is written before its stream is
preempted, so that the copy runs while the stream drains. Memory that a preemption frees is there
for what is restored and offered after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenflow_sgl.contract import (
    Cause,
    Decision,
    Mode,
    Phase,
    Preempt,
    Restore,
    Way,
    When,
    Write,
)
from tokenflow_sgl.lifecycle.actuator import Action, Actuator
from tokenflow_sgl.lifecycle.phases import Phases
from tokenflow_sgl.lifecycle.prefetch import prefetch

_MAY = {
    Write: (Phase.RUNNING,),
    Preempt: (Phase.RUNNING,),
    Restore: (Phase.PAUSED,),
}
"""The phases in which a stream can be the object of an action."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What was done of a decision.

    Attributes:
        preempted: Preemptions that were carried out.
        written: Tokens that are being copied to the host.
        loading: The stream whose prefetch, or a chunk of it, is being copied since this pass, and
            the tokens; None: none was started.
        refused: Actions that were not carried out because the stream was in another phase, had
            gone, or the body said no.
    """

    preempted: tuple[Preempt, ...] = ()
    written: int = 0
    loading: tuple[int, int] | None = None
    refused: tuple[Action, ...] = ()


def apply(decision: Decision, phases: Phases, body: Actuator, now: float) -> Applied:
    """Carry a policy's decision out, in a stated order, through an actuator.

    A stream that has left, that is in another phase than the decision takes it for, or that the
    body refuses, is passed over: a decision may be older than an abort. Of several actions on one
    stream each is judged by the phase that those before it have led to: a stream that was just
    preempted is not restored.

    Args:
        decision: The policy's, or an idle one.
        phases: Where the streams stand; moved along.
        body: Carries the actions out.
        now: The present on the body's clock.
    """
    if decision.mode is not Mode.WORKING_SET:
        # The engine's own policy decides; what rests does so whatever the policy.
        rests = tuple(each for each in decision.preempt if each.cause is Cause.REST)
        decision = Decision(decision.mode, preempt=rests, hidden=decision.hidden)
    refused: list[Action] = []

    def possible(action: Action) -> bool:
        if phases.is_in(action.slot, *_MAY[type(action)]) and body.accepts(action):
            return True
        refused.append(action)
        return False

    writes = [write for write in decision.write if possible(write)]
    written = body.write(writes) if writes else 0

    preempted = []
    for preemption in decision.preempt:
        if possible(preemption):
            phases.move(preemption.slot, Phase.DRAINING, now)
            preempted.append(preemption)
    if preempted:
        body.preempt([preemption.slot for preemption in preempted])

    recompute, ahead = set(), []
    for restore in decision.restore:
        if restore.way is Way.RECOMPUTE:
            recompute.add(restore.slot)
        elif restore.when is When.IN_STEP:
            possible(restore)  # a load is what admission does; what the body cannot do is counted
        else:
            ahead.append(restore)
    loading = prefetch(ahead, possible, phases, body, now)

    phases.admit(phases.those_in(decision.admit, Phase.WAITING))
    once = tuple(dict.fromkeys(decision.run))  # two starts of one stream would leak its memory
    run = phases.those_in(once, Phase.WAITING, Phase.PAUSED)
    # A policy that forgets all streams must not idle the engine; one that says until when, may.
    idles = not run and not body.busy and decision.until is None
    every = decision.mode is not Mode.WORKING_SET or idles
    body.offer(None if every else run, frozenset(recompute), decision.hidden)
    return Applied(tuple(preempted), written, loading, tuple(refused))
