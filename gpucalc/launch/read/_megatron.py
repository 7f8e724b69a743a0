"""Arguments of Megatron-LM as a row, wherever they stand: a command, a recipe's YAML, the commands of its relatives.

Names and defaults of megatron/training/arguments.py, d98e8a64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucalc.core.errors import DataError, GpucalcError
from gpucalc.launch import legality
from gpucalc.launch.flags import Flag, flags
from gpucalc.launch.read import _values
from gpucalc.launch.read._megatron_options import KINDS, MODULES, OLD, STAGES, TABLE, switches, value_of
from gpucalc.launch.read._megatron_pipeline import deal
from gpucalc.launch.read.shell.command import near_flag
from gpucalc.launch.shapes import same_shapes
from gpucalc.models.model import Model, load_model


@dataclass
class Arguments:
    """Arguments on their way to a row, with everything that is wrong collected.

    stated: each option in its order with its values; world and per_node: GPUs, of the job and of a node, where the
    starter says; given: cells known from elsewhere; environment: variables of the script; who: the program, whose
    other defaults come as `defaults` (options with values, which a stated one replaces).
    """

    stated: Sequence[tuple[str, Sequence[str]]]
    given: Mapping[str, Any]
    world: int | None = None
    per_node: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    who: str = "Megatron-LM"
    framework: str = "megatron-core"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    more: Mapping[str, Flag] = field(default_factory=dict)  # options of the program that Megatron-LM has not

    def cells(self) -> tuple[dict[str, Any], list[str]]:
        """The cells that the arguments mean, and remarks. Raises DataError with every contradiction."""
        f = self.flags = self._flags()
        cells: dict[str, Any] = {"framework": self.framework}
        cells |= {n: v for n, v in (("n_gpus", self.world), ("gpus_per_node", self.per_node)) if v}
        cells |= self._shape()
        for name in ("tp", "pp", "cp", "ep"):
            cells[name] = f.get(name, 1)
        mixture = bool(cells.get("experts")) or self._model_has_experts()
        if mixture:
            cells["etp"] = f.get("etp", cells["tp"])
        elif f.get("etp", cells["tp"]) != cells["tp"] and "etp" in f:
            self.notes.append("--expert-tensor-parallel-size has no meaning without experts")
        self._batch(cells)
        depth = cells.get("layers") or getattr(self._model(), "layers", None)
        cells |= deal(f, {**cells, "layers": depth}, self.problems, self.notes)
        cells |= self._sharding(cells) | self._recompute(cells) | self._numbers(cells) | self._kernels(cells)
        cells["sequence_parallel"] = bool(f.get("--sequence-parallel")) and cells["tp"] > 1
        if f.get("--sequence-parallel") and cells["tp"] == 1:
            self.notes.append(f"--sequence-parallel is dropped by {self.who} at tp=1")
        self._judge(cells)
        if self.problems:
            raise DataError(*dict.fromkeys(self.problems))
        return {n: v for n, v in cells.items() if v is not None}, list(dict.fromkeys(self.notes))

    # --- flags -----------------------------------------------------------------------------------------

    def _flags(self) -> dict[str, Any]:
        read: dict[str, Any] = dict(self.defaults)
        table = {**flags(TABLE), **self.more}
        plain, stated, foreign = switches(), set(), []
        self.present = {flag for flag, _ in self.stated}
        for flag, values in self.stated:
            if flag in OLD:
                self.notes.append(f"{flag} is rejected by today's Megatron-LM, read as {OLD[flag]}")
            name, value = value_of(flag, values, plain, self.problems)
            if name:
                if name in stated and value is not None and read.get(name) != value:
                    self.notes.append(f"{flag} is stated twice; the last one counts, as in Megatron-LM")
                stated.add(name)
                if value is not None:
                    read[name] = value
            elif flag in table:
                self._remark(table[flag], values)
            else:
                near = near_flag(flag, table)
                foreign.append(flag + (f" (did you mean {near}?)" if near else ""))
        if foreign:
            self.notes.append(f"flags that {self.who} does not know are not read: {', '.join(dict.fromkeys(foreign))}")
        return read

    def _remark(self, flag: Flag, values: Sequence[str]) -> None:
        if flag.use == "refused":
            self.problems.append(flag.remark(values))
        elif flag.use == "noted" and not (values and list(values) == flag.default.split()):
            self.notes.append(flag.remark(values))

    # --- cells -----------------------------------------------------------------------------------------

    def _shape(self) -> dict[str, Any]:
        f = self.flags
        if "layers" not in f and "encoder_layers" in f:
            f["layers"] = f["encoder_layers"]
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
        gated = bool(f.get("--swiglu") or f.get("--quick-geglu"))
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
        if not lacking and cells:
            cells["tied_embeddings"] = not f.get("--untie-embeddings-and-output-weights")
            cells["mtp_layers"] = f.get("mtp_layers", 0)
        if not self.given.get("model") and not lacking:
            self._name(cells, latent)
        return cells

    def _model_has_experts(self) -> bool:
        """Whether the model that is named beside the settings is a mixture."""
        model = self._model()
        return model is not None and model.experts > 0

    def _model(self) -> Model | None:
        """The model that is named beside the settings."""
        name = self.given.get("model")
        try:
            return load_model(str(name)) if name else None
        except GpucalcError:
            return None  # the row says what is wrong with the name

    def _name(self, cells: dict[str, Any], latent: bool) -> None:
        f = self.flags
        inner = {n: f.get(n) for n in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")}
        linear = not f.get("--disable-bias-linear")
        shape = {**cells, **(inner if latent else {}), "latent": latent, "biased": linear}
        found = same_shapes(shape)
        if not found:
            found = same_shapes({**shape, "tied_embeddings": None})
            how = "tied" if cells["tied_embeddings"] else "untied"
            self.notes += [f"embeddings are {how}, unlike those of {found[0]}"] if found else []
        if found:
            # Presets of one shape differ in their names alone: the one that the text names, else the first.
            said = " ".join(word for _, values in self.stated for word in values).casefold().replace("_", "-")
            named = next((name for name in found if name in said), found[0])
            cells["model"] = named
            others = [name for name in found if name != named]
            self.notes.append(f"the shape is that of {named}" + (f", as of {', '.join(others[:4])}" if others else ""))
            return
        if latent:
            self.problems.append(
                "multi-latent attention of a shape that no preset has; name the model (--set model=deepseek-v3)"
            )
        if "frequency" in f and f["frequency"] not in {"1", "[1]"}:
            self.problems.append(
                "--moe-layer-freq mixes dense and expert layers in a shape that no preset has; name the model"
            )

    def _batch(self, cells: dict[str, Any]) -> None:
        f = self.flags
        if "seq_len" not in f and "encoder_seq_len" in f:
            f["seq_len"] = f["encoder_seq_len"]
        for name, flag in (("micro_batch", "--micro-batch-size"), ("seq_len", "--seq-length")):
            if name in f:
                cells[name] = f[name]
            elif not self.given.get(name):
                self.problems.append(f"{flag} is not stated")
        if f.get("seq_len") and f.get("positions", f["seq_len"]) < f["seq_len"]:
            self.problems.append(f"--max-position-embeddings {f['positions']} is less than --seq-length {f['seq_len']}")
        ranks = cells["tp"] * cells["pp"] * cells["cp"]
        if self.world and self.world % ranks == 0:
            cells["dp"] = self.world // ranks
        if "global_batch" in f:
            cells["global_batch"] = f["global_batch"]
        elif "dp" in cells and "micro_batch" in cells:
            cells["global_batch"] = cells["dp"] * cells["micro_batch"]
            self.notes.append(
                f"--global-batch-size is not stated: dp·micro = {cells['global_batch']}, as {self.who} does"
            )

    def _sharding(self, cells: dict[str, Any]) -> dict[str, Any]:
        f = self.flags
        distributed = bool(f.get("--use-distributed-optimizer"))
        fsdp = bool(f.get("--use-megatron-fsdp") or f.get("--use-custom-fsdp"))
        torch2 = bool(f.get("--use-torch-fsdp2"))
        found: dict[str, Any] = {"zero_stage": 1 if distributed else 0}
        if fsdp:
            found["zero_stage"] = STAGES[f.get("strategy", "optim_grads_params")]
        elif torch2:
            found["zero_stage"] = 2 if f.get("--torch-fsdp2-no-reshard-after-forward") else 3
            wrong = {
                "a pipeline": cells["pp"] > 1,
                "expert parallelism": cells["ep"] > 1,
                "--use-distributed-optimizer": distributed,
                "tied embeddings": not f.get("--untie-embeddings-and-output-weights"),
            }
            self.problems += [f"--use-torch-fsdp2 cannot be used with {what}" for what, there in wrong.items() if there]
        elif "strategy" in f and "strategy" not in self.defaults:
            self.notes.append("--data-parallel-sharding-strategy has no effect without --use-megatron-fsdp")
        if (fsdp or torch2) and self.environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
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
            share = f.get("offload_fraction", 1.0)
            if share == 0:
                found["offload_optimizer"] = False
            elif share != 1:
                self.notes.append(
                    f"--optimizer-offload-fraction {share:g} is taken as 1, the whole state: faster and more memory "
                    "than predicted"
                )
        found["dp_overlap"] = bool(f.get("--overlap-grad-reduce"))
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
        if kind is None or kind == "none":
            if method or count:
                self.notes.append("--recompute-method and --recompute-num-layers have no effect without a granularity")
            return {"recompute": "none"}
        modules = set(f.get("modules") or MODULES)
        if kind == "selective" and modules != MODULES:
            more, less = sorted(modules - MODULES), sorted(MODULES - modules)
            if more:
                self.notes.append(
                    f"--recompute-modules {' '.join(more)} is not modelled (core_attn is): slower and less memory than "
                    "predicted"
                )
            if less:
                self.notes.append("--recompute-modules without core_attn: no attention scores are recomputed")
                return {"recompute": "none"}
        if kind == "full" and method == "block" and count:
            return {"recompute": "full", "recompute_layers": count * cells["vpp"]}
        if kind == "full" and count and count > 1:
            self.notes.append(
                f"one checkpoint for {count} layers is predicted as one a layer: fewer stored inputs, and a larger "
                "working set, than predicted"
            )
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
        reduced = bool(f.get("--grad-reduce-in-bf16"))
        if precision == "bf16":
            found["gradient_dtype"] = "bf16" if reduced else "fp32"
            held = "bf16" if reduced or f.get("main_grads") == "bf16" else "fp32"
            found["grad_accum_dtype"] = held
        if reduced and f.get("--accumulate-allreduce-grads-in-fp32"):
            self.problems.append("--grad-reduce-in-bf16 contradicts --accumulate-allreduce-grads-in-fp32")
        if low in {"fp8", "mxfp8"}:
            found["fp8_params"] = bool(f.get("--fp8-param-gather"))
        dropouts = (f.get("hidden_dropout", 0.1), f.get("attention_dropout", 0.1))
        found["dropout"] = any(share > 0 for share in dropouts)
        if f.get("--use-precision-aware-optimizer") and not f.get("--optimizer-cpu-offload"):
            self.notes.append("--use-precision-aware-optimizer keeps no copy of gradients in fp32: less memory at most")
        kind = f.get("optimizer", "adam")
        found["optimizer"] = "muon" if "muon" in kind else {"lion": "sgd", "soap": "adam"}.get(kind, kind)
        if kind in {"lion", "soap", "adaptive_muon"}:
            self.notes.append(f"--optimizer {kind} is predicted as {found['optimizer']}, which keeps a like state")
        if cells["cp"] > 1:
            kinds = f.get("cp_comm") or ["p2p"]
            for word in [kinds] if isinstance(kinds, str) else kinds:
                _values.choice("--cp-comm-type", [word], tuple(KINDS), self.problems)
            first = kinds if isinstance(kinds, str) else kinds[0]
            found["cp_kind"] = KINDS.get(first)
            if not isinstance(kinds, str) and len(set(kinds)) > 1:
                self.notes.append(f"--cp-comm-type differs by layer: {first} is taken for all, either way")
        return found

    def _kernels(self, cells: dict[str, Any]) -> dict[str, Any]:
        f = self.flags
        backend = {"flash": "yes", "fused": "vendor", "unfused": "no", "local": "no"}.get(f.get("backend", ""))
        version = {2: "fa2", 3: "fa3"}.get(f.get("flash_version", 0))
        local = f.get("implementation") == "local"
        if version and backend in {None, "yes"}:
            backend = version
        elif local and backend is None:
            backend = "no"
        found: dict[str, Any] = {
            "flash_attention": backend,
            "tp_overlap": bool(f.get("--tp-comm-overlap")) and cells["tp"] > 1,
        }
        if local:
            found["fused_norm"] = False
            if f.get("fp8"):
                self.problems.append("--transformer-impl local has no FP8: it needs transformer_engine")
        gates = {True: ["swiglu"], False: ["gelu"], None: ["swiglu", "gelu"]}[cells.get("gated_mlp")]
        if any(f.get(f"--no-bias-{gate}-fusion") for gate in gates) or f.get("--openai-gelu"):
            found["fused_gate"] = False
        if f.get("--no-rope-fusion"):
            found["fused_rope"] = False
        if f.get("--cross-entropy-loss-fusion"):
            found["loss_kernel"] = "inplace" if f.get("loss_fusion") == "te" else "compiled"
        graph = f.get("cuda_graph", "none")
        if graph != "none" or f.get("--enable-cuda-graph") or f.get("--external-cuda-graph"):
            found["cuda_graphs"] = "full" if graph == "full_iteration" else "layer"
        if cells.get("etp"):
            kind = f.get("dispatcher", "allgather")
            fused = kind == "flex" or f.get("--moe-enable-deepep")
            found["dispatcher"] = "fused" if fused else kind
            found["expert_kernel"] = "grouped" if f.get("--moe-grouped-gemm") else "loop"
            if f.get("--moe-router-force-load-balancing"):
                found["expert_imbalance"] = 1.0
        return found

    def _judge(self, cells: dict[str, Any]) -> None:
        f = self.flags
        judged = {**cells, "n_gpus": self.world, "latent": bool(f.get("--multi-latent-attention"))}
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
        if self.given.get("model") and not cells.get("experts"):
            judged.pop("ep")  # whether the model has experts stands in the preset
        self.problems += legality.megatron(judged)
        if f.get("--tp-comm-overlap") and not f.get("--sequence-parallel"):
            self.problems.append("--tp-comm-overlap needs --sequence-parallel")
        if "--overlap-moe-expert-parallel-comm" in self.present:
            if cells["ep"] == 1:
                self.problems.append("--overlap-moe-expert-parallel-comm needs expert parallelism")
            if cells.get("recompute") == "full":
                self.problems.append("--overlap-moe-expert-parallel-comm cannot be used with full recomputation")
            if cells["pp"] > 1 and cells["vpp"] == 1:
                self.problems.append("--overlap-moe-expert-parallel-comm with a pipeline needs virtual stages")
        if cells["vpp"] > 1 and f.get("--no-overlap-p2p-communication") and cells["pp"] <= 2:
            self.problems.append("interleaving without p2p overlap needs pp > 2")
