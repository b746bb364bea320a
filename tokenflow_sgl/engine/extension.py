"""What a server can have beside its scheduler, and the moments at which it is asked and told.

An extension works with our scheduler and with SGLang's own: both shells call the same methods, in
the order in which the extensions were built. A server that did not switch one on does not import
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.engine.sglang.batch import NextPlan, ReqBatch
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.telemetry.decision_log import DecisionLog
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.lifecycle.table import StreamTable

Kind = TypeVar("Kind", bound="Extension")
Prefill = Callable[[Any], Any]
"""SGLang's choice of a prefill: of the running batch, a plan for the next batch."""


class Host(Protocol):
    """The scheduler that an extension is beside, as far as extensions know it.

    Attributes:
        scheduler: SGLang's.
        recorder: Where metrics are counted.
        log: Of decisions; None: there is none.
        extensions: All that are beside this scheduler.
        table: Of the streams; None: SGLang's own policy decides.
    """

    @property
    def scheduler(self) -> Any: ...  # noqa: D102

    @property
    def recorder(self) -> Recorder: ...  # noqa: D102

    @property
    def log(self) -> DecisionLog | None: ...  # noqa: D102

    @property
    def extensions(self) -> Extensions: ...  # noqa: D102

    @property
    def table(self) -> StreamTable[Any] | None: ...  # noqa: D102

    def costs(self) -> StepCosts:
        """What steps cost, as learned so far."""
        ...

    def admission(self) -> Sequence[Any] | None:
        """Waiting requests in the order in which they are admitted; None: first come first."""
        ...

    def prefill_began(self, batch: ReqBatch) -> None:
        """An extension has begun the prefill of this batch; SGLang does not launch it yet."""
        ...

    def requeue(self, req: Req) -> None:
        """A request whose prefill an extension has interrupted waits again, before all others."""
        ...


class Extension:
    """Something beside the scheduler. Here every moment passes without effect."""

    def pass_begins(self, running_batch: ReqBatch) -> None:
        """SGLang is about to choose the next batch."""

    def prefill(self, running_batch: ReqBatch, choose: Prefill) -> Any:
        """The plan for a prefill: `choose(running_batch)`, or what takes its place in this pass."""
        return choose(running_batch)

    def launched(self, plan: NextPlan) -> None:
        """SGLang has chosen; the plan's batch runs next."""

    def computes_beside(self, batch: ReqBatch | None) -> bool:
        """Whether what this batch computes is not all that the device computes in this pass.

        Asked once for each pass, behind `launched`. Such a step teaches nothing of costs.
        """
        return False

    def has_its_memory(self, req: Req) -> bool:
        """Whether the request whose prompt is prefilled in part has all the memory that it needs.

        Otherwise the rest of its prompt is promised.
        """
        return False

    def engine_pauses(self) -> AbstractContextManager[None]:
        """Surrounds SGLang's own pause of the engine: requests may be retracted."""
        return contextlib.nullcontext()

    def while_paused(self) -> None:
        """The engine is paused; comes again and again."""

    @property
    def idle(self) -> bool:
        """Whether nothing of it is under way, so that caches may be flushed."""
        return True

    @property
    def lent(self) -> Sequence[Any]:
        """Device memory (indices of KV cells) that it holds and gives back when it is asked to."""
        return ()

    @property
    def lent_tokens(self) -> int:
        """How many KV tokens that is."""
        return 0

    def wrap_adder(self, adder: type) -> type:
        """The class by which SGLang admits prefills: `adder`, or one made of it."""
        return adder

    def memory_checked(self, owners: Sequence[Req]) -> None:
        """SGLang's strict check of its memory has run; `owners`: the requests that hold rows."""


class Extensions:
    """All of a server, asked and told in their order.

    Args:
        of: In the order in which they were built.
    """

    def __init__(self, of: Iterable[Extension] = ()) -> None:
        self._of = tuple(of)

    def get(self, kind: type[Kind]) -> Kind:
        """The one of this class.

        Raises:
            LookupError: There is none.
        """
        for each in self._of:
            if isinstance(each, kind):
                return each
        raise LookupError(f"no {kind.__name__} is beside this scheduler")

    def add(self, extension: Extension) -> None:
        """One more, while the server is built."""
        self._of += (extension,)

    def __iter__(self) -> Iterator[Extension]:
        return iter(self._of)

    def pass_begins(self, running_batch: ReqBatch) -> None:
        """Tell all that a pass begins: SGLang is about to choose the next batch."""
        for each in self._of:
            each.pass_begins(running_batch)

    def prefill(self, running_batch: ReqBatch, choose: Prefill) -> Any:
        """The plan for a prefill, around which all are asked; the first is the outermost."""
        for each in reversed(self._of):
            choose = _around(each, choose)
        return choose(running_batch)

    def launched(self, plan: NextPlan) -> None:
        """Tell all that SGLang has chosen: the plan's batch runs next."""
        for each in self._of:
            each.launched(plan)

    def computes_beside(self, batch: ReqBatch | None) -> bool:
        """Whether one of them computes beside this batch; all are asked."""
        return any([each.computes_beside(batch) for each in self._of])

    def has_its_memory(self, req: Req) -> bool:
        """Whether one of them says that the request has all the memory that it needs."""
        return any(each.has_its_memory(req) for each in self._of)

    @contextmanager
    def engine_pauses(self) -> Iterator[None]:
        """Surround SGLang's own pause of the engine with what all do then."""
        with ExitStack() as stack:
            for each in self._of:
                stack.enter_context(each.engine_pauses())
            yield

    def while_paused(self) -> None:
        """Tell all that the engine is paused; comes again and again."""
        for each in self._of:
            each.while_paused()

    @property
    def idle(self) -> bool:
        """Whether nothing of any is under way, so that caches may be flushed."""
        return all(each.idle for each in self._of)

    @property
    def lent(self) -> list[Any]:
        """What all of them hold."""
        return [cells for each in self._of for cells in each.lent]

    @property
    def lent_tokens(self) -> int:
        """What all of them hold."""
        return sum(each.lent_tokens for each in self._of)

    def wrap_adder(self, adder: type) -> type:
        """Made of by each in turn."""
        for each in self._of:
            adder = each.wrap_adder(adder)
        return adder

    def memory_checked(self, owners: Sequence[Req]) -> None:
        """Tell all that SGLang's strict check of its memory has run."""
        for each in self._of:
            each.memory_checked(owners)


def _around(extension: Extension, choose: Prefill) -> Prefill:
    return lambda running_batch: extension.prefill(running_batch, choose)
