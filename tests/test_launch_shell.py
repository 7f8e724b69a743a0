"""Shell text as people write it: words and arrays as bash splits them, here-documents, defaults, what is printed."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from gpucalc.core.errors import DataError
from gpucalc.launch import read_launch
from gpucalc.launch.read.shell.script import missing, read_script

MODEL = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--ffn-hidden-size 14336 --swiglu --untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 8192 "
    "--micro-batch-size 1 --global-batch-size 128 --bf16"
)

# Scripts whose last command prints its words; bash itself says which they are.
EXPANSIONS = [
    'A=( "--fp8-format hybrid" "--vocab-size 128256" )\nrun ${A[@]}',
    'A=( "--fp8-format hybrid" "--vocab-size 128256" )\nrun "${A[@]}"',
    'A=( "--fp8-format hybrid" x )\nrun "${A[*]}" ${A[*]}',
    'A=(a b)\nA+=(c \'d e\')\nA+=("f g")\nrun ${A[@]} ${#A[@]} ${A[1]} "${A[3]}"',
    'A="a b"\nrun $A "$A" x$A"y z"',
    'A=(a)\nB=(${A[@]} b "c d")\nrun "${B[@]}"',
    'A=(x "y z")\nB="${A[@]}"\nrun $B',
    "N=${MISSING_NUMBER_1:-4}\nrun $N ${N:+set} ${N:-no} ${MISSING_NUMBER_2-two}",
    ": ${MISSING_NUMBER_3:=7}\nrun $MISSING_NUMBER_3",
    'E=""\nrun ${E:-empty} "${E-unset}" a',
    "run --a=\"b c\" 'd e'f g\\ h",
    "N=3\nrun $((N * 4 / 2)) $(( (N + 1) % 3 ))",
]


@pytest.mark.parametrize("script", EXPANSIONS)
def test_words_are_those_of_bash(script: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    program = 'run() { printf "%s\\n" "$@"; }\n' + script
    done = subprocess.run([bash, "--norc", "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert read_script(script).commands[-1][1:] == done.stdout.splitlines()


def test_items_of_two_words_are_two_flags() -> None:
    items = 'ARGS=(\n  "--fp8-format hybrid"\n  "--fp8-recipe tensorwise"\n)\n'
    start = f"torchrun --nproc-per-node 8 pretrain_gpt.py {MODEL} "
    cells, notes = read_launch("megatron", items + start + "${ARGS[@]}")
    assert cells["precision"] == "fp8"
    assert not any("fp8" in note for note in notes)
    # One word with a blank inside is not a flag, as bash hands it over.
    assert read_launch("megatron", items + start + '"${ARGS[@]}"')[0]["precision"] == "bf16"


@pytest.mark.parametrize("print_it", ["echo $CMD", 'printf "%s\\n" "$CMD"', ': "$CMD"', "/bin/echo torchrun $CMD"])
def test_what_is_printed_does_not_run(print_it: str) -> None:
    text = f'CMD="pretrain_gpt.py {MODEL}"\n{print_it}\ntorchrun --nproc-per-node 8 $CMD\n'
    assert read_launch("megatron", text)[0]["n_gpus"] == 8


@pytest.mark.parametrize(
    "script",
    [
        'sbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\nsrun bash -c "torchrun --nnodes 2 '
        f'--nproc-per-node $GPUS pretrain_gpt.py {MODEL}"\nEOF\n',
        f"cat > run.sh <<EOF\ntorchrun --nnodes 2 --nproc-per-node $GPUS pretrain_gpt.py {MODEL}\nEOF\nsbatch run.sh\n",
        f'eval "torchrun --nnodes 2 --nproc-per-node $GPUS pretrain_gpt.py {MODEL}"\n',
        f"srun --nodes 2 bash -lc 'cd /w; torchrun --nnodes 2 --nproc-per-node $GPUS pretrain_gpt.py {MODEL}'\n",
    ],
)
def test_commands_inside_documents_and_strings(script: str) -> None:
    cells, _ = read_launch("megatron", "GPUS=8\n" + script)
    assert (cells["n_gpus"], cells["layers"]) == (16, 32)


def test_here_documents_expand_unless_quoted() -> None:
    ds = '{"train_micro_batch_size_per_gpu": $N, "train_batch_size": $((N * 16)), "zero_optimization": {"stage": 3}}'
    run = "deepspeed --num_nodes 1 --num_gpus 8 train.py --deepspeed_config ds.json\n"
    beside = {"model": "llama-3.1-8b", "seq_len": 4096}
    cells, _ = read_launch("deepspeed", f"N=2\ncat > ds.json <<EOF\n{ds}\nEOF\n{run}", beside)
    assert (cells["micro_batch"], cells["global_batch"], cells["n_gpus"]) == (2, 32, 8)
    with pytest.raises(DataError, match="needs N, which is not set"):
        read_launch("deepspeed", f"cat > ds.json <<EOF\n{ds}\nEOF\n{run}", beside)
    for quoted in ("'EOF'", '"EOF"', "\\EOF"):
        with pytest.raises(DataError, match="not JSON"):
            read_launch("deepspeed", f"N=2\ncat > ds.json <<{quoted}\n{ds}\nEOF\n{run}", beside)
    assert read_script("X=1\ncat <<-E\n\t$X \\$X\n\tE\n").documents == ["1 $X\n"]


DEFAULTED = (
    'NNODES=${SLURM_NNODES:-"1"}\nGPUS_PER_NODE=${GPUS_PER_NODE:-8}\nWORLD=$((NNODES * GPUS_PER_NODE))\n'
    "torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py "
    + MODEL.replace("128 --bf16", "$((WORLD * 2)) --bf16")
)


def test_a_default_yields_to_the_gpus_that_are_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, _ = read_launch("megatron", DEFAULTED)
    assert (cells["n_gpus"], cells["global_batch"]) == (8, 16)
    cells, notes = read_launch("megatron", DEFAULTED, {"n_gpus": 64})
    assert (cells["n_gpus"], cells["dp"], cells["global_batch"]) == (64, 64, 128)  # what hangs on the default follows
    assert "SLURM_NNODES has a default only: 8 agrees with the 64 GPUs stated" in notes
    assert read_launch("megatron", DEFAULTED, {"n_gpus": 4})[0]["n_gpus"] == 4
    monkeypatch.setenv("SLURM_NNODES", "8")
    cells, notes = read_launch("megatron", DEFAULTED)
    assert cells["n_gpus"] == 64
    assert "SLURM_NNODES = 8 is taken from the environment" in notes


def test_a_literal_contradicts_and_its_line_is_named() -> None:
    text = "#!/bin/bash\nNNODES=1\n" + DEFAULTED.partition("\n")[2]
    with pytest.raises(DataError, match=r"8 processes \(line 3.*, line 2: NNODES=1\), but 64 GPUs are stated"):
        read_launch("megatron", text.replace("${GPUS_PER_NODE:-8}", "8"), {"n_gpus": 64})
    with pytest.raises(DataError, match=r"8 processes \(line 1\), but 16 GPUs"):
        read_launch("megatron", f"torchrun --nproc-per-node 8 pretrain_gpt.py {MODEL}", {"n_gpus": 16})


def test_marks_of_what_is_missing() -> None:
    (words,) = read_script("run $A ${B:-x} $(date) ${C%.*}").commands
    assert [missing(word) for word in words[1:]] == [["A"], [], ["(date)"], ["${C%.*}"]]
    assert missing(read_script("run ${B:-x}", defaults=False).commands[0][1]) == ["B"]


@pytest.mark.parametrize(
    "script",
    [
        "run() {\n  local n=$1\n  shift\n  go --n $n \"$@\"\n}\nrun 8 --a 'b c'",
        'function run {\n  go --n ${1:-8} "$#"\n}\nrun',
        'run() {\n  go "${2:-x}" $*\n}\nrun "a b"',
        "N=${MISSING_NUMBER_4:-2}\ngo $(( ${MISSING_NUMBER_5:-3} * N + $N ))",
    ],
)
def test_functions_run_where_they_are_called(script: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    program = 'go() { printf "%s\\n" "$@"; }\n' + script
    done = subprocess.run([bash, "--norc", "-c", program], capture_output=True, text=True, timeout=30, check=True)
    (words,) = read_script(script).commands
    assert words[1:] == done.stdout.splitlines()


def test_a_functions_argument_reaches_its_flags() -> None:
    text = (
        "launch() {\n  local TP=$1\n  torchrun --nproc-per-node ${GPUS:-8} pretrain_gpt.py "
        f"--tensor-model-parallel-size $TP {MODEL}\n}}\nlaunch ${{1:-4}}\n"
    )
    assert read_launch("megatron", text)[0]["tp"] == 4
    assert read_launch("megatron", text, {"n_gpus": 32})[0]["n_gpus"] == 32
    # A function that another program calls is read once, and what only the caller knows is named.
    with pytest.raises(DataError, match=r"--tensor-model-parallel-size is \$\{1\}|1 is not set"):
        read_launch("megatron", text.rpartition("launch")[0])


def test_a_command_that_is_shown_and_evaluated_is_one() -> None:
    run = f"torchrun --nproc-per-node 8 pretrain_gpt.py {MODEL}"
    for run_it in ("eval ${RUN}", 'eval "$RUN"', "set -x; eval $RUN; set +x"):
        assert read_launch("megatron", f'RUN="{run}"\necho ${{RUN}}\n{run_it}\n')[0]["n_gpus"] == 8


def test_functions_in_a_circle_end_in_words() -> None:
    with pytest.raises(DataError, match="calls functions more than"):
        read_script("a() {\n  b\n}\nb() {\n  a\n}\na\n")


def test_a_loop_names_its_values() -> None:
    run = f"torchrun --nproc-per-node 8 pretrain_gpt.py {MODEL} --tensor-model-parallel-size $TP"
    text = f"for TP in %s; do\n  {run}\ndone\n"
    assert read_launch("megatron", text % "2")[0]["tp"] == 2
    with pytest.raises(DataError, match=r"TP \(a loop over 1 2 4\) is not set"):
        read_launch("megatron", text % "1 2 4")


@pytest.mark.parametrize(
    "script",
    [
        'M=8b\nif [[ $M == "8b" ]]; then\n  N=1\nelif [ $M = 70b ]; then\n  N=2\nelse N=3\nfi\nrun $N',
        'M=70b\nif [[ $M == "8b" ]]; then\n  N=1\nelif [ "$M" = 70b ]; then\n  N=2; A=(x y)\nelse N=3; A=(z)\nfi\n'
        "run $N ${A[@]}",
        'M=1\nif [ $M -gt 1 ]; then\n  run many\nelse\n  if test -n "$M"; then run one; fi\nfi',
        'E=""\nif [ ! -z "$E" ]; then E=full; fi\nif [ -z "$E" ]; then E=empty; fi\nrun $E',
    ],
)
def test_conditions_that_the_text_decides(script: str) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    done = subprocess.run(
        [bash, "--norc", "-c", 'run() { printf "%s\\n" "$@"; }\n' + script],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    found = read_script(script)
    assert [words[1:] for words in found.commands if words[0] == "run"] == [done.stdout.splitlines()]
    assert found.notes == []


def test_conditions_that_only_a_shell_knows_are_told() -> None:
    for condition in ("[[ $UNKNOWN_WORD == a ]]", "[ -f x ]", "[ 1 = 1 ] && [ -d y ]", "(( $UNKNOWN_WORD > 1 ))"):
        found = read_script(f"N=1\nif {condition}; then N=2; fi\nrun $N")
        assert "N is set inside a condition or loop; its last value, 2, is taken" in found.notes, condition


def test_srun_says_what_its_script_reads() -> None:
    text = (
        'srun --nodes=4 --ntasks-per-node=1 --gpus-per-node 8 bash -c "torchrun --nnodes \\$SLURM_NNODES '
        f'--nproc_per_node \\$SLURM_GPUS_ON_NODE pretrain_gpt.py {MODEL}"\n'
    )
    assert read_launch("megatron", text)[0]["n_gpus"] == 32
