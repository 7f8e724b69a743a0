"""Where outside packages may be imported, by the syntax trees; and what starting up loads, by `sys.modules`.

The order of the packages themselves is held by import-linter (`lint-imports`, contracts in pyproject.toml).
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gpucalc"
MODULES = sorted(PACKAGE.rglob("*.py"))

OUTSIDE = {"numpy", "typer", "tabulate", "pandas", "matplotlib", "pyarrow"}
WHERE_OUTSIDE_IS_ALLOWED = {"typer": ("cli",), "tabulate": ("output/table.py",)}


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


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
            assert module.split(".")[1] in {"core", "formulas"}, module
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


@pytest.mark.parametrize("command", ["comm all_reduce 1GiB --gpu h100-sxm-80gb --gpus 8", "hw show mi300x", "plan"])
def test_a_command_imports_only_its_own_module(command: str) -> None:
    from gpucalc.cli.app import Application

    words = command.split()
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('\\x00' + ' '.join(sys.modules), file=sys.stderr))\n"
        f"sys.argv = ['gpucalc', *{words!r}]\n"
        "from gpucalc.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, input="")
    loaded = {name.removeprefix("gpucalc.cli.") for name in done.stderr.rsplit("\x00", 1)[1].split()}
    assert loaded & set(Application.modules) == {words[0]}


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
