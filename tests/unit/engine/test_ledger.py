"""The ledger is what the code holds on to, and what cannot be read is refused."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tokenflow_sgl.engine.sglang import version
from tokenflow_sgl.engine.sglang.ledger import LedgerError, collect, ledger, sources
from tokenflow_sgl.engine.sglang.seam import Seam

ENGINE = "tokenflow_sgl.engine"
FROM = f"from {ENGINE}.sglang"
BATCH = "sglang.srt.managers.schedule_batch"


def seams(text: str, **others: str) -> dict[str, Seam]:
    modules = {f"{ENGINE}.scratch": text}
    modules |= {f"{ENGINE}.{name}": other for name, other in others.items()}
    return {seam.target: seam for seam in collect(modules)}


def test_an_import_is_a_seam_and_so_is_an_attribute_of_it() -> None:
    found = seams(
        f"from {BATCH} import Req, ScheduleBatch as Batch\n"
        "from sglang.srt.managers import load_snapshot\n"
        "def make(req):\n"
        "    load_snapshot.snapshot_decoder\n"
        "    return Batch.init_new(req, tree_cache=1), Req(*req)\n"
    )
    target = f"{BATCH}:ScheduleBatch.init_new"
    assert found[target] == Seam(target, "import", "in scratch.py", ("tree_cache",), 1)
    assert found[f"{BATCH}:Req"].places == 0  # how many there are is not known
    assert "sglang.srt.managers.load_snapshot:snapshot_decoder" in found
    assert "sglang.srt.managers:load_snapshot" not in found  # a module


def test_a_hook_is_a_seam_whatever_its_target_is_made_of() -> None:
    found = seams(
        f"{FROM}.hooking import hold\n"
        f"from {ENGINE}.there import MODULE\n"
        '_WHY = "a reason"\n'
        "def register():\n"
        '    for name in ("one", "two"):\n'
        '        hold(f"{MODULE}:Req.{name}", print, 1, _WHY, ("self",))\n',
        there=f'MODULE = "{BATCH}"\n',
    )
    assert found == {
        f"{BATCH}:Req.{name}": Seam(f"{BATCH}:Req.{name}", "hook", "a reason", ("self",))
        for name in ("one", "two")
    }


@pytest.mark.parametrize(
    "call",
    [
        'hold(f"{unknown}:Req", print, 1, "a reason")',
        f'hold("{BATCH}:Req", print, 1, "")',
        f'hold("{BATCH}:Req", print, 1, str(1))',
        f'hold("{BATCH}:Req", print, 1)',
    ],
)
def test_a_hook_that_cannot_be_read_is_refused_with_its_line(call) -> None:
    with pytest.raises(LedgerError, match=r"scratch\.py:2: the (target of|reason for) this hook"):
        seams(f"{FROM}.hooking import hold\n{call}\n")


MADE = f"{FROM}.overriding import overrides\nfrom {BATCH} import Req\n"


@pytest.mark.parametrize(
    "text",
    [
        "class Ours(Req):\n"
        '    @overrides("a reason")\n    def say(self, word, more=1, *rest): ...\n',
        "class Base(Req): ...\n"
        "class Ours(Base):\n    @property\n"
        '    @overrides("a reason")\n    def say(self, word): ...\n',
        "def make(base: type[Req]):\n"
        "    class Ours(base):\n"
        '        @overrides("a reason")\n        def say(self, word): ...\n',
        f"from {ENGINE}.there import Base\n"
        'class Ours(Base):\n    @overrides("a reason")\n    async def say(self, word): ...\n',
    ],
)
def test_an_override_is_a_seam_of_the_class_that_ours_derives_from(text) -> None:
    there = f"from {BATCH} import Req\nclass Base(Req): ...\n"
    target = f"{BATCH}:Req.say"
    assert seams(MADE + text, there=there)[target] == Seam(
        target, "override", "a reason", ("word",)
    )


def test_an_override_of_nothing_is_refused_with_its_line() -> None:
    text = 'class Ours:\n    @overrides("a reason")\n    def say(self): ...\n'
    with pytest.raises(LedgerError, match=r"scratch\.py:5: Ours\.say says that it stands for"):
        seams(MADE + text)


def test_members_of_protocols_are_seams_with_what_is_said_of_them() -> None:
    found = seams(
        f"{FROM}.protocol import of\n"
        '_BASE = "sglang.one"\n'
        '@of(f"{_BASE}:One", "sglang.two:Two")\n'
        "class Thing(Protocol):\n"
        '    """A thing.\n\n    More of it."""\n'
        "    size: int\n"
        '    """How large it is."""\n'
        "    name: str\n"
        '    def say(self, word: str) -> None:\n        """Says it."""\n'
    )
    assert len(found) == 6
    assert found["sglang.one:One.size"] == Seam("sglang.one:One.size", "use", "How large it is.")
    assert found["sglang.two:Two.name"].why == "A thing."
    target = "sglang.two:Two.say"
    assert found[target] == Seam(target, "use", "Says it.", ("word",))


def test_a_name_that_is_held_in_several_ways_is_one_seam() -> None:
    text = (
        f"{FROM}.hooking import hold\nfrom {BATCH} import release_req\n"
        "release_req(1, backend=2)\n"
        f'hold("{BATCH}:release_req", print, 1, "a reason", ("req",))\n'
    )
    target = f"{BATCH}:release_req"
    assert seams(text) == {target: Seam(target, "hook", "a reason", ("req", "backend"), 1)}


def test_all_hooks_go_through_what_the_ledger_reads() -> None:
    """SGLang's registry is known to one module, and is called in one place."""
    found = [
        name
        for name, text in sources().items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and node.id == "HookRegistry"
    ]
    assert set(found) == {f"{ENGINE}.sglang.hooking"}


@pytest.mark.parametrize(
    ("installed", "held", "not_held"),
    [("0.5.23", "since", "before"), ("0.5.22", "before", "since")],
)
def test_what_another_release_has_is_not_held(monkeypatch, installed, held, not_held) -> None:
    monkeypatch.setattr(version, "installed_sglang", lambda: installed)
    names = {name.removeprefix(f"{ENGINE}.sglang.") for name in sources()}
    assert f"{held}_0_5_23" in names
    assert f"{not_held}_0_5_23" not in names


def test_reading_the_ledger_takes_no_sglang_and_little_time() -> None:
    code = (
        "import sys, time\n"
        "from tokenflow_sgl.engine.sglang.ledger import ledger\n"
        "began = time.process_time()\n"
        "ledger()\n"
        "print(time.process_time() - began, 'torch' in sys.modules, 'sglang' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, *imported = run.stdout.split()
    assert imported == ["False", "False"]
    assert float(seconds) < 1.0  # 0.2 where nothing else runs


def test_the_ledger_has_all_kinds() -> None:
    assert {seam.kind for seam in ledger()} == {"hook", "override", "use", "import"}
