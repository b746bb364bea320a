"""A stand-in for CUDA: streams that are lists of jobs, and copies between addresses."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace


class Event:
    """Knows how far its stream was."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.timed = enable_timing
        self.mark: tuple[str, int] | None = None

    def record(self, stream) -> None:
        self.mark = stream.name, len(stream.jobs)

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        assert self.timed and end.timed, "torch refuses events without timing"
        return 250.0


class Stream:
    """A list of jobs: copies, and events to wait for."""

    def __init__(self, cuda: Cuda, name: str) -> None:
        self._cuda, self.name, self.jobs = cuda, name, []
        self.cuda_stream = len(cuda.streams) + 7
        cuda.streams[self.cuda_stream] = self

    def wait_event(self, event: Event) -> None:
        self.jobs.append(("wait", event.mark))

    def record_event(self) -> Event:
        event = Event()
        event.record(self)
        return event


class Cuda:
    """Torch's module for CUDA and the runtime's, as far as copies need them.

    late: Copies are done when a stream with all that it waits for is run, and not at once.
    """

    Event = Event

    def __init__(self, late: bool = False, error: str = "cudaSuccess", old: bool = False) -> None:
        self.streams: dict[int, Stream] = {}
        self.calls: list[tuple[Stream, list[tuple[int, int, int]]]] = []
        self._done: dict[str, int] = {}
        self._late, self._error, self._old = late, error, old
        self.main = self._current = Stream(self, "main")
        self.registered: list[tuple[int, int]] = []
        self.register_error = 0
        # The runtime's part.
        self.cudaMemcpyAttributes = SimpleNamespace
        order = SimpleNamespace(cudaMemcpySrcAccessOrderStream="in the order of the stream")
        self.cudaMemcpySrcAccessOrder = order
        self.cudaError_t = SimpleNamespace(cudaSuccess="cudaSuccess")

    # ---- torch ------------------------------------------------------------------

    def Stream(self) -> Stream:
        return Stream(self, f"side {len(self.streams)}")

    def current_stream(self) -> Stream:
        return self._current

    def stream(self, stream: Stream) -> Cuda:
        self._outer, self._current = self._current, stream
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_) -> None:
        self._current = self._outer

    def cudart(self) -> Cuda:
        return self

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.registered.append((address, size))
        return self.register_error

    # ---- the runtime ------------------------------------------------------------

    def cudaMemcpyBatchAsync(
        self, targets, sources, sizes, count, attributes, begins, number, stream
    ):
        assert len(targets) == len(sources) == len(sizes) == count > 0
        assert all(type(each) is int for each in (*targets, *sources, *sizes))
        assert [each.srcAccessOrder for each in attributes] == ["in the order of the stream"]
        assert (begins, number) == ([0], 1)
        assert stream, "not the default stream"
        pieces = [*zip(targets, sources, sizes, strict=True)]
        of = self.streams[stream]
        self.calls.append((of, pieces))
        of.jobs.append(("copy", pieces))
        if not self._late:
            self._move(pieces)
        error = SimpleNamespace(name=self._error)
        result = "cudaSuccess" if self._error == "cudaSuccess" else error
        return (result, 0) if self._old else (result,)

    @staticmethod
    def _move(pieces) -> None:
        for target, source, size in pieces:
            ctypes.memmove(target, source, size)

    def run(self, name: str = "main", until: int | None = None) -> None:
        """Do the jobs of a stream, and what these wait for."""
        [stream] = [each for each in self.streams.values() if each.name == name]
        until = len(stream.jobs) if until is None else until
        while self._done.get(name, 0) < until:
            at = self._done.get(name, 0)
            self._done[name] = at + 1
            kind, what = stream.jobs[at]
            if kind == "wait":
                self.run(*what)
            else:
                self._move(what)
