"""``isthmus.attach``: sends a model's gradients and weights over Isthmus; everything else stays on its backend."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from isthmus.base.backends import agreed_texts, backends_of, companion_of, companions, group_on_isthmus, options_from
from isthmus.base.error_reports import on_all
from isthmus.group.nodes.node_map import name_ranks
from isthmus.model.collectives import why_not_replaceable
from isthmus.model.companions import (
    Wish,
    destroy_unused,
    disagreement,
    drop_those_within_nodes,
    make_companions,
    on_all_ranks,
    why_companions_would_hang,
)
from isthmus.model.models import (
    ddp_modules,
    fsdp1_units,
    fsdp2_groups,
    fsdp2_units,
    groups_of,
    held_units,
    shard_group,
)
from isthmus.model.prepare import forget, forget_what_prepared_itself, prepare, prepared_of
from isthmus.torch_private.groups import backends_by_device
from isthmus.torch_private.models import gather_group, is_in_a_pass, replicate_group

if TYPE_CHECKING:
    from isthmus import _C

Model = TypeVar("Model", bound=nn.Module)

logger = logging.getLogger("isthmus")

# Torch lets nobody replace this all-reduce.
_BETWEEN_REPLICAS = (
    "FSDP2 hands nobody its all-reduce between replicas (HSDP): give that dimension of the mesh the backend by name, "
    'init_device_mesh(..., backend_override={"replicate": "isthmus"}), and call isthmus.prepare'
)

_IN_A_PASS = "is in a forward or backward pass, or being gathered: call this between steps"


@dataclass
class _Attachment:
    """What `attach` does to a model on one rank. Refers to no module, so that it keeps none alive."""

    arguments: Mapping[str, str]  # name and prefetch
    options: Any = None
    texts: Mapping[str, str] = field(default_factory=dict)  # the options that all ranks have alike
    groups: list[dist.ProcessGroup] = field(default_factory=list)  # the groups that gather or reduce the model
    used: list[dist.ProcessGroup] = field(default_factory=list)  # those of them whose companions it uses

    def wish(self, model: nn.Module, options: _C.Options | None, keywords: Mapping[str, Any]) -> Wish:
        """Return what this rank needs. Raises an error of any type if the model cannot be attached."""
        self.options = options_from(options, keywords)
        self.texts = agreed_texts(self.options)
        if not isinstance(model, nn.Module):
            raise TypeError(f"expected a model of FSDP2 or DDP, got a {type(model).__name__}")
        if (earlier := _attachments.get(model)) is not None:
            differing = _differences({**earlier.arguments, **earlier.texts}, {**self.arguments, **self.texts})
            if differing:
                raise ValueError(f"this model is attached with {differing}: call isthmus.detach(model) first")
            return Wish(self.texts, is_attached=True)
        _require_attachable(model)
        self.groups = _groups_to_attach(model)
        if prepared_of(model) is not None:
            raise ValueError("this model was prepared before: leave isthmus.prepare out, isthmus.attach calls it")
        forget_what_prepared_itself(model)
        for group, unit in fsdp2_units(model):
            if reason := why_not_replaceable(group) or (_IN_A_PASS if is_in_a_pass(group) else ""):
                raise ValueError(f"unit {unit.name!r} {reason}")
        for group in self.groups:
            others = self.texts if companion_of(group) is None else companions[group].options
            if differing := _differences(others, self.texts):
                raise ValueError(
                    f"another model over the group of {name_ranks(dist.get_process_group_ranks(group))} is attached "
                    f"with {differing}: give this one a group (or mesh) of its own, equal options, or detach the other "
                    "one"
                )
        groups = tuple(tuple(dist.get_process_group_ranks(group)) for group in self.new_groups())
        if reason := why_companions_would_hang(groups):
            raise ValueError(reason)
        return Wish(self.texts, False, groups)

    def new_groups(self) -> list[dist.ProcessGroup]:
        """Return the groups that have no companion yet."""
        return [group for group in self.groups if companion_of(group) is None]

    def use_companions(self, model: nn.Module) -> None:
        """Use companions that span nodes. Raises ValueError if none does."""
        places = drop_those_within_nodes(self.groups)
        crossing = [group for group in self.groups if companion_of(group) is not None]
        if not crossing:
            advice = 'Train without isthmus.attach, or simulate nodes: isthmus.attach(model, nodes="2x2").'
            raise ValueError(
                "no group of this model spans several nodes of one size, so nothing would be compressed "
                f"({places}). {f'{_BETWEEN_REPLICAS}.' if _replicate_groups(model) else advice}"
            )
        for group in crossing:
            companions[group].num_models += 1
            self.used.append(group)

    def undo(self, model: nn.Module) -> None:
        """Restore the model as it was before. A hook of DDP stays, and averages as DDP does."""
        for backend in backends_of(groups_of(model)):
            backend.clear_units(held_units(model))
        forget(model)
        for group in self.used:
            companions[group].num_models -= 1
        for group in self.groups:
            destroy_unused(group)


_attachments: weakref.WeakKeyDictionary[nn.Module, _Attachment] = weakref.WeakKeyDictionary()


def attach(
    model: Model,
    *,
    name: str = "",
    scaler: Any = None,
    prefetch: bool = True,
    options: _C.Options | None = None,
    **keywords: Any,
) -> Model:
    """Send the gradients and weights of `model` between nodes over Isthmus. Returns `model`.

    It takes models of FSDP2 (`fully_shard`) and DDP over process groups of any backend. Beside each group that gathers
    or reduces the model and spans nodes, it makes a group of Isthmus over the same ranks. It hands FSDP2 collectives
    over that group (`set_custom_reduce_scatter`, `set_custom_all_gather`), and DDP a communication hook. The rest of
    the job stays on its backend. Results are the same, bit by bit, as with backend "isthmus" and `isthmus.prepare`,
    which this calls. Functions that take a model or a group (`isthmus.stats`, `isthmus.state_dict`, ...) take these.

    All ranks of the job call it alike, after the last `fully_shard` and between steps; they compare their arguments. A
    second call with equal arguments does nothing.

    name, scaler, prefetch: as in `isthmus.prepare`.
    options: the options of the new groups; or give keywords: ``attach(model, bits=2, weights="delta")``. Models over
    one group have equal options.

    With HSDP, Isthmus takes the shards' collectives if shards lie on several nodes; torch lets nobody replace the
    all-reduce between replicas.

    Raises ValueError, the same on every rank, and changes nothing, if an option is refused; if `model` is neither FSDP2
    nor DDP, or is FSDP1; if its groups are on Isthmus, or none of them spans nodes of equal size; if it is attached
    with other arguments, has its own collectives or hook, or is in a pass.
    """
    if not dist.is_initialized():
        raise ValueError("isthmus.attach: there is no process group: call torch.distributed.init_process_group first")
    attachment = _Attachment({"name": repr(name), "prefetch": str(prefetch)})
    wishes = on_all_ranks(lambda: attachment.wish(model, options, keywords))
    if complaint := disagreement(wishes):
        raise on_all(ValueError(f"isthmus.attach: {complaint}"), dist.get_rank())
    is_new = not wishes[0].is_attached

    def carry_out() -> None:
        if is_new:
            make_companions(wishes, attachment.new_groups(), attachment.options)
            attachment.use_companions(model)
        prepare(model, name=name, scaler=scaler, prefetch=prefetch)

    try:
        on_all_ranks(carry_out)
    except ValueError:  # here or on another rank
        if is_new:
            attachment.undo(model)
        raise
    if is_new:
        _attachments[model] = attachment
        if dist.get_rank() == 0 and any(group_on_isthmus(group) is None for group in _replicate_groups(model)):
            logger.warning("attach: the all-reduce between replicas stays where it was. %s", _BETWEEN_REPLICAS)
    return model


def detach(model: Model) -> Model:
    """Undo `attach`: gradients and weights cross over the model's own groups again. Returns `model`.

    All ranks call it alike, between steps. It drops the residuals, and destroys groups of Isthmus that no attached
    model uses any more. Raises ValueError if the model is not attached, or in a forward or backward pass.
    """
    attachment = _attachments.get(model)
    if attachment is None:
        raise ValueError("isthmus.detach: this model is not attached")
    for group, unit in fsdp2_units(model):
        if is_in_a_pass(group):
            raise ValueError(f"isthmus.detach: unit {unit.name!r} {_IN_A_PASS}")
    for device in {parameter.device for parameter in model.parameters() if parameter.is_cuda}:
        torch.cuda.synchronize(device)  # wait for the groups' work
    del _attachments[model]
    attachment.undo(model)
    return model


def _differences(earlier: Mapping[str, str], now: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={earlier[name]} and not {now[name]}" for name in now if earlier[name] != now[name])


def _require_attachable(model: nn.Module) -> None:
    if any(True for _ in fsdp1_units(model)):
        raise ValueError(
            "FSDP1 hands nobody its collectives: wrap the model with fully_shard, or name the backend: "
            'init_process_group("isthmus")'
        )
    if not ddp_modules(model) and not fsdp2_groups(model):
        raise ValueError(
            f"found nothing of FSDP2 or DDP in this {type(model).__name__}: call it after fully_shard or with what "
            "DistributedDataParallel returned; for other models name the backend: init_process_group("
            '"isthmus")'
        )


def _groups_to_attach(model: nn.Module) -> list[dist.ProcessGroup]:
    """Return the groups that gather or reduce the model and can be replaced, each once. Raises ValueError if none."""
    units = [unit for unit, _ in fsdp2_units(model)]
    candidates = [group for unit in units for group in (gather_group(unit), shard_group(unit))]
    candidates += [module.process_group for module in ddp_modules(model)]
    groups = [group for group in dict.fromkeys(candidates) if group is not None and group.size() > 1]
    others = [group for group in groups if group_on_isthmus(group) is not group]
    if groups and not others:
        raise ValueError("the groups of this model are on Isthmus already: call isthmus.prepare(model) instead")
    if not others:
        reason = _BETWEEN_REPLICAS if _replicate_groups(model) else "train it without isthmus.attach"
        raise ValueError(f"no group of several ranks gathers or reduce-scatters this model: {reason}")
    for group in others:
        # supports_reconfigure says what a backend could do, which torch 2.15's Gloo always can.
        options = (getattr(backend, "options", None) for backend in backends_by_device(group).values())
        if any(getattr(one, "enable_reconfigure", False) for one in options):
            raise ValueError(
                "the members of a group of this model may change (enable_reconfigure=True), and those of a group of "
                "Isthmus beside it would not: where members come and go, use isthmus.torchft.ProcessGroupIsthmus"
            )
        ranks = dist.get_process_group_ranks(group)
        if ranks != sorted(ranks):
            raise ValueError(
                f"the ranks of a group of this model are not in ascending order, which torch needs: {ranks}"
            )
    return others


def _replicate_groups(model: nn.Module) -> list[dist.ProcessGroup]:
    found = [replicate_group(unit) for unit, _ in fsdp2_units(model)]
    return [group for group in dict.fromkeys(found) if group is not None and group.size() > 1]
