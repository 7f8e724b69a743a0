"""The prose of docs/accuracy.md; figures are computed by make_accuracy_page.py."""

INTRODUCTION = """\
How far predictions are from published measurements. `gpucalc validate` prints these figures from the rows that
ship with the package (`hardware_db/measurements`), and `gpucalc validate my_runs.csv` the same for your own runs.

Errors are |predicted / measured − 1| of the step time; bias is the median of predicted / measured − 1. Three
predictions of a row are compared: with the shipped constants, which were fitted with that row; with constants
fitted without it (a fifth of every source held out at random); and with constants fitted without any row of its
source. The last one is what to expect of a cluster and a software stack that nobody has measured for us. The
hardware calibration of kernels and collectives is the same in all three: it rests on kernel timings, not on
training runs. Networks that are no decoder have a table of their own in [families.md](families.md#how-good-it-is)."""

FITTED = """\
The kernel constants (`hardware_db/calibration/gemm.csv`, `attention.csv`, `memory.csv`, `collectives.csv`,
`alltoall.csv`) are fitted to timings of single kernels and collectives; their files state rows, errors of the fit
and of shapes held out. On top of them {count} constants of software profiles (`hardware_db/profiles`, origin
"fitted") are fitted to the training runs by `scripts/fit_training.py`: those of memory to peaks whose counter is
stated, the others to step times, within physical bounds, with a weak pull towards a prior that no training run
has set, and of a profile towards the profile that it extends. Every source weighs the same (one with fewer than
five rows less), and an error beyond a factor of two counts as a factor of two. A profile is chosen by the
framework and the software's date, never by the source of a row. Constants whose value hardly moves when one source
is left out are determined by several sources; a wide range says that one source alone determines them."""

SETTINGS_TRIED = """\
Weights of the pull towards priors that were tried, with the mean over sources of the median error (one state of the
model; 0.005 was taken, so the last column flatters by the choice among three):

| weight | in the fit, % | rows held out, % | sources left out, % |
| ---: | ---: | ---: | ---: |
| 0.001 | 4.1 | 4.7 | 7.8 |
| 0.0025 | 4.2 | 4.8 | – |
| 0.005 | 4.4 | 4.8 | 6.6 |
| 0.015 | 4.8 | 5.2 | 6.7 |

The bounds and priors stand in `scripts/fit_training_bounds.py`; a constant without them takes no part in a held-out
fit."""

BAND_RULE = """\
s² = a·(A + u²/(1 + n)) + kernels², band exp(±c·s), at least ±8 %: A the mean square of ln(measured/predicted) of sources
left out of the fit whose profile other sources support, u² what it is more where none does, n those other sources,
a the family's factor, c the quantile that holds 80 % of every source alike. The rule and its number of parameters were
fixed before they were scored on these rows. With each source left out of the fit and of all constants of the band,
82 % of the rows of a source lie inside, mean over 31 sources (61 % of rows of sources that were new, with the bands as
they were before). Unstated cells (recomputation, network, overlap) do not widen a band yet. A verdict on memory is risky
within 5 % of the capacity, which is narrower than the band of memory itself. Upwards, in per cent:"""

STRUCTURE = """\
Fifteen sources with 246 rows, which no constant had seen, were predicted before anything was changed: mean over twelve
sources of the median error of the step time **14.5 %** (11.8 % with each left out of the fit now; nanotron 41.8 → 22.5,
Megatron-SWIFT 36.7 → 14.2, fms-fsdp 20.8 → 18.4, XTuner 15.8 → 10.2, KempnerForge 14.7 → 18.5, Pax 12.5 → 10.5, NeMo
5.2 → 3.9, NeMo launcher 8.8 → 6.8, Megatron-Core README 5.1 → 5.5, Nemotron-4 0.6 → 20.6, MT-NLG 4.2 → 5.0, MLPerf v4.1
7.9 → 5.9), 44.6 % of the rows of a source inside the printed band, memory 25.4 %; as a framework that nobody knows 14.8 %.

| changed | effect on left-out error |
| --- | --- |
| activations tensor by tensor, switches for norm, gate and rotary in place of one factor a profile | memory of nanotron 35 → 15 % and 29 → 9 %, no constant fitted to either |
| gathered inputs kept by all but Megatron-LM | part of the same |
| interleaved and zero-bubble activations in flight by the simulated schedules | right on every stage; memory of the zero-bubble rows 2.2 → 4.4 %, since ω by its formula is below what the fork keeps |
| logits by loss kernel; compiled ones from 2025 | torchtitan stays at 2 % without a fitted factor (the benchmarks of 2024-12 still hold eager logits) |
| peak power per FLOP/s sets the clock; parts that power does not limit keep their plateau | H20 63–76 % too slow → 10 to 20 % |
| one host time per operation, operations counted | nanotron time 42 → 19 % |
| tensor-parallel traffic as a mechanism (isolated rate and exposed, or chunks beside the product) | dense Megatron as before, with three constants fewer |
| experts as one grouped product, sharing waves | factor on top falls from 1.3–1.5 to 1.0–1.2 |
| gradients fp32 in plain Megatron-LM; 16-bit in NeMo and Bridge, whose published runs are performance recipes (a training recipe says so); 30 B an update | jobs that ran and were said not to fit fall from 41 to 19; NeMo and MLPerf rows 1 to 4 points better, recipes of the DGX Cloud 2 points worse |
| 8-bit inputs kept in one layout, columns; 4-bit copies at their size; fp32 shards of FSDP without cached copies | six MXFP8 recipes that ran are no longer said to run out of memory |
| DeepSpeed gathers weights alone, biases and norms stay whole | ZeRO-3 of 2021 on 1,536 GPUs +43 → +18 %; all DeepSpeed ZeRO-3 rows 10 % |
| overlap of tensor-parallel traffic only with a sharded sequence; the host a floor under kernels and waits alike | no difference in error; a faster device or link is never slower, without exceptions |
| no constant from one source: Composer, InternEvo, torchtune, early Bridge take an assumed value or their parent's | rows of these sources in the fit 2.5 → 6 % (InternEvo), left out as before |
| profiles by whole words, neutral one for the rest | fms-fsdp, XTuner, ms-swift get their own; "trainer" alone is nobody |

Kept out: an own host time for nanotron (one source), an own plateau for FSDP on H200, a fitted gradient type. Settings
tried: six fits of all constants, one after each change of the structure (asynchronous reduction in the backward pass,
types of gradients, profiles of one source, overlap, floor of the host), no choice among alternatives by their score. Left-out fits start from the fit of all rows and run six rounds of
Gauss-Newton with the pull towards the priors: a slight flattery against fits from the priors, which take an hour."""

PEERS_NOTE = """\
What other tools state of themselves, on rows that their makers chose; none of these figures was measured on the
rows above unless it says so."""

PEERS = [
    ["Calculon (2024)", "3.65 % mean, 8.87 % largest step-time error",
     "8 A100 runs of one paper; on 16 further runs of the same cluster that it does not ship, 10.3 to 12.1 % measured"],
    ["SimuMax 1.2 (2026)", "B200: time 5.6 %, memory 0.46 % mean; A100 PCIe 1.5 % and 1.4 %",
     "one node, truncated models, kernel efficiencies measured on the same shapes"],
    ["llm-cluster-simulator 1.1.2 (2026)", "9 runs within 3 points of MFU; mixtures and some others +108 to +224 %",
     "published runs, some of them used for its curves"],
    ["llm-analysis (2024)", "GPU-hours −5.6 to +9.5 %", "the efficiency is an input"],
    ["vTrain (2024)", "8.37 % on one node, 14.73 % on many", "kernels profiled on the target GPU"],
    ["Primus projection (2026)", "+7.2, +5.3, −9.2, −7.8 %", "four runs, layer times measured"],
    ["Charon (2026)", "3.74 % training, 5.35 % overall", "abstract of its paper"],
    ["operator-level regression (arXiv 2509.22832)", "4.98 % A100, 9.38 % GH200",
     "sampled kernels, models up to 20 B, 128 GPUs"],
    ["GenZ, LLM-Viewer", "relative statements", "pure roofline; about 55 % optimistic on measured serving"],
]  # fmt: skip

UNTRUSTED = """\
These rows are predicted and reported apart. The reason is always what the source leaves out or contradicts, as its
notes say, never our error: an unstated network, an unstated number of heads, a GPU that is not named, a stated
network that contradicts the source's own single-node times."""

KNOWN_MISSES = """\
What the residuals have in common, and why it is not modelled:

* **Mixtures of experts.** Between two releases two months apart the same job on the same cluster became a third to a
  half faster; a profile has a date, not a release. Which parts of a layer of experts run in CUDA graphs, and whether
  dispatch is overlapped, is rarely stated. GPT-OSS 120B is predicted too fast on every device: its experts are small
  (2,880 wide) and its attention alternates windows and carries sinks.
* **Sharding over very large groups.** With optimizer states sharded over all data-parallel ranks and few micro-batches
  (InternEvo, 256 to 1,024 GPUs), every rank sends its updated parameters to all others in turn; the measured cost grows
  with the number of ranks (0.9 s at 256, 2.7 s at 1,024), far beyond the traffic. The predicted order of these layouts
  is therefore wrong.
* **FSDP on Blackwell without recomputation.** Eight recipes of a 70 B model hold, as stated, 1.2 to 1.8 times what the
  device has; activations are probably moved to the host, which the source does not say. They are predicted not to fit.
* **Eager tensor parallelism (nanotron).** Micro-batches of one to eight sequences take 100 to 200 ms whatever their
  size; counted operations explain half of it. What the host waits for between collectives is not known.
* **Experts one by one.** Eight experts launched in a loop on two nodes take three times as long as predicted, and twice
  the experts half as long again; whether the network (one card a node?) or the host rules is not stated.
* **XLA before flash attention.** Runs of Pax of mid-2023 are 20 to 50 % slower than the same program a few months later.
* **Plain Megatron-LM with all overlap flags.** The launcher's defaults leave tensor-parallel traffic exposed, and so does
  the profile; three published runs are 12 % faster than that.
* **One run as a source.** Where a source is the only one with its framework (DeepSpeed ZeRO-3 of 2021, torchtune,
  Composer), nothing is left that determines its constants once it is held out; the priors decide.
* **Out of memory.** Ten runs ended so among the trusted rows; one more or less found moves the figure by ten points.

The trusted rows that are farthest off, with the shipped constants:"""
