"""torchtitan settings as a row: TOML (v0.1 to v0.2.2), --section.key flags, or a recipe's plain assignments."""

from __future__ import annotations

import math
import re
from typing import Any

from gpucalc.core.errors import DataError, GpucalcError, UsageError, shown, suggestion
from gpucalc.launch import legality
from gpucalc.launch import stages as dealt
from gpucalc.launch.read._settings import Settings
from gpucalc.launch.read._torchtitan_settings import TABLE, settings
from gpucalc.launch.read.shell.command import Command
from gpucalc.launch.target import Source
from gpucalc.launch.write.torchtitan import FLAVORS
from gpucalc.models.model import load_model

SECTIONS = ("model", "training", "parallelism", "activation_checkpoint", "compile", "quantize")
SCHEDULES = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved",
    "dualpipev": "dualpipe-v",
    "loopedbfs": "gpipe",
    "interleavedzerobubble": "zb-h1",
    "zbvzerobubble": "zb-1p",
}
SINGLE = {"gpipe", "1f1b"}
V_SHAPED = {"dualpipev", "zbvzerobubble"}
INEXACT = {
    "loopedbfs": "LoopedBFS is predicted as GPipe",
    "interleavedzerobubble": "InterleavedZeroBubble is predicted as ZB-H1, without its chunks",
    "zbvzerobubble": "ZBVZeroBubble is predicted as ZB-1p, which has its memory and no bubble of the first order",
}
TOKENS = (
    "training.max_context_length",
    "training.num_tokens_per_microbatch_per_dp_rank",
    "training.num_tokens_per_train_step",
)
RECIPE_MODES = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget", "None": "none"}


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells that settings mean, and remarks."""
    values, command = settings(text, given)
    return _Reader(values, command, given).result()


class _Reader:
    """Settings on their way to a row, with everything that is wrong collected."""

    def __init__(self, values: dict[str, Any], command: Command | None, given: dict[str, Any]) -> None:
        self.values, self.command, self.given = values, command, given
        self.problems: list[str] = []
        self.notes: list[str] = list(command.notes) if command else []
        if not any(key.split(".")[0] in SECTIONS or key == "recipe" for key in values):
            raise DataError("no settings of torchtitan stand in the text ([training], [parallelism] …)")
        self.recipe = "recipe" in values or "converters" in values or "training.max_context_length" in values
        said = Settings(values, TABLE, "torchtitan", given)
        said.remark()
        self.problems += said.problems
        self.notes += said.notes

    def whole(self, key: str, default: int, least: int = 1) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or (value < least and value != default):
            self.problems.append(f"{key} is {str(value)[:40]!r}, expected a whole number of {least} or more")
            return default
        return value

    def word(self, key: str, default: str, choices: tuple[str, ...]) -> str:
        value = str(self.values.get(key, default))
        if value in choices:
            return value
        self.problems.append(f"{key} is {shown(value)}{suggestion(value, choices, 1)}")
        return default

    def result(self) -> tuple[dict[str, Any], list[str]]:
        p = "parallelism."
        cells: dict[str, Any] = {"framework": "torchtitan", "model": self._model()}
        cells["tp"] = self.whole(p + "tensor_parallel_degree", 1)
        cells["pp"] = self.whole(p + "pipeline_parallel_degree", 1)
        cells["cp"] = self.whole(p + "context_parallel_degree", 1)
        cells["ep"] = self.whole(p + "expert_parallel_degree", 1)
        self._data_parallel(cells)
        if any(key in self.values for key in TOKENS):
            self._tokens(cells)
        else:
            self._batch(cells)
        self._pipeline(cells)
        cells |= self._recompute(cells) | self._precision()
        always = not self.recipe
        cells["sequence_parallel"] = cells["tp"] > 1 and (
            always or bool(self.values.get(p + "enable_sequence_parallel", True))
        )
        if cells["cp"] > 1:
            rotate = self.word(p + "context_parallel_rotate_method", "allgather", ("allgather", "alltoall"))
            cells["cp_kind"] = "ag" if rotate == "allgather" else "ring"
        if self.values.get(p + "disable_loss_parallel") is True and cells["tp"] > 1:
            cells["vocab_parallel_loss"] = False
        if self.values.get("debug.moe_force_load_balance") is True:
            cells["expert_imbalance"] = 1.0
        if self.values.get("optimizer.early_step_in_backward") is True:
            cells["optimizer_in_backward"] = True
        if cells["ep"] > 1:
            backend = self.values.get(p + "expert_parallel_comm_backend", self.values.get("moe_comm_backend"))
            if backend not in {None, "standard"}:
                cells["dispatcher"] = "fused"
        kind = str(self.values.get("optimizer.name", "AdamW")).casefold()
        if "adam" not in kind:
            self.notes.append(f"optimizer.name {kind[:30]} is predicted as adam: time and memory may differ either way")
        if self.values.get("training.enable_cpu_offload") is True:
            cells["offload_optimizer"] = True
            self.notes.append("enable_cpu_offload: parameters and gradients in host memory are not modelled")
        self._compiled(cells)
        self._judge(cells)
        if self.problems:
            raise DataError(*dict.fromkeys(self.problems))
        return {n: v for n, v in cells.items() if v is not None}, list(dict.fromkeys(self.notes))

    def _compiled(self, cells: dict[str, Any]) -> None:
        """What is compiled: blocks are fused by it, and the overlap of tensor parallelism needs it."""
        parts = self.values.get("compile.components", ["model", "loss"])
        parts = parts if isinstance(parts, list) else str(parts).split(",")
        on = bool(self.values.get("compile.enable", False))
        if not (on and "model" in parts):
            cells |= {"fused_norm": False, "fused_gate": False, "fused_rope": False}
            why = f"compiles {', '.join(map(str, parts))} alone" if on else "compile is off"
            self.notes.append(f"{why}: norms, gates and rotary embeddings are predicted unfused")
        if str(self.values.get("loss", "")).startswith("Chunked"):
            cells["loss_kernel"] = "chunked"
        elif not (on and "loss" in parts):
            cells["loss_kernel"] = "eager"
        if self.values.get("parallelism.enable_async_tensor_parallel") or self.values.get(
            "compile.enable_async_tensor_parallel"
        ):
            if not (on and "model" in parts):
                self.problems.append("enable_async_tensor_parallel needs compile with the component model")
            cells["tp_overlap"] = cells["tp"] > 1

    def _model(self) -> str | None:
        stated: str | None = self.given.get("model")
        recipe = str(self.values.get("recipe", ""))
        name, flavor = str(self.values.get("model.name", "")), str(self.values.get("model.flavor", ""))
        if recipe and not name:
            found, what = None, f"recipe {recipe[:40]!r}"
        else:
            plain = flavor
            for suffix in ("_flex_attn", "_flex", "_varlen_attn", "_varlen", "_irope"):
                plain = plain.removesuffix(suffix)
            found = next((preset for preset, known in FLAVORS.items() if known == (name, plain)), None)
            what = f"model.name {name[:40]!r} with flavor {flavor[:40]!r}" if name or flavor else "model.flavor"
        if stated:
            return stated
        if found is None:
            self.problems.append(f"{what} says no shape that is known here; name the model (--set model=llama-3.1-8b)")
        return found

    def _layers(self, cells: dict[str, Any]) -> int | None:
        stated: int | None = self.given.get("layers")
        if stated or not cells.get("model"):
            return stated
        try:
            return load_model(str(cells["model"])).layers
        except GpucalcError as error:
            self.problems.extend(error.problems if isinstance(error, UsageError) else [str(error)])
            return None

    def _data_parallel(self, cells: dict[str, Any]) -> None:
        p = "parallelism."
        replicate = self.whole(p + "data_parallel_replicate_degree", 1)
        shard = self.whole(p + "data_parallel_shard_degree", -1)
        others = replicate * cells["tp"] * cells["pp"] * cells["cp"]
        per_node = None
        if self.command is not None:
            lacking: list[str] = []
            world, per_node = self.command.world(self.given, lacking)
            if shard == -1 or world:
                self.problems += lacking
        else:
            world = self.given.get("n_gpus")
        if shard == -1 and world:
            if world % others:
                self.problems.append(
                    f"{world} GPUs are not a multiple of replicate·tp·pp·cp = {others}, so the rest for "
                    "data_parallel_shard_degree = -1 is not whole"
                )
            shard = max(1, world // others)
        if shard == -1:
            self.notes.append("data_parallel_shard_degree = -1 means the rest: state the GPUs with --set n_gpus=N")
            cells["zero_stage"] = self._zero(True, cells["pp"])
            return
        if world and others * shard != world and world % others == 0:
            self.problems.append(
                f"replicate·shard·tp·pp·cp = {replicate}·{shard}·{cells['tp']}·{cells['pp']}·{cells['cp']} = "
                f"{others * shard}, not the {world} GPUs"
            )
        cells["dp"] = replicate * shard
        cells["n_gpus"] = world or others * shard
        cells["gpus_per_node"] = per_node
        # Experts are sharded over all ranks of the replica that hold them, where the rest has nothing to share.
        etp = self.whole(p + "expert_tensor_parallel_degree", 1)
        holders = shard * cells["cp"] * cells["tp"] // max(1, cells["ep"] * etp)
        sharded = shard > 1 or cells["cp"] > 1 or (cells["ep"] > 1 and holders > 1)
        cells["zero_stage"] = self._zero(sharded, cells["pp"])
        if sharded and replicate > 1:
            cells["shard_group"] = shard * cells["cp"]

    def _zero(self, sharded: bool, pp: int) -> int:
        reshard = self.word("parallelism.fsdp_reshard_after_forward", "default", ("default", "always", "never"))
        if not sharded:
            return 0
        return 2 if reshard == "never" or (reshard == "default" and pp > 1) else 3

    def _batch(self, cells: dict[str, Any]) -> None:
        cells["seq_len"] = self.whole("training.seq_len", 2048)
        local = self.whole("training.local_batch_size", 8)
        total = self.whole("training.global_batch_size", -1)
        micro = local
        if cells["pp"] > 1:
            micro = self.whole("parallelism.pipeline_parallel_microbatch_size", 1)
            if local % micro:
                self.problems.append(
                    f"training.local_batch_size {local} is not a multiple of pipeline_parallel_microbatch_size {micro}"
                )
        cells["micro_batch"] = micro
        if "dp" not in cells:
            cells["global_batch"] = total if total > 0 else None
            return
        share = local * cells["dp"]
        cells["global_batch"] = total if total > 0 else share
        if total > 0 and total % share:
            self.problems.append(
                f"training.global_batch_size {total} is not a multiple of local·dp = {local}·{cells['dp']} = {share}"
            )

    def _tokens(self, cells: dict[str, Any]) -> None:
        t = "training."
        seq = cells["seq_len"] = self.whole(t + "max_context_length", 2048)
        for key, cell in (
            ("num_tokens_per_microbatch_per_dp_rank", "micro_batch"),
            ("num_tokens_per_train_step", "global_batch"),
        ):
            tokens = self.whole(t + key, seq)
            if tokens % seq:
                self.problems.append(f"{t}{key} {tokens} is not a multiple of max_context_length {seq}")
            cells[cell] = max(1, tokens // seq)
        many = self.whole("parallelism.num_pp_microbatches", 1)
        if "dp" in cells:
            share = cells["dp"] * cells["micro_batch"] * many
            if cells["global_batch"] % share:
                self.problems.append(
                    f"{cells['global_batch']} sequences a step are not a multiple of dp·micro·num_pp_microbatches, "
                    f"which is {share}"
                )

    def _pipeline(self, cells: dict[str, Any]) -> None:
        p, pp = "parallelism.", cells["pp"]
        cells["vpp"] = 1
        if pp == 1:
            return
        name = str(self.values.get(p + "pipeline_parallel_schedule", "1F1B")).casefold()
        if name not in SCHEDULES:
            self.problems.append(f"pipeline_parallel_schedule is {shown(name)}{suggestion(name, SCHEDULES, 1)}")
            return
        cells["schedule"] = SCHEDULES[name]
        if name in INEXACT:
            self.notes.append(INEXACT[name])
        single = name in SINGLE
        each = self.values.get(p + "pipeline_parallel_layers_per_stage")
        layers = self._layers(cells)
        chunks = 1 if single else 2
        fewer = [self.whole(f"{p}pipeline_parallel_{end}_stage_less_layers", 1, least=0) for end in ("first", "last")]
        if each is not None and layers:
            each, less = self.whole(p + "pipeline_parallel_layers_per_stage", 1), sum(fewer)
            stages = -(-(layers + less) // each)
            if stages % pp:
                self.problems.append(
                    f"{layers} layers and {less} fewer at the ends, {each} a stage, make {stages} stages, "
                    f"which pp={pp} does not divide"
                )
                return
            chunks = stages // pp
        if single and chunks != 1:
            self.problems.append(f"{name} has one stage a rank, but the layers make {chunks}")
        if not single and chunks < 2:
            self.problems.append(f"{name} needs at least two stages a rank, but the layers make {chunks}")
        if name in V_SHAPED and chunks != 2:
            self.problems.append(f"{name} needs two stages a rank, but the layers make {chunks}")
        if SCHEDULES[name] == "interleaved":
            cells["vpp"] = chunks
        if layers and not self.problems:
            depths = dealt.of_torchtitan(layers, pp * chunks, *fewer)
            if not depths:
                self.problems.append(f"{layers} layers, {fewer[0]} and {fewer[1]} fewer at the ends, are too few")
                return
            if name in V_SHAPED:  # a rank holds a stage of each half, mirrored
                depths = [*depths[:pp], *reversed(depths[pp:])]
            cells |= dealt.ends(dealt.of_ranks(depths, pp))

    def _recompute(self, cells: dict[str, Any]) -> dict[str, Any]:
        if "activation_checkpoint" in self.values:
            kind = str(self.values["activation_checkpoint"]).split(".")[0].split("(")[0]
            mode, option = RECIPE_MODES.get(kind, "memory_budget"), "op"
        else:
            modes = ("none", "selective", "full", "memory_budget")
            mode = self.word("activation_checkpoint.mode", "selective", modes)
            option = str(self.values.get("activation_checkpoint.selective_ac_option", "2"))
        if mode == "memory_budget":
            self.notes.append("activation checkpointing by memory budget: the least recomputation that fits is taken")
            return {}
        if mode != "selective" or option == "op":
            return {"recompute": mode}
        if not option.isdigit() or not 1 <= int(option) <= 10_000:
            self.problems.append(
                f"activation_checkpoint.selective_ac_option is {option[:40]!r}, expected op or a number"
            )
            return {}
        layers = self._layers(cells)
        if not layers or int(option) == 1:
            return {"recompute": "full"}
        depth = math.ceil(layers / cells["pp"])
        return {"recompute": "full", "recompute_layers": math.ceil(depth / int(option))}

    def _precision(self) -> dict[str, Any]:
        converters = self.values.get("converters", self.values.get("model.converters", []))
        names = converters if isinstance(converters, list) else str(converters).split(",")
        low = {"float8": "fp8", "mx": "mxfp8", "Float8": "fp8", "MXFP8": "mxfp8", "NVFP4": "nvfp4"}
        parts = {part for name in names for part in re.split(r"\.|Linear|Grouped", str(name))}
        kinds = {kind for part, kind in low.items() if part in parts}
        if len(kinds) > 1:
            self.problems.append(f"the converters name several types of products: {', '.join(sorted(kinds))}")
        if any("LoRA" in str(name) for name in names):
            self.problems.append("LoRAConverter: adapters are of gpucalc tune --method lora")
        if kinds:
            key = "quantize.linear.float8.enable_fsdp_float8_all_gather"
            gathered = {"fp8_params": bool(self.values[key])} if key in self.values else {}
            return {"precision": kinds.pop(), **gathered}
        whole = self.word("training.dtype", "float32", ("float32", "bfloat16"))
        mixed = self.word("training.mixed_precision_param", "bfloat16", ("bfloat16", "float32"))
        if whole == "bfloat16":
            return {"precision": "bf16-true"}
        return {"precision": "bf16" if mixed == "bfloat16" else "fp32"}

    def _judge(self, cells: dict[str, Any]) -> None:
        try:
            model = load_model(str(cells["model"])) if cells.get("model") else None
        except GpucalcError:
            model = None
        etp = self.whole("parallelism.expert_tensor_parallel_degree", 1)
        judged = dict(cells)
        if model is not None:
            judged |= {"heads": model.heads, "kv_heads": model.kv_heads, "latent": model.is_mla}
            judged |= {"experts": model.experts, "tied": model.tied_embeddings}
            if model.experts:
                cells["etp"] = etp if cells["ep"] > 1 else cells["tp"]
        judged["etp"] = etp
        replicate = self.whole("parallelism.data_parallel_replicate_degree", 1)
        if "dp" in cells:
            judged["dp_shard"] = cells["dp"] // replicate
        self.problems += legality.torchtitan(judged, recipe=self.recipe)
        parallel = cells["tp"] > 1 or cells["pp"] > 1 or cells["ep"] > 1
        if replicate > 1 and cells.get("zero_stage") == 0 and parallel:
            self.problems.append(
                "data_parallel_replicate_degree > 1 with tp, pp or ep needs data_parallel_shard_degree > 1"
            )


SOURCE = Source(("torchtitan",), read, "TOML, --section.key flags, or a recipe")
