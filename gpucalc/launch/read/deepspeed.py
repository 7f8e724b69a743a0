"""A DeepSpeed JSON as a row (keys of 0.19.6); the file, or a batch script that writes it."""

from __future__ import annotations

import json
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.launch import legality
from gpucalc.launch.read._settings import Settings, flat
from gpucalc.launch.read.shell.command import Command, find_command
from gpucalc.launch.read.shell.script import missing, read_script
from gpucalc.launch.target import Source

TABLE = "deepspeed"
OPTIMIZERS = {
    "adam": "adam",
    "adamw": "adam",
    "fusedadam": "adam",
    "onebitadam": "adam",
    "sgd": "sgd",
    "muon": "muon",
    "adafactor": "adafactor",
}
ACCUMULATED = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16"}
AUTO = 'is "auto", which Hugging Face fills in from its own arguments'


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells that a configuration means, and remarks."""
    document, command = _document(text, given)
    problems: list[str] = []
    notes = list(command.notes) if command else []
    world: int | None = given.get("n_gpus")
    per_node = None
    if command is not None:
        world, per_node = command.world(given, problems)
    reader = _Reader(document, {**given, "n_gpus": world}, problems, notes)
    cells = reader.cells()
    if per_node:
        cells["gpus_per_node"] = per_node
    if problems:
        raise DataError(*dict.fromkeys(problems))
    return {name: value for name, value in cells.items() if value is not None}, list(dict.fromkeys(notes))


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"the key {twice!r} stands twice in one section, which DeepSpeed refuses")
    return found


def _document(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], Command | None]:
    """The JSON of a text; or the one that a script writes from a here-document, with the script's command."""
    if text.lstrip().startswith("{"):
        lacking = list(dict.fromkeys(missing(text)))
        if lacking:
            raise DataError(
                f"the configuration needs {', '.join(lacking)}, which is not set in the text; write it above"
            )
        try:
            found = json.loads(text, object_pairs_hook=_pairs)
        except RecursionError:
            raise DataError("the JSON is nested too deeply") from None
        except ValueError as error:
            at = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
            where = at or str(error).split(";")[0]
            raise DataError(f"the DeepSpeed configuration is not JSON ({where})") from None
        return found, None
    script = read_script(text)
    documents = [d for d in script.documents if d.lstrip().startswith("{")]
    flags = ("--deepspeed_config", "--deepspeed-config", "--deepspeed")
    if not documents:
        named = next((w[i + 1] for w in script.commands for i, x in enumerate(w[:-1]) if x in flags[:2]), None)
        hint = f"pass {named}, which the command names" if named else "expected JSON that begins with {"
        raise DataError(f"no DeepSpeed configuration stands in the text; {hint}")
    return _document(documents[0], given)[0], find_command(text, flags, "DeepSpeed", given)


class _Reader:
    """A document on its way to a row, with everything that is wrong collected."""

    def __init__(self, document: dict[str, Any], given: dict[str, Any], problems: list[str], notes: list[str]) -> None:
        self.document, self.given, self.problems, self.notes = document, given, problems, notes

    def section(self, name: str) -> dict[str, Any]:
        found = self.document.get(name)
        if found is None:
            return {}
        if not isinstance(found, dict):
            self.problems.append(f"{name} is {json.dumps(found)[:40]}, expected a section in braces")
            return {}
        return found

    def whole(self, where: dict[str, Any], name: str, cell: str, least: int = 1) -> int | None:
        """A whole number; None when absent, or "auto" (a remark unless the cell is given)."""
        value = where.get(name)
        if value == "auto":
            if self.given.get(cell) is None:
                self.notes.append(f"{name} {AUTO}; state it with --set {cell}=N")
            return None
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < least:
            self.problems.append(f"{name} is {json.dumps(value)[:40]}, expected a whole number of {least} or more")
            return None
        return int(value)

    def enabled(self, name: str) -> bool | None:
        """Whether a section is enabled; None for "auto"."""
        value = self.section(name).get("enabled", False)
        if value == "auto":
            return None
        if not isinstance(value, bool):
            self.problems.append(f"{name}.enabled is {json.dumps(value)[:40]}, expected true or false")
            return False
        return value

    def cells(self) -> dict[str, Any]:
        settings = Settings(flat(self.document), TABLE, "DeepSpeed", self.given)
        settings.remark()
        self.problems += settings.problems
        self.notes += settings.notes
        zero = self.section("zero_optimization")
        tensor = self.section("tensor_parallel")
        expert = self.section("expert_parallel")
        stage = self.whole(zero, "stage", "zero_stage", least=0)
        if stage is not None and stage > 3:
            self.problems.append(f"zero_optimization.stage is {stage}; ZeRO has stages 0 to 3")
        tp = self.whole(tensor, "autotp_size", "tp", least=0) or self._nested_tp(tensor) or self.given.get("tp") or 1
        cp = self.whole(self.document, "sequence_parallel_size", "cp") or self.given.get("cp") or 1
        cells: dict[str, Any] = {
            "framework": "deepspeed",
            "tp": tp,
            "pp": self.given.get("pp") or 1,
            "cp": cp,
            "zero_stage": stage if stage is not None else None if zero.get("stage") == "auto" else 0,
            "sequence_parallel": False,
            "cp_kind": "ulysses" if cp > 1 else None,
            "vpp": 1,
        }
        if isinstance(zero.get("overlap_comm"), bool):
            cells["dp_overlap"] = zero["overlap_comm"]
        if isinstance(tensor.get("tp_overlap_comm"), bool):
            cells["tp_overlap"] = tensor["tp_overlap_comm"] and tp > 1
        if expert.get("enabled"):
            cells["ep"] = self.whole(expert, "autoep_size", "ep") or 1
            cells["etp"] = 1 if cells["ep"] > 1 else None
        cells |= self._precision() | self._batch(tp * cp * cells["pp"]) | self._offload(zero)
        group = (
            self.whole(zero, "mics_shard_size", "shard_group") if zero.get("mics_shard_size") not in {-1, 0} else None
        )
        if group:
            cells["shard_group"] = group
            if stage != 3:
                self.problems.append("mics_shard_size needs ZeRO-3 (zero_optimization.stage = 3)")
        kind = str(self.section("optimizer").get("type", "adam")).casefold()
        cells["optimizer"] = OPTIMIZERS.get(kind)
        if kind not in OPTIMIZERS:
            self.notes.append(f"optimizer {kind[:40]!r} is predicted as adam")
        # A pipeline stands in code: there is no degree in the file to refuse.
        judged = {n: v for n, v in {**cells, "n_gpus": cells.get("n_gpus")}.items() if v is not None and n != "pp"}
        if judged.get("n_gpus") and cells["pp"] > 1:
            judged.pop("n_gpus")
            if (stage or 0) >= 2:
                self.problems.append(f"DeepSpeed refuses ZeRO-{stage} with a pipeline")
        judged["experts"] = self.given.get("experts") or cells.get("ep", 1)  # the model is not in the file
        self.problems += legality.deepspeed(judged)
        self.notes.append(
            "not in the file, so yours to state with --set, or the usual is taken: model, seq_len, recompute, "
            "flash_attention"
        )
        return cells

    def _nested_tp(self, tensor: dict[str, Any]) -> int | None:
        """The degree where it stands in a section of its own."""
        inner = tensor.get("tp")
        return self.whole(inner, "tp_size", "tp") if isinstance(inner, dict) else None

    def _precision(self) -> dict[str, Any]:
        half, brain = self.enabled("fp16"), self.enabled("bf16")
        if self.enabled("torch_autocast") and not half and not brain:
            # Weights and states in fp32, products in 16 bit.
            brain = "bfloat16" in str(self.section("torch_autocast").get("dtype", "bfloat16"))
            half = not brain
        elif self.enabled("amp"):
            half = True
        if half and brain:
            self.problems.append("fp16 and bf16 are both enabled; DeepSpeed takes one")
        if not half and not brain and (half is None or brain is None):
            self.notes.append(f"fp16 or bf16 {AUTO}; bf16 is taken (--set precision=fp16)")
            brain = True
        found: dict[str, Any] = {"precision": "fp16" if half else "bf16" if brain else "fp32"}
        if brain and self.section("bf16").get("bf16_master_weights_and_grads") is True:
            found["precision"] = "bf16-true"
        wire = self.document.get("communication_data_type")
        reduced = ACCUMULATED.get(str(wire)) if wire not in {None, "auto"} else None
        if found["precision"] == "bf16":
            found["gradient_dtype"] = reduced or "bf16"
        accumulated = self.section("data_types").get("grad_accum_dtype")
        if accumulated not in {None, "auto"}:
            kind = ACCUMULATED.get(str(accumulated))
            if kind:
                found["grad_accum_dtype"] = kind
            elif accumulated not in {"fp16", "float16", "half"}:
                self.problems.append(
                    f"data_types.grad_accum_dtype is {json.dumps(accumulated)[:40]}; known: fp32, bf16, fp16"
                )
        return found

    def _offload(self, zero: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in ("offload_optimizer", "offload_param"):
            section = zero.get(name) or {}
            device = section.get("device", "cpu" if name in zero else "none") if isinstance(section, dict) else "none"
            if device in {"cpu", "nvme"}:
                found[{"offload_param": "offload_parameters"}.get(name, name)] = True
                if device == "nvme":
                    self.notes.append(f"{name}: NVMe is predicted as host memory")
        if zero.get("cpu_offload") is True:
            found["offload_optimizer"] = True
            self.notes.append("cpu_offload is deprecated; read as offload_optimizer")
        if found.get("offload_parameters") and zero.get("stage") != 3:
            self.problems.append("offload_param needs ZeRO of stage 3, whose parameters are gathered for use")
        if found and not zero.get("stage"):
            self.problems.append("offload of the optimizer needs ZeRO of at least 1")
        return found

    def _batch(self, ranks: int) -> dict[str, Any]:
        """train_batch_size = micro · accumulation · dp: what is missing follows, and the product must hold."""
        d, world = self.document, self.given.get("n_gpus")
        total = self.whole(d, "train_batch_size", "global_batch")
        micro = self.whole(d, "train_micro_batch_size_per_gpu", "micro_batch")
        steps = self.whole(d, "gradient_accumulation_steps", "global_batch")
        total = total if total is not None else self.given.get("global_batch")
        micro = micro if micro is not None else self.given.get("micro_batch")
        if total is None and micro is None:
            self.problems.append("neither train_batch_size nor train_micro_batch_size_per_gpu is stated")
            return {}
        found: dict[str, Any] = {"global_batch": total, "micro_batch": micro}
        if world is None:
            if not (total and micro and steps):
                return found
            if total % (micro * steps):
                self.problems.append(
                    f"train_batch_size {total} is not a multiple of micro·accumulation = {micro}·{steps} = "
                    f"{micro * steps}"
                )
                return found
            found["dp"] = total // (micro * steps)
            found["n_gpus"] = found["dp"] * ranks
            self.notes.append(
                f"train_batch_size / (micro · accumulation) gives dp = {found['dp']}, so {found['n_gpus']} GPUs"
            )
            return found
        found["n_gpus"] = world
        if world % ranks:
            return found  # the rules say so
        dp = found["dp"] = world // ranks
        if total and micro and steps is None:
            steps = total // (micro * dp)
        elif total and steps and micro is None:
            micro = total // (dp * steps)
        elif total and micro is None:
            micro, steps = total // dp, 1
        elif micro and total is None:
            steps = steps or 1
            total = micro * steps * dp
        if total and micro and steps is not None and total != micro * steps * dp:
            self.problems.append(
                f"train_batch_size {total} is not micro·accumulation·dp = {micro}·{steps}·{dp} = {micro * steps * dp}"
            )
        return found | {"global_batch": total, "micro_batch": micro}


SOURCE = Source(("deepspeed",), read, "the JSON, or a script that writes it")
