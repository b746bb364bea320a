"""Starts SGLang with the pauser broken on purpose: the negative controls of the identity tests.

SGLang's child processes are forks of this one, or import this file again: broken in the same way.
"""

from __future__ import annotations

import os
import sys
import time
from types import FunctionType

from sglang.srt.managers.cache_controller import LayerDoneCounter
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import MambaPool, MHATokenToKVPool
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import prepare_server_args

from tokenflow_sgl.contract import Window
from tokenflow_sgl.engine.decode_server import compressed_copies, next_drafts
from tokenflow_sgl.engine.decode_server.decode_loads import DecodeLoads
from tokenflow_sgl.engine.decode_server.decode_pauser import DecodePauser
from tokenflow_sgl.engine.kv.device_pools import DevicePools
from tokenflow_sgl.engine.kv.load_ring import Loader
from tokenflow_sgl.engine.kv.preempt import Pauser
from tokenflow_sgl.engine.layerwise import placed_pauser
from tokenflow_sgl.engine.layerwise.layer_executor import LayerExecutor
from tokenflow_sgl.engine.restore.fetched_layer_copies import FetchedLayerCopies
from tokenflow_sgl.engine.restore.layered_prefills import LayeredPrefills
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.restore.tail_copies import TailCopies
from tokenflow_sgl.engine.restore.tail_fetch import TailFetch
from tokenflow_sgl.engine.shared_clock import SharedClock, local_time
from tokenflow_sgl_emulator import mla_pool
from tokenflow_sgl_emulator.compressed import compressed_host_pool
from tokenflow_sgl_emulator.host_pool import TorchCopies


def release_without_draining(self, victims, running_batch, inflight) -> None:
    if victims:
        running_batch.filter_batch(reqs_to_exclude=victims)
        for request in victims:
            self._release(request)


kept = Pauser._release


def release_without_keeping(self, request, keep=True) -> None:
    kept(self, request, keep=False)


def release_and_forget_a_token(self, request, keep=True) -> None:
    """The grammar of a paused stream stands where the stream stood one token before."""
    kept(self, request, keep)
    if request.grammar is not None and request.output_ids:
        request.grammar.rollback(1)


def release_and_begin_anew(self, request, keep=True) -> None:
    """The grammar of a paused stream stands at its beginning."""
    kept(self, request, keep)
    if request.grammar is not None:
        request.grammar = request.grammar.copy()


def copy_nothing(self, *args, **kwargs) -> None:
    """The host believes that it has the KV."""


buffers = MHATokenToKVPool.get_contiguous_buf_infos


def layers_in_another_order(self) -> tuple[list[int], list[int], list[int]]:
    """The other server of the pair gets each layer's KV as another one's."""
    addresses, lengths, items = buffers(self)
    return addresses[::-1], lengths, items


def wait_for_nothing(self, *args) -> None:
    """Whoever reads trusts that it has been loaded."""


relay = placed_pauser.RelayPayload


def relay_another_token(bonus_tokens) -> object:
    """A paused stream goes on as if another token had been its last."""
    return relay(bonus_tokens=bonus_tokens ^ 1)


def land_at_once(self) -> object:
    """A stream is resumed while its KV is still being copied."""
    request, self.request = self.request, None
    return request


received = SharedClock.receive


def receive_and_look_at_its_own(self, tick) -> None:
    received(self, tick)
    if get_parallel().tp_rank == 1:
        self.now = max(self.now, local_time())


arrives = Restorations.begin_pass


def take_all_for_arrived(self, measured, needed, chunked) -> None:
    """The tail is joined while the link still brings it."""
    arrives(self, measured, needed, chunked)
    for each in self.open.all:
        if each.operation.host_indices is not None:
            each.operation.completed_tokens = each.arrived = len(each.operation.host_indices)


copies = TailCopies._submit


def copy_but_the_first(self, host, device) -> None:
    """One page of a tail is said to be on the device, and is not."""
    copies(self, host[self._tree.page_size :], device[self._tree.page_size :])


copies_of_layers = FetchedLayerCopies._submit_layers


def copy_layers_but_of_the_first(self, host, device, layers) -> None:
    """One page of fetched layers is said to be on the device, and is not."""
    page = self._tree.page_size
    copies_of_layers(self, host[page:], device[page:], layers)


goes_on = LayeredPrefills.more_layers


def take_all_layers_for_landed(self, split) -> int | None:
    """A prefill is finished while the link still brings its layers."""
    if split.computed:
        split.restoration.landed = split.layers - split.computed
        split.restoration.layer_fetch.landed = split.restoration.landed
    return goes_on(self, split)


allocate, handed_out = TokenToKVPoolAllocator.alloc, []


def hand_out_twice(self, need_size) -> object:
    """A place that another one has, and a free one is lost: the sums are right."""
    found = allocate(self, need_size)
    if found is None or not len(found):
        return found
    handed_out.append(int(found[0]))
    if len(handed_out) > 20:
        found = found.clone()
        found[0] = handed_out[-2]
    return found


track = UnifiedRadixCache._track_write_through_node


def write_unlocked(self, node_id, lock_params, publish_node_ids) -> None:
    """What is being copied to the host may be evicted meanwhile."""
    if lock_params is not None:
        self.dec_lock_ref(node_id, lock_params)
    track(self, node_id, None, publish_node_ids)


before_layer = LayerExecutor.before


def before_layer_without_waiting(self, layer) -> None:
    """A layer reads its staging cells while they are being filled."""
    self._landing.clear()
    before_layer(self, layer)


known = DevicePools.__init__


def know_nothing_of_windows(self, *args) -> None:
    """The policy plans as if all layers had all tokens."""
    known(self, *args)
    self.window, self.window_total = Window(), 0


load = TorchCopies.load_to_device_per_layer


def load_no_drafts(self, *args, is_draft=False) -> None:
    """The target's KV comes back from the host, the draft model's does not."""
    if not is_draft and not self.pool_label.startswith("draft"):
        load(self, *args)


load_rows = compressed_host_pool.load_to_device_per_layer


def load_no_rows_of_drafts(*args, is_draft=False) -> None:
    """Likewise, of DeepSeek V4's pages."""
    if not is_draft:
        load_rows(*args)


def as_in(module, function) -> FunctionType:
    """The same function, as if it stood there: the emulator starts with no twins but its own."""
    made = FunctionType(function.__code__, {**globals(), "__name__": module.__name__})
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def copy_no_state(self, source, target) -> None:
    """What is kept of a paused stream has the state of another one, or none."""


fetch_pages = TailFetch._get


def fetch_late_on_one_rank(self, controller, *args) -> int:
    """The other one has its pages long before."""
    got = fetch_pages(self, controller, *args)
    time.sleep(1.5 * controller.storage_config.tp_rank)
    return got


load_tensors = MHATokenToKVPool.load_cpu_copy


def load_but_the_first(self, kept, indices, **more) -> None:
    """One place of what is resumed on a decode server has the KV of another stream."""
    found = indices.clone()
    found[0] = found[-1]
    load_tensors(self, kept, found, **more)


def join_before_the_copy(self, request) -> None:
    """A stream is resumed on a decode server, and what it resumes from is on its way."""
    self._under_way.pop(request, None)


put = compressed_copies._put


def put_others(left_out):
    """Of one kind of buffers, what is resumed on a decode server finds what was there before."""
    return lambda part, *rows: None if part.owner == left_out else put(part, *rows)


def parts_of_no_drafts(pool) -> list[object]:
    """The layer for drafts finds what others have left in its window."""
    return []


def accept_all(self, request) -> bool:
    """Whether the host has room is seen only when a stream is copied there."""
    return True


match os.environ["TOKENFLOW_TEST_BREAK"]:
    case "blind-host":
        DecodePauser.accepts = accept_all
    case "no-decode-landing":
        DecodeLoads.end = join_before_the_copy
    case "no-first-tensor":
        MHATokenToKVPool.load_cpu_copy = load_but_the_first
    case "no-page-back" | "no-window-page-back" | "no-request-back" as broken:
        left_out = broken.removeprefix("no-").removesuffix("-back").replace("-", " ")
        compressed_copies._put = put_others(left_out)
    case "no-drafts-copy":
        compressed_copies._parts_of_drafts = parts_of_no_drafts
    case "first-drafts":
        next_drafts._keep = wait_for_nothing
    case "other-token":
        placed_pauser.RelayPayload = relay_another_token
    case "late-rank":
        TailFetch._get = fetch_late_on_one_rank
    case "no-state-copy":
        MambaPool.copy_from = copy_no_state
    case "other-layers-kv":
        MHATokenToKVPool.get_contiguous_buf_infos = layers_in_another_order
    case "no-layer-fence":
        LayerExecutor.before = before_layer_without_waiting
    case "no-layer-store":
        LayerExecutor.after = wait_for_nothing
    case "no-draft-load":
        TorchCopies.load_to_device_per_layer = load_no_drafts
        twin = as_in(compressed_host_pool, load_no_rows_of_drafts)
        compressed_host_pool.load_to_device_per_layer = twin
    case "two-hands":
        TokenToKVPoolAllocator.alloc = hand_out_twice
    case "unlocked-writes":
        UnifiedRadixCache._track_write_through_node = write_unlocked
    case "no-drain":
        Pauser.preempt = release_without_draining
    case "grammar-behind":
        Pauser._release = release_and_forget_a_token
    case "grammar-anew":
        Pauser._release = release_and_begin_anew
    case "no-keep":
        Pauser._release = release_without_keeping
    case "no-copy":
        TorchCopies.backup_from_device_all_layer = copy_nothing
        mla_pool._store = copy_nothing
        compressed_host_pool._pages = copy_nothing
    case "no-wait":
        LayerDoneCounter.wait_until = wait_for_nothing
    case "own-clock":
        SharedClock.receive = receive_and_look_at_its_own
    case "no-landing":
        Loader.landed = land_at_once
    case "early-join":
        Restorations.begin_pass = take_all_for_arrived
    case "no-tail-copy":
        TailCopies._submit = copy_but_the_first
    case "no-layer-copy":
        FetchedLayerCopies._submit_layers = copy_layers_but_of_the_first
    case "early-layers":
        LayeredPrefills.more_layers = take_all_layers_for_landed
    case "no-windows":
        DevicePools.__init__ = know_nothing_of_windows
    case "no-guard":
        Loader.guard = wait_for_nothing

if __name__ == "__main__":
    load_plugins()
    args = prepare_server_args(sys.argv[1:])
    from sglang.launch_server import run_server

    run_server(args)
