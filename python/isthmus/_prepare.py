"""``isthmus.prepare``: tells the backend which unit of a model each reduction belongs to."""

from __future__ import annotations

import fnmatch
import functools
import gc
import math
import re
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from isthmus import _backends, _layout, _models, _native
from isthmus._models import ParamGroup, ShardedParam, Unit

Model = TypeVar("Model", bound=nn.Module)

EXCLUDED = "excluded by prepare(units=...)"
UNKNOWN_LAYOUT = "some parameters had no gradient, and which ones is not known yet"
FIRST_BUCKETS = "first two backward passes with these DDP buckets"


@dataclass
class Prepared:
    """What is known of a model that was prepared. It refers to no module, so that it keeps none alive."""

    name: str
    patterns: str
    units: list[Unit] = field(default_factory=list)  # of FSDP
    bucket_group: dist.ProcessGroup | None = None  # of DDP
    bucket_parameters: tuple[_layout.Parameter, ...] = ()  # all that DDP reduces
    # Layouts of the units' reductions so far: what a checkpoint says of residuals.
    layouts: dict[tuple[str, int], tuple[Unit, _layout.Layout]] = field(default_factory=dict)
    # DDP: buckets, by name and layout, that occurred in two earlier backward passes or came with a checkpoint.
    settled: set[tuple[str, int]] = field(default_factory=set)

    def full_name(self, unit_name: str) -> str:
        """Return the name under which the backend knows a unit."""
        return f"{self.name}/{unit_name}" if self.name else unit_name

    def unit_named(self, full_name: str) -> Unit | None:
        """Return the unit that the backend knows under a name; a bucket of DDP may hold any parameters."""
        for unit in self.units:
            if self.full_name(unit.name) == full_name:
                return unit
        index = re.fullmatch(re.escape(self.full_name("bucket ")) + r"(\d+)", full_name)
        if index and self.bucket_group is not None:
            return _bucket(int(index[1]), self.bucket_parameters, self.bucket_group)
        return None

    def taken_names(self) -> set[tuple[str, dist.ProcessGroup]]:
        """Return the names that no other model may use, each with its group."""
        taken = {(self.full_name(unit.name), group) for unit in self.units for group in unit.process_groups}
        return taken | ({(self.full_name("bucket"), self.bucket_group)} if self.bucket_group is not None else set())

    def exact_reason(self, unit_name: str) -> str:
        """Return why a unit stays exact, "" if it does not."""
        return "" if matches(self.patterns, unit_name) else EXCLUDED

    def remember(self, unit: Unit, layout: _layout.Layout) -> int:
        """Note that reductions of `unit` have this layout; return its hash."""
        self.layouts[self.full_name(unit.name), layout.hash] = (unit, layout)
        return layout.hash

    def expect(self, unit: Unit, layout: _layout.Layout) -> int:
        """Note a layout that came with a checkpoint, which therefore is no passing one; return its hash."""
        self.settled.add((self.full_name(unit.name), layout.hash))
        return self.remember(unit, layout)


_prepared: weakref.WeakKeyDictionary[nn.Module, Prepared] = weakref.WeakKeyDictionary()


def prepared_of(model: nn.Module) -> Prepared | None:
    """Return what `prepare` noted about `model` itself."""
    return _prepared.get(model)


def all_prepared() -> list[Prepared]:
    """Return what `prepare` noted about all models that are alive."""
    return list(_prepared.values())


def matches(patterns: str, name: str) -> bool:
    """Return whether a unit is compressed by comma-separated globs, of which "!" excludes. As the option `units`."""
    globs = [glob.strip() for glob in patterns.split(",")]
    included = [glob for glob in globs if not glob.startswith("!")]
    if any(fnmatch.fnmatchcase(name, glob[1:]) for glob in globs if glob.startswith("!")):
        return False
    return not included or any(fnmatch.fnmatchcase(name, glob) for glob in included)


def prepare(model: Model, *, name: str = "", units: str = "*", scaler: Any = None) -> Model:
    """Give the units of `model` names of their own, and tell apart reductions of different parameters. Returns `model`.

    For models of FSDP2 (`fully_shard`), FSDP1 and DDP, and for models whose parameters are DTensors (SimpleFSDP) over
    groups of Isthmus; all ranks call it alike, before or after the first step. The second call with equal arguments
    does nothing.

    name: goes before the names of the units, "name/blocks.0". Two models on one group need two names.
    units: which of them are compressed: globs of names without that prefix, "!" excludes, as in the option `units`.
    scaler: the GradScaler (or ShardedGradScaler) of the training loop. Its `update` then lets residuals follow the loss
    scale, and counts skipped steps.

    Raises ValueError if there is nothing to prepare in `model`, if its units' names are taken, and if it was prepared
    otherwise before.
    """
    earlier = _prepared.get(model)
    if earlier is None:
        prepared = _prepare_units(model, Prepared(name, units))
        _prepared[model] = prepared
    elif (earlier.name, earlier.patterns) != (name, units):
        raise ValueError(
            f"this model was prepared with name={earlier.name!r} and units={earlier.patterns!r} before: "
            f"name={name!r} and units={units!r} cannot take their place"
        )
    if scaler is not None:
        _follow(scaler, model)
    return model


def _prepare_units(model: nn.Module, prepared: Prepared) -> Prepared:
    fsdp2 = [(group, unit) for group, unit in _models.fsdp2_units(model) if _is_on_isthmus(unit.process_groups)]
    fsdp1 = [(flat, unit) for flat, unit in _models.fsdp1_units(model) if _is_on_isthmus(unit.process_groups)]
    ddp = [module for _, module in _models.ddp_modules(model) if _is_on_isthmus([module.process_group])]
    prepared.units = [unit for _, unit in fsdp2] + [unit for _, unit in fsdp1]
    if not prepared.units and not ddp:
        _prepare_dtensors(model, prepared)
        return prepared
    if len(ddp) > 1:
        raise ValueError(
            f"there are {len(ddp)} DDP modules in this model: prepare each of them, with a name of its own"
        )
    for module in ddp:
        prepared.bucket_group = module.process_group
        prepared.bucket_parameters = tuple(_bucket_parameters(module).values())
    _check_names(prepared)
    for group, _ in fsdp2:
        if isinstance(_models.reduce_scatter_comm(group), TaggedReduceScatter):
            raise ValueError(f"unit {_models.fqn_of(group) or 'root'!r} of FSDP2 belongs to another prepared model")
    for group, unit in fsdp2:
        comm = TaggedReduceScatter(group, unit, prepared)
        for module in group.modules:
            module.set_custom_reduce_scatter(comm)
    for flat, unit in fsdp1:
        layout_hash = prepared.remember(unit, unit.layout())
        exact = prepared.exact_reason(unit.name)
        _native.load().name_parameter(flat, prepared.full_name(unit.name), layout_hash, exact)
    for module in ddp:
        _register_bucket_hook(module, prepared)
    return prepared


def _is_on_isthmus(groups: Iterable[dist.ProcessGroup]) -> bool:
    return any(_backends.isthmus_backend(group) is not None for group in groups)


def _check_names(prepared: Prepared) -> None:
    """Raise ValueError if a unit's name is taken in one of its groups by another model that is alive."""
    clash = _clash(prepared)
    if clash:
        gc.collect()  # a model that nobody uses any more takes no name
        clash = _clash(prepared)
    if clash:
        raise ValueError(
            f"another prepared model has a unit named {clash!r} in this process group: give one of them a name=..."
        )


def _clash(prepared: Prepared) -> str:
    taken = set().union(*(other.taken_names() for other in _prepared.values()))
    return next((name for name, group in sorted(prepared.taken_names() & taken, key=lambda entry: entry[0])), "")


# --- FSDP2 ---


class TaggedReduceScatter:
    """FSDP2's reduce-scatter as it was before, which also tells the backend what unit and parameters it is of.

    FSDP2 takes memory from it within the label of the reduction: for the input, then for the output. So the label is
    named when the input's memory is taken. That holds for HSDP's all-reduce as well, even where nothing is scattered.
    """

    def __init__(self, group: ParamGroup, unit: Unit, prepared: Prepared) -> None:
        self._inner = _models.reduce_scatter_comm(group)
        self._group = group
        self._unit = unit
        self._prepared = prepared
        self._exact = prepared.exact_reason(unit.name) or (
            _native.load().REPLICAS if _models.mixes_replicas(group) else ""
        )
        self._described = dict(zip(group.fsdp_params, unit.parameters, strict=True))
        self._watch = _GradientWatch(group.fsdp_params)
        self._watch.start()
        self._layouts: dict[tuple[ShardedParam, ...], _layout.Layout] = {}
        self._output_elements: int | None = None  # of the reduction that has its input already

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Take memory as before. If it is for the input, name the label that this thread is in."""
        num_elements = math.prod(size)
        if num_elements == self._output_elements:
            self._output_elements = None
        else:
            self._output_elements = num_elements // self._unit.num_shards
            self._name_label(num_elements)
        tensor: torch.Tensor = self._inner.allocate(size, dtype=dtype, device=device)
        return tensor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Reduce as before."""
        return self._inner(*args, **kwargs)

    def _name_label(self, num_elements: int) -> None:
        name = self._prepared.full_name(self._unit.name)
        layout = self._layout_of(num_elements)
        if layout is None:
            _native.load().name_label(name, 0, self._exact or UNKNOWN_LAYOUT)
        else:
            _native.load().name_label(name, self._prepared.remember(self._unit, layout), self._exact)

    def _layout_of(self, num_elements: int) -> _layout.Layout | None:
        """Return the layout of a reduction of this size; None if it cannot be told which parameters are in it."""
        trainable = _models.trainable_params(self._group)
        touched = self._watch.take()
        for params in [[param for param in trainable if param in touched], trainable]:
            layout = self._layout_with(tuple(params))
            # A wrong guess has another size: what was touched is part of what is reduced, or the other way round.
            if layout.num_elements == num_elements:
                return layout
        return None

    def _layout_with(self, params: tuple[ShardedParam, ...]) -> _layout.Layout:
        if params not in self._layouts:
            self._layouts[params] = self._unit.layout(self._described[param] for param in params)
        return self._layouts[params]


class _GradientWatch:
    """Which parameters of a unit had a gradient since its last reduction."""

    def __init__(self, params: Iterable[ShardedParam]) -> None:
        self._params = list(params)
        self._touched: set[ShardedParam] = set()
        self._watched: dict[ShardedParam, weakref.ref[torch.Tensor]] = {}

    def start(self) -> None:
        """Watch every parameter that has been gathered: its unsharded tensor lives as long as the model."""
        for param in self._params:
            tensor: Any = _models.unsharded(param)
            watched = self._watched.get(param)
            if tensor is not None and tensor.requires_grad and (watched is None or watched() is not tensor):
                self._watched[param] = weakref.ref(tensor)
                # The collector does not see what such hooks refer to: they must not keep the model alive.
                tensor.register_post_accumulate_grad_hook(
                    functools.partial(_note, weakref.ref(self), weakref.ref(param))
                )

    def take(self) -> set[ShardedParam]:
        """Return what had a gradient since the last call, or nothing at the first one."""
        self.start()
        touched, self._touched = self._touched, set()
        return touched

    def note(self, param: ShardedParam) -> None:
        """Take down that a gradient was accumulated."""
        self._touched.add(param)


def _note(watch: weakref.ref[_GradientWatch], param: weakref.ref[ShardedParam], _: torch.Tensor) -> None:
    if (living_watch := watch()) is not None and (living_param := param()) is not None:
        living_watch.note(living_param)


# --- DDP ---


_PASSES_BEFORE_REBUILD = 2


def _bucket(index: int, parameters: Sequence[_layout.Parameter], process_group: dist.ProcessGroup) -> Unit:
    return Unit(
        name=f"bucket {index}",
        label="",
        parameters=tuple(parameters),
        trained=tuple(parameters),
        in_rows=False,
        shard_group=None,
        replicate_group=process_group,
    )


def _bucket_parameters(module: nn.parallel.DistributedDataParallel) -> dict[torch.Tensor, _layout.Parameter]:
    return {
        parameter: _layout.Parameter(_layout.clean_name(name), tuple(parameter.shape))
        for name, parameter in module.module.named_parameters()
    }


class BucketReduction:
    """DDP's communication hook: averages each bucket, and tells the backend which parameters it holds.

    DDP fills its buckets anew after the first backward pass, or with a static graph after the second. Residuals of the
    first buckets would never be sent, so a layout is exact in the first two passes that have it.
    """

    def __init__(self, module: nn.parallel.DistributedDataParallel, prepared: Prepared) -> None:
        self._parameters = _bucket_parameters(module)
        self._group = module.process_group
        self._prepared = prepared
        self._layouts: dict[tuple[int, tuple[torch.Tensor, ...]], tuple[Unit, _layout.Layout]] = {}
        self._passes: Counter[tuple[str, int]] = Counter()  # how many backward passes had a bucket

    def reduce(self, state, bucket):  # type: ignore[no-untyped-def]  # DDP looks at annotations, and fails on strings
        """Average one bucket; return a future of its gradients."""
        unit, layout = self._unit_of(bucket.index(), tuple(bucket.parameters()))
        name, layout_hash = self._prepared.full_name(unit.name), self._prepared.remember(unit, layout)
        exact = self._prepared.exact_reason(unit.name) or self._exact_until_settled((name, layout_hash))
        gradients = bucket.buffer()
        native = _native.load()
        native.push_unit(name, layout_hash, exact)
        try:
            work = dist.all_reduce(gradients, op=dist.ReduceOp.AVG, group=self._group, async_op=True)
        finally:
            native.pop_unit()
        return work.get_future().then(lambda _: gradients)

    def _unit_of(self, index: int, tensors: tuple[torch.Tensor, ...]) -> tuple[Unit, _layout.Layout]:
        if (index, tensors) not in self._layouts:
            unit = _bucket(index, [self._parameters[tensor] for tensor in tensors], self._group)
            self._layouts[index, tensors] = (unit, unit.layout())
        return self._layouts[index, tensors]

    def _exact_until_settled(self, bucket: tuple[str, int]) -> str:
        if bucket in self._prepared.settled:
            return ""
        self._passes[bucket] += 1
        if self._passes[bucket] <= _PASSES_BEFORE_REBUILD:
            return FIRST_BUCKETS
        self._prepared.settled.add(bucket)
        return ""


def _register_bucket_hook(module: nn.parallel.DistributedDataParallel, prepared: Prepared) -> None:
    try:
        module.register_comm_hook(None, BucketReduction(module, prepared).reduce)
    except RuntimeError as error:
        raise ValueError("this DDP model has a communication hook already, and DDP takes but one") from error
    # DDP pickles this list, but a copy's reducer has no hooks: a copy of a prepared model is one that is not prepared.
    getattr(module, "_comm_hooks", [None]).pop()


# --- DTensors ---


def _prepare_dtensors(model: nn.Module, prepared: Prepared) -> None:
    """Make every floating-point reduction of a backward pass in the groups of the parameters' meshes a gradient."""
    backends = [
        backend for group in _models.groups_of(model) if (backend := _backends.isthmus_backend(group)) is not None
    ]
    if not backends:
        raise ValueError(f"there is nothing to prepare: {_what_was_found(model)}, and no process group of Isthmus")
    if prepared.name or prepared.patterns != "*":
        raise ValueError(
            "name= and units= need units with names: outside of FSDP, DTensors are reduced one by one, without names"
        )
    for backend in backends:
        backend.set_gradients("backward")


def _what_was_found(model: nn.Module) -> str:
    found: dict[str, list[Any]] = {
        "FSDP2 units": list(_models.fsdp2_units(model)),
        "FSDP1 units": list(_models.fsdp1_units(model)),
        "DDP modules": _models.ddp_modules(model),
        "DTensor parameters": [p for p in model.parameters() if isinstance(p, DTensor)],
    }
    kinds = [f"{len(members)} {kind}" for kind, members in found.items() if members]
    groups = sorted({str(dist.get_backend(group)) for group in _models.groups_of(model)})
    text = f"found {' and '.join(kinds) or 'a model without FSDP, DDP or DTensors'}"
    return f"{text} on {', '.join(groups)}" if groups else text


# --- Gradient scaling ---


_followers: weakref.WeakKeyDictionary[Any, weakref.WeakSet[nn.Module]] = weakref.WeakKeyDictionary()


def _follow(scaler: Any, model: nn.Module) -> None:
    if not hasattr(scaler, "get_scale") or not hasattr(scaler, "update"):
        raise TypeError(f"scaler: expected a GradScaler, got {type(scaler).__name__}")
    if scaler not in _followers:
        kind: Any = type(scaler)
        scaler.__class__ = _followed(kind)
        _followers[scaler] = weakref.WeakSet()
    _followers[scaler].add(model)


@functools.cache
def _followed(kind: Any) -> Any:
    """Return a kind of GradScaler that residuals follow. What is copied or pickled from it is of the old kind."""

    class Followed(kind):  # type: ignore[misc]
        def update(self, new_scale: float | torch.Tensor | None = None) -> None:
            old = self.get_scale()
            super().update(new_scale)
            new = self.get_scale()  # on a GPU the host waits for it
            # A scale that goes down by itself was backed off, because a gradient was not finite.
            _end_step(_followers[self], old, new, skipped=new_scale is None and new < old)

        def __reduce_ex__(self, protocol: Any) -> Any:
            _, _, *state = super().__reduce_ex__(2)
            return object.__new__, (kind,), *state

    return Followed


def _end_step(models: Iterable[nn.Module], old: float, new: float, *, skipped: bool) -> None:
    """Let residuals follow the loss scale, and count a step."""
    groups = dict.fromkeys(group for model in models for group in _models.groups_of(model))
    for backend in filter(None, map(_backends.isthmus_backend, groups)):
        if skipped:
            backend.count_skipped_step()
        else:
            backend.count_step()
        if new == 0:
            backend.clear_units()  # nothing can be scaled back from zero
        elif new != old:
            backend.scale_residuals(new / old)
