"""What streams need of each of the device's pools, and the one question whether it fits.

Part of the contract: whoever plans asks here. Every stream needs KV for all of its tokens. Where
some layers have a sliding window, it needs places in their pool as well: for its last tokens only,
so that one pool or the other is short, as prompts are long or many streams run. That pool is
allocated in pages, too, of which a stream's first and last are seldom full.

KV of a beginning that several streams share is on the device once. So what a stream takes or frees
is its `own`, and where several are added up, what they share is added once.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from tokenflow_sgl.contract.lengths import FloatArray, IntArray
from tokenflow_sgl.contract.memory import Memory
from tokenflow_sgl.contract.reserve import Growth
from tokenflow_sgl.contract.streams import Streams

Need = tuple[int, int]
"""Tokens in the pools of KV and of windows; without window pools the second is 0."""
NOTHING: Need = (0, 0)

Length = TypeVar("Length", int, float, IntArray, FloatArray, IntArray | FloatArray)


class Needs(NamedTuple):
    """Needs of streams in a line, as arrays of one length; window: None without its pools."""

    kv: IntArray
    window: IntArray | None

    def behind(self, place: int) -> list[Need]:
        """Need of each stream from this place on."""
        kv = self.kv[place:].tolist()
        if self.window is None:
            return [(tokens, 0) for tokens in kv]
        return list(zip(kv, self.window[place:].tolist(), strict=True))


class Room:
    """What is left of the device's pools while a plan is made.

    Args:
        memory: As it is: what is free and not promised is left.
    """

    __slots__ = ("kv", "window")

    def __init__(self, memory: Memory) -> None:
        kv, window = memory.kv, memory.device.window
        self.kv = kv.free - kv.promised
        self.window = window.free - window.promised

    @classmethod
    def whole(cls, memory: Memory) -> Room:
        """All of the pools, as if no stream were there."""
        room = cls(memory)
        room.kv, room.window = memory.kv.total, memory.device.window.total
        return room

    def fits(self, wanted: Need) -> bool:
        """Whether so much is left of every pool."""
        return wanted[0] <= self.kv and wanted[1] <= self.window

    def take_head(self, line: Needs, most: int) -> int:
        """What the head of a line needs is used up: of as many as fit together, at most `most`.

        Returns:
            How many these are.
        """
        kv, window = line.kv.cumsum(), None
        count = min(int(kv.searchsorted(self.kv, side="right")), most)
        if line.window is not None:
            window = line.window.cumsum()
            count = min(count, int(window.searchsorted(self.window, side="right")))
        if count <= 0:
            return 0
        self.take((kv.item(count - 1), 0 if window is None else window.item(count - 1)))
        return count

    def lacks(self, wanted: Need) -> Need:
        """What is missing to it; 0 or less where nothing is."""
        return wanted[0] - self.kv, wanted[1] - self.window

    def take(self, used: Need) -> None:
        """Count memory as taken that a stream needs, in each of the device's pools."""
        self.kv -= used[0]
        self.window -= used[1]

    def give(self, freed: Need) -> None:
        """Count memory as free that a stream gives up, in each of the device's pools."""
        self.kv += freed[0]
        self.window += freed[1]


def most_kept(window: int, late: int, page: int) -> int:
    """Places in the window pool that a stream takes at most, in whole pages.

    Its own window is kept, and one that it locks of the prefix tree.

    Args:
        window: Tokens of a window.
        late: Tokens that have left it before places are freed, which is done in bundles.
        page: Tokens of a page. With more than one, a window begins within a page.
    """
    kept = 2 * window + late
    return kept if page == 1 else -(-kept // page) * page + page


def in_pages(memory: Memory, tokens: Length) -> Length:
    """Tokens, or lengths, rounded up to whole pages."""
    page = memory.page_size
    return tokens if page == 1 else -(-tokens // page) * page


def windows(memory: Memory, length: IntArray | FloatArray) -> IntArray:
    """Places in the window pool for streams of these lengths, shape (n,); 0 without one."""
    return np.minimum(in_pages(memory, length), memory.window.tokens).astype(np.int64)


def need(memory: Memory, length: int, own: int) -> Need:
    """What a stream of this length needs, of which so many tokens are its own."""
    return own, min(in_pages(memory, length), memory.window.tokens)


def needs(memory: Memory, streams: Streams, index: IntArray, more: Need) -> Needs:
    """What each of the streams at `index` needs to start or to resume, and `more`."""
    kv, window = streams.own.take(index) + more[0], memory.window
    if not window.tokens:
        return Needs(kv, None)  # a plan looks at many
    length = streams.length.take(index)
    computed = np.where(streams.waiting.take(index), streams.uncached.take(index), 0)
    step = in_pages(memory, np.minimum(computed, window.prefill))
    kept = np.maximum(windows(memory, length), step)
    return Needs(kv, kept + more[1])


def together(memory: Memory, streams: Streams, index: IntArray) -> Need:
    """What the streams at `index` take together, each by itself."""
    window = 0
    if memory.window.tokens:
        window = int(windows(memory, streams.length.take(index)).sum())
    return int(streams.own.take(index).sum()), window


def occupied(memory: Memory, streams: Streams, index: IntArray) -> Need:
    """What the streams at `index` take, with all on the device among them, what they share once."""
    kv, window = together(memory, streams, index)
    return kv + shared_once(memory, streams), window


def shared_once(memory: Memory, streams: Streams) -> int:
    """KV tokens on the device that several streams there share, and none has as its `own`.

    By what is allocated: a beginning that two streams compute at the same time is there twice for a
    while.
    """
    if streams.shared is None:
        return 0
    standing = streams.standing
    there = np.concatenate([standing.running_index, standing.draining_index])
    shared = int(streams.shared.take(there).sum())
    if not shared:
        return 0
    landing = standing.loading_index
    if len(landing):
        landing = landing[~streams.partly_loaded.take(landing)]
    kv = memory.kv
    # Of the last token of each the KV is being computed.
    own = int(streams.own.take(there).sum()) - len(there) - kv.promised
    used = kv.total - kv.free - int(streams.length.take(landing).sum())
    return min(max(used - own, 0), shared)


def steps(memory: Memory, growth: Growth, batch: int, count: int) -> Need:
    """What `batch` streams need for `count` more decode steps, which take places in every pool."""
    reserve = growth.reserve(batch, count)
    return reserve, reserve if memory.window.tokens else 0


def prompts(memory: Memory, streams: Streams, index: IntArray) -> Need:
    """What the waiting streams at `index` need for prefills: prompts, a page and drafts each.

    In the window pool a step keeps all that it computes, and the streams after it their windows.
    """
    count = len(index) * (memory.page_size + memory.ahead)
    length, window = streams.prompt.take(index), 0
    if memory.window.tokens:
        chunk = min(int(length.max(initial=0)), memory.window.prefill)
        window = int(windows(memory, length).sum()) + chunk + count
    own = int(length.sum())
    if streams.shared is not None:
        own -= int(streams.shared.take(index).sum())
    return own + count, window


def leaves(memory: Memory, more: Need, share: float) -> bool:
    """Whether this share of every pool stays free when so much is allocated."""
    kv, window = memory.kv, memory.device.window
    return (
        more[0] <= kv.free - kv.promised - share * kv.total
        and more[1] <= window.free - window.promised - share * window.total
    )


def holds(memory: Memory, whole: Need, share: float) -> bool:
    """Whether so much, and what is promised, is at most this share of every pool as a whole."""
    kv, window = memory.kv, memory.device.window
    return (
        whole[0] + kv.promised <= share * kv.total
        and whole[1] + window.promised <= share * window.total
    )


def most_streams(memory: Memory, length: float, own: float) -> float:
    """How many streams of this length, with so much of their own, the device's pools hold.

    Both above 0.
    """
    most = memory.kv.total / own
    window = memory.device.window.total
    if not window:
        return most
    return min(most, window / min(in_pages(memory, length), memory.window.tokens))


OVER_HOST = 1.25
"""KV tokens that may be promised over those of the host. With write_through HiCache also keeps the
copy of what is on the device, so a host no larger than the device has little room for the paused;
but not all that runs has a copy. With a host of four times the device and more, the sum of both is
the limit."""
OVER_DEVICE = 1.5
"""The same over those of the device, however little memory the host has. With twice as much as the
device holds, a quarter of the readers of `h200-a` stall where there is no host pool."""


def kv_kept(memory: Memory) -> float:
    """KV tokens of streams that device and host together keep."""
    device, host = memory.kv.total, memory.host.kv.total
    if not memory.mirrored:
        return device + host
    return max(device, min(device + host, OVER_HOST * host))


def kv_promised(memory: Memory, growth: float) -> float:
    """KV tokens that streams may be expected to come to hold, though not all at one time.

    Most have ended before the last ones are as long as is reckoned with. Those that do not fit
    until then are paused without a copy and computed again, which costs less than newcomers waiting
    for memory that is free. What they hold already has to fit, so that it is seldom much.

    Args:
        memory: As it is.
        growth: Of that, what those with memory do not hold yet.
    """
    kept, device = kv_kept(memory), memory.kv.total
    if not memory.mirrored:
        return kept
    return max(kept, min(OVER_DEVICE * device, device + growth))


def states_kept(memory: Memory) -> float:
    """Streams whose recurrent states device and host keep; infinite for models without states."""
    total = memory.device.state.total
    return total + memory.host.state.total if total else np.inf


def windows_kept(memory: Memory, share: float) -> float:
    """Places for windows on device and host that may be promised; infinite without windows."""
    total = memory.device.window.total
    return share * (total + memory.host.window.total) if total else np.inf
