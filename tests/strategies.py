"""Hypothesis strategies for the objects of gpucalc."""

from __future__ import annotations

from hypothesis import strategies as st

from gpucalc.core.vocabulary import CP_KINDS, RECOMPUTES, SCHEDULES
from gpucalc.layouts.label import Layout

counts = st.integers(1, 5000)


def layouts() -> st.SearchStrategy[Layout]:
    """Any layout that the fields can express, whether or not a job could run it."""
    return st.builds(
        Layout,
        **{name: st.one_of(st.just(1), counts) for name in ("tp", "pp", "dp", "cp", "ep", "etp", "vpp")},
        micro_batch=st.none() | counts,
        zero_stage=st.none() | st.integers(0, 3),
        shard_group=st.none() | counts,
        sequence_parallel=st.booleans(),
        schedule=st.sampled_from(SCHEDULES),
        cp_kind=st.sampled_from(CP_KINDS),
        recompute=st.none() | st.sampled_from(RECOMPUTES),
        recompute_layers=st.none() | counts,
        offload_optimizer=st.booleans(),
        offload_activations=st.booleans(),
    )
