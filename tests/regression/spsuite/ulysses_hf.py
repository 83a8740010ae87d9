"""DeepSpeed's Ulysses for transformers: the attention that takes the place of a model's own, and the loader of batches.

The model is a small Llama made from a config object; the reference is written out below.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

from spsuite import deepspeed_release
from spsuite.calculation import Calculation, Inputs, accepts, causal_attention, compiled
from spsuite.catalogue import head_counts
from spsuite.rank import Absent, Rank

HEAD_SIZE = 4
INNER = 6
TOKENS_PER_RANK = 3
EPSILON = 1e-6
ROPE_BASE = 10000.0

_ULYSSES = "deepspeed.runtime.sequence_parallel.ulysses_sp"
_ATTENTIONS = "transformers.modeling_utils:ALL_ATTENTION_FUNCTIONS"
_CONFIG = "transformers.models.llama.configuration_llama:LlamaConfig"
_MODEL = "transformers.models.llama.modeling_llama:LlamaModel"


class TransformersAttention(Calculation):
    """[batch, sequence, hidden] through the layers of the model; every rank has parameters of its own."""

    needs = (f"{_ULYSSES}:UlyssesSPAttentionHF", _ATTENTIONS, _CONFIG, _MODEL)
    # It takes the place of transformers' attention in the whole process, and one topology is all that it allows.
    needs_own_world = True
    layers = 2

    def __init__(self, cell: Any, ranks: Tuple[int, ...]) -> None:
        super().__init__(cell, ranks)
        self.heads = int(cell.parameters.get("heads", head_counts(("even",), self.sp_size)[0]))
        self.kv_heads = int(cell.parameters.get("kv_heads", self.heads))
        self.hidden = self.heads * HEAD_SIZE

    def inputs(self, place: int) -> Inputs:
        tensors = {"hidden states": self.random((self.batch, TOKENS_PER_RANK, self.hidden), place, 0)}
        for number, (name, shape) in enumerate(self._parameters().items()):
            tensors[name] = self.shared(shape, number + 1) + (1.0 if "norm" in name else 0.0)
        return tensors

    def _parameters(self) -> Dict[str, Tuple[int, ...]]:
        """The model's parameters by their names in transformers."""
        hidden, grouped = self.hidden, self.kv_heads * HEAD_SIZE
        layer = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (grouped, hidden),
            "self_attn.v_proj": (grouped, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (INNER, hidden),
            "mlp.up_proj": (INNER, hidden),
            "mlp.down_proj": (hidden, INNER),
        }
        shapes: Dict[str, Tuple[int, ...]] = {}
        for number in range(self.layers):
            shapes.update({f"layers.{number}.{name}.weight": shape for name, shape in layer.items()})
        return {**shapes, "norm.weight": (hidden,)}

    # --- on a rank ---

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        model = self._model(inputs).to(me.device)
        try:
            self._install(group)
        except ValueError as error:
            if "transformers>=" in str(error):  # it wants a newer one
                raise Absent(str(error)) from None
            raise
        first = place * TOKENS_PER_RANK
        positions = torch.arange(first, first + TOKENS_PER_RANK, device=me.device).repeat(self.batch, 1)
        self.prepare(model)
        output = model(inputs_embeds=inputs["hidden states"], position_ids=positions, use_cache=False)
        return [output.last_hidden_state]

    def prepare(self, model: Any) -> None:
        pass

    def _model(self, inputs: Inputs) -> Any:
        model = deepspeed_release.find(_MODEL)(self._config()).train()
        for name, tensor in inputs.items():
            if name.endswith(".weight"):
                module = model.get_submodule(name.rpartition(".")[0])
                module.weight = tensor
        mode = self.cell.parameters.get("checkpointing", "none")
        if mode != "none":
            model.gradient_checkpointing_enable({"use_reentrant": mode == "reentrant"})
        return model

    def _config(self) -> Any:
        config = deepspeed_release.find(_CONFIG)(
            vocab_size=8,
            hidden_size=self.hidden,
            intermediate_size=INNER,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            rms_norm_eps=EPSILON,
            max_position_embeddings=1024,
        )
        config._attn_implementation = "sdpa"
        return config

    def _install(self, group: dist.ProcessGroup) -> None:
        """As a user does, where the groups are those that it makes by itself; else its attention on the group."""
        attention = deepspeed_release.find(self.needs[0])
        if self.cell.parameters.get("groups") == "mpu" and self.cell.topology.is_mesh:
            self._register(attention)
            return
        functions = deepspeed_release.find(_ATTENTIONS)
        ulysses = attention(
            attn=functions["sdpa"],
            local_seq_length=TOKENS_PER_RANK,
            global_seq_length=TOKENS_PER_RANK * self.sp_size,
            batch_size=self.batch,
            attn_head_count=self.heads,
            attn_head_size=HEAD_SIZE,
            kv_head_count=self.kv_heads,
            num_hidden_layers=self.layers,
            process_group=group,
        )

        def in_place_of_sdpa(
            module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *more: Any, **named: Any
        ) -> Any:
            return ulysses(module, query, key, value, None, *more, **named)  # the mask is that of a part

        functions["sdpa"] = in_place_of_sdpa

    def _register(self, attention: Any) -> None:
        register = attention.register_with_transformers
        length = "seq_length" if accepts(register, "seq_length") else "max_length"
        with tempfile.TemporaryDirectory() as directory:  # older releases take no model, only where its config is
            (Path(directory) / "config.json").write_text(self._config().to_json_string())
            register(
                model_name_or_path=directory,
                core_attn_implementation="sdpa",
                sequence_parallel_size=self.sp_size,
                micro_batch_size=self.batch,
                seq_length_is_variable=True,
                **{length: TOKENS_PER_RANK * self.sp_size},
            )

    # --- in the oracle ---

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        states = [mine["hidden states"] for mine in inputs]
        for number in range(self.layers):
            states = self._layer([_within(mine, f"layers.{number}.") for mine in inputs], states)
        return [[_norm(state, mine["norm.weight"])] for state, mine in zip(states, inputs)]

    def _layer(self, layers: Sequence[Inputs], states: Sequence[Tensor]) -> List[Tensor]:
        """What is done to each token is done by its rank's parameters; attention is that of the whole sequence."""
        normed = [_norm(state, layer["input_layernorm.weight"]) for state, layer in zip(states, layers)]
        query, key, value = (
            torch.cat(
                [self._heads(part @ layer[f"self_attn.{name}.weight"].t()) for part, layer in zip(normed, layers)], 2
            )
            for name in ("q_proj", "k_proj", "v_proj")
        )
        attended = causal_attention(_rotated(query), _rotated(key), value).transpose(1, 2).flatten(2)
        parts = attended.split(TOKENS_PER_RANK, dim=1)
        states = [
            state + part @ layer["self_attn.o_proj.weight"].t() for state, part, layer in zip(states, parts, layers)
        ]
        return [state + _mlp(state, layer) for state, layer in zip(states, layers)]

    def _heads(self, tensor: Tensor) -> Tensor:
        """[batch, sequence, hidden] to [batch, heads, sequence, size]"""
        return tensor.unflatten(2, (-1, HEAD_SIZE)).transpose(1, 2)


class TransformersAttentionCompiled(TransformersAttention):
    """The attention of its layer traced by torch.compile."""

    compiled = True
    layers = 1

    def prepare(self, model: Any) -> None:
        attention = model.layers[0].self_attn
        attention.forward = compiled(attention.forward)


def _within(inputs: Inputs, prefix: str) -> Inputs:
    return {name[len(prefix) :]: tensor for name, tensor in inputs.items() if name.startswith(prefix)}


def _norm(tensor: Tensor, weight: Tensor) -> Tensor:
    return tensor * (tensor.pow(2).mean(-1, keepdim=True) + EPSILON).rsqrt() * weight


def _rotated(tensor: Tensor) -> Tensor:
    """Rotary position embedding: the pair (i, i + size / 2) turned by position / base ** (2 i / size)."""
    sequence, size = tensor.shape[-2:]
    frequencies = ROPE_BASE ** (-torch.arange(0, size, 2, dtype=tensor.dtype) / size)
    angles = torch.arange(sequence, dtype=tensor.dtype).unsqueeze(1) * frequencies
    first, second = tensor.chunk(2, dim=-1)
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )


def _mlp(state: Tensor, layer: Inputs) -> Tensor:
    normed = _norm(state, layer["post_attention_layernorm.weight"])
    gate = torch.nn.functional.silu(normed @ layer["mlp.gate_proj.weight"].t())
    return (gate * (normed @ layer["mlp.up_proj.weight"].t())) @ layer["mlp.down_proj.weight"].t()


# --- the loader -------------------------------------------------------------------------------------------------------


class DataLoaderAdapter(Calculation):
    """Batches of each rank's own loader, dealt out in turn: of each, every rank gets its part of the sequence.

    There is nothing to differentiate; what is compared is input_ids, position_ids, shift_labels and an entry that is
    no tensor, for two batches of every rank.
    """

    needs = (f"{_ULYSSES}:UlyssesSPDataLoaderAdapter",)
    steps = 2

    def inputs(self, place: int) -> Inputs:
        return {}

    def call(self, me: Rank, group: dist.ProcessGroup, place: int, inputs: Inputs) -> List[Tensor]:
        adapter = deepspeed_release.find(self.needs[0])
        batches = [self._batch(place, step) for step in range(self.steps)]
        loader: Any = DataLoader(batches, batch_size=None)
        adapted = adapter(loader, sp_rank=place, sp_group=group, sp_world_size=self.sp_size, device=me.device)
        return [_as_numbers(batch) for batch in adapted]

    def reference(self, inputs: Sequence[Inputs]) -> List[List[Tensor]]:
        whole = [self._batch(sender, step) for step in range(self.steps) for sender in self.places]
        return [[_as_numbers(self._part(batch, place)) for batch in whole] for place in self.places]

    def _batch(self, place: int, step: int) -> Dict[str, Any]:
        unequal = self.cell.parameters["tokens"] == "unequal"
        tokens = self.sp_size * (2 + (place % 3 if unequal else 0))
        numbers = (self.random((self.batch, tokens), place, step).abs() * 1000).long()
        return {
            "input_ids": numbers,
            "position_ids": torch.arange(tokens).repeat(self.batch, 1),
            "labels": numbers + 7,
            "document": 100 * step + place,
        }

    def _part(self, batch: Dict[str, Any], place: int) -> Dict[str, Any]:
        """The labels are shifted before the sequence is cut, or the last token of a part would lose its own."""
        labels = batch["labels"]
        shifted = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], dim=1)
        whole = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"], "shift_labels": shifted}
        parts: Dict[str, Any] = {name: tensor.chunk(self.sp_size, dim=1)[place] for name, tensor in whole.items()}
        return {**parts, "document": batch["document"]}


def _as_numbers(batch: Dict[str, Any]) -> Tensor:
    """[batch, 3 * tokens + 1]"""
    tensors = [batch[name].double() for name in ("input_ids", "position_ids", "shift_labels")]
    return torch.cat([*tensors, torch.full_like(tensors[0][:, :1], float(batch["document"]))], dim=1)
