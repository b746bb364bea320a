"""Memory as a vector of resources: what each kind has in each tier."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Pool:
    """One kind of memory in one tier; all zero: there is none.

    Attributes:
        total: Capacity.
        free: What can be allocated now: free pages and pages of the prefix tree that no running
            stream locks, the KV of paused streams included, also of those that are loaded in part.
            On the host what nothing is in: a copy there makes no other one go.
        promised: What running streams still need for a prefill under way.
    """

    total: int = 0
    free: int = 0
    promised: int = 0


@dataclass(frozen=True, slots=True)
class Tier:
    """The pools of one tier: KV and sliding-window KV in tokens, recurrent states by stream.

    Of states the total is how many streams can keep theirs there, running or not, whatever places
    each takes. How many run is bounded by `Memory.max_running`.
    """

    kv: Pool = field(default_factory=Pool)
    window: Pool = field(default_factory=Pool)
    state: Pool = field(default_factory=Pool)


@dataclass(frozen=True, slots=True)
class Window:
    """What a stream needs of the window pool; all zero: no layer has a sliding window.

    Attributes:
        tokens: That a stream keeps there at most, in whole pages, or all that it has if these are
            fewer.
        prefill: Tokens of a prompt that a step computes at most: until it is over all are kept.
    """

    tokens: int = 0
    prefill: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What the streams can be kept in.

    Attributes:
        device: Where streams run.
        host: Where HiCache offloads to.
        storage: Behind the host.
        page_size: Tokens per KV page.
        max_running: How many streams can run at once.
        window: What each stream needs of the window pools.
        ahead: KV tokens beyond its own that a stream holds while it decodes: speculation verifies
            its drafts there.
        mirrored: The host also keeps copies of what is on the device, as HiCache does with
            `write_through`. If not, these make room for copies of what is there no more.
    """

    device: Tier
    host: Tier
    page_size: int
    max_running: int
    storage: Tier = field(default_factory=Tier)
    window: Window = field(default_factory=Window)
    ahead: int = 0
    mirrored: bool = True

    @property
    def kv(self) -> Pool:
        """The device's KV: the resource that every stream needs."""
        return self.device.kv
