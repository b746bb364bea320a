"""Refuses requests whose first token would come too late, before they cost anything.

The scheduler says how long newcomers would wait with every load that it publishes to the processes
that serve HTTP. So a refusal waits for no step of the engine, and a stream is refused with HTTP 429
before its HTTP 200 is sent. What this process has let in since the last load counts as waiting.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from sglang.srt.managers.utils import is_health_check_generate_req

from tokenflow_sgl.engine.config import TokenFlowConfig, config_of
from tokenflow_sgl.engine.sglang.server import Manager
from tokenflow_sgl.engine.telemetry.prometheus import count_at, make_metric
from tokenflow_sgl.engine.tenants import too_many, who_asks
from tokenflow_sgl.engine.terms import MAX_WAIT_KEY, RateError, class_of
from tokenflow_sgl.engine.unsupported_front_ends import refuses_none
from tokenflow_sgl.lifecycle.door import Door, retry_after
from tokenflow_sgl.metrics import METRICS
from tokenflow_sgl.policy.outlook import WaitOutlook
from tokenflow_sgl.qos.classes import QosClass

logger = logging.getLogger(__name__)

CHARACTERS = 4.0
"""Characters that a token of a prompt has, where it comes as text: it is not read twice."""
RETRY_AFTER = "tokenflow_retry_after"
"""Where a request's state keeps after how many seconds a refused client may come again."""

OUTLOOK, FULL = "tokenflow_outlook", "tokenflow_full"
"""Fields of a load; see `telemetry.loads`."""
AGAIN = 1
"""Seconds after which a tenant may try again that has as many streams as it may."""
_PASSED = "_tokenflow_passed"
"""Attribute of a request that was let in at one place, and comes by another."""


class BusyError(Exception):
    """A request is refused that may be served later.

    Args:
        message: For the client.
        after: Seconds after which it may come again.

    Attributes:
        after: Likewise.
    """

    def __init__(self, message: str, after: int) -> None:
        super().__init__(message)
        self.after = after


class TooLongError(BusyError):
    """The expected wait of a request is longer than it may be.

    Attributes:
        seconds: The wait.
    """

    def __init__(self, seconds: float, most: float, after: int) -> None:
        super().__init__(
            f"The server is busy: the first token may take {seconds:.1f} s, longer than the "
            f"{most:g} s that this request may wait. Try again in {after} s.",
            after,
        )
        self.seconds = seconds


class FullTenantError(BusyError):
    """Its tenant has as many streams as it may."""


class FrontDoor:
    """The door of one process that serves HTTP.

    Args:
        config: Of the server.
        load: The last loads that the schedulers have published.
        refused: Counts refusals by class; None: the server shows no metrics.
        without: The option with which no request can be refused; None: it can.
    """

    def __init__(
        self,
        config: TokenFlowConfig,
        load: Callable[[], list[Any]],
        refused: Callable[[str], None] | None = None,
        without: str | None = None,
    ) -> None:
        self._config = config
        self._without = without
        self._load = load
        self._refused = refused
        self._door = Door()
        self._full: set[str] = set()
        self._seen: object = None
        self._failed = False

    def pass_on(self, obj: Any, tenant: str | None = None) -> None:
        """Let a request pass.

        Args:
            obj: SGLang's, of one request or several.
            tenant: Who asks, as the scheduler knows it; None: tenants are not told apart.

        Raises:
            TooLongError: The first token of one of them would come too late.
            FullTenantError: Its tenant has as many streams as it may.
            RateError: It asks for what the server cannot do.
        """
        params = getattr(obj, "sampling_params", None)
        terms = [most_of(each, self._config) for each in _each(params)]
        qos_class, most = min(terms, key=lambda each: each[1] or math.inf)
        prompts = prompts_of(obj)
        if tenant is not None:
            self._pass_tenant(tenant, qos_class, _answers(params, len(prompts)))
        if not most:
            return self._door.let_in(len(prompts))
        if self._without is not None:
            raise RateError(f"{MAX_WAIT_KEY} is {most:g}; it must be 0 with {self._without}.")
        self._look()
        for prompt in prompts:
            wait = self._door.refuses(0.0, prompt, most)
            if wait is not None:
                self._count(qos_class)
                raise TooLongError(wait, most, retry_after(self._door.likely(wait), most))

    def _count(self, qos_class: QosClass) -> None:
        if self._refused is not None:
            self._refused(qos_class.name)

    def _pass_tenant(self, tenant: str, qos_class: QosClass, answers: int) -> None:
        """The scheduler refuses it, too; but a stream would have its HTTP 200 by then."""
        classes = self._config.known_classes
        granted = classes.tenants.get(tenant, classes.others)
        if granted.streams is None:
            return
        if answers > granted.streams:
            raise RateError(
                f"It asks for {answers} answers at once; your tenant may have {granted.streams}. "
                "Send fewer prompts, or a smaller n."
            )
        self._look()
        if tenant in self._full:
            self._count(qos_class)
            raise FullTenantError(too_many(granted), AGAIN)

    def _look(self) -> None:
        try:
            loads = self._load()
            seen = [load.timestamp for load in loads]
            if seen == self._seen:
                return
            rows = [getattr(load, OUTLOOK, None) for load in loads]
            known = [each for each in rows if each is not None]
            self._door = Door()  # a scheduler may have lost what it knew
            if known:
                self._door.look(*shortest(known), replicas=len(known))
            # Full is who is so at each of the replicas.
            full = [set(getattr(load, FULL, None) or ()) for load in loads]
            self._full = set.intersection(*full) if full else set()
            self._seen = seen
        except Exception:
            # No request fails for what is only about its wait.
            self._door, self._full, self._seen = Door(), set(), None
            if not self._failed:
                self._failed = True
                logger.exception("loads cannot be read, so no request is refused; told once")


def shortest(outlooks: list[list[list[float]]]) -> tuple[WaitOutlook, float]:
    """The outlook of the replica where a newcomer waits least, and who has come there since.

    outlooks: As loads have them, one at least.
    """
    made = [
        (WaitOutlook(-since, np.array(prompt), np.array(wait), lasted=lasted), ahead)
        for (since, ahead, lasted), prompt, *wait in outlooks
    ]
    return min(made, key=lambda each: each[0].expected(0.0, None, each[1]))


def most_of(params: Any, config: TokenFlowConfig) -> tuple[QosClass, float]:
    """The class of a request by its sampling parameters, and the seconds that it may wait."""
    custom = params.get("custom_params") if isinstance(params, dict) else None
    asked = class_of(custom, config.known_classes)
    most = config.working_set.max_wait if asked.max_wait is None else asked.max_wait
    return asked, most


def _answers(params: Any, prompts: int) -> int:
    """How many streams a request is: SGLang makes one of each sample of each prompt."""
    each = _each(params)[0]
    samples = each.get("n") if isinstance(each, dict) else None
    return prompts * max(samples if isinstance(samples, int) else 1, 1)


def _each(params: Any) -> list[Any]:
    return params if isinstance(params, list) and params else [params]


def prompts_of(obj: Any) -> Sequence[int | None]:
    """Tokens of each prompt, about; None: not known."""
    ids, text = getattr(obj, "input_ids", None), getattr(obj, "text", None)
    if isinstance(ids, list) and ids:
        return [len(each) for each in ids] if isinstance(ids[0], list) else [len(ids)]
    texts = text if isinstance(text, list) and text else [text]
    return [int(len(each) / CHARACTERS) if isinstance(each, str) else None for each in texts]


def pass_door(manager: Manager, obj: Any) -> None:
    """Let a request pass, once; raises `BusyError` as `FrontDoor.pass_on` does."""
    door = door_of(manager)
    if door is None or getattr(obj, _PASSED, False) or _is_health_check(obj):
        return
    door.pass_on(obj, who_asks())
    setattr(obj, _PASSED, True)


def let_in(manager: Manager, obj: Any, request: Any) -> None:
    """Let a request pass where SGLang answers an HTTPException with its status.

    Args:
        manager: SGLang's.
        obj: SGLang's, of one request or several.
        request: Starlette's, which keeps when the client may come again; None: there is none.
    """
    from fastapi import HTTPException

    try:
        pass_door(manager, obj)
    except BusyError as error:
        state = getattr(request, "state", None)
        if state is not None:
            setattr(state, RETRY_AFTER, error.after)
        headers = {"Retry-After": str(error.after)}
        raise HTTPException(429, str(error), headers=headers) from None


def retry_after_of(request: Any) -> int | None:
    """After how many seconds the client of this request may come again, if it was refused."""
    after: int | None = getattr(getattr(request, "state", None), RETRY_AFTER, None)
    return after


def _is_health_check(obj: Any) -> bool:
    """Whether SGLang asks itself whether it is well: a busy server is."""
    return isinstance(obj.rid, str) and is_health_check_generate_req(obj)


@lru_cache(maxsize=1)
def door_of(manager: Manager) -> FrontDoor | None:
    """The door of the process, which has one TokenizerManager; None: the scheduler is off."""
    config = config_of(manager.server_args)
    if config is None:
        return None
    found = refuses_none(manager.server_args, config)
    read = manager.load_snapshot_reader.read_all
    classes = config.known_classes
    counter = _counter(manager, {*classes.known, classes.default.name})
    return FrontDoor(config, read, counter, found and found[0])


def _counter(manager: Manager, classes: Iterable[str]) -> Callable[[str], None] | None:
    if not manager.enable_metrics:
        return None
    labels = manager.metrics_collector.labels
    counter = make_metric(METRICS["refused_requests_total"], [*labels])
    # A series that is there before the first refusal shows that one as an increase.
    for name in classes:
        counter.labels(**labels, qos_class=name)
    return partial(count_at, counter, labels)
