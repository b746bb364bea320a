"""The policy `working-set` on a server whose scheduler's passes are timed; see scheduler_pass.py.

`--tokenflow-policy pass_recorder:Recorded`. Loading it puts stop watches around methods of the
scheduler's class, in the scheduler's process; what they read goes to the file named by
PASS_RECORD, rewritten every 50 passes. All times are CPU time of the scheduler's thread.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from tokenflow_sgl.engine.kv.write import Writer
from tokenflow_sgl.engine.telemetry.sampling import Effort
from tokenflow_sgl.policy import WorkingSetPolicy

KEEP = 50
PARTS = ("ours", "writing", "launch")
ROWS: list[list[float]] = []
"""Per pass: seconds in all, in PARTS, and streams in the running batch."""


class Watch:
    """What the pass under way has taken so far."""

    def __init__(self) -> None:
        self.began = 0.0
        self.spent = dict.fromkeys(PARTS, 0.0)

    def around(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """`method`, with its time counted for `part`."""

        @wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            before = time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                self.spent[part] += time.thread_time() - before

        return timed

    def next_pass(self, scheduler: Any) -> None:
        """The one before has ended."""
        now = time.thread_time()
        batch = scheduler.running_batch
        running = 0 if batch is None else len(batch.reqs)
        if self.began and running:
            ROWS.append([now - self.began, *self.spent.values(), running])
            if len(ROWS) % KEEP == 0:
                path = Path(os.environ["PASS_RECORD"])
                written = path.with_suffix(".new")
                written.write_text(json.dumps(ROWS))
                written.replace(path)
                now = time.thread_time()
        self.began = now
        self.spent = dict.fromkeys(PARTS, 0.0)


def install() -> None:
    """Put the stop watches in place: a pass begins where SGLang's loop looks for requests."""
    from sglang.srt.managers.scheduler import Scheduler

    watch = Watch()

    def begins(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
            watch.next_pass(self)
            return method(self, *args, **kwargs)

        return timed

    # Each loop of SGLang's begins so. On its class: ours has another name in other versions.
    Scheduler.ingest_requests = begins(Scheduler.ingest_requests)
    Scheduler.run_batch = watch.around("launch", Scheduler.run_batch)
    Writer.apply = watch.around("writing", Writer.apply)
    entered = 0.0

    def enter(self: Effort) -> None:
        nonlocal entered
        entered = time.thread_time()

    def leave(self: Effort, *_error: object) -> None:
        watch.spent["ours"] += time.thread_time() - entered

    Effort.__enter__, Effort.__exit__ = enter, leave


class Recorded(WorkingSetPolicy):
    """Decides as `working-set` with its default parameters."""

    def __init__(self) -> None:
        super().__init__()
        install()
