"""Every kind of change of a seam is reported, and what has no meaning is not."""

from __future__ import annotations

import pytest

from porting.changes import Comparison
from tokenflow_sgl.engine.sglang.seam import Seam

METHOD = "class Thing:\n    def run(self, batch, fast=True):\n        return batch.go(fast)\n"


def seam(path: str = "Thing.run", kind: str = "hook", module: str = "one", *takes: str) -> Seam:
    return Seam(f"sglang.srt.{module}:{path}", kind, "a test", takes)


def told(found: Comparison) -> list[str]:
    return [f"{one.risk}: {one.told}" for each in found.findings for one in each.changes]


def risks(found: Comparison) -> list[str]:
    return [one.risk for each in found.findings for one in each.changes]


@pytest.mark.parametrize(
    "new",
    [
        METHOD,
        "# a comment\n\n\n" + METHOD,
        METHOD.replace("        return", '        """Says what it does."""\n        return'),
        METHOD.replace(
            "        return", "        # why\n        logger.info('it goes')\n        return"
        ),
        METHOD.replace("batch, fast=True", "batch: Batch, fast: bool = True"),
        METHOD.replace(
            "batch.go(fast)",
            "(\n            batch.go(\n                fast,\n            )\n        )",
        ),
        "def other(): ...\n" + METHOD + "    def more(self): ...\n",
    ],
    ids=["same", "comment", "docstring", "log", "annotations", "layout", "others"],
)
def test_what_has_no_meaning_is_not_reported(compared, new) -> None:
    found = compared(METHOD, new, seam(), seam(kind="use"), seam("Thing", "import"))
    assert found.findings == ()
    assert found.seams == 3


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ("class Thing: ...\n", "gone: is not in young; Thing is in srt/one.py"),
        ("class Other: ...\n", "gone: is not in young"),
        (
            METHOD.replace("fast=True", "fast=True, slow=False"),
            "signature: takes a new slow (optional)",
        ),
        (METHOD.replace("batch, ", "batch, slow, "), "signature: takes a new slow"),
        (METHOD.replace("fast=True", ""), "signature: no longer takes fast"),
        (METHOD.replace("=True", "=False"), "signature: default of fast: True, now False"),
        (
            METHOD.replace("batch, fast=True", "fast, batch"),
            "signature: order of parameters: self, fast, batch",
        ),
        (
            METHOD.replace("batch, fast", "batch, *, fast"),
            "signature: takes fast by name, not by both",
        ),
        (METHOD.replace("def run", "async def run"), "signature: was a plain function, is async"),
        (METHOD.replace("return", "return 1 +"), "body: does something else"),
    ],
)
def test_a_change_of_a_hook_is_told(compared, new, expected) -> None:
    assert expected in told(compared(METHOD, new, seam()))


def test_a_parameter_that_we_give_and_that_is_gone_comes_first(compared) -> None:
    found = compared(
        METHOD, METHOD.replace("fast", "quick"), seam("Thing.run", "use", "one", "fast")
    )
    assert told(found)[0].startswith("signature: our use of it fails: ")


def test_a_seam_that_the_base_does_not_have_is_no_break(compared) -> None:
    found = compared("class Thing: ...\n", METHOD, seam(), seam("Thing.never"))
    assert found.findings == ()
    assert (found.arrived, found.absent) == (
        ("sglang.srt.one:Thing.run",),
        ("sglang.srt.one:Thing.never",),
    )
    assert found.seams == 0


def test_a_move_that_imports_still_resolve_is_a_move_only(compared) -> None:
    found = compared(METHOD, {"one": "from sglang.srt.two import Thing\n", "two": METHOD}, seam())
    assert risks(found) == ["moved"]
    lost = compared(METHOD, {"one": "", "two": METHOD}, seam())
    assert risks(lost) == ["gone"]
    assert "srt/two.py" in told(lost)[0]


def test_an_attribute_is_compared_where_it_is_assigned(compared) -> None:
    base = (
        "class Thing:\n    def __init__(self):\n        self.queue = []\n        self.other = 1\n"
    )
    held = seam("Thing.queue", "use")
    assert compared(base, base.replace("= 1", "= 2"), held).findings == ()
    assert risks(compared(base, base.replace("[]", "deque()"), held)) == ["attribute"]


def test_the_type_of_a_field_counts_and_how_it_is_written_does_not(compared) -> None:
    base, held = "class Thing:\n    ids: Optional[List[int]] = None\n", seam("Thing.ids", "use")
    assert (
        compared(base, base.replace("Optional[List[int]]", "'list[int] | None'"), held).findings
        == ()
    )
    assert risks(compared(base, base.replace("List[int]", "array"), held)) == ["attribute"]


def test_the_help_text_of_an_option_does_not_count(compared) -> None:
    base, held = "class Thing:\n    size: A[int, 'how many'] = 1\n", seam("Thing.size", "use")
    new = base.replace("'how many'", "Arg(help='how many tokens', aliases=['--many-tokens'])")
    assert compared(base, new, held).findings == ()
    assert risks(compared(base, new.replace("A[int", "A[float"), held)) == ["attribute"]


def test_both_parts_of_a_property_are_compared(compared) -> None:
    base = (
        "class Thing:\n    @property\n    def size(self):\n        return 1\n"
        "    @size.setter\n    def size(self, size):\n        self._size = size\n"
    )
    held = seam("Thing.size", "use")
    assert risks(compared(base, base.replace("return 1", "return 2"), held)) == ["attribute"]
    assert compared(base, base, held).findings == ()


def test_fields_are_what_a_class_takes_that_we_make(compared) -> None:
    base = "@dataclass\nclass Thing:\n    first: int\n    second: int = 0\n"
    new = base + "    third: int = 0\n"
    made = seam("Thing", "import", "one", "first")
    assert "used: takes a new third (optional)" in told(compared(base, new, made))
    assert "signature: takes a new third" in told(
        compared(base, new.replace("third: int = 0", "third: int"), made)
    )
    assert "signature: no longer takes first" in told(
        compared(base, base.replace("first", "one"), made)
    )
    assert compared(base, new, seam("Thing", "import")).findings == ()


def test_an_object_of_a_module_is_found_by_its_class(compared) -> None:
    base = "class Envs:\n    SLOW = EnvBool(False)\nenvs = Envs()\n"
    held = seam("envs.SLOW", "import")
    assert compared(base, base, held).undecided == ()
    assert risks(compared(base, base.replace("False", "True"), held)) == ["attribute"]


CALLER = "def loop(thing):\n    prepare()\n    thing.run(1)\n"
FAR = "    a()\n    b()\n    c()\n    d()\n"


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (CALLER, None),
        (CALLER.replace("prepare()", "prepare()  # why"), None),
        (
            CALLER.replace("run(1)", "run(2)"),
            "callers: sglang.srt.two:loop calls it, and changed next to the call",
        ),
        (CALLER + FAR + "    e()\n", "far: sglang.srt.two:loop calls it, and changed elsewhere"),
        (CALLER.replace("run(1)", "stop()"), "callers: sglang.srt.two:loop no longer calls it"),
        (
            CALLER + "def other(thing):\n    thing.run(1)\n",
            "callers: sglang.srt.two:other calls it now",
        ),
        (
            CALLER.replace("prepare", "arrange").replace("run(1)", "run(1)"),
            "callers: sglang.srt.two:loop calls it, and changed next to the call",
        ),
    ],
)
def test_changed_callers_of_what_we_hook_are_told(compared, new, expected) -> None:
    base = CALLER + (FAR if FAR in new else "")
    found = compared({"one": METHOD, "two": base}, {"one": METHOD, "two": new}, seam())
    assert told(found) == ([] if expected is None else [expected])
    used = compared({"one": METHOD, "two": base}, {"one": METHOD, "two": new}, seam(kind="use"))
    assert used.findings == ()


def test_a_caller_that_only_moved_is_not_told(compared) -> None:
    found = compared({"one": METHOD, "two": CALLER}, {"one": METHOD, "three": CALLER}, seam())
    assert found.findings == ()


def test_callers_of_a_common_name_are_told_where_the_class_is_named(compared) -> None:
    many = "".join(f"class Other{n}:\n    def run(self): ...\n" for n in range(8))
    base = {"one": METHOD, "many": many, "near": "from one import Thing\n" + CALLER, "away": CALLER}
    new = {name: text.replace("run(1)", "run(2)") for name, text in base.items()}
    found = compared(base, new, seam())
    assert told(found) == ["callers: sglang.srt.near:loop calls it, and changed next to the call"]


def test_the_most_dangerous_comes_first(compared) -> None:
    base = "".join(f"class {name}:\n    def run(self):\n        return 1\n" for name in "ABCD")
    new = base.replace("class A", "class Z").replace("run(self)", "run(self, n)", 2)
    new = new[: new.rindex("1")] + "2\n"
    found = compared(
        base,
        new,
        seam("D.run"),
        seam("C.run"),
        seam("B.run", "use"),
        seam("A.run", "use"),
        seam("D.run", "use"),
    )
    assert [each.risk for each in found.findings] == ["gone", "signature", "body", "used"]
