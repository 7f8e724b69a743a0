"""The import rule, by the syntax trees; and what starting up loads, by `sys.modules`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gpucalc"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A module may import modules of its own rank and of lower ones.
RANKS = (
    ("errors", "units", "vocabulary", "toml_text"),
    ("formula", "columns", "label"),
    ("ledger", "rows"),
    ("formulas",),
    ("catalog", "defaults", "hardware", "model*"),
    ("profile", "efficiency*", "bands", "serving_columns", "serving_formats", "serving_engine"),
    ("bands", "candidates", "estimate", "job*", "serving_job"),
    (
        "launch",
        "rank",
        "run_*",
        "storage_job",
        "power_job",
        "claims*",
        "search*",
        "serving_search",
        "explain*",
        "validat*",
        "calibrat*",
        "render",
        "sweep*",
        "plot",
        "report",
        "api*",
        "variation",
        "sizing*",
        "posttraining*",
        "recipe",
        "scaling",
        "whatif",
        "diagnose*",
        "schedule",
        "mixed*",
    ),
    ("cli", "__main__"),
)
OUTSIDE = {"numpy", "typer", "tabulate", "pandas", "matplotlib", "pyarrow"}
WHERE_OUTSIDE_IS_ALLOWED = {"typer": ("cli",), "tabulate": ("render/table.py",)}


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _rank(part: str) -> int | None:
    for rank, names in enumerate(RANKS):
        if any(part == n or (n.endswith("*") and part.startswith(n[:-1])) for n in names):
            return rank
    return None


def _part(name: str) -> str:
    return name.split("/")[0].removesuffix(".py")


def _imports(path: Path, *, top_level: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = _top(tree) if top_level else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            if node.module == "gpucalc" or node.module.startswith("gpucalc."):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _top(tree: ast.Module) -> Iterator[ast.AST]:
    """Statements that run on import; a TYPE_CHECKING block does not."""
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_go_downwards(path: Path) -> None:
    part = _part(_name(path))
    if part == "__init__":
        return
    own = _rank(part)
    assert own is not None, f"{part} has no rank: add it to RANKS"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checked = {id(n) for block in tree.body if isinstance(block, ast.If) for n in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in checked or not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        pieces = node.module.split(".")
        if pieces[0] != "gpucalc":
            continue
        targets = (
            [pieces[1]] if len(pieces) > 1 else [a.name for a in node.names if (PACKAGE / f"{a.name}.py").exists()]
        )
        for target in targets:
            rank = _rank(target)
            assert rank is not None, f"{target} has no rank: add it to RANKS"
            assert rank <= own, f"{_name(path)} imports {target}, which stands above it"


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_outside_packages_stand_where_they_may(path: Path) -> None:
    name = _name(path)
    for module in _imports(path):
        root = module.split(".")[0]
        places = WHERE_OUTSIDE_IS_ALLOWED.get(root)
        if places:
            assert any(name.startswith(place) for place in places), f"{name} imports {root}"
    for module in _imports(path, top_level=True):
        assert module.split(".")[0] not in {"pandas", "matplotlib", "pyarrow"}, f"{name} imports {module} on start"


@pytest.mark.parametrize("path", [p for p in MODULES if _part(_name(p)) == "formulas"], ids=_name)
def test_formulas_import_numpy_and_the_foundations_only(path: Path) -> None:
    allowed = {"__future__", "numpy", "collections", "typing", "math"}
    for module in _imports(path):
        if module.startswith("gpucalc"):
            assert module.split(".")[1] in {"formula", "units", "errors", "formulas"}, module
        else:
            assert module.split(".")[0] in allowed, module


def _loaded(*arguments: str) -> set[str]:
    """Top-level modules that a command has loaded when it ends."""
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('\\x00' + ' '.join(sorted({m.split('.')[0] for m in sys.modules})), "
        "file=sys.stderr))\n"
        f"sys.argv = ['gpucalc', *{list(arguments)!r}]\n"
        "from gpucalc.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, input="")
    return set(done.stderr.rsplit("\x00", 1)[1].split())


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("--version",), ("plan", "--help"), ("eval", "--help"), ("hw", "list", "--help"), ("pln",)],
)
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert not _loaded(*arguments) & {"numpy", "pandas", "tabulate", "rich", "pydantic", "matplotlib"}


def test_the_database_needs_no_numpy() -> None:
    assert not _loaded("hw", "show", "mi300x") & {"numpy", "pandas"}


@pytest.mark.parametrize(
    "arguments",
    [
        "comm all_reduce 1GiB --gpu h100-sxm-80gb --gpus 8",
        "roofline gemm 8192 8192 8192 --gpu h100-sxm-80gb",
        "plan llama-3.1-8b --gpu h100-sxm-80gb --gpus 8 --seq-len 4096 --global-batch 64",
        "explain llama-3.1-8b --gpu h100-sxm-80gb --gpus 8 --seq-len 4096 --global-batch 64 --layout dp8-mbs1-zero3",
    ],
)
def test_a_one_shot_query_loads_no_pandas(arguments: str) -> None:
    assert not _loaded(*arguments.split()) & {"pandas", "matplotlib", "pyarrow", "rich", "scipy"}
