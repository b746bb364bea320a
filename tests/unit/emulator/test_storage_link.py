"""An emulated storage link without SGLang: its settings, times and pages, and what goes wrong."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tokenflow_sgl_emulator.storage.emulated_link import EmulatedLink
from tokenflow_sgl_emulator.storage.link_faults import LinkFaults
from tokenflow_sgl_emulator.storage.link_settings import LinkSettings, settings_of
from tokenflow_sgl_emulator.storage.page_store import PageStore
from tokenflow_sgl_emulator.storage.storage_flags import storage_flags
from tokenflow_sgl_emulator.timed.clock import VirtualClock

RATE = 1000.0  # bytes per second
KEYS = [f"{number:064x}" for number in range(400)]


# ---- settings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("read_gbps", 0, "a number above 0"),
        ("read_gbps", float("inf"), "a number above 0"),
        ("write_gbps", "10", "a number above 0, or null"),
        ("latency_us", -1, "a number from 0"),
        ("jitter_us", True, "a number from 0"),
        ("seed", 1.5, "a whole number from 0"),
        ("directory", "", "a path, or null"),
        ("checksum", 1, "true or false"),
        ("slow_factor", 0.5, "a number from 1"),
        ("missing", 1.1, "a share from 0 to 1"),
        ("corrupt", -0.1, "a share from 0 to 1"),
        ("dead_after_pages", -1, "a whole number from 0, or null"),
        ("dead_after_s", "soon", "a number from 0, or null"),
    ],
)
def test_a_bad_value_is_named(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError) as error:
        settings_of({field: value})
    assert str(error.value) == f"{field} of the storage link is {value!r}; allowed is {allowed}"


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(ValueError, match="'gbps' is no field of the storage link; allowed are re"):
        settings_of({"gbps": 10, "interface_v1": 1})


def test_rates_are_bytes_per_second() -> None:
    assert LinkSettings(read_gbps=8).rate(writing=False) == 1e9
    assert LinkSettings(read_gbps=8).rate(writing=True) == 1e9
    assert LinkSettings(read_gbps=8, write_gbps=4, slow_factor=2).rate(writing=True) == 0.25e9


def test_a_control_file_changes_a_running_link(tmp_path: Path) -> None:
    control = tmp_path / "control.json"
    settings = LinkSettings(read_gbps=10, missing=0.5, seed=7, control=str(control))
    assert settings.changed() == settings
    control.write_text(json.dumps({"read_gbps": 40}))
    changed = settings.changed()
    assert (changed.read_gbps, changed.missing, changed.seed) == (40, 0.5, 7)
    control.write_text("{}")
    assert settings.changed() == settings
    for text, said in (
        ('{"seed": 1}', "seed of the storage link cannot be changed by a control file"),
        ('{"read_gbps": -1}', "read_gbps of the storage link is -1; allowed is a number above 0"),
        ("[]", r"is \[\]; allowed is a JSON object"),
        ("{", "is no JSON"),
        ("[" * 5000, "is nested too deeply to be read"),
    ):
        control.write_text(text)
        with pytest.raises(ValueError, match=said):
            settings.changed()


def test_flags_hold_the_settings_for_sglang() -> None:
    flags = storage_flags("timeout", prefetch_tokens=64, read_gbps=40, directory="/kv")
    options = dict(zip(flags[1::2], flags[2::2], strict=True))
    assert flags[0] == "--enable-hierarchical-cache"
    assert options["--hicache-storage-backend"] == "dynamic"
    assert options["--hicache-storage-prefetch-policy"] == "timeout"
    extra = json.loads(options["--hicache-storage-backend-extra-config"])
    assert extra.pop("prefetch_threshold") == 64  # SGLang takes it out
    assert settings_of(extra) == LinkSettings(read_gbps=40, directory="/kv")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"policy": "never"}, "policy is 'never'; allowed is one of best_effort"),
        ({"prefetch_tokens": 0}, "prefetch_tokens is 0; allowed is a number from 1"),
        ({"read_gbps": 0}, "read_gbps of the storage link is 0"),
    ],
)
def test_bad_flags_are_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        storage_flags(**given)


# ---- times --------------------------------------------------------------------------------


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def test_a_transfer_takes_bytes_over_rate_and_the_latency(clock: VirtualClock) -> None:
    link = EmulatedLink(clock, 1.0, "")
    assert link.reserve(500, RATE, 0.1, 0.0) == pytest.approx(0.6)
    # The latency does not occupy the link: the next one is behind the bytes only.
    assert link.reserve(500, RATE, 0.1, 0.0) == pytest.approx(1.1)
    assert link.reserve(0, RATE, 0.1, 0.0) == pytest.approx(0.1), "a query does not queue"
    clock.wait_until(5.0)
    assert link.reserve(500, RATE, 0.0, 0.0) == pytest.approx(5.5), "an idle link saves nothing up"


def test_a_slowed_down_device_waits_as_much_longer(clock: VirtualClock) -> None:
    assert EmulatedLink(clock, 3.0, "").reserve(500, RATE, 0.1, 0.0) == pytest.approx(1.8)


def test_two_directions_do_not_share_a_rate(clock: VirtualClock) -> None:
    reading, writing = EmulatedLink(clock, 1.0, ""), EmulatedLink(clock, 1.0, "")
    assert reading.reserve(500, RATE, 0.0, 0.0) == writing.reserve(500, RATE, 0.0, 0.0)


def test_jitter_is_drawn_and_repeatable(clock: VirtualClock) -> None:
    def latencies(seed: str) -> list[float]:
        link = EmulatedLink(clock, 1.0, seed)
        return [link.reserve(0, RATE, 0.1, 0.05) for _ in range(50)]

    first = latencies("a")
    assert first == latencies("a") != latencies("b")
    assert min(first) >= 0.1 and max(first) <= 0.15 and len(set(first)) > 40


def test_callers_that_come_together_share_the_rate() -> None:
    """On threads of their own, on a virtual clock: the last is done when all bytes are through."""
    clock = VirtualClock()
    link = EmulatedLink(clock, 1.0, "")
    ends: list[float] = []
    asked = threading.Barrier(5)

    def call() -> None:
        moment = link.reserve(250, RATE, 0.0, 0.0)
        asked.wait()
        clock.wait_until(moment)
        ends.append(moment)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    asked.wait()
    while any(thread.is_alive() for thread in threads):
        clock.settle()
    assert sorted(ends) == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert clock.now() == pytest.approx(1.0)


# ---- pages --------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> PageStore:
    return PageStore(tmp_path / "pages" if request.param == "folder" else None)


def filled(store: PageStore, keys: list[str] = KEYS) -> dict[str, bytes]:
    pages = {key: f"page {key}".encode() * 3 for key in keys}
    for key, page in pages.items():
        store.put(key, page)
    return pages


def test_pages_come_back_byte_for_byte(store: PageStore) -> None:
    pages = filled(store, KEYS[:5])
    faults = reading()
    assert faults.read(store, KEYS[:6]) == [*pages.values(), None]
    assert KEYS[4] in store and KEYS[5] not in store
    store.clear()
    assert KEYS[4] not in store and faults.read(store, KEYS[4:5]) == [None]


def test_a_folder_keeps_pages_over_a_restart(tmp_path: Path) -> None:
    pages = filled(PageStore(tmp_path), KEYS[:3])
    again = PageStore(tmp_path)
    assert reading().read(again, KEYS[:3]) == [*pages.values()]
    (tmp_path / KEYS[0]).write_bytes(b"cut")
    assert reading().read(again, KEYS[:1]) == [None], "a file that is not whole"


# ---- faults -------------------------------------------------------------------------------


def reading(rank: str = "0", now: float = 0.0, **settings: Any) -> LinkFaults:
    faults = LinkFaults(rank)
    faults.under(LinkSettings(**settings), now)
    return faults


def gone(store: PageStore, faults: LinkFaults, keys: list[str] = KEYS) -> set[str]:
    pages = faults.read(store, keys)
    return {key for key, page in zip(keys, pages, strict=True) if page is None}


@pytest.mark.parametrize("fault", ["missing", "corrupt", "shifted"])
def test_the_same_share_of_pages_is_lost_every_time(fault: str) -> None:
    store = PageStore(None)
    filled(store)
    lost = gone(store, reading(**{fault: 0.25}))
    assert 60 < len(lost) < 140  # of 400; a share of 0.25 lies in it by 4.6 standard deviations
    assert gone(store, reading(**{fault: 0.25})) == lost
    assert gone(store, reading(**{fault: 0.25, "seed": 1})) != lost
    assert gone(store, reading(rank="1", **{fault: 0.25})) != lost, "ranks fail by themselves"
    assert gone(store, reading(**{fault: 0.0})) == set()


def test_without_a_checksum_wrong_pages_are_handed_on() -> None:
    store = PageStore(None)
    pages = filled(store, KEYS[:3])
    first, second, third = KEYS[:3]
    corrupt = reading(corrupt=1.0, checksum=False)
    (read,) = corrupt.read(store, [first])
    assert read is not None and len(read) == len(pages[first])
    assert sum(a != b for a, b in zip(read, pages[first], strict=True)) == 1
    shifted = reading(shifted=1.0, checksum=False)
    wrong = shifted.read(store, [first, second, third])
    assert wrong == [pages[third], pages[first], pages[second]]


def test_a_link_dies_after_so_many_pages() -> None:
    faults = reading(dead_after_pages=10)
    assert faults.let_through(6, 0.0) == 6 and not faults.dead(0.0)
    assert faults.let_through(6, 0.0) == 4 and faults.dead(0.0)
    assert faults.let_through(6, 0.0) == 0
    faults.under(LinkSettings(dead_after_pages=10), 1.0)
    assert faults.dead(1.0), "the same settings do not bring it back"
    faults.under(LinkSettings(), 2.0)
    assert faults.let_through(6, 2.0) == 6


def test_a_link_dies_at_its_time() -> None:
    faults = reading(now=100.0, dead_after_s=2.0)
    assert not faults.dead(101.9) and faults.let_through(3, 101.9) == 3
    assert faults.dead(102.0) and faults.let_through(3, 102.0) == 0


def test_calls_raise_by_their_share() -> None:
    def failed(share: float) -> int:
        faults, count = reading(raising=share), 0
        for key in KEYS:
            try:
                faults.raise_if_due("read", [key])
            except ConnectionError as error:
                assert "read of 1 pages" in str(error)
                count += 1
        return count

    assert failed(0.0) == 0 and failed(1.0) == len(KEYS)
    assert 60 < failed(0.25) < 140
