"""Debugging: every page of KV memory is in one hand, and what a copy uses is in no other.

Rides on SGLang's strict memory check (`SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY`), which adds
sizes up: a page that is handed out twice while another one is lost has the same sum. Here the pages
are looked at one by one, after every pass:

- device: those free, those of requests alone, those of the prefix tree and those lent to copies of
  a restoration's tail are all there are, and each is in one of these hands. What requests read of
  the tree is the tree's.
- copies between device and host, under way or queued: each page is the tree's, whatever the copy
  has left to do, and only one copy has it. So nothing was freed under a copy, and what is allocated
  and in flight together is no more than the pool.
- host: the free slots are those that are not in use; what copies and fetches have is in use.
  SGLang's tree in Rust does not name its slots on the host; the one in Python
  (`SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python`) does, and then they are looked at like the
  device's, where no storage uses the host's memory, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.engine.extension import Extension, Host
from tokenflow_sgl.engine.sglang.controller import Controller, CopyEnds, CopyEngine, PoolCopy
from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.sglang.pools import Allocator, Rows
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.sglang.tree import Tree

Pages = NDArray[np.int64]

_ENGINE = "sglang.srt.mem_cache.l2_transfer:L2TransferEngine"
_ATTRIBUTE = "tokenflow_copies_under_way"
_SHOWN = 8


class MemoryLedgerError(RuntimeError):
    """A page is in two hands, in none, or in a wrong one."""


class LedgerCopy(NamedTuple):
    """A copy: token places on both sides.

    Where it was submitted: the event of its end, and of which of the host's pools it is.
    """

    device: Pages
    host: Pages
    landed: Any = None
    pool: Any = None


def register(server_args: ServerArgs) -> None:
    """Declare the hooks through which copies are heard of, in the scheduler's process."""
    for name in ("submit_device_to_host", "submit_host_to_device"):
        hold(
            f"{_ENGINE}.{name}",
            _submitted,
            HookType.AFTER,
            "the memory ledger hears of the places that a copy uses",
            ("transfers",),
        )


def _submitted(
    completion: CopyEnds, engine: CopyEngine, transfers: list[PoolCopy], *_args: Any, **_kwargs: Any
) -> Any:
    copies: list[LedgerCopy] = engine.__dict__.setdefault(_ATTRIBUTE, [])
    landed, pools = completion.finish_event, set()
    for each in transfers:
        if id(each.host_pool) not in pools:  # a draft model's have the same pages of other memory
            pools.add(id(each.host_pool))
            device, host = _numbers(each.device_indices), _numbers(each.host_indices)
            copies.append(LedgerCopy(device, host, landed, each.host_pool))
    return completion


class MemoryLedger:
    """Accounts for each place in the KV memory of one rank, and says which one has no owner.

    Args:
        tree_cache: SGLang's prefix tree, with HiCache or without.
        allocator: Of the device's pages.
        rows: SGLang's table of the places of each request's tokens.
        lent: The places that are lent to copies of tails.
    """

    def __init__(
        self, tree_cache: Tree, allocator: Allocator, rows: Rows, lent: Callable[[], Iterable[Any]]
    ) -> None:
        self._tree = tree_cache
        # Of two pools that with all tokens: its places are what requests and the tree name.
        self._allocator = getattr(allocator, "full_attn_allocator", allocator)
        self._rows = rows
        self._lent = lent

    def check(self, owners: Sequence[Req]) -> None:
        """Look at all pages as they are between two passes.

        Args:
            owners: Requests that have a row.

        Raises:
            MemoryLedgerError: Says which pages are in which hands.
        """
        kvs = [req.kv for req in owners]
        if any(req.beam_group is not None for req in owners):
            return  # SGLang does not say which places the beams have
        kvs += [kv for kv in self._tree.session_records().values() if kv.holds_kv]
        controller = self._tree.cache_controller
        copies = [] if controller is None else under_way(controller)
        tree = self._device(kvs)
        for copy in copies:
            at = self._pages(copy.device)
            if not tree[at].all():
                raise MemoryLedgerError(
                    f"memory ledger: a copy uses {_some(at[~tree[at]])} of the device, which the "
                    "prefix tree does not have"
                )
        _apart("device", [self._pages(copy.device) for copy in copies])
        if controller is not None:
            self._host(controller, [copy.host for copy in copies])

    def _device(self, kvs: list[Any]) -> NDArray[np.bool_]:
        """Count the device's pages by hand; returns which are the tree's."""
        places = self._rows.req_to_token
        rows = [
            (kv, _numbers(places[kv.req_pool_idx, : kv.kv_allocated_len]))
            for kv in kvs
            if kv.req_pool_idx is not None
        ]
        pages = int(self._allocator.size) // int(self._allocator.page_size)
        of_tree = self._pages(_numbers(self._tree.all_values_flatten()))
        hands = {
            "free": _numbers(self._allocator.get_all_free_pages()),
            "requests": _joined(self._pages(row[kv.cache_protected_len :]) for kv, row in rows),
            "the prefix tree": of_tree,
            "copies of tails": _joined(self._pages(_numbers(each)) for each in self._lent()),
        }
        one_hand_each("device", hands, first=1, count=pages)
        tree = np.zeros(pages + 1, dtype=np.bool_)
        tree[of_tree] = True
        read = _joined(self._pages(row[: kv.cache_protected_len]) for kv, row in rows)
        if not tree[read].all():
            raise MemoryLedgerError(
                f"memory ledger: requests read {_some(read[~tree[read]])} of the device as the "
                "prefix tree's, which does not have them"
            )
        return tree

    def _host(self, controller: Controller, copies: list[Pages]) -> None:
        pool = _anchor(controller)
        page = int(pool.page_size)
        with pool.lock:  # threads of the storage free slots, too
            free = _joined(map(_numbers, [pool.free_slots, *pool.release_slots]))
            used = pool.slot_used.numpy().copy() if hasattr(pool, "slot_used") else None
            fetches = [
                _numbers(info.host_indices[: int(info.operation.completed_tokens)])
                for info in self._tree.ongoing_prefetch.values()
                if info.host_indices is not None
            ]
        hands = {"free": free}
        of_tree = None if self._tree.enable_storage else host_values(self._tree)
        if of_tree is not None:
            hands["in use"] = of_tree
        elif used is not None:
            hands["in use"] = np.flatnonzero(used)
        if "in use" in hands:
            count = int(pool.size) if used is None else len(used)
            one_hand_each("host", hands, first=0, count=count)
        _apart("host", [slots[::page] for slots in (*copies, *fetches)])
        if used is None:
            return  # as of DeepSeek V4
        taken = _joined((*copies, *fetches))
        if not used[taken].all():
            raise MemoryLedgerError(
                f"memory ledger: a copy uses {_some(taken[~used[taken]])} of the host, which are "
                "not in use"
            )

    def _pages(self, places: Pages) -> Pages:
        """The pages that token places fill from the beginning of one on."""
        page = int(self._allocator.page_size)
        return places[::page] // page


class MemoryChecks(Extension):
    """Beside a scheduler: looks at all pages whenever SGLang's strict check has run.

    Args:
        ledger: Of this rank.
    """

    def __init__(self, ledger: MemoryLedger) -> None:
        self._ledger = ledger

    def memory_checked(self, owners: Sequence[Req]) -> None:
        """Raises `MemoryLedgerError` for a page that is not in one hand."""
        self._ledger.check(owners)


def build(host: Host) -> MemoryChecks:
    """The checks of a scheduler that has its memory."""
    scheduler = host.scheduler
    return MemoryChecks(
        MemoryLedger(
            scheduler.tree_cache,
            scheduler.token_to_kv_pool_allocator,
            scheduler.req_to_token_pool,
            lambda: host.extensions.lent,
        )
    )


def under_way(controller: Controller) -> list[LedgerCopy]:
    """Copies of KV that SGLang has queued, or submitted and not acknowledged.

    Those of other pools, as of windows, have pages of their own numbering.
    """
    engine, own = controller.l2_transfer_engine, _anchor(controller)
    acks = [*controller.ack_write_queue, *controller.ack_load_queue]
    submitted = [
        copy
        for copy in engine.__dict__.get(_ATTRIBUTE, ())
        if any(copy.landed is ack.finish_event for ack in acks)
    ]
    setattr(engine, _ATTRIBUTE, submitted)
    queued = [
        LedgerCopy(_numbers(each.device_indices), _numbers(each.host_indices))
        for each in (*controller.write_queue, *controller.load_queue)
    ]
    return [copy for copy in submitted if copy.pool is own] + queued


def _anchor(controller: Controller) -> Any:
    """The host's pool of KV, of several that SGLang may keep together."""
    group = controller.mem_pool_host
    return group.anchor_entry.host_pool if hasattr(group, "anchor_entry") else group


def host_values(tree_cache: Tree) -> Pages | None:
    """The slots on the host that the prefix tree has; None: it does not say."""
    try:
        nodes = [tree_cache.tree_core.root_node]
    except NotImplementedError:
        return None
    found = []
    while nodes:
        node = nodes.pop()
        nodes += node.children.values()
        value = node.component_data[ComponentType.FULL].host_value
        if value is not None:
            found.append(_numbers(value))
    return _joined(found)


def one_hand_each(where: str, hands: dict[str, Pages], *, first: int, count: int) -> None:
    """Raise if one of `count` pages, numbered from `first`, is not in exactly one of these hands.

    Raises:
        MemoryLedgerError: Names pages, and the hands they are in.
    """
    held = np.bincount(_joined(hands.values()), minlength=first + count)
    expected = np.zeros(len(held), dtype=np.int64)
    expected[first : first + count] = 1
    wrong = np.flatnonzero(held != expected)
    if len(wrong):
        page = int(wrong[0])
        among = [name for name, pages in hands.items() for _ in range(int((pages == page).sum()))]
        raise MemoryLedgerError(
            f"memory ledger: of the {where}'s pages {_some(wrong)} are not in one hand each; "
            f"{page} is in {' and '.join(among) or 'none'}; "
            + ", ".join(f"{name}: {len(pages)}" for name, pages in hands.items())
            + f"; there are {count}"
        )


def _apart(where: str, copies: list[Pages]) -> None:
    """Raise if two copies have the same page."""
    numbers, times = np.unique(_joined(copies), return_counts=True)
    if (times > 1).any():
        raise MemoryLedgerError(
            f"memory ledger: two copies use {_some(numbers[times > 1])} of the {where}"
        )


def _numbers(indices: torch.Tensor) -> Pages:
    return np.asarray(indices.cpu(), dtype=np.int64)


def _joined(parts: Iterable[Pages]) -> Pages:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _some(pages: Pages) -> str:
    shown = ", ".join(map(str, pages[:_SHOWN].tolist()))
    return f"{len(pages)} ({shown}{', ...' if len(pages) > _SHOWN else ''})"
