"""torchtitan settings as section.key → value: from TOML, from --section.key flags, or from a recipe's assignments.

A recipe is Python: its syntax tree is read, and nothing of it is run.
"""

from __future__ import annotations

import ast
import re
import tomllib
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.core.toml import parse_toml
from gpucalc.launch.flags import flags
from gpucalc.launch.read.shell.command import Command, find_command
from gpucalc.launch.read.shell.manifest import as_script
from gpucalc.launch.read.shell.script import missing, read_script
from gpucalc.launch.torchtitan_registry import recipe_settings

TABLE = "torchtitan"
# Classes whose arguments are settings of a section, and those that stand for themselves.
CLASSES = {
    "TrainingConfig": "training",
    "ParallelismConfig": "parallelism",
    "CompileConfig": "compile",
    "DebugConfig": "debug",
    "CommConfig": "comm",
}
WHOLE = ("activation_checkpoint", "loss")
CHECKPOINTS = {"full": "FullAC", "selective": "SelectiveAC", "memory-budget": "MemoryBudgetAC", "none": "None"}


def settings(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], Command | None]:
    """The values of a text, and the command that starts it where it is a script."""
    text = as_script(text)
    try:
        return _flat(parse_toml(text)), None
    except tomllib.TOMLDecodeError as error:
        if any(line.lstrip().startswith("[") and line.rstrip().endswith("]") for line in text.splitlines()):
            documents = _documents(text, given)
            if documents is None:
                raise DataError(f"the torchtitan settings are not TOML ({error})") from None
            return documents
    if "\ndef " in "\n" + text and re.search(r"\.(parallelism|training)\.|ParallelismConfig|TrainingConfig", text):
        return _recipe(text), None
    return _flags(text, {}, given)


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, dict):
            found |= _flat(item, f"{prefix}{name}.")
        else:
            found[prefix + name] = item
    return found


def _documents(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], Command | None] | None:
    """A script that writes its settings from a here-document."""
    try:
        documents = read_script(text).documents
    except DataError:
        return None
    for document in documents:
        try:
            return _flags(text, _flat(parse_toml(document)), given)
        except tomllib.TOMLDecodeError:
            continue
    return None


def _flags(text: str, values: dict[str, Any], given: dict[str, Any]) -> tuple[dict[str, Any], Command | None]:
    """--section.key value flags, which override a file."""
    known = {f"--{key}" for key in flags(TABLE)} | {"--job.config_file", "--job.config-file", "--module"}
    command = find_command(text, known | {f.replace("_", "-") for f in known}, "torchtitan", given)
    stated = {flag: words for flag, words in command.flags() if words}
    base = recipe_settings(stated["--config"][0]) if {"--module", "--config"} <= set(stated) else {}
    found = {**base, **values}
    for word in command.words:
        kind = re.match(r"activation[-_]checkpoint:(full|selective|memory-budget|none)", word)
        if kind:
            found["activation_checkpoint"] = CHECKPOINTS[kind[1]]
    for flag, words in command.flags():
        key = flag.removeprefix("--").replace("-", "_")
        if ".no_" in key and key not in flags(TABLE):  # a switch that is off
            key, words = key.replace(".no_", "."), ["false"]
        if key == "job.config_file" and not values:
            raise DataError(
                f"the settings stand in {' '.join(words) or 'a file'}, which is not opened; pass that file instead"
            )
        if "." in key:
            lacking = missing(" ".join(words))
            if lacking and key in flags(TABLE) and flags(TABLE)[key].use == "read":
                raise DataError(f"{flag}: {', '.join(lacking)} is not set in the text; write its value above")
            found[key] = _typed(words[0] if words else "true")
    return found, command


def _typed(text: str) -> Any:
    word = text.strip().casefold()
    if word in {"true", "false"}:
        return word == "true"
    digits = word.removeprefix("-")
    return int(word) if digits.isdigit() and len(digits) < 15 else text


def _recipe(text: str) -> dict[str, Any]:
    """The plain assignments of a recipe, read from its syntax tree; nothing is run."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise DataError("the recipe is not Python that can be read") from None
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    if len(functions) != 1:
        names = ", ".join(f.name for f in functions[:5])
        raise DataError(f"the recipe has {len(functions)} functions ({names}); leave the one that is meant")
    found: dict[str, Any] = {}
    module = re.search(r"from torchtitan\.models\.(\w+)", text)
    for node in functions[0].body:
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            found |= _arguments(call, module[1] if module else "")
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = ast.unparse(node.targets[0])
        called = node.value.func if isinstance(node.value, ast.Call) else None
        if "." not in target:
            if isinstance(called, ast.Name) and called.id not in CLASSES:
                found = {**recipe_settings(called.id), **found}
            continue
        key = target.split(".", 1)[1]
        if not (isinstance(called, ast.Name) and called.id in CLASSES):
            found[key] = _class(node.value) if key in WHOLE else _constant(node.value)
    return found


def _arguments(call: ast.Call, module: str) -> dict[str, Any]:
    """What a call of a configuration's class sets: the fields of its section, a converter, the model's flavor."""
    name = ast.unparse(call.func)
    found: dict[str, Any] = {}
    section = CLASSES.get(name.rpartition(".")[2])
    if section:
        found = {f"{section}.{k.arg}": _constant(k.value) for k in call.keywords if k.arg}
    elif name.endswith("Trainer.Config"):
        found = {k.arg: _class(k.value) for k in call.keywords if k.arg in WHOLE}
    elif name == "model_registry" and call.args:
        kinds = [n for n in ast.walk(call) if isinstance(n, ast.Call) and "Converter" in ast.unparse(n.func)]
        found = {"model.name": module, "model.flavor": _constant(call.args[0])}
        found |= {"converters": [ast.unparse(n.func).split(".")[0] for n in kinds]} if kinds else {}
        found |= {f"{k.arg}": _constant(k.value) for k in call.keywords if k.arg == "moe_comm_backend"}
    return found


def _class(node: ast.expr) -> str:
    """The class of a `Class.Config(…)`; None of a None."""
    return ast.unparse(node).split("(")[0].split(".")[0]


def _constant(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return "None" if node.value is None else node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _constant(node.operand)
        return -inner if isinstance(inner, int) else ast.unparse(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _constant(node.left), _constant(node.right)
        return left * right if isinstance(left, int) and isinstance(right, int) else ast.unparse(node)
    if isinstance(node, ast.List | ast.Tuple):
        return [_constant(item) for item in node.elts]
    return ast.unparse(node)[:80]
