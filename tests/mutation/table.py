"""The faults and the right implementations of the bench: what each is, where it is measured, what it must get."""

from __future__ import annotations

import types
from typing import Any

from spsuite.catalogue import Value

from tests.mutation import collectives as c
from tests.mutation import exchange as x
from tests.mutation import reductions as r
from tests.mutation import right_losses
from tests.mutation.bench import Fault, Right, Seed, Where
from tests.product.losses import faulty as product_faulty
from tests.product.losses import right as product_right

x.provide()

_CONTIGUOUS, _STRIDED = "sp2-contiguous", "sp2-strided"
_NOT_FINITE = ("wrong", "nan")  # memory that nobody wrote may hold either


# --- losses -----------------------------------------------------------------------------------------------------------


def _loss(name: str, wrong: str, outcome: str | tuple[str, ...], world_size: int = 4, **more: Any) -> Fault:
    """A loss of `faulty_losses`: on two contiguous groups, with some labels ignored, unless `more` has others."""
    expected = {key: more.pop(key) for key in ("factor", "ranks", "says") if key in more}
    lane = more.pop("lane", "nccl-path")
    only: dict[str, Value] = {"topology": _CONTIGUOUS, "tokens": "ignored", "dtype": "float32", **more}
    where = Where(f"user/tests.mutation.faulty_losses:{name}", lane, world_size, only)
    return Fault(f"loss-{name}", wrong, where, _outcomes(outcome), **expected)


def _outcomes(outcome: str | tuple[str, ...]) -> tuple[str, ...]:
    return (outcome,) if isinstance(outcome, str) else outcome


def _is_slow(outcome: str | tuple[str, ...]) -> bool:
    """A hang costs twice its limit in each cell, so one has to do."""
    return "hang" in _outcomes(outcome)


LOSSES = [
    # the wrong rank or group
    _loss("slice_of_global_rank", "backward takes the slice of the global rank", "crash", ranks=(2, 3)),
    _loss(
        "slice_of_global_rank_modulo",
        "backward takes the slice of the global rank modulo sp_size",
        "wrong",
        topology=_STRIDED,
        ranks=(1, 2),
    ),
    _loss("slice_of_neighbour", "backward takes the next rank's slice", "wrong", ranks=(0, 1, 2, 3)),
    _loss(
        "own_shard_put_back_at_global_rank",
        "the shard that has a gradient replaces another rank's",
        "wrong",
        topology=_STRIDED,
        ranks=(1, 2),
    ),
    _loss("reduced_over_the_world", "all ranks are reduced instead of the group", "wrong"),
    _loss("counts_reduced_over_the_world", "the token counts are those of all groups", "wrong"),
    _loss("broadcast_from_global_rank_0", "the root is a place in the group, not a rank", "crash", ranks=(2, 3)),
    _loss("value_on_the_root_only", "the value is reduced to the root and used everywhere", "wrong", ranks=(1, 3)),
    # factors
    _loss("sum_of_gathered_means", "a sum where a mean is meant", "scaled", topology="sp4", factor=16),
    _loss("all_reduced_twice", "backward sums over the group twice", "scaled", topology="sp4", factor=16),
    _loss("doubled_gradient", "the gradient is doubled", "scaled", topology="sp4", factor=2),
    _loss("hook_that_doubles", "a hook doubles the gradient", "scaled", topology="sp4", factor=2),
    _loss("divided_by_sp_size_in_gradient", "divided by sp_size once too often", "scaled", topology="sp4", factor=0.25),
    _loss(
        "divided_by_sp_size_in_value",
        "a mean where a sum is meant, in the value only",
        "wrong",
        says="the gradient is right and the value is wrong",
    ),
    _loss(
        "multiplied_by_dp_size",
        "the data-parallel size for sp_size",
        "scaled",
        world_size=8,
        topology=_STRIDED,
        factor=4,
    ),
    _loss("multiplied_by_world_size", "the world size for sp_size", "scaled", factor=4),
    _loss("convention_differs_by_rank", "rank 0 is right for `mean`, the others for `sum`", "wrong"),
    _loss("convention_differs_by_group", "one group is right for `mean`, the other for `sum`", "wrong"),
    _loss("one_rank_negative", "one rank's gradient has the wrong sign", "wrong", ranks=(1, 3)),
    # weights and counts
    _loss("divided_by_all_tokens", "ignored tokens are in the denominator", "scaled", topology="sp4"),
    _loss("local_count", "the denominator is the rank's own", "wrong"),
    _loss("largest_count", "the counts are reduced by MAX", "scaled", topology="sp4"),
    _loss("weights_taken_for_a_mask", "a weight counts as 1", "wrong"),
    _loss("ignored_labels_counted", "ignored labels have weight 1", "wrong"),
    _loss("ignored_labels_in_gradient", "ignored labels leak into the gradient only", "wrong"),
    _loss(
        "weighted_forward_unweighted_backward",
        "backward is that of the mean of the ranks' means",
        "wrong",
        tokens="unequal",
    ),
    _loss("gradient_of_the_local_mean", "backward is that of the rank's own mean", "wrong"),
    # what is lost
    _loss("detached_half", "half of the tokens are detached", "wrong"),
    _loss("detached_on_the_last_rank", "one rank is detached", "wrong", ranks=(1, 3)),
    _loss("detached_after_gathering", "no gathered loss has a gradient", "wrong", says="every gradient is zero"),
    _loss("boundary_token_dropped", "each shard loses a token at its boundary", "wrong"),
    _loss("last_shard_dropped", "the last rank's shard is left out", "wrong"),
    _loss("gradient_clipped", "large gradients are clamped", "wrong"),
    _loss("rounded_to_bfloat16", "token losses pass through bfloat16", "wrong", topology="sp4"),
    _loss("upstream_gradient_ignored", "backward ignores the gradient it is given", ("wrong", "scaled")),
    # memory
    _loss("gradient_read_in_storage_order", "a transposed gradient is read as if it were not", "wrong"),
    _loss("last_element_never_written", "one element of the gradient is never written", _NOT_FINITE),
    _loss("received_shard_never_written", "the value sums buffers that nothing was received in", _NOT_FINITE),
    _loss("token_losses_overwritten", "the caller's token losses are overwritten", ("wrong", "crash")),
    _loss("count_of_the_first_batch", "the token count of the first batch serves for all", "wrong"),
    # only sometimes
    _loss(
        "doubled_in_bfloat16", "bfloat16 gradients are doubled", "scaled", topology="sp4", dtype="bfloat16", factor=2
    ),
    _loss(
        "counts_at_least_one_on_each_rank",
        "an empty rank counts as one token",
        ("scaled", "wrong"),
        tokens="empty-rank",
    ),
    _loss("wrong_where_more_than_two_ranks_meet", "more than two ranks meet in pairs only", "wrong", topology="sp4"),
    _loss("right_on_the_first_rank_of_all", "only rank 0 has a gradient", "wrong", ranks=(1, 2, 3)),
    _loss(
        "first_rank_empty_forgets_the_others",
        "where the group's first rank is empty nobody has a gradient",
        "wrong",
        tokens="empty-rank",
        says="in the second step: every gradient is zero",
    ),
    _loss("plain_mean_where_nothing_is_ignored", "weights count only beside ignored tokens", "wrong", tokens="unequal"),
    _loss(
        "convention_flips_with_the_call",
        "the first call is right for `sum`, later ones for `mean`",
        "wrong",
        says="right under `sum`, and in the second step under `mean`",
    ),
    # numbers of too few digits
    _loss("summed_in_half", "the sum is rounded to float16", ("wrong", "scaled")),
    _loss("guarded_by_adding", "a small number is added to the denominator", ("scaled", "wrong")),
    _loss("counts_in_bfloat16", "a rank's count is rounded to bfloat16", ("scaled", "wrong"), tokens="unequal"),
    # what is done to what was handed in, or to the next step
    _loss("hook_left_on_the_leaf", "a hook on the caller's tensor", "scaled", topology="sp4", factor=12),
    _loss("gradient_filled_beforehand", "the gradient begins with what was in it", "wrong"),
    _loss("backward_within", "the loss calls backward itself", "scaled"),
    _loss("weights_normalised_in_place", "the caller's weights are overwritten", "wrong", says="weight"),
    _loss(
        "gradient_reduced_in_place", "the gradient of the value is overwritten", "wrong", says="gradient of its value"
    ),
    _loss("batch_of_the_first_call", "the first batch's weights serve for all", "wrong", says="in the second step"),
    _loss("graph_of_the_last_step", "the graph of the step before is kept", "crash", says="in the second step"),
    _loss(
        "left_over_among_all_ranks",
        "one rank calls a collective of all ranks and does not wait",
        ("crash", "hang"),
        says="in the second step",
    ),
    _loss(
        "left_over_in_backward",
        "one rank calls a collective in backward and does not wait",
        ("crash", "hang", "wrong", "nan", "died"),
        lane="gloo",
        says="in the second step",
    ),
    # not finite
    _loss("empty_shard_divides_by_zero", "an empty rank divides by its count", "nan", tokens="empty-rank"),
    _loss(
        "empty_shard_masked_too_late",
        "the value is masked after dividing by zero, and its gradient is not",
        "nan",
        tokens="empty-rank",
        ranks=(1, 3),
    ),
    _loss("mean_of_no_token", "an empty rank takes the mean of nothing", "nan", tokens="empty-rank"),
    _loss("overflows_in_half", "float16 overflows", "nan"),
    _loss("nan_only_in_the_gradient", "the value is right, its gradient is not finite", "nan"),
    _loss("nan_and_wrong", "one rank is not finite, the others are wrong", "nan", ranks=(0, 2)),
    # ranks that do not do the same
    _loss("empty_shard_returns_early", "an empty rank reduces nothing", "hang", tokens="empty-rank", ranks=(0, 2)),
    _loss("empty_shard_raises", "an empty rank raises", "crash", tokens="empty-rank", ranks=(1, 3)),
    _loss("one_collective_more_on_one_rank", "one rank reduces once more, at the end", "hang", ranks=(1, 3)),
    _loss("one_collective_more_first", "one rank reduces once more, at the beginning", "hang", ranks=(0, 2)),
    _loss(
        "one_collective_more_not_waited_for",
        "one rank reduces once more and does not wait: the next step is out of step",
        ("hang", "wrong", "crash", "nan", "died"),
        lane="gloo",
    ),
    _loss("collectives_in_another_order", "one rank reduces sum and count in the other order", "wrong"),
    _loss("raises_in_backward_on_one_rank", "one rank raises in backward", "crash", ranks=(1, 3)),
    _loss("dies_in_backward_on_one_rank", "one rank aborts in backward", "died", ranks=(0, 2), says="SIGABRT"),
    _loss("collective_in_backward_on_one_rank", "one rank reduces in backward", "hang", ranks=(0, 2)),
    _loss("one_raises_and_one_dies", "one rank raises, another is gone", "died", ranks=(1, 3)),
    _loss(
        "raises_in_the_words_of_a_lost_peer",
        "an exception of its own sounds like a peer's",
        "crash",
        ranks=(1, 3),
        says="token counts",
    ),
    _loss(
        "raises_connection_refused_of_its_own",
        "one rank cannot reach a server, which is not a rank; a later rank has another trouble",
        "crash",
        ranks=(0, 3),
        says="Connection refused",
    ),
    # what is not a refusal of torch
    _loss("function_without_backward", "the Function has no backward", "crash", says="NotImplementedError"),
    _loss("module_without_forward", "the Module's forward is misspelt", "crash", says="NotImplementedError"),
    _loss("raises_absent", "an exception of its own is called Absent", "crash", says="labels"),
    _loss("returns_a_vector", "the loss is not a scalar", "crash"),
    _loss("detached_value", "the loss has no gradient", "crash"),
]


# --- collectives ------------------------------------------------------------------------------------------------------


def _collective(name: str, wrong: str, outcome: str | tuple[str, ...], method: str = "backward", **more: Any) -> Fault:
    """A function of `collectives` in the place of a method of the collective that its name begins with."""
    expected = {key: more.pop(key) for key in ("factor", "ranks", "says") if key in more}
    kind = max((kind for kind in c.OF_TORCH if name.startswith(kind.lstrip("_"))), key=len)
    if name.startswith("all_gather_base"):
        kind = "_all_gather_base"
    seed = c.standing_in(kind, **{method: getattr(c, name)})
    where = Where(f"collectives/{kind}", more.pop("lane", "nccl-path"), 4, more, _is_slow(outcome))
    return Fault(f"collective-{name}", wrong, where, _outcomes(outcome), seed, **expected)


COLLECTIVES = [
    _collective("all_reduce_gradient_not_reduced", "backward hands on the rank's own gradient", "wrong"),
    _collective("all_reduce_gradient_averaged", "a mean where a sum is meant", "scaled", topology="sp4", factor=0.25),
    _collective("all_reduce_gradient_doubled", "twice the gradient", "scaled", factor=2),
    _collective("all_reduce_gradient_reduced_twice", "backward reduces twice", "scaled", topology="sp4", factor=4),
    _collective("all_reduce_gradient_negative", "the wrong sign", "wrong"),
    _collective(
        "all_reduce_gradient_over_the_world",
        "backward reduces over all ranks",
        "wrong",
        topology=(_CONTIGUOUS, _STRIDED),
    ),
    _collective(
        "all_reduce_gradient_in_storage_order", "strides of the gradient are ignored", "wrong", contiguous=False
    ),
    _collective(
        "all_reduce_input_in_storage_order", "strides of the input are ignored", "wrong", "forward", contiguous="input"
    ),
    _collective("all_reduce_gradient_never_written", "the gradient is never written", _NOT_FINITE),
    _collective("all_reduce_gradient_partly_written", "the gradient's last row is never written", _NOT_FINITE),
    _collective("all_reduce_not_differentiable", "the output has no gradient", "crash", "forward"),
    _collective(
        "all_reduce_gradient_zero_on_the_first",
        "the first rank's gradient is zero",
        "wrong",
        topology=_CONTIGUOUS,
        ranks=(0, 2),
    ),
    _collective(
        "all_reduce_gradient_missing_on_the_last",
        "the last rank has no gradient",
        "wrong",
        topology=_STRIDED,
        ranks=(2, 3),
    ),
    _collective("all_reduce_gradient_in_bfloat16", "the gradient travels in bfloat16", "wrong", dtype="float32"),
    _collective("all_reduce_gradient_infinite", "the gradient is divided by zero", "nan"),
    _collective("all_reduce_of_the_input_itself", "the caller's input is overwritten", ("wrong", "crash"), "forward"),
    _collective("all_reduce_of_the_gradient_itself", "the gradient that others still need is overwritten", "wrong"),
    _collective(
        "all_reduce_in_another_shape", "the output is transposed", ("wrong", "crash"), "forward", contiguous=True
    ),
    _collective("all_reduce_in_another_dtype", "the output is float64", "wrong", "forward"),
    _collective(
        "all_reduce_raises_on_the_last", "one rank raises in backward", "crash", topology=_CONTIGUOUS, ranks=(1, 3)
    ),
    _collective("all_reduce_dies_on_the_first", "one rank exits in backward", "died", topology=_STRIDED, ranks=(0, 1)),
    _collective(
        "all_reduce_left_out_on_the_first",
        "one rank reduces nothing in backward",
        "hang",
        topology=_CONTIGUOUS,
        ranks=(1, 3),
    ),
    _collective(
        "all_reduce_once_more_on_the_first",
        "one rank reduces once more in backward",
        "hang",
        topology="sp4",
        ranks=(0,),
    ),
    _collective(
        "broadcast_from_a_place",
        "the place in the group is taken for the rank",
        "crash",
        "forward",
        topology=_CONTIGUOUS,
        root=0,
        ranks=(2, 3),
    ),
    _collective(
        "broadcast_from_the_first", "the root is always the first", "wrong", "forward", topology="sp4", root=(1, 2)
    ),
    _collective("broadcast_gradient_to_the_next", "the gradient goes to another rank than the root", "wrong"),
    _collective(
        "broadcast_gradient_without_the_roots",
        "the root's own gradient is left out",
        "wrong",
        topology=_STRIDED,
        root=0,
        ranks=(0, 1),
    ),
    _collective(
        "broadcast_gradient_for_everyone",
        "who is not the root keeps a gradient",
        "wrong",
        topology=_CONTIGUOUS,
        root=0,
        ranks=(1, 3),
    ),
    _collective(
        "broadcast_gradient_by_global_rank",
        "place and rank are compared, as in torch since 2.3",
        "wrong",
        topology=_CONTIGUOUS,
        root=0,
        ranks=(2,),
    ),
    _collective(
        "reduce_own_gradient", "backward does not broadcast", "wrong", topology=_CONTIGUOUS, root=0, ranks=(1, 3)
    ),
    _collective("reduce_gradient_averaged", "a mean where a sum is meant", "scaled", topology="sp4", factor=0.25),
    _collective("reduce_gradient_of_the_next", "the wrong root in backward", "wrong", says="every gradient is zero"),
    _collective("gather_gradients_rotated", "each rank gets another's gradient", "wrong"),
    _collective(
        "gather_gradients_by_global_rank", "the global rank is the index", "crash", topology=_CONTIGUOUS, ranks=(2, 3)
    ),
    _collective("scatter_gradients_reversed", "the gradients are in reverse order", "wrong"),
    _collective(
        "scatter_gradients_never_written",
        "who is not the root has a gradient that is never written",
        _NOT_FINITE,
        topology=_CONTIGUOUS,
        root=0,
        ranks=(1, 3),
    ),
    _collective("reduce_scatter_own_gradient_only", "the other ranks' gradients are dropped", "wrong"),
    _collective("reduce_scatter_gradients_reversed", "gradients in reverse order", "wrong", splits="even"),
    _collective("reduce_scatter_of_the_next", "each rank gets the next rank's part", "wrong", "forward", splits="even"),
    _collective("reduce_scatter_of_the_mean", "a mean where a sum is meant, in the value only", "wrong", "forward"),
    _collective(
        "reduce_scatter_in_equal_parts", "uneven parts are cut as if even", ("crash", "wrong"), splits="uneven"
    ),
    _collective(
        "all_gather_gradient_of_global_rank",
        "the global rank is the index, as in torch up to 2.2",
        "crash",
        topology=_CONTIGUOUS,
        ranks=(2, 3),
        says="index",
    ),
    _collective(
        "all_gather_gradient_of_global_rank_modulo",
        "the global rank modulo sp_size is the index",
        "wrong",
        topology=_STRIDED,
        ranks=(1, 2),
    ),
    _collective("all_gather_own_gradient_only", "only the rank's own outputs have a gradient", "wrong"),
    _collective("all_gather_last_gradient_dropped", "the last rank's outputs have no gradient", "wrong"),
    _collective("all_gather_gradients_swapped", "gradients in reverse order", "wrong"),
    _collective(
        "all_gather_swapped",
        "outputs in reverse order",
        "wrong",
        "forward",
        says="the value is wrong",
    ),
    _collective("all_gather_own_shard_twice", "one shard is overwritten by the own one", "wrong", "forward"),
    _collective(
        "all_gather_base_first_part_for_everyone",
        "every rank takes the first part of the gradient",
        "wrong",
        topology=_CONTIGUOUS,
        ranks=(1, 3),
    ),
    _collective("all_gather_base_interleaved", "rows are dealt out in turn instead of in blocks", "wrong"),
    _collective("all_to_all_gradients_not_exchanged", "backward keeps what it has", "wrong", splits="even"),
    _collective("all_to_all_gradients_rotated", "gradients are one place off", "wrong", splits="even"),
    _collective("all_to_all_own_part_dropped", "a rank's gradient from itself is dropped", "wrong"),
    _collective(
        "all_to_all_single_splits_not_swapped", "backward has forward's splits", ("crash", "wrong"), splits="uneven"
    ),
    _collective(
        "all_to_all_single_gradient_in_storage_order", "strides of the gradient are ignored", "wrong", contiguous=False
    ),
    _collective(
        "all_reduce_of_the_first_call",
        "what was reduced once is kept",
        "wrong",
        "forward",
        contiguous=True,
        dtype="float32",
        topology=_CONTIGUOUS,
        says="in the second step",
    ),
    _collective(
        "all_gather_into_the_same_memory",
        "gradients of the step before are in it",
        "wrong",
        contiguous=True,
        dtype="float32",
        topology=_CONTIGUOUS,
        group_backend="nccl",
        says="in the second step",
    ),
    _collective(
        "all_reduce_left_over_on_the_last",
        "one rank reduces once more and does not wait",
        ("crash", "hang", "wrong", "nan", "died"),
        contiguous=True,
        dtype="float32",
        topology=_CONTIGUOUS,
        says="in the second step",
    ),
    _collective(
        "all_reduce_gradient_doubled_where_not_contiguous",
        "gradients that are not contiguous are doubled",
        "scaled",
        contiguous=False,
        factor=2,
    ),
    _collective("all_reduce_in_half", "the sum is rounded to float16", "wrong", "forward", dtype="float32"),
    _collective("all_gather_wrong_beyond_two", "of four gradients two arrive", "wrong", topology="sp4"),
    _collective(
        "broadcast_gradient_from_another_root_dropped", "right for the first root only", "wrong", root=(1, 2, 3)
    ),
    _collective("scatter_gradient_summed", "the root's gradients are the sum of all", "wrong"),
    _collective(
        "all_to_all_single_rows_rotated_where_uneven", "rows are one off where splits differ", "wrong", splits="uneven"
    ),
    _collective(
        "reduce_scatter_doubled_on_bfloat16", "bfloat16 gradients are doubled", "scaled", dtype="bfloat16", factor=2
    ),
    Fault(
        "collective-functional_without_its_gradient",
        "the functional collective has no backward of its own",
        Where("collectives/functional_all_gather", "gloo"),
        ("wrong",),
        c.functional_without_its_gradient,
        says="every gradient is zero",
    ),
    Fault(
        "collective-functional_gradient_doubled",
        "twice the gradient",
        Where("collectives/functional_all_to_all_single", "gloo", only={"splits": "even"}),
        ("scaled",),
        c.functional_gradient_doubled,
        factor=2,
    ),
]


# --- attention --------------------------------------------------------------------------------------------------------


def _attention(
    name: str, case: str, wrong: str, outcome: str | tuple[str, ...], seed: Seed, says: str | None = None, **more: Any
) -> Fault:
    expected = {key: more.pop(key) for key in ("factor", "ranks") if key in more}
    where = Where(f"attention/{case}", "gloo", 4, more, _is_slow(outcome))
    return Fault(f"attention-{name}", wrong, where, _outcomes(outcome), seed, says=says, **expected)


def _exchange(name: str, wrong: str, outcome: str | tuple[str, ...], method: str = "backward", **more: Any) -> Fault:
    """A function of `exchange` in the place of a method of the exchange."""
    seed = x.standing_in(exchange={method: getattr(x, name)})
    return _attention(f"exchange_{name}", more.pop("case", "seq_all_to_all"), wrong, outcome, seed, **more)


def _cross_entropy(
    name: str, wrong: str, outcome: str | tuple[str, ...], method: str = "backward", **more: Any
) -> Fault:
    seed = x.standing_in(cross_entropy={method: getattr(x, name)})
    case = "vocab_sequence_parallel_cross_entropy"
    return _attention(f"cross_entropy_{name}", case, wrong, outcome, seed, **more)


ATTENTION = [
    _exchange("shards_reversed", "the shards of the sequence are in reverse order", "wrong", "forward"),
    _exchange(
        "shards_in_order_of_global_ranks",
        "the own shard is where the global rank says",
        "wrong",
        "forward",
        topology=_STRIDED,
        ranks=(1, 2),
    ),
    _exchange("batches_mixed", "batch and sequence are mixed up", "wrong", "forward", batch=2),
    _exchange("last_token_dropped", "the last token is lost", "wrong", "forward", case="seq_all_to_all_round_trip"),
    _exchange("last_shard_never_written", "the last shard is never received", _NOT_FINITE, "forward"),
    _exchange("dropout_of_rank", "one rank sends what is not finite", "nan", "forward", case="seq_all_to_all"),
    _exchange("over_the_world", "all ranks exchange instead of the group", "wrong", "forward", topology=_STRIDED),
    _exchange("remainder_to_the_last", "uneven heads go to the wrong ranks", "wrong", "forward", heads=(9, 10)),
    _exchange("gradient_not_exchanged", "backward does not exchange", "wrong", heads=(4, 8)),
    _exchange("gradient_averaged", "backward divides by sp_size", "scaled", topology="sp4", factor=0.25),
    _exchange("gradient_doubled", "twice the gradient", "scaled", factor=2),
    _exchange("gradient_zero_on_one_rank", "one rank's gradient is zero", "wrong", topology=_CONTIGUOUS, ranks=(1, 3)),
    _exchange(
        "gradient_in_storage_order",
        "strides of the gradient are ignored",
        "wrong",
        case="distributed_attention",
        dtype="float32",
    ),
    _exchange("gradient_never_written", "the gradient is never written", _NOT_FINITE),
    _exchange("gradient_of_heads_reversed", "the heads are in reverse order in backward", "wrong"),
    _exchange("gradient_dropped", "the input has no gradient", "wrong", says="every gradient is zero"),
    _exchange("gradient_overwritten", "the gradient that others still need is overwritten", "wrong"),
    _exchange("input_overwritten", "the caller's input is overwritten", ("wrong", "crash"), "forward"),
    _exchange(
        "gradient_raises_on_one_rank",
        "one rank raises in backward",
        "crash",
        case="distributed_attention",
        topology=_CONTIGUOUS,
        batch=1,
        layout="bshd",
        ranks=(1, 3),
    ),
    _exchange(
        "gradient_kills_one_rank", "one rank dies in backward", "died", topology=_CONTIGUOUS, batch=1, ranks=(0, 2)
    ),
    _exchange(
        "gradient_exchanged_twice_on_one_rank",
        "one rank exchanges twice in backward",
        "hang",
        topology="sp4",
        ranks=(0,),
    ),
    _exchange(
        "gradient_left_over",
        "one rank calls a collective in backward and does not wait",
        ("crash", "hang", "wrong", "nan", "died"),
        topology="sp4",
        layout="bshd",
        batch=1,
        dtype="float32",
        says="in the second step",
    ),
    _exchange(
        "of_the_first_call",
        "what was exchanged first is kept",
        "wrong",
        "forward",
        case="distributed_attention",
        layout="bshd",
        batch=1,
        dtype="float32",
        topology="sp4",
        heads=8,
        kv_heads=8,
    ),
    _exchange("gradient_doubled_in_bfloat16", "bfloat16 gradients are doubled", "scaled", dtype="bfloat16"),
    _exchange("gradient_of_the_second_batch_swapped", "the batches are swapped in backward", "wrong", batch=2),
    _exchange("gradient_right_on_the_first_rank_of_all", "only rank 0 has a gradient", "wrong", ranks=(1, 2, 3)),
    _exchange("gradient_through_half", "the gradient is rounded to float16", "wrong", dtype="float32"),
    _exchange(
        "gradient_of_the_last_token_dropped",
        "the gradient of the shard's last token is lost",
        "wrong",
        case="seq_all_to_all_round_trip",
    ),
    _exchange("wrong_beyond_two", "of four ranks only pairs exchange", "wrong", "forward", topology="sp4"),
    _exchange(
        "shards_swapped_where_uneven", "uneven shares arrive in another order", "wrong", "forward", heads=(9, 10)
    ),
    _attention(
        "key_and_value_swapped",
        "distributed_attention",
        "keys and values are swapped",
        "wrong",
        x.standing_in(attention={"forward": x.key_and_value_swapped}),
        heads=4,
    ),
    _attention(
        "query_overwritten",
        "distributed_attention",
        "queries are scaled in place",
        ("wrong", "crash"),
        x.standing_in(attention={"forward": x.query_overwritten}),
        dtype="float32",
        heads=(4, 8),
    ),
    _attention(
        "key_gradient_doubled",
        "distributed_attention",
        "keys have twice the gradient",
        "wrong",
        x.standing_in(attention={"forward": x.key_gradient_doubled}),
        "the gradient of key (2 times the reference)",
        dtype="float32",
        heads=(4, 8),
    ),
    _attention(
        "repeated_with_one_gradient",
        "distributed_attention",
        "of a key-value head that serves several queries only one has a gradient",
        "wrong",
        x.standing_in(attention={"repeated": x.repeated_with_one_gradient}),
        "the gradient of key, value is wrong; right is that of query",
        kv_heads=(1, 2, 3, 5),
        heads=(8, 9, 10),
        dtype="float32",
    ),
    _attention(
        "repeated_as_a_whole",
        "distributed_attention",
        "key-value heads serve the wrong queries",
        "wrong",
        x.standing_in(attention={"repeated": x.repeated_as_a_whole}),
        kv_heads=(2, 3, 5),
        heads=(4, 8, 9, 10),
        dtype="float32",
    ),
    _attention(
        "value_detached",
        "distributed_attention",
        "values are detached",
        "wrong",
        x.standing_in(attention={"forward": x.value_detached}),
        "the gradient of value",
        dtype="float32",
    ),
    _attention(
        "query_and_key_swapped",
        "distributed_attention",
        "queries and keys are swapped",
        "wrong",
        x.standing_in(attention={"forward": x.query_and_key_swapped}),
        heads=4,
        kv_heads=4,
    ),
    _attention(
        "not_sent_back",
        "distributed_attention",
        "the outputs are not exchanged back",
        "wrong",
        x.standing_in(attention={"back": x.not_sent_back}),
        heads=(4, 8),
    ),
    _cross_entropy("ignored_labels_counted", "ignored labels count as label 0", "wrong", "forward", tokens="ignored"),
    _cross_entropy("ignored_labels_in_gradient", "ignored labels have a small gradient", "wrong", tokens="ignored"),
    _cross_entropy("losses_of_ranks_reversed", "the shards are in reverse order", "wrong", "forward"),
    _cross_entropy(
        "gradient_of_global_rank",
        "backward takes the slice of the global rank",
        "crash",
        topology=_CONTIGUOUS,
        ranks=(2, 3),
    ),
    _cross_entropy("gradient_unweighted", "backward ignores the gradient it is given", "wrong"),
    _cross_entropy(
        "gradient_summed_over_the_group",
        "gradients of replicated losses are summed",
        "scaled",
        topology="sp4",
        factor=4,
    ),
    _cross_entropy("gradient_of_the_mean", "a mean where a sum is meant", "scaled"),
    _cross_entropy("gradient_used_again", "the gradient that is handed in is overwritten", "wrong"),
    _cross_entropy("losses_in_bfloat16", "losses are gathered in bfloat16", "wrong", "forward", dtype="float32"),
]


# --- reductions -------------------------------------------------------------------------------------------------------

# Right under an engine that averages over all ranks, which these do.
_DDP, _FSDP = "ddp_custom_weighted", "fsdp2_custom_weighted"


def _reduction(name: str, wrong: str, outcome: str | tuple[str, ...], seed: Seed | None = None, **more: Any) -> Fault:
    """A function of `reductions`: how DistributedDataParallel reduces, unless a seed is given."""
    expected = {key: more.pop(key) for key in ("factor", "ranks", "says", "needs") if key in more}
    case = more.pop("case", _DDP)
    seed = seed or r.reducing(getattr(r, name))
    only = {
        "checkpointing": "none",
        **more,
    }  # DistributedDataParallel refuses a layer used twice with the reentrant one
    where = Where(f"engine/{case}", "gloo", 4, only, _is_slow(outcome) or "needs" in expected)
    return Fault(f"reduction-{name}", wrong, where, _outcomes(outcome), seed, **expected)


def _zero(name: str, wrong: str, outcome: str, case: str, **expected: Any) -> Fault:
    """A fault of DeepSpeed's engine; losses are those that its stage is right for."""
    only: dict[str, Value] = {"topology": _CONTIGUOUS, "groups": "mpu"}
    if case.startswith("zero3"):
        only["reduce_scatter"] = True
    return _reduction(name, wrong, outcome, getattr(r, name), case=case, needs="deepspeed", **only, **expected)


REDUCTIONS = [
    _reduction("summed", "a sum where a mean is meant", "scaled", factor=4),
    _reduction("divided_twice", "the mean is divided once more", "scaled", factor=0.25),
    _reduction("divided_by_half_of_the_ranks", "the sum is divided by the wrong group's size", "scaled", factor=2),
    _reduction("not_reduced", "every rank keeps its own gradient", "wrong"),
    _reduction(
        "averaged_over_the_sequence_only",
        "reduced over the sequence-parallel group",
        "wrong",
        r.reduced_among(r.neighbours),
    ),
    _reduction(
        "averaged_over_the_replicas_only",
        "reduced over the data-parallel group",
        "wrong",
        r.reduced_among(r.every_other),
    ),
    _reduction("first_rank_contributes_nothing", "one rank's gradient is left out of the sum", "wrong"),
    _reduction("first_rank_gets_nothing", "one rank applies a zero gradient", "wrong", ranks=(0,)),
    _reduction("last_element_not_reduced", "the last element of a bucket is not reduced", "wrong"),
    _reduction("largest_of_all_ranks", "reduced by MAX", "wrong"),
    _reduction("reduced_in_bfloat16", "float32 gradients travel in bfloat16", "wrong", dtype="float32"),
    _reduction("never_written", "the reduced gradient is never written", _NOT_FINITE),
    _reduction("rotated", "the bucket is read one element off", "wrong"),
    _reduction("weighted_by_rank", "later ranks count more", "wrong"),
    _reduction(
        "divided_by_contributing_ranks",
        "ranks without a token do not count",
        "scaled",
        tokens="empty-rank",
        topology="sp4",
    ),
    _reduction("normalised_on_each_rank", "an empty rank divides by its norm", "nan", tokens="empty-rank"),
    _reduction("first_rank_negative", "one rank's gradient is subtracted", "wrong"),
    _reduction("rounded_to_half", "gradients are rounded to float16", "wrong", dtype="float32"),
    _reduction("largest_element_dropped", "the largest element is lost", "wrong"),
    _reduction("own_contribution_left_out", "each rank gets the others' only", "wrong"),
    _reduction("doubled_in_bfloat16", "bfloat16 gradients are doubled", "scaled", dtype="bfloat16"),
    _reduction(
        "doubled_where_a_rank_is_empty",
        "a rank without a token doubles the sum",
        "scaled",
        tokens="empty-rank",
        factor=2,
    ),
    _reduction("averaged_in_pairs", "a butterfly without its second round", "wrong"),
    _reduction("raises_on_the_last", "one rank raises in backward", "crash", topology=_STRIDED, ranks=(3,)),
    _reduction("dies_on_the_third", "one rank dies in backward", "died", topology="sp4", ranks=(2,), says="137"),
    _reduction(
        "left_out_by_the_last",
        "one rank reduces nothing",
        "hang",
        topology="sp4",
        ranks=(0, 1, 2),
    ),
    _reduction(
        "micro_batches_summed", "a sum over micro-batches", "scaled", r.micro_batches_summed, accumulation=2, factor=2
    ),
    _reduction(
        "last_micro_batch_only",
        "earlier micro-batches are forgotten",
        "wrong",
        r.last_micro_batch_only,
        accumulation=(2, 3),
    ),
    _reduction(
        "with_weight_decay",
        "the optimizer adds to the gradient",
        "wrong",
        r.optimizing(r.with_weight_decay),
        dtype="float32",
    ),
    _reduction("with_twice_the_rate", "twice the step", "scaled", r.optimizing(r.with_twice_the_rate), dtype="float32"),
    _reduction(
        "without_the_last_parameter",
        "a parameter is left out of the step",
        "wrong",
        r.optimizing(r.without_the_last_parameter),
        dtype="float32",
    ),
    _reduction(
        "without_a_step_on_one_rank",
        "one rank does not step",
        "wrong",
        r.optimizing(r.without_a_step_on_one_rank),
        dtype="float32",
        says="parameters",
    ),
    _reduction(
        "clipping", "the gradient is clipped after it was shown", "scaled", r.optimizing(r.clipping), dtype="float32"
    ),
    _reduction(
        "drifting_last_bit",
        "one rank's parameters differ in the last bits",
        "wrong",
        r.optimizing(r.drifting_last_bit),
        dtype="float32",
        says="parameters",
    ),
    _reduction(
        "sharded_over_neighbours",
        "reduced over the sequence-parallel group",
        "wrong",
        r.sharding(r.sharded_over_neighbours),
        case=_FSDP,
        topology=_CONTIGUOUS,
    ),
    _reduction(
        "sharded_and_reduced_in_bfloat16",
        "float32 gradients travel in bfloat16",
        "wrong",
        r.sharding(r.reduced_in_bfloat16_when_sharded),
        case=_FSDP,
        dtype="float32",
    ),
    _reduction(
        "sharded_with_twice_the_rate",
        "twice the step",
        "scaled",
        r.optimizing(r.with_twice_the_rate),
        case=_FSDP,
        dtype="float32",
        topology="sp4",
    ),
    _zero("zero0_doubled", "twice the gradient", "scaled", "zero0_gather_slice_weighted", factor=2),
    _zero(
        "zero1_averaged_twice", "the mean is divided once more", "scaled", "zero1_gather_slice_weighted", factor=0.25
    ),
    _zero(
        "zero2_first_rank_contributes_nothing",
        "one rank's gradient is left out",
        "wrong",
        "zero2_gather_slice_weighted",
    ),
    _zero("zero3_summed", "a sum where a mean is meant", "scaled", "zero3_custom_weighted", factor=4),
    _zero(
        "zero3_first_partition_zero", "one rank's partition of the gradient is zero", "wrong", "zero3_custom_weighted"
    ),
    _zero("zero1_norm_reported_doubled", "the reported norm is twice the gradient's", "wrong", "zero1_grad_norm"),
    _zero(
        "zero1_clipped_by_half_of_the_norm", "the norm is taken too small when clipping", "scaled", "zero1_grad_norm"
    ),
]


# --- the losses that the suite's own tests run too --------------------------------------------------------------------


def _names(module: types.ModuleType) -> list[str]:
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return [name for name in own if not name.startswith("_")]


def _of_product(name: str) -> Fault:
    """The outcome is in the name."""
    outcome = name.split("_")[0]
    only = {"topology": _CONTIGUOUS, "tokens": "ignored", "dtype": "float32"}
    where = Where(f"user/tests.product.losses.faulty:{name}", "nccl-path", 4, only)
    outcomes = _NOT_FINITE if name.startswith("wrong_or_nan") else (outcome,)
    return Fault(f"product-{name}", name.partition("_")[2].replace("_", " "), where, outcomes)


PRODUCT = [_of_product(name) for name in _names(product_faulty) if not name.startswith("pass")]

FAULTS = [*LOSSES, *COLLECTIVES, *ATTENTION, *REDUCTIONS, *PRODUCT]


# --- right ------------------------------------------------------------------------------------------------------------


def _right_loss(name: str, style: str, convention: str, lane: str = "gloo", needs: str | None = None) -> Right:
    only = {"topology": (_STRIDED, "sp4")}  # a run of all three costs half as much again
    where = Where(f"user/tests.mutation.right_losses:{name}", lane, only=only)
    return Right(f"loss-{name}", style, where, convention=convention, needs=needs)


_RIGHT_LOSSES = [
    _right_loss("function_that_reduces_both_ways", "Function, all_reduce in forward and backward", "mean"),
    _right_loss("gradient_by_hand", "Function, gradient written by hand", "sum"),
    _right_loss("gradient_by_hand_times_sp_size", "Function, gradient written by hand, scaled", "mean"),
    _right_loss("gather_and_sum", "Function, gather; backward sums and slices", "mean"),
    _right_loss("gather_sum_and_divide", "the same, divided by sp_size", "sum"),
    _right_loss("strides_respected", "Function, gradients that are not contiguous", "mean", "nccl-path"),
    _right_loss("own_shard_put_back", "gather without gradient, own shard put back", "sum"),
    _right_loss("own_mean_put_back", "gathered means, own one put back", "sum"),
    _right_loss("whole_sequence_by_object", "counts as objects", "sum", needs="numpy"),
    _right_loss("all_reduced_shares", "F.all_reduce after dividing", "mean", "nccl-path"),
    _right_loss("all_reduced_rows", "F.all_reduce of every token", "mean", "nccl-path"),
    _right_loss("all_to_all_of_copies", "F.all_to_all_single", "mean", "nccl-path"),
    _right_loss("all_reduced_in_float64", "F.all_reduce in float64", "mean", "nccl-path"),
    _right_loss("all_reduced_in_its_own_dtype", "F.all_reduce without widening", "mean", "nccl-path"),
    _right_loss("recomputed_in_backward", "F.all_reduce under activation checkpointing", "mean", "nccl-path"),
    _right_loss("reduced_without_waiting", "two reductions under way together", "sum"),
    _right_loss("reduced_to_the_root_and_broadcast", "reduce and broadcast", "sum"),
    _right_loss("around_a_ring", "sends and receives", "sum"),
    _right_loss("all_reduced_in_place", "dist.all_reduce in place, scaled by hand", "mean"),
    _right_loss("functional_gather_of_sums", "functional collective without gradient", "sum"),
    _right_loss("functional_reduce_scatter_and_gather", "two functional collectives, scaled", "mean"),
    _right_loss("empty_shard_masked_before", "an empty rank is masked before dividing", "sum"),
    _right_loss("empty_shard_takes_part_with_zero", "an empty rank takes part with zero", "mean", "nccl-path"),
    _right_loss("a_module", "a Module", "mean", "nccl-path"),
    _right_loss("closure_over_a_hook", "scaled by a hook on the gradient", "sum", "nccl-path"),
    _right_loss("tokens_in_any_order", "sorted tokens, dot product", "sum"),
    _right_loss("gradient_in_two_halves", "two reductions, one after the other", "mean", "nccl-path"),
]
assert {right.name[len("loss-") :] for right in _RIGHT_LOSSES} == set(_names(right_losses))


def _right_of_product(name: str) -> Right:
    only = {"tokens": "unequal", "topology": _STRIDED}  # the suite's own tests run the whole grid
    where = Where(f"user/tests.product.losses.right:{name}", "nccl-path", only=only)
    return Right(f"product-{name}", name.replace("_", " "), where, convention=name.rsplit("_", 1)[1])


def _right_reduction(name: str, style: str) -> Right:
    where = Where(f"engine/{_DDP}", "gloo", only={"checkpointing": ("none", "non-reentrant")})
    return Right(f"reduction-{name}", style, where, r.reducing(getattr(r, name)))


_BY_GATHERING = {"forward": x.by_gathering, "backward": x.gradient_by_gathering}

RIGHT = [
    *_RIGHT_LOSSES,
    *(_right_of_product(name) for name in _names(product_right)),
    *(
        Right(f"collective-{name}", "made of other collectives", Where(f"collectives/{name}"), c.standing_in(name))
        for name in c.OF_TORCH
    ),
    *(
        Right(
            f"attention-{case}",
            "list of tensors, all_to_all_single",
            Where(f"attention/{case}", "gloo"),
            x.standing_in(),
        )
        for case in ("seq_all_to_all", "seq_all_to_all_round_trip", "distributed_attention")
    ),
    Right(
        "attention-vocab_sequence_parallel_cross_entropy",
        "softmax minus one-hot, all_gather",
        Where("attention/vocab_sequence_parallel_cross_entropy", "gloo"),
        x.standing_in(),
    ),
    *(
        Right(
            f"attention-{case}_by_gathering",
            "all_gather and slice",
            Where(f"attention/{case}", "gloo"),
            x.standing_in(exchange=_BY_GATHERING),
        )
        for case in ("seq_all_to_all", "distributed_attention")
    ),
    _right_reduction("averaged", "sum, then divided"),
    _right_reduction("divided_first", "divided, then summed"),
    _right_reduction("gathered_and_averaged", "gathered, then averaged"),
    _right_reduction("reduced_in_halves", "reduce-scatter and all-gather by hand"),
]
