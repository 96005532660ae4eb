"""Actor and critic over one causal language model of transformers, on packed trajectories."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cuda_agent.errors import UsageError
from cuda_agent.rl import attention, lora
from cuda_agent.rl.ranks import this_rank
from cuda_agent.rl.rollouts import PackedRollouts
from cuda_agent.rl.sharding import load_whole, shard, whole_state
from cuda_agent.rl.vocabulary import ROWS, head_logprobs

ACTOR, CRITIC = "actor", "critic"


@dataclass(frozen=True)
class NetworkOptions:
    """How a model is trained.

    Attributes:
        rank: of the adapters; 0 trains all weights, and the critic is then a copy of its own.
        alpha: scale of the adapters.
        checkpointing: layers are run again in the backward pass instead of kept.
        rows: rows of logits in memory at a time.
        with_critic: ``False`` for stages and arms without one.
        shard: spread all weights over the ranks of torch.distributed (FSDP2; ``rank`` 0 only: adapters and
            their backbone stay whole on every rank).
    """

    rank: int = 16
    alpha: float = 32.0
    checkpointing: bool = True
    rows: int = ROWS
    with_critic: bool = True
    shard: bool = False


class Networks(nn.Module):  # type: ignore[misc]
    """An actor, and a critic with a float32 head that begins at a constant.

    No gradient of the critic reaches the actor: each has its own adapter, or its own weights.

    Args:
        model: causal language model of transformers; becomes part of this, with packed attention.

    Raises:
        UsageError: it attends within a sliding window, or its layers cannot be adapted or sharded.
    """

    def __init__(self, model: Any, options: NetworkOptions) -> None:
        super().__init__()
        self.options = options
        self.model = model
        check_model(model)
        without_dropout(model)
        model.set_attn_implementation(attention.register())
        decoder = model.base_model
        self._critic: Any = None
        if options.rank:
            names = (ACTOR, CRITIC) if options.with_critic else (ACTOR,)
            model.requires_grad_(False)
            lora.add_adapters(decoder, names, rank=options.rank, alpha=options.alpha)
            if not any(True for _ in lora.adapted_layers(decoder)):
                raise UsageError("the model has no linear layers to adapt", "Train all weights: rank = 0.")
            for _, layer in lora.adapted_layers(decoder):
                layer.active = ACTOR  # what samples from the model sees the actor
        elif options.with_critic:
            self._critic = copy.deepcopy(decoder)
        self.value_head = nn.Linear(model.config.hidden_size, 1, device=model.device)  # float32
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        if options.checkpointing:
            for network in filter(None, (model, self._critic)):
                network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self._actor = _Actor(model, options.rows)
        if options.shard:
            self._shard()

    # -- what is computed ------------------------------------------------------------------------------

    def logprobs(self, batch: PackedRollouts) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each acted token under the actor: [M] each."""
        return self._logprobs(batch, ACTOR if self.options.rank else None)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def reference_logprobs(self, batch: PackedRollouts) -> Tensor:
        """Log-probabilities [M] of the backbone alone, as it was before training (adapters only).

        Raises:
            UsageError: all weights are trained; the backbone is gone.
        """
        if not self.options.rank:
            raise UsageError("no reference model beside full weights", "Set reference_kl = 0, or rank > 0.")
        return self._logprobs(batch, None)[0]

    def values(self, batch: PackedRollouts) -> Tensor:
        """V before each acted token: float32 [M].

        Raises:
            UsageError: made without a critic.
        """
        if not self.options.with_critic:
            raise UsageError("these networks have no critic")
        decoder = self.model.base_model if self._critic is None else self._critic
        with lora.adapter(decoder, CRITIC if self.options.rank else None):
            hidden = _hidden(decoder, batch)
        values: Tensor = self.value_head(batch.before_acted(hidden).float())
        return values[:, 0]

    def _logprobs(self, batch: PackedRollouts, name: str | None) -> tuple[Tensor, Tensor]:
        with lora.adapter(self.model.base_model, name):
            result: tuple[Tensor, Tensor] = self._actor(batch)
        return result

    @contextlib.contextmanager
    def backward_of(self, name: str) -> Iterator[None]:
        """The block in which a loss of the actor or critic is made and differentiated.

        Layers that are run again need the adapter active and the model in training mode.
        """
        decoder = self.model.base_model
        networks = [network for network in (self.model, self._critic) if network is not None]
        for network in networks:
            network.train()
        try:
            with lora.adapter(decoder, name if self.options.rank else None):
                yield
        finally:
            for network in networks:
                network.eval()

    # -- weights ---------------------------------------------------------------------------------------

    def actor_weights(self) -> list[nn.Parameter]:
        """What the actor's optimiser moves."""
        if self.options.rank:
            return lora.adapter_parameters(self.model.base_model, ACTOR)
        return list(self.model.parameters())

    def critic_weights(self) -> list[nn.Parameter]:
        """What the critic's optimiser moves."""
        body: list[nn.Parameter] = []
        if self.options.with_critic and self.options.rank:
            body = lora.adapter_parameters(self.model.base_model, CRITIC)
        elif self._critic is not None:
            body = list(self._critic.parameters())
        return [*body, *self.value_head.parameters()]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def start_critic(self, mean_outcome: float) -> None:
        """Critic as the actor is now, predicting a constant everywhere."""
        decoder = self.model.base_model
        if self.options.rank and self.options.with_critic:
            for _, layer in lora.adapted_layers(decoder):
                layer.a[CRITIC].copy_(layer.a[ACTOR])
                layer.b[CRITIC].copy_(layer.b[ACTOR])
        elif self._critic is not None:
            self._critic.load_state_dict(decoder.state_dict())
        self.value_head.weight.zero_()
        self.value_head.bias.fill_(mean_outcome)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything that training changes: ``actor``, ``critic``, ``value_head``.

        Tensors are whole. Of sharded weights rank 0 alone has them, and all ranks must call.
        """
        decoder = self.model.base_model
        found = {"value_head": self.value_head.state_dict()}
        if self.options.rank:
            names = (ACTOR, CRITIC) if self.options.with_critic else (ACTOR,)
            return {**found, **{name: lora.adapter_state(decoder, name) for name in names}}
        found[ACTOR] = whole_state(self.model)
        if self._critic is not None:
            found[CRITIC] = whole_state(self._critic)
        return found

    def load(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Inverse of :meth:`state`; a critic that is not in it stays."""
        decoder = self.model.base_model
        for name in (ACTOR, CRITIC):
            if name not in state or (name == CRITIC and not self.options.with_critic):
                continue
            if self.options.rank:
                lora.load_adapter_state(decoder, name, state[name])
            else:
                load_whole(self.model if name == ACTOR else self._critic, state[name])
        self.value_head.load_state_dict(state["value_head"])

    def save_actor(self, folder: Path) -> None:
        """Write the actor for other programs: an adapter as PEFT does, or the whole model.

        Rank 0 writes; all ranks must call.
        """
        whole = whole_state(self.model) if self.options.shard else None
        if this_rank():
            return
        if self.options.rank:
            # Of the whole model, not of its decoder: PEFT's names begin there.
            lora.save_adapter(self.model, ACTOR, folder, rank=self.options.rank, alpha=self.options.alpha)
        else:
            self.model.save_pretrained(folder, state_dict=whole)

    def _shard(self) -> None:
        if self.options.rank:
            raise UsageError("adapters are not sharded", "Train all weights (rank = 0), or without sharding.")
        shard(self._actor, self.model.base_model)
        if self._critic is not None:
            shard(self._critic, self._critic)


class _Actor(nn.Module):  # type: ignore[misc]
    """One pass from ids to log-probabilities: what a sharded actor is gathered for."""

    def __init__(self, model: Any, rows: int) -> None:
        super().__init__()
        self.model, self.rows = model, rows

    def forward(self, batch: PackedRollouts) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each acted token: [M] each."""
        hidden = batch.before_acted(_hidden(self.model.base_model, batch))
        head = self.model.get_output_embeddings()
        return head_logprobs(
            hidden, head.weight, batch.acted_ids, bias=getattr(head, "bias", None), rows=self.rows
        )


def _hidden(decoder: Any, batch: PackedRollouts) -> Tensor:
    """[N, H]."""
    bounds = batch.offsets.int()
    longest = int(batch.lengths.max())
    out = decoder(
        input_ids=batch.token_ids[None],
        position_ids=batch.positions[None],
        use_cache=False,
        cu_seq_lens_q=bounds,
        cu_seq_lens_k=bounds,
        max_length_q=longest,
        max_length_k=longest,
    )
    hidden: Tensor = out.last_hidden_state[0]
    return hidden


def check_model(model: Any) -> None:
    """Whether packed attention does what the model means.

    Raises:
        UsageError: it attends within a sliding window, which is not passed on.
    """
    kinds = set(getattr(model.config, "layer_types", None) or ("full_attention",))
    if kinds != {"full_attention"}:
        raise UsageError(
            f"layers of kind {', '.join(sorted(kinds))} cannot be trained packed",
            "Use a model with full attention in every layer, such as Qwen2.5 or Llama.",
        )


def without_dropout(model: nn.Module) -> None:
    """Dropout off: ratios compare the same function before and after an update."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if getattr(module, "attention_dropout", 0.0):
            module.attention_dropout = 0.0


def load_networks(path: Path, options: NetworkOptions, *, device: str, dtype: str) -> tuple[Networks, Any]:
    """Networks and tokenizer from a folder of transformers.

    Raises:
        UsageError: no such folder, it holds no model, or transformers is missing.
    """
    if not path.is_dir():
        raise UsageError(f"no model at {path}", "Name a folder with weights and tokenizer (model.path).")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging as transformers_logging
    except ImportError:
        raise UsageError(
            "training needs transformers", "Install it: pip install 'cuda-agent[local]'."
        ) from None
    transformers_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"cannot load the model at {path}: {str(error)[:200]}") from None
    return Networks(model.to(device).eval(), options).eval(), tokenizer
