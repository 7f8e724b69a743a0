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
from gpucalc.launch.read.shell.command import Command, find_command
from gpucalc.launch.read.shell.script import missing, read_script

KNOWN = frozenset(
    re.findall(
        r"\S+",
        """
    model.name model.flavor model.converters training.seq_len training.local_batch_size training.global_batch_size
    training.max_context_length training.num_tokens_per_microbatch_per_dp_rank training.num_tokens_per_train_step
    training.dtype training.mixed_precision_param training.mixed_precision_reduce training.enable_cpu_offload
    parallelism.data_parallel_replicate_degree parallelism.data_parallel_shard_degree
    parallelism.fsdp_reshard_after_forward parallelism.tensor_parallel_degree parallelism.pipeline_parallel_degree
    parallelism.pipeline_parallel_schedule parallelism.pipeline_parallel_layers_per_stage
    parallelism.pipeline_parallel_first_stage_less_layers parallelism.pipeline_parallel_last_stage_less_layers
    parallelism.pipeline_parallel_microbatch_size parallelism.num_pp_microbatches parallelism.context_parallel_degree
    parallelism.context_parallel_rotate_method parallelism.expert_parallel_degree
    parallelism.expert_tensor_parallel_degree parallelism.enable_sequence_parallel activation_checkpoint
    activation_checkpoint.mode activation_checkpoint.selective_ac_option compile.enable compile.components
    parallelism.enable_async_tensor_parallel compile.enable_async_tensor_parallel""",
    )
)
SILENT = frozenset(
    re.findall(
        r"\S+",
        """
    model.hf_assets_path model.tokenizer_path model.print_after_conversion model.tokenizer_name training.dataset
    training.dataset_path training.max_norm training.steps training.gc_freq training.gc_debug training.deterministic
    training.seed training.disable_cuda_graphs parallelism.disable_loss_parallel parallelism.module_fqns_per_model_part
    parallelism.context_parallel_load_balancer
    parallelism.expert_parallel_comm_backend parallelism.pipeline_parallel_expert_parallel_overlap
    activation_checkpoint.early_stop activation_checkpoint.preserve_rng_state compile.backend
    activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns""",
    )
)


def settings(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], Command | None]:
    """The values of a text, and the command that starts it where it is a script."""
    try:
        return _flat(parse_toml(text)), None
    except tomllib.TOMLDecodeError as error:
        if any(line.lstrip().startswith("[") and line.rstrip().endswith("]") for line in text.splitlines()):
            documents = _documents(text, given)
            if documents is None:
                raise DataError(f"the torchtitan settings are not TOML ({error})") from None
            return documents
    if "\ndef " in "\n" + text and ".parallelism." in text:
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
    known = {f"--{key}" for key in (*KNOWN, *SILENT)} | {"--job.config_file", "--job.config-file"}
    command = find_command(text, known | {f.replace("_", "-") for f in known}, "torchtitan", given)
    found = dict(values)
    for flag, words in command.flags():
        key = flag.removeprefix("--").replace("-", "_")
        if key == "job.config_file" and not values:
            raise DataError(
                f"the settings stand in {' '.join(words) or 'a file'}, which is not opened; pass that file instead"
            )
        if "." in key:
            lacking = missing(" ".join(words))
            if lacking and key in KNOWN:
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
    for node in ast.walk(functions[0]):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = ast.unparse(node.targets[0])
        if "." not in target:
            called = node.value
            if isinstance(called, ast.Call) and isinstance(called.func, ast.Name):
                found["recipe"] = called.func.id
            continue
        found[target.split(".", 1)[1]] = _constant(node.value)
    return found


def _constant(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return "None" if node.value is None else node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _constant(node.operand)
        return -inner if isinstance(inner, int) else ast.unparse(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _constant(node.left), _constant(node.right)
        return left * right if isinstance(left, int) and isinstance(right, int) else ast.unparse(node)
    return ast.unparse(node)[:80]
