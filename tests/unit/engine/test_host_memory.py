"""How much host memory a server takes where no option says so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from sglang.srt.mem_cache import host_memory as of_sglang

from tokenflow_sgl.engine.host_memory import (
    RESERVE,
    HostRoom,
    aimed_ratio,
    host_room,
    left_bytes,
    local_ranks,
    replicas,
    safe_bytes,
)

GB = 10**9
LARGE = HostRoom(RESERVE + 800 * GB, total=RESERVE + 800 * GB, devices=8)
"""With 76 GB for each of its devices, of what may be taken."""
HUGE = HostRoom(RESERVE + 3000 * GB, total=RESERVE + 3000 * GB, devices=1)


def launch(**given):
    usual = {"tp_size": 1, "pp_size": 1, "dp_size": 1, "attn_dp_size": 1, "nnodes": 1}
    return SimpleNamespace(**{**usual, "enable_dp_attention": False, **given})


# ---- what to aim at -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "ratio"),
    [(60 * GB, 2.0), (38 * GB, 2.0), (30.4 * GB, 2.5), (19 * GB, 4.0), (2 * GB, 4.0), (0, 4.0)],
)
def test_more_than_sglangs_default_is_within_the_share_of_a_device(device, ratio) -> None:
    assert aimed_ratio(device, LARGE, 1, 0.8) == pytest.approx(ratio)


@pytest.mark.parametrize(("device", "ratio"), [(120, 2.0), (64, 2.0), (51.2, 2.5), (32, 4.0)])
def test_a_large_pool_is_not_raised_however_large_the_machine_is(device, ratio) -> None:
    assert aimed_ratio(device * GB, HUGE, 1, 0.8) == pytest.approx(ratio)


def test_as_many_servers_as_devices_fit_if_they_start_at_once() -> None:
    """As far as it is raised; SGLang's own default is the users' to know of."""
    for device in (GB, 20 * GB, 36 * GB):
        ratio = aimed_ratio(device, LARGE, 1, 0.8)
        assert ratio > 2.0
        assert 8 * ratio * device < left_bytes(LARGE, 1)


def test_ranks_have_a_share_each() -> None:
    for ranks in (1, 2, 8):
        assert aimed_ratio(30.4 * GB, LARGE, ranks, 0.8) == pytest.approx(2.5)
    assert aimed_ratio(15.2 * GB, LARGE, 16, 0.8) == pytest.approx(2.5), "several on a device"


def test_where_devices_are_not_known_it_is_sglangs_default() -> None:
    assert aimed_ratio(GB, HostRoom(LARGE.free, total=LARGE.total), 1, 0.8) == 2.0


def test_a_machine_that_is_full_now_is_no_larger() -> None:
    """What is free bounds it besides, by SGLang's rule."""
    full = HostRoom(RESERVE + 10 * GB, total=LARGE.total, devices=8)
    assert aimed_ratio(4 * GB, full, 1, 0.8) == 4.0
    assert safe_bytes(full, 1, 0.8) == pytest.approx(7.6 * GB)
    assert safe_bytes(full, 4, 0.8) == pytest.approx(1.9 * GB)
    assert safe_bytes(HostRoom(RESERVE - 1), 1, 0.8) == 0
    assert safe_bytes(HostRoom(0), 1, 0.8) == 0


def test_ranks_and_replicas_of_a_machine() -> None:
    assert local_ranks(launch(tp_size=4, pp_size=2, nnodes=2)) == 4
    assert local_ranks(launch(tp_size=2, dp_size=4)) == 8
    assert replicas(launch(tp_size=2, dp_size=4)) == 4
    groups = launch(tp_size=4, dp_size=4, enable_dp_attention=True)
    assert (local_ranks(groups), replicas(groups)) == (4, 1)
    assert local_ranks(launch(nnodes=2)) == 1


# ---- what there is ------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    """A machine of 1,000 GB, 900 of which are free; its limits as given."""

    def made(headroom):
        memory = SimpleNamespace(available=900 * GB, total=1000 * GB)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        monkeypatch.setattr(of_sglang, "_cgroup_memory_headroom", lambda: headroom)

    return made


def put(root: Path, devices: dict[str, tuple[str, str]], given: tuple[str, ...] = ()) -> Path:
    for name, (vendor, kind) in devices.items():
        (folder := root / "sys/bus/pci/devices" / name).mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    for name in given:
        (root / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "dev" / name).touch()
    return root


NVIDIA = {f"gpu{n}": ("0x10de", "0x030200") for n in range(8)}
BESIDE = {
    "nvswitch": ("0x10de", "0x068000"),
    "screen": ("0x1a03", "0x030000"),
    "bridge": ("0x8086", "0x060400"),
}
"""That are none."""


def test_without_a_limit_the_machines_accelerators_share_its_memory(machine, tmp_path) -> None:
    machine(None)
    root = put(tmp_path, {**NVIDIA, **BESIDE}, ("nvidia0", "nvidiactl"))
    assert host_room(root) == HostRoom(900 * GB, total=1000 * GB, devices=8)


def test_those_of_amd_count_too_and_not_twice(machine, tmp_path) -> None:
    machine(None)
    amd = {f"mi{n}": ("0x1002", "0x120000") for n in range(4)}
    root = put(tmp_path, {**amd, "own": ("0x10de", "0x030000")})
    assert host_room(root).devices == 4


def test_within_a_limit_those_that_the_container_was_given_share_it(machine, tmp_path) -> None:
    machine(200 * GB)
    root = put(tmp_path, NVIDIA, ("nvidia3", "nvidia5", "nvidia-uvm", "nvidiactl", "dri/render1"))
    assert host_room(root) == HostRoom(200 * GB, total=200 * GB, devices=2)


def test_render_nodes_stand_for_those_of_amd(machine, tmp_path) -> None:
    machine(200 * GB)
    assert host_room(put(tmp_path, {}, ("dri/render128", "dri/card0"))).devices == 1


def test_a_limit_near_what_is_free_is_none(machine, tmp_path) -> None:
    machine(890 * GB)
    assert host_room(put(tmp_path, NVIDIA)) == HostRoom(890 * GB, total=1000 * GB, devices=8)


def test_a_machine_that_shows_nothing_has_no_accelerators(machine, tmp_path) -> None:
    machine(None)
    assert host_room(tmp_path).devices == 0
    machine(200 * GB)
    assert host_room(tmp_path).devices == 0


def test_a_limit_below_what_is_in_use_leaves_nothing(machine, tmp_path) -> None:
    machine(0)
    assert host_room(tmp_path).free == 0


# ---- limits of control groups, as SGLang reads them ---------------------------------


def group(folder: Path, **files: str | int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def unified(root: Path, path: str) -> Path:
    """A machine with cgroup v2 whose process is in the group of this path."""
    (process := root / "proc/self").mkdir(parents=True)
    (process / "cgroup").write_text(f"0::{path}\n")
    (process / "mountinfo").write_text(f"30 23 0:26 / {root / 'v2'} rw - cgroup2 cgroup2 rw\n")
    return root / "v2"


def headroom(root: Path) -> int | None:
    return of_sglang._cgroup_memory_headroom(root / "proc")


CACHE = "anon 1\nactive_file 20\ninactive_file 30"


def test_the_least_of_nested_limits_counts(tmp_path) -> None:
    groups = unified(tmp_path, "/pod/server")
    group(groups)
    group(groups / "pod", memory__max=1000, memory__current=600, memory__stat=CACHE)
    server = {"memory__current": 10, "memory__stat": CACHE}
    group(groups / "pod/server", memory__max="max", memory__min=0, **server)
    assert headroom(tmp_path) == 1000 - (600 - 50), "files that are cached are free"
    group(groups / "pod/server", memory__min=30)
    assert headroom(tmp_path) == 400, "but where some are protected"
    group(groups / "pod/server", memory__high=400, memory__max=500, memory__current=50)
    assert headroom(tmp_path) == 400


def test_a_limit_below_its_use_leaves_nothing(tmp_path) -> None:
    groups = unified(tmp_path, "/pod")
    group(groups / "pod", memory__max=100, memory__current=900, memory__stat=CACHE)
    assert headroom(tmp_path) == 0


def test_no_limit_is_no_bound(tmp_path) -> None:
    groups = unified(tmp_path, "/pod")
    group(groups / "pod", memory__max="max", memory__current=900, memory__stat=CACHE)
    assert headroom(tmp_path) is None


def test_the_first_version_has_limits_too(tmp_path) -> None:
    (process := tmp_path / "proc/self").mkdir(parents=True)
    (process / "cgroup").write_text("4:memory:/pod\n0::/\n")
    mount = f"30 23 0:26 / {tmp_path / 'v1'} rw - cgroup cgroup rw,memory\n"
    (process / "mountinfo").write_text(mount)
    cached = "total_active_file 20\ntotal_inactive_file 30"
    pod = {"memory__limit_in_bytes": 1000, "memory__usage_in_bytes": 600, "memory__stat": cached}
    group(tmp_path / "v1", **{**pod, "memory__limit_in_bytes": 9223372036854771712})
    group(tmp_path / "v1/pod", **pod)
    assert headroom(tmp_path) == 450


def test_without_control_groups_there_is_no_limit(tmp_path) -> None:
    (process := tmp_path / "proc/self").mkdir(parents=True)
    (process / "cgroup").write_text("")
    (process / "mountinfo").write_text("")
    assert headroom(tmp_path) is None
    assert headroom(tmp_path / "nothing") is None
