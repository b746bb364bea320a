"""What the doctor reads from SGLang's source is what an import finds."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tokenflow_sgl.engine.sglang import seam_check
from tokenflow_sgl.engine.sglang.ledger import ledger
from tokenflow_sgl.engine.sglang.seam import Seam
from tokenflow_sgl.engine.sglang.seam_source import SglangSource, UndecidedError, problem

SEAMS = ledger()
SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"


def decided() -> dict[Seam, str | None]:
    found = {}
    for seam in SEAMS:
        try:
            found[seam] = problem(seam)
        except UndecidedError:
            continue
    return found


def test_the_source_agrees_with_an_import() -> None:
    found = decided()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seam, trouble in found.items():
            assert trouble == seam_check.problem(seam), seam.target


def test_what_has_to_be_imported_is_imported_by_the_parser_anyway() -> None:
    found = decided()
    rest = {seam.target.partition(":")[0] for seam in SEAMS if seam not in found}
    assert rest <= {"sglang.srt.environ", "sglang.srt.platforms", "sglang.srt.server_args"}


@pytest.mark.parametrize(
    "target",
    [
        "sglang.no_such_module:Thing",
        f"{SCHEDULER}.no_such_method",
        "sglang.srt.managers.scheduler:NoSuchClass.method",
    ],
)
def test_a_missing_target_is_reported(target) -> None:
    found = problem(Seam(target, "call", "a test"))
    assert found is not None
    assert found.startswith(f"{target} is missing (")


def test_missing_parameters_are_reported_and_present_ones_are_not() -> None:
    target = f"{SCHEDULER}.get_next_batch_to_run"
    seam = Seam(target, "override", "a test", ("running_batch", "moon", "tide"))
    assert problem(seam) == f"{target} no longer takes moon, tide"


class Package:
    """Another SGLang, of the files that a test gives it."""

    def __init__(self, root: Path) -> None:
        self.source = SglangSource(root)

    def __call__(self, **files: str) -> None:
        for name, text in files.items():
            Path(self.source.root, f"{name}.py").write_text(text)

    def check(self, target: str, *parameters: str) -> str | None:
        return self.source.problem(Seam(target, "call", "a test", parameters))


@pytest.fixture
def package(tmp_path) -> Package:
    return Package(tmp_path)


def test_names_are_followed_through_imports_and_base_classes(package) -> None:
    package(
        one="from sglang.two import Base as Renamed\n"
        "from .two import function\n"
        "class Child(Renamed, Generic[int]):\n    pass\n",
        two="class Base:\n    def method(self, here): ...\n    field: int = 0\n"
        "def function(a, /, b, *rest, c, **others): ...\n",
    )
    assert package.check("sglang.one:Child.method", "here") is None
    no_longer = "sglang.one:Child.method no longer takes gone"
    assert package.check("sglang.one:Child.method", "gone") == no_longer
    assert package.check("sglang.one:Child.field") is None
    assert package.check("sglang.one:function", "a", "b", "rest", "c", "others") is None
    gone = "sglang.one:Child.other is missing (Child has no other)"
    assert package.check("sglang.one:Child.other") == gone


def test_branches_count_and_what_only_a_type_checker_sees_does_not(package) -> None:
    package(
        one="try:\n    import fast\nexcept ImportError:\n    def slow(): ...\n"
        "if TYPE_CHECKING:\n    from sglang.two import Hint\n"
        "if fast:\n    def one(): ...\nelse:\n    def two(): ...\n"
    )
    for name in ("slow", "one", "two"):
        assert package.check(f"sglang.one:{name}") is None
    assert package.check("sglang.one:Hint") == "sglang.one:Hint is missing (sglang.one has no Hint)"


@pytest.mark.parametrize(
    ("target", "parameters"),
    [
        ("sglang.one:Foreign.method", ()),  # a base class of another package
        ("sglang.one:Made.method", ()),  # a name that a call made
        ("sglang.one:anything", ()),  # of a star import
        ("sglang.one:Field.number", ()),  # an attribute of some classes
        ("sglang.one:Field", ("other",)),  # a constructor that a decorator makes
        ("torch:Tensor.to", ()),
    ],
)
def test_what_the_source_does_not_tell_is_left_to_an_import(package, target, parameters) -> None:
    package(
        one="import torch\nfrom elsewhere import *\n"
        "class Foreign(torch.nn.Module): ...\nMade = make()\n"
        "@dataclass\nclass Field:\n    number: int\n"
    )
    with pytest.raises(UndecidedError):
        package.check(target, *parameters)


def test_a_file_that_does_not_parse_is_left_to_an_import(package) -> None:
    package(one="def broken(:\n")
    with pytest.raises(UndecidedError):
        package.check("sglang.one:broken")
