"""A Megatron-LM command or script as a row (names and defaults of megatron/training/arguments.py, d98e8a64)."""

from __future__ import annotations

import re
from typing import Any

from gpucalc.core.errors import DataError
from gpucalc.launch import legality
from gpucalc.launch.read.shell.command import Command, find_command, near_flag
from gpucalc.launch.shapes import same_shape
from gpucalc.launch.target import Source

INTEGERS = {
    "--num-layers": "layers",
    "--hidden-size": "hidden",
    "--num-attention-heads": "heads",
    "--num-query-groups": "query_groups",
    "--kv-channels": "head_dim",
    "--ffn-hidden-size": "ffn_hidden",
    "--vocab-size": "vocab",
    "--padded-vocab-size": "padded_vocab",
    "--seq-length": "seq_len",
    "--max-position-embeddings": "positions",
    "--num-experts": "experts",
    "--moe-router-topk": "experts_per_token",
    "--moe-ffn-hidden-size": "expert_ffn_hidden",
    "--moe-shared-expert-intermediate-size": "shared_width",
    "--tensor-model-parallel-size": "tp",
    "--pipeline-model-parallel-size": "pp",
    "--context-parallel-size": "cp",
    "--expert-model-parallel-size": "ep",
    "--expert-tensor-parallel-size": "etp",
    "--num-layers-per-virtual-pipeline-stage": "chunk_layers",
    "--num-virtual-stages-per-pipeline-rank": "chunks",
    "--decoder-first-pipeline-num-layers": "first_layers",
    "--decoder-last-pipeline-num-layers": "last_layers",
    "--micro-batch-size": "micro_batch",
    "--global-batch-size": "global_batch",
    "--recompute-num-layers": "recompute_count",
    "--num-distributed-optimizer-instances": "instances",
    # rejected by today's Megatron-LM, read as what replaced them
    "--batch-size": "micro_batch",
    "--model-parallel-size": "tp",
}
CHOICES: dict[str, tuple[str, tuple[str, ...]]] = {
    "--data-parallel-sharding-strategy": ("strategy", ("no_shard", "optim", "optim_grads", "optim_grads_params")),
    "--recompute-granularity": ("granularity", ("full", "selective")),
    "--recompute-method": ("recompute_method", ("uniform", "block")),
    "--fp8-format": ("fp8", ("e4m3", "hybrid")),
    "--fp8-recipe": ("fp8_recipe", ("tensorwise", "delayed", "mxfp8", "blockwise", "custom")),
    "--fp4-format": ("fp4", ("e2m1",)),
    "--attention-backend": ("backend", ("flash", "fused", "unfused", "local", "auto")),
    "--optimizer": ("optimizer", ("adam", "sgd", "muon", "dist_muon")),
    "--cp-comm-type": ("cp_comm", ("p2p", "a2a", "all_gather", "allgather", "a2a+p2p")),
}
TEXTS = {
    "--pipeline-model-parallel-layout": "layout",
    "--moe-layer-freq": "frequency",
    "--hidden-dropout": "hidden_dropout",
    "--attention-dropout": "attention_dropout",
    "--optimizer-offload-fraction": "offload_fraction",
}
SWITCHES = {
    "--group-query-attention",
    "--swiglu",
    "--untie-embeddings-and-output-weights",
    "--multi-latent-attention",
    "--use-distributed-optimizer",
    "--use-megatron-fsdp",
    "--use-custom-fsdp",
    "--use-torch-fsdp2",
    "--sequence-parallel",
    "--recompute-activations",
    "--checkpoint-activations",
    "--bf16",
    "--fp16",
    "--grad-reduce-in-bf16",
    "--accumulate-allreduce-grads-in-fp32",
    "--optimizer-cpu-offload",
    "--use-precision-aware-optimizer",
    "--overlap-grad-reduce",
    "--overlap-param-gather",
    "--tp-comm-overlap",
    "--no-overlap-p2p-communication",
    "--overlap-moe-expert-parallel-comm",
    "--delay-wgrad-compute",
}
KNOWN = {*INTEGERS, *CHOICES, *TEXTS, *SWITCHES}
OLD = {
    "--batch-size": "--micro-batch-size",
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--checkpoint-activations": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    "--use-custom-fsdp": "--use-megatron-fsdp",
}
# Flags that cannot change what is predicted: read without a remark.
_SILENT = re.compile(
    r"--(train-|lr|min-lr|weight-decay|clip-grad|adam-|init-method|seed|data-|mock-data|split|save|load|log-|eval-|"
    r"tokenizer-|vocab-file|merge-file|tensorboard|wandb|num-workers|exit-|ckpt|dist-ckpt|distributed-|timing|"
    r"rotary-|use-rotary|position-embedding-type|normalization|norm-epsilon|disable-bias-linear|add-qkv-bias|"
    r"qk-layernorm|make-vocab-size|transformer-impl|use-mcore|no-masked|no-load|no-save|moe-router-|moe-grouped-gemm|"
    r"moe-token-dispatcher|moe-aux|moe-z|moe-permute|q-lora-rank|kv-lora-rank|qk-head-dim|qk-pos-emb|v-head-dim|"
    r"no-gradient-accumulation-fusion|attention-softmax|use-flash-attn|recompute-modules|profile|async-|"
    r"no-rope-fusion|no-bias|no-masked|loss-scale|initial-loss|hysteresis|manual-gc|mtp-)"
)
MULTIPLE = {"--recompute-modules", "--cp-comm-type"}
STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
KINDS = {"p2p": "ring", "a2a": "ulysses", "all_gather": "ag", "allgather": "ag", "a2a+p2p": "ring"}


def read(text: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The cells that a command or script means, and remarks."""
    command = find_command(text, KNOWN, "Megatron-LM", given)
    return _Reader(command, given).result()


class _Reader:
    """One command on its way to a row: flags, then cells, with everything that is wrong collected."""

    def __init__(self, command: Command, given: dict[str, Any]) -> None:
        self.command, self.given = command, given
        self.notes = list(command.notes)
        self.problems: list[str] = []
        self.flags: dict[str, Any] = {}
        self._read_flags()

    def result(self) -> tuple[dict[str, Any], list[str]]:
        f = self.flags
        cells: dict[str, Any] = {"framework": "megatron-core"}
        world, per_node = self.command.world(self.given, self.problems)
        cells |= {n: v for n, v in (("n_gpus", world), ("gpus_per_node", per_node)) if v}
        cells |= self._shape()
        for name in ("tp", "pp", "cp", "ep"):
            cells[name] = f.get(name, 1)
        if cells.get("experts"):
            cells["etp"] = f.get("etp", cells["tp"])
        elif f.get("etp", cells["tp"]) != cells["tp"]:
            self.notes.append("--expert-tensor-parallel-size has no meaning without experts")
        self._batch(cells, world)
        cells["vpp"] = self._chunks(cells)
        cells |= self._sharding(cells) | self._recompute(cells) | self._numbers(cells)
        cells["sequence_parallel"] = bool(f.get("--sequence-parallel")) and cells["tp"] > 1
        if f.get("--sequence-parallel") and cells["tp"] == 1:
            self.notes.append("--sequence-parallel is dropped by Megatron-LM at tp=1")
        self._judge(cells, world)
        if self.problems:
            raise DataError(*dict.fromkeys(self.problems))
        return {n: v for n, v in cells.items() if v is not None}, list(dict.fromkeys(self.notes))

    # --- flags -----------------------------------------------------------------------------------------

    def _read_flags(self) -> None:
        unread = []
        for flag, values in self.command.flags(KNOWN - MULTIPLE):
            if flag in OLD:
                self.notes.append(f"{flag} is rejected by today's Megatron-LM, read as {OLD[flag]}")
            if flag in SWITCHES:
                self.flags[flag] = True
                if values:
                    self.problems.append(f"{flag} takes no value, but {' '.join(values)} follows it")
            elif flag in INTEGERS:
                self._state(INTEGERS[flag], flag, self.command.integer(flag, values, self.problems))
            elif flag in CHOICES:
                name, choices = CHOICES[flag]
                self._state(name, flag, self.command.choice(flag, values, choices, self.problems))
            elif flag in TEXTS:
                self._state(TEXTS[flag], flag, self.command.text(flag, values, self.problems))
            elif flag == "--recompute-modules":
                self.flags["modules"] = values
            elif not _SILENT.match(flag):
                near = near_flag(flag, KNOWN)
                unread.append(flag + (f" (did you mean {near}?)" if near else ""))
        if unread:
            self.notes.append(f"flags that are not read: {', '.join(dict.fromkeys(unread))}")

    def _state(self, name: str, flag: str, value: Any) -> None:
        if name in self.flags and value is not None and self.flags[name] != value:
            self.notes.append(f"{flag} is stated twice; the last one counts, as in Megatron-LM")
        if value is not None:
            self.flags[name] = value

    # --- cells -----------------------------------------------------------------------------------------

    def _shape(self) -> dict[str, Any]:
        f = self.flags
        needed = {"layers": "--num-layers", "hidden": "--hidden-size", "heads": "--num-attention-heads"}
        lacking = [flag for name, flag in needed.items() if name not in f]
        if lacking and not self.given.get("model"):
            self.problems.append(f"{', '.join(lacking)} not stated, and no model is named (--set model=llama-3.1-8b)")
        cells: dict[str, Any] = {n: f[n] for n in ("layers", "hidden", "heads") if n in f}
        latent = bool(f.get("--multi-latent-attention"))
        if latent and f.get("--group-query-attention"):
            self.problems.append("--multi-latent-attention excludes --group-query-attention")
        if not latent and "heads" in cells:
            cells["kv_heads"] = f.get("query_groups", 1) if f.get("--group-query-attention") else cells["heads"]
            if "query_groups" in f and not f.get("--group-query-attention"):
                self.notes.append("--num-query-groups is ignored without --group-query-attention")
            if "head_dim" in f:
                cells["head_dim"] = f["head_dim"]
        gated = bool(f.get("--swiglu"))
        if "hidden" in cells:
            width = 4 * cells["hidden"]
            cells["ffn_hidden"] = f.get("ffn_hidden", width * 2 // 3 // 64 * 64 if gated else width)
            cells["gated_mlp"] = gated
        if "vocab" in f or "padded_vocab" in f:
            cells["vocab"] = f.get("vocab", f.get("padded_vocab"))
        if "experts" in f:
            cells["experts"] = f["experts"]
            cells["experts_per_token"] = f.get("experts_per_token", 2)
            cells["expert_ffn_hidden"] = f.get("expert_ffn_hidden", cells.get("ffn_hidden"))
            if f.get("shared_width") and cells["expert_ffn_hidden"]:
                cells["shared_experts"] = max(1, round(f["shared_width"] / cells["expert_ffn_hidden"]))
        found = None if self.given.get("model") or lacking else same_shape({**cells, "latent": latent})
        if found:
            cells["model"] = found
            self.notes.append(f"the shape is that of {found}")
        elif not self.given.get("model") and not lacking:
            self._describe_unknown(cells, latent)
        return cells

    def _describe_unknown(self, cells: dict[str, Any], latent: bool) -> None:
        f = self.flags
        if latent:
            self.problems.append(
                "multi-latent attention of a shape that no preset has; name the model (--set model=deepseek-v3)"
            )
        if "frequency" in f and f["frequency"] not in {"1", "[1]"}:
            self.problems.append(
                "--moe-layer-freq mixes dense and expert layers in a shape that no preset has; name the model"
            )
        if bool(f.get("--untie-embeddings-and-output-weights")) != bool(cells.get("gated_mlp")):
            self.notes.append("embeddings count as tied where the MLP is not gated, against the flags")

    def _batch(self, cells: dict[str, Any], world: int | None) -> None:
        f = self.flags
        for name, flag in (("micro_batch", "--micro-batch-size"), ("seq_len", "--seq-length")):
            if name in f:
                cells[name] = f[name]
            elif not self.given.get(name):
                self.problems.append(f"{flag} is not stated")
        if f.get("seq_len") and f.get("positions", f["seq_len"]) < f["seq_len"]:
            self.problems.append(f"--max-position-embeddings {f['positions']} is less than --seq-length {f['seq_len']}")
        ranks = cells["tp"] * cells["pp"] * cells["cp"]
        if world and world % ranks == 0:
            cells["dp"] = world // ranks
        if "global_batch" in f:
            cells["global_batch"] = f["global_batch"]
        elif "dp" in cells and "micro_batch" in cells:
            cells["global_batch"] = cells["dp"] * cells["micro_batch"]
            self.notes.append(
                f"--global-batch-size is not stated: dp·micro = {cells['global_batch']}, as Megatron-LM does"
            )

    def _chunks(self, cells: dict[str, Any]) -> int:
        f, pp = self.flags, cells["pp"]
        flags = {
            "chunk_layers": "--num-layers-per-virtual-pipeline-stage",
            "chunks": "--num-virtual-stages-per-pipeline-rank",
            "layout": "--pipeline-model-parallel-layout",
        }
        stated = [name for name in flags if name in f]
        if len(stated) > 1:
            self.problems.append(f"only one of {' and '.join(flags[n] for n in stated)} may be stated")
        if "layout" in stated:
            return self._layout_chunks(f["layout"], cells)
        if "chunks" in f:
            return int(f["chunks"])
        layers = cells.get("layers")
        uneven = [f[n] for n in ("first_layers", "last_layers") if n in f]
        if uneven and layers and pp > len(uneven):
            rest = layers - sum(uneven)
            if rest < 0 or rest % (pp - len(uneven)):
                self.problems.append(
                    f"{rest} layers are left for the {pp - len(uneven)} other stages, which must be equal"
                )
        elif layers and layers % pp:
            self.problems.append(f"pp={pp} does not divide the {layers} layers, and no uneven split is stated")
        if "chunk_layers" not in f or not layers:
            return 1
        depth = layers // pp
        if depth % f["chunk_layers"]:
            self.problems.append(f"{f['chunk_layers']} layers a chunk do not divide the {depth} layers of a stage")
            return 1
        return max(1, depth // int(f["chunk_layers"]))

    def _layout_chunks(self, text: str, cells: dict[str, Any]) -> int:
        """vpp of a layout string such as E|(t|)*126L."""
        plain = re.sub(r"\s|,", "", text[:2000])
        for pattern in (r"\(([EtmL|]+)\)\*(\d{1,3})", r"([EtmL|])\*(\d{1,3})"):
            plain = re.sub(pattern, lambda m: m[1] * int(m[2]), plain)
        stages = plain.split("|")
        if not re.fullmatch(r"[EtmL|]+", plain) or len(stages) % cells["pp"]:
            self.problems.append(
                f"--pipeline-model-parallel-layout {text[:40]!r} is no layout of E, t, m, L and | with a number of "
                f"stages that pp={cells['pp']} divides"
            )
            return 1
        if cells.get("layers") and plain.count("t") != cells["layers"]:
            self.problems.append(
                f"the layout has {plain.count('t')} layers t, not the {cells['layers']} of --num-layers"
            )
        return len(stages) // int(cells["pp"])

    def _sharding(self, cells: dict[str, Any]) -> dict[str, Any]:
        f = self.flags
        distributed = bool(f.get("--use-distributed-optimizer"))
        fsdp = bool(f.get("--use-megatron-fsdp") or f.get("--use-custom-fsdp"))
        torch2 = bool(f.get("--use-torch-fsdp2"))
        found: dict[str, Any] = {"zero_stage": 1 if distributed else 0}
        if fsdp:
            found["zero_stage"] = STAGES[f.get("strategy", "no_shard")]
        elif torch2:
            found["zero_stage"] = 3
            wrong = {
                "a pipeline": cells["pp"] > 1,
                "expert parallelism": cells["ep"] > 1,
                "--use-distributed-optimizer": distributed,
                "tied embeddings": not f.get("--untie-embeddings-and-output-weights"),
            }
            self.problems += [f"--use-torch-fsdp2 cannot be used with {what}" for what, there in wrong.items() if there]
        elif "strategy" in f:
            self.notes.append("--data-parallel-sharding-strategy has no effect without --use-megatron-fsdp")
        if (fsdp or torch2) and self.command.variables.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
            self.problems.append("FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS=1, which the script sets")
        if f.get("--overlap-param-gather"):
            if not f.get("--overlap-grad-reduce"):
                self.problems.append("--overlap-param-gather needs --overlap-grad-reduce")
            if not (distributed or fsdp):
                self.problems.append("--overlap-param-gather needs --use-distributed-optimizer or --use-megatron-fsdp")
        instances = f.get("instances", 1)
        if instances > 1 and "dp" in cells:
            ranks = cells["dp"] * cells["cp"]
            if ranks % instances:
                self.problems.append(f"{instances} distributed optimizer instances do not divide dp·cp = {ranks}")
            found["shard_group"] = ranks // instances
        if f.get("--optimizer-cpu-offload"):
            found["offload_optimizer"] = True
            if not f.get("--use-precision-aware-optimizer"):
                self.problems.append("--optimizer-cpu-offload needs --use-precision-aware-optimizer")
            if f.get("offload_fraction", "1") not in {"1", "1.0"}:
                self.notes.append("--optimizer-offload-fraction: the whole optimizer state is taken as offloaded")
        return found

    def _recompute(self, cells: dict[str, Any]) -> dict[str, Any]:
        f = self.flags
        kind = f.get("granularity") or ("selective" if f.get("--recompute-activations") else None)
        method, count = f.get("recompute_method"), f.get("recompute_count")
        if f.get("--recompute-activations") and f.get("granularity") == "full":
            self.problems.append("--recompute-activations means selective and contradicts --recompute-granularity full")
        if kind is None and f.get("--checkpoint-activations"):
            return {"recompute": "full"}
        if kind == "full" and method is None:
            self.problems.append("--recompute-granularity full needs --recompute-method uniform or block")
        if kind == "full" and method and count is None:
            self.problems.append("--recompute-granularity full needs --recompute-num-layers")
        if kind == "selective" and (method or count):
            self.problems.append("selective recomputation takes no --recompute-method and no --recompute-num-layers")
        if kind is None:
            if method or count:
                self.notes.append("--recompute-method and --recompute-num-layers have no effect without a granularity")
            return {"recompute": "none"}
        if kind == "selective" and set(f.get("modules", ["core_attn"])) != {"core_attn"}:
            self.notes.append(f"--recompute-modules {' '.join(f['modules'])}: predicted as core_attn alone")
        if kind == "full" and method == "block" and count:
            return {"recompute": "full", "recompute_layers": count * cells["vpp"]}
        if kind == "full" and count and count > 1:
            self.notes.append(f"one checkpoint for {count} layers: predicted as one a layer")
        return {"recompute": kind}

    def _numbers(self, cells: dict[str, Any]) -> dict[str, Any]:
        f = self.flags
        if f.get("--bf16") and f.get("--fp16"):
            self.problems.append("--bf16 and --fp16 exclude each other")
        if f.get("fp8") and f.get("fp4"):
            self.problems.append("--fp8-format and --fp4-format exclude each other")
        precision = "fp16" if f.get("--fp16") else "bf16" if f.get("--bf16") else "fp32"
        low = "nvfp4" if f.get("fp4") else None
        if f.get("fp8"):
            low = "mxfp8" if f.get("fp8_recipe") == "mxfp8" else "fp8"
        if low and not (f.get("--bf16") or f.get("--fp16")):
            self.notes.append("fp8 or fp4 without --bf16: the rest would run in fp32; predicted as with --bf16")
        found: dict[str, Any] = {"precision": low or precision}
        if precision == "bf16":
            found["grad_accum_dtype"] = "bf16" if f.get("--grad-reduce-in-bf16") else "fp32"
        if f.get("--grad-reduce-in-bf16") and f.get("--accumulate-allreduce-grads-in-fp32"):
            self.problems.append("--grad-reduce-in-bf16 contradicts --accumulate-allreduce-grads-in-fp32")
        backend = {"flash": "yes", "fused": "vendor", "unfused": "no", "local": "no"}.get(f.get("backend", ""))
        found["flash_attention"] = backend
        dropouts = (f.get("hidden_dropout", "0.1"), f.get("attention_dropout", "0.1"))
        found["dropout"] = any(float(d or 0) > 0 for d in dropouts if re.fullmatch(r"[\d.]+(e-?\d+)?", d))
        found["optimizer"] = {"dist_muon": "muon"}.get(f.get("optimizer", "adam"), f.get("optimizer", "adam"))
        if cells["cp"] > 1:
            found["cp_kind"] = KINDS[f.get("cp_comm", "p2p")]
        return found

    def _judge(self, cells: dict[str, Any], world: int | None) -> None:
        f = self.flags
        judged = {**cells, "n_gpus": world, "latent": bool(f.get("--multi-latent-attention"))}
        if "dp" in cells and "micro_batch" in cells and cells.get("global_batch"):
            share = cells["dp"] * cells["micro_batch"]
            if cells["global_batch"] % share:
                self.problems.append(
                    f"micro·dp = {cells['micro_batch']}·{cells['dp']} = {share} does not divide the global batch of "
                    f"{cells['global_batch']}"
                )
            else:
                judged["micro_batches"] = cells["global_batch"] // share
        judged["sequence_parallel"] = bool(f.get("--sequence-parallel"))
        self.problems += legality.megatron(judged)
        if f.get("--tp-comm-overlap") and not f.get("--sequence-parallel"):
            self.problems.append("--tp-comm-overlap needs --sequence-parallel")
        if f.get("--overlap-moe-expert-parallel-comm"):
            if cells["ep"] == 1:
                self.problems.append("--overlap-moe-expert-parallel-comm needs expert parallelism")
            if cells.get("recompute") == "full":
                self.problems.append("--overlap-moe-expert-parallel-comm cannot be used with full recomputation")
            if cells["pp"] > 1 and cells["vpp"] == 1:
                self.problems.append("--overlap-moe-expert-parallel-comm with a pipeline needs virtual stages")
        if cells["vpp"] > 1 and f.get("--no-overlap-p2p-communication") and cells["pp"] <= 2:
            self.problems.append("interleaving without p2p overlap needs pp > 2")


SOURCE = Source(("megatron", "megatron-lm", "megatron-core"), read, "a command or script")
