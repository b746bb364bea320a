"""Both rules of admission in one object: the demand test, LayerKV's rule, or what passes both.

The demand test (`admission`) looks far ahead: it keeps what all readers together will ask for
within what the engine and the memory can give. LayerKV's rule (`slo_admission`) looks at today: it
spends the slack that the running streams have gained, and no more, on the prefills of newcomers,
also where that promises more than the engine can keep. Under both a newcomer joins if no running
stream loses its objective by its prefill, and if it can itself be served later on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray, State
from tokenflow_sgl.policy.admission import DemandAnswer, admissible
from tokenflow_sgl.policy.config import DEMAND, SLO, WorkingSetConfig
from tokenflow_sgl.policy.slo_admission import within_objectives


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """The rule, or rules, that `config.admission` names.

    Which streams that think only get memory that is free is for the demand test to say; by
    LayerKV's rule alone none is held so.
    """

    config: WorkingSetConfig

    def join(self, state: State, queue: FloatArray | None = None) -> DemandAnswer:
        """What the rules say of the streams without text; arguments as of `admissible`."""
        rule = self.config.admission
        if rule == DEMAND:
            return admissible(state, self.config, queue)
        within = within_objectives(state, self.config, queue)
        if rule == SLO:
            return DemandAnswer(within)
        demanded = admissible(state, self.config, queue)
        return DemandAnswer(_common(demanded.join, within), demanded.held)


def _common(one: IntArray, other: IntArray) -> IntArray:
    """Which of `one` are in `other`, in its order."""
    return one[np.isin(one, other)]
