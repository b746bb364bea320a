import asyncio
import gc
import resource
import time

import pytest

from tokenflow_sgl.lab.replay.steady import (
    LoopLag,
    allow_many_files,
    new_event_loop,
    no_collections,
)


def test_a_long_pause_counts_for_as_long_as_it_lasts():
    async def main():
        lag = LoopLag()
        await asyncio.sleep(0.05)
        time.sleep(0.5)
        await asyncio.sleep(0.05)
        lag.stop()
        beats = len(lag.late_s)
        await asyncio.sleep(0.1)
        assert len(lag.late_s) == beats  # it has stopped
        return lag.late_s

    late_s = asyncio.run(main())
    # 25 beats were due within the pause; the first came latest.
    assert sum(late > 0.1 for late in late_s) >= 15
    assert max(late_s) > 0.4


def test_collections_rest_and_come_back():
    assert gc.isenabled()
    with pytest.raises(RuntimeError), no_collections():
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled()


def test_as_many_files_as_allowed():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_an_event_loop_works_with_or_without_uvloop():
    async def main():
        return await asyncio.sleep(0, "ran")

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(main()) == "ran"
