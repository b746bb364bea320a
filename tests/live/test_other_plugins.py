"""Beside another plugin the scheduler serves, or the start is refused with both names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers.fixtures import COLD, SERVER_SIDE
from servers.rivals import CONTROLLER, EVICTING, HARMLESS, PARSING, STEPPING, TARGETS, beside
from told_streams import Reading, told

from tokenflow_sgl.lab.demo.server import ServerError

pytestmark = pytest.mark.engine

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
SMALL = ("--max-total-tokens", "352", "--hicache-ratio", "4", "--chunked-prefill-size", "64")


def folder_in(path: Path) -> Path:
    """A new one."""
    (folder := path / "first").mkdir()
    return folder


def heard(folder: Path) -> set[str]:
    """What of theirs was called."""
    return {*(folder / "heard").read_text().split()}


def is_all_there(served: Any) -> None:
    """What a server does that has all of ours, seen from outside."""
    assert len(served.metrics()) > 100
    asked = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 2}}
    bad = {"max_new_tokens": 2, "custom_params": {"tokenflow_rte": 20}}
    assert served.post("/generate", {**asked, "sampling_params": bad}).status == 400
    assert served.post("/generate", {**asked, "tokenflow_rate": 20}).status == 400
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    assert served.post("/v1/chat/completions", {**chat, "tokenflow_rate": 2}).status == 400
    headers = {"x-slo-tpot-ms": "none"}
    assert served.post("/v1/chat/completions", chat, headers).status == 400
    assert served.post("/generate", asked, headers).status == 400
    assert served.post("/v1/chat/completions", {**chat, "stream": True}).status == 200
    assert served.post("/tokenflow/streams/unknown", {"rate": 5}).status == 404
    ended = Reading(served, [5, 6], 300)
    ended.wait_for(1)
    assert told(served, ended.rid, "", "DELETE")[0] == 204
    ended.join()
    with urllib.request.urlopen(f"{served.server.url}/v1/loads", timeout=60) as response:
        loads = json.loads(response.read())["loads"]
    assert loads
    assert all("tokenflow_headroom_tokens" in each for each in loads)


def hearing(folder: Path, env: dict[str, str]) -> dict[str, str]:
    """What of theirs is called is noted there."""
    return {**env, "RIVAL_HEARD": str(folder / "heard")}


@pytest.mark.parametrize("first", [True, False], ids=["before-ours", "after-ours"])
def test_a_server_has_all_of_ours_and_all_of_theirs(
    start, prompts, reference, tmp_path, first
) -> None:
    env = hearing(tmp_path, beside(HARMLESS, None if first else folder_in(tmp_path)))
    with start(*FORCED, *SMALL, env=env) as served:
        assert served.outputs(prompts, stream=True) == reference
        assert served.total("tokenflow:preemptions_total") > len(prompts)
        is_all_there(served)
        served.assert_clean()
    assert {*TARGETS} - heard(tmp_path) <= {EVICTING, *PARSING}


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["serve", "two-ranks", "two-replicas"])
def test_so_has_every_way_to_launch_one(start, prompts, reference, tmp_path, launch) -> None:
    """The latter two as a module, one of them after ours; one rank is no other way."""
    flags, launcher, hooks = [*FORCED, *SMALL], COLD, HARMLESS
    if launch == "serve":
        launcher = (str(Path(sys.executable).with_name("sglang")), "serve")
    if launch == "two-ranks":
        flags += ["--tp-size", "2"]
    if launch == "two-replicas":
        flags += ["--dp-size", "2"]
        hooks = [*hooks, (CONTROLLER, "AFTER")]
    env = hearing(tmp_path, beside(hooks, folder_in(tmp_path) if launch == "two-ranks" else None))
    with start(*flags, launcher=launcher, env=env) as served:
        assert served.outputs(prompts, stream=True) == reference
        assert served.total("tokenflow:preemptions_total") > len(prompts)
        is_all_there(served)
        served.assert_clean()
    assert {target for target, _ in hooks} - heard(tmp_path) <= {EVICTING, *PARSING}


OFFLINE = """
import json
import sys

import tokenflow_sgl

if __name__ == "__main__":
    engine = tokenflow_sgl.Engine(
        model_path=sys.argv[1],
        scheduler="tokenflow",
        tokenflow_policy="forced:PreemptEvery",
        max_total_tokens=352,
        hicache_ratio=4,
        chunked_prefill_size=64,
        random_seed=1,
    )
    how = {"temperature": 0, "max_new_tokens": 64}
    answers = engine.generate(input_ids=json.loads(sys.argv[2]), sampling_params=how)
    print(json.dumps([answer["output_ids"] for answer in answers]))
    engine.shutdown()
"""


@pytest.mark.slow
def test_so_has_the_offline_engine(models, prompts, reference, tmp_path) -> None:
    script = tmp_path / "offline.py"
    script.write_text(OFFLINE)
    env = hearing(tmp_path, beside(HARMLESS))
    emulated = {"SGLANG_PLATFORM": "tokenflow_emu", "TORCHDYNAMO_DISABLE": "1"}
    path = os.pathsep.join(filter(None, [env["PYTHONPATH"], os.getenv("PYTHONPATH")]))
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(models / "qwen3"), json.dumps(prompts)],
        capture_output=True,
        text=True,
        env={**os.environ, **emulated, **env, "PYTHONPATH": path},
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert json.loads(ended.stdout.splitlines()[-1]) == reference
    assert STEPPING in heard(tmp_path)


CHILDREN_WITHOUT_US = {"RIVAL_KEEPS": "tokenflow_emu,rival"}
KEPT_OUT = "SGLang's own scheduler runs where tokenflow's was asked for"
DECODER = "sglang.srt.managers.load_snapshot.snapshot_decoder"


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("sglang.srt.managers.scheduler.Scheduler", id="scheduler"),
        pytest.param(DECODER, id="loads"),
    ],
)
def test_what_both_replace_is_refused_with_both_names(start, target) -> None:
    names = "(?s)the plugin 'tokenflow' .*the plugin 'rival'"
    with (
        pytest.raises(ServerError, match=names),
        start("--scheduler", "tokenflow", env=beside([(target, "REPLACE")])),
    ):
        pass


RESTORING = (
    *("--tokenflow-restore", "auto", "--enable-hierarchical-cache"),
    *("--hicache-storage-backend", "file", "--chunked-prefill-size", "64"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--scheduler", "tokenflow", "--dp-size", "2"], id="two-replicas"),
        pytest.param(["--scheduler", "tokenflow", "--tp-size", "2"], id="two-ranks"),
        pytest.param(RESTORING, id="restore"),
    ],
)
def test_a_scheduler_whose_process_did_not_load_ours_opens_no_port(start, flags) -> None:
    """The other plugin lets child processes load itself only."""
    env = {**beside([]), **CHILDREN_WITHOUT_US}
    with pytest.raises(ServerError, match=KEPT_OUT), start(*flags, launcher=COLD, env=env):
        pass


CREDULOUS = """
import runpy

from tokenflow_sgl.engine import announcement

announcement.check_all = lambda said: None
if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
"""


@pytest.mark.slow
def test_control_unasked_sglangs_scheduler_would_serve(start, tmp_path) -> None:
    (tmp_path / "credulous.py").write_text(CREDULOUS)
    env = {**beside([]), **CHILDREN_WITHOUT_US}
    launcher = (sys.executable, str(tmp_path / "credulous.py"))
    with start("--scheduler", "tokenflow", launcher=launcher, env=env) as served:
        assert not any(name.startswith("tokenflow:pre") for name, _ in served.metrics())


Tried = Callable[[str, str, str], list[dict[str, Any]]]


@pytest.fixture
def launches(warm: tuple[str, ...]) -> Tried:
    """What becomes of launches with another plugin's hook on each target of ours in turn."""

    def tried(mode: str, moments: str, kinds: str) -> list[dict[str, Any]]:
        script = str(SERVER_SIDE / "launches_beside.py")
        path = os.pathsep.join(filter(None, [str(SERVER_SIDE), os.getenv("PYTHONPATH")]))
        ended = subprocess.run(
            [*warm, script, mode, moments, kinds],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SGLANG_PLATFORM": "tokenflow_emu", "PYTHONPATH": path},
        )
        assert ended.returncode == 0, ended.stdout[-4000:]
        return [json.loads(line) for line in ended.stdout.splitlines() if line[:1] == "{"]

    return tried


ALIKE = (":Scheduler", ":snapshot_decoder", "_cpu_copy", "_set_kv_buffer")
"""What we replace, too."""


AT_LOAD = (".add_cli_args", ".from_cli_args", ":configure_scheduler_process", ".get_init_info")
"""What we hook when plugins are loaded; the rest comes when our options have been read."""


def judge(said: dict[str, Any]) -> None:
    """Ours is reached; it is refused where both would replace the same, or theirs comes last."""
    assert "error" not in said, said
    alike = said["target"].endswith(ALIKE)
    later = said["moment"] == "late" or (
        said["moment"] == "after" and said["target"].endswith(AT_LOAD)
    )
    if said["kind"] == "REPLACE" and not said["skipped"] and (alike or later):
        assert "the plugin 'tokenflow'" in said["refusal"], said
        assert "the plugin 'rival'" in said["refusal"], said
    else:
        assert said["refusal"] is None, said
        assert said["reached"], said


def test_each_target_in_turn_is_ours_too_or_refused(launches) -> None:
    tried = launches("plain", "before", "AROUND,REPLACE")
    assert len(tried) > 30
    for said in tried:
        judge(said)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "stripped", "groups", "decode", "restore", "layers"])
def test_so_is_it_with_every_option_and_moment(launches, mode) -> None:
    """The other kinds of hooks wrap as AROUND does; test_hooking.py has them."""
    tried = launches(mode, "before,after,late", "AROUND,REPLACE")
    assert {said.get("moment") for said in tried} == {"before", "after", "late"}
    for said in tried:
        judge(said)
