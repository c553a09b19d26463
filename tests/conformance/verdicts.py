"""Runs rows on both backends and says how the results compare."""

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from calls import MISSING, call
from case import Case, has_plainer_form, is_labelled_sum
from groups import CAN_SPLIT, TIERS, Groups
from rows import Row, is_asked_plainly
from scenarios import SCENARIOS

from support.tested_codecs import DEFAULT, ERRORS

EQUAL = "equal"  # to the bit
CLOSE = "close"  # within the bound that docs/algorithms.md states for codec none
REFUSED = "refused"  # by both, with the same type of error
MORE = "more"  # Gloo refuses, or is not asked; Isthmus gives what Gloo gives when asked in another way
GLOO_ONLY = "gloo only"  # torch itself asks for the name of the backend
ABSENT = "absent"  # in this torch, on a CPU
NO_MEMBER = ""  # this rank has no part in the group
NAMES = (NO_MEMBER, ABSENT, EQUAL, CLOSE, REFUSED, MORE, GLOO_ONLY)  # from the least to the most that can be said

# What is summed in which unit roundoff (docs/algorithms.md, "What codec none guarantees").
ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24, torch.float64: 2.0**-53}

Outcome = list[torch.Tensor] | Exception
Excess = Callable[["Case", list[torch.Tensor]], str]


def judge_all(rows: Sequence[Row], begin: Callable[[int], None]) -> tuple[list[str], dict[str, int]]:
    """Return the verdict on each row on this rank, and how many calls took two tiers.

    A verdict that is none of the names above says what is wrong. `begin` is told of each row before it runs.
    """
    groups = Groups()
    verdicts = []
    for index, row in enumerate(rows):
        begin(index)
        verdicts.append(_judge(row, index, groups))
    return verdicts, groups.two_tier_calls()


def _judge(row: Row, index: int, groups: Groups) -> str:
    if row.collective in MISSING or (row.group == "split" and not CAN_SPLIT):
        return ABSENT
    gloo = groups.gloo(row.group)
    if row.label == "gradient":
        ours, compressed = groups.isthmus(row.group, "none"), groups.isthmus(row.group, DEFAULT, min_elements=0)
    else:
        ours, compressed = groups.isthmus(row.group, DEFAULT), None
    if gloo is None or ours is None:
        return NO_MEMBER
    if row.collective in SCENARIOS:
        return _compare_scenario(SCENARIOS[row.collective], ours, gloo)
    verdict = _compare(row, ours, gloo, tag=100_000 + index)
    if compressed is None:
        return verdict
    # Every rank asks for this, whatever it found before: it is a collective.
    compressed_verdict = _compare(row, compressed, gloo, tag=100_000 + index, excess=_codec_excess)
    return verdict if compressed_verdict in NAMES else compressed_verdict


def _outcome(case: Case) -> Outcome:
    try:
        return call(case)
    except Exception as error:
        return error


def _compare(row: Row, ours: dist.ProcessGroup, gloo: dist.ProcessGroup, tag: int, excess: Excess | None = None) -> str:
    gloos_result, verdict = _outcome(Case(row, gloo, tag, reference=is_asked_plainly(row))), EQUAL
    case = Case(row, ours, tag)
    result = _outcome(case)
    if is_asked_plainly(row) and not isinstance(gloos_result, Exception):
        verdict = MORE
    elif isinstance(gloos_result, Exception):
        # Every rank asks for this, whatever Isthmus said there: it is a collective.
        reference = _outcome(Case(row, gloo, tag, reference=True)) if has_plainer_form(row) else gloos_result
        if isinstance(result, type(gloos_result)):
            return REFUSED
        if not isinstance(result, Exception) and isinstance(reference, Exception):
            return f"Isthmus gives a result, Gloo raises {gloos_result!r}, and in plain form {reference!r}"
        gloos_result, verdict = reference, MORE
    if isinstance(result, Exception):
        given = "".join(traceback.format_exception(result))
        gloos = repr(gloos_result) if isinstance(gloos_result, Exception) else "gives a result"
        return f"Isthmus raises {type(result).__name__}, Gloo {gloos}: {given}"
    assert not isinstance(gloos_result, Exception)
    # A reference holds nothing for inputs and futures: what was written is compared.
    compared = result[: len(gloos_result)] if verdict == MORE else result
    differences = _differences(compared, gloos_result)
    if differences and is_labelled_sum(row) and row.group in TIERS:
        return (excess or _excess)(case, result) or (CLOSE if verdict == EQUAL else verdict)
    return differences or verdict


def _differences(result: list[torch.Tensor], expected: list[torch.Tensor]) -> str:
    if len(result) != len(expected):
        return f"{len(result)} tensors, Gloo gives {len(expected)}"
    for index, (tensor, other) in enumerate(zip(result, expected, strict=True)):
        if tensor.dtype != other.dtype or tensor.numel() != other.numel():
            return f"tensor {index}: {tensor.dtype} {tuple(tensor.shape)}, Gloo {other.dtype} {tuple(other.shape)}"
        if not torch.equal(_bytes(tensor), _bytes(other)):
            return f"tensor {index} differs: {tensor}, Gloo {other}"
    return ""


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    as_bytes = dense.contiguous().view(-1).view(torch.uint8)
    return as_bytes.ne(0) if tensor.dtype == torch.bool else as_bytes  # Gloo adds truths up: 2 is one, too


def _excess(case: Case, result: list[torch.Tensor]) -> str:
    """Return where a sum is further from the exact one than codec none may be."""
    terms = _terms(case)
    for salt, term in enumerate(terms):
        term = term.reshape(len(term), -1)
        tensor, exact = _real(result[salt]).reshape(-1), case.scale * term.sum(0)
        finite = exact.isfinite()
        error = (tensor.double() - exact).abs()[finite]
        allowed = _bound(case, tensor.dtype, term)[finite]
        if torch.any(error > allowed):
            return f"sum {salt} is off by {error.max().item():g}, allowed are {allowed[error.argmax()].item():g}"
        if not torch.equal(_classes(tensor.double()[~finite]), _classes(exact[~finite])):
            return f"sum {salt}: {tensor[~finite]} where {exact[~finite]} is expected"
    return ""


def _codec_excess(case: Case, result: list[torch.Tensor]) -> str:
    """Return where a sum is further from the exact one than the default codec's error lets it be.

    Pieces that fill no group of quant cross as they are. Less than all of the energy of large ones crosses,
    once; and that of an all-reduce's result once more.
    """
    if not case.row.layout.startswith("large"):
        return _excess(case, result)
    crossings = 2 if case.row.collective == "all_reduce" else 1
    for salt, term in enumerate(_terms(case)):
        error = _real(result[salt]).double() - case.scale * term.sum(0)
        lost = float(error.square().sum() / (case.scale * term).square().sum())
        allowed = crossings * ERRORS["default"] + ROUNDOFF[result[salt].dtype]
        if not lost <= allowed:  # not a number, perhaps
            return f"sum {salt} lost {lost:g} of its terms' energy, allowed are {allowed:g}"
    return ""


def _terms(case: Case) -> list[torch.Tensor]:
    """Return what every rank put into each sum that this rank has: exactly, one rank a row."""
    terms = []
    for salt in range(3 if case.mode == "coalesced" else 1):
        if case.row.collective == "all_reduce":
            parts = [case.chunk(salt, rank) for rank in range(case.size)]
        else:
            parts = [case.whole(salt, rank).chunk(case.size)[case.rank] for rank in range(case.size)]
            parts = [part[0] for part in parts] if case.row.layout == "stacked" else parts
        terms.append(torch.stack([_real(part).double() for part in parts]))
    return terms


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _bound(case: Case, dtype: torch.dtype, terms: torch.Tensor) -> torch.Tensor:
    num_nodes, ranks_a_node = TIERS[case.row.group]
    own = ROUNDOFF[dtype]
    summed = min(own, ROUNDOFF[torch.float32])
    crossing = own if own > summed else 0.0
    magnitude, total = terms.abs().sum(0), terms.sum(0).abs()
    bound = (crossing + (num_nodes * ranks_a_node) * summed) * magnitude + (own + 2 * summed) * total
    underflow = (num_nodes * ranks_a_node + 1) * 2.0**-25 if dtype == torch.float16 else 0.0
    # First order in the roundoff; and numbers below the smallest normal one are rounded to a multiple of it.
    tiny = torch.finfo(dtype).smallest_normal * own * 4
    return case.scale * bound * 1.01 + underflow + tiny


def _classes(tensor: torch.Tensor) -> torch.Tensor:
    """Return what kind of number each is: 2 for NaN, else the sign of an infinity."""
    return torch.where(tensor.isnan(), 2.0, tensor.sign())


def _compare_scenario(scenario: Any, ours: dist.ProcessGroup, gloo: dist.ProcessGroup) -> str:
    try:
        expected: Any = scenario(gloo)
    except Exception as error:
        expected = error
    try:
        result = scenario(ours)
    except Exception as error:
        if isinstance(expected, Exception) and isinstance(error, type(expected)):
            return REFUSED
        if "only implemented for GLOO" in str(error):
            return GLOO_ONLY
        return f"Isthmus raises, Gloo {expected!r}: {''.join(traceback.format_exception(error))}"
    if isinstance(expected, Exception):
        return f"Isthmus gives {result!r}, Gloo raises {expected!r}"
    return _scenario_differences(result, expected) or EQUAL


def _scenario_differences(result: Any, expected: Any) -> str:
    """Tensors, in order of their appearance, are compared to the bit; what else there is by ==."""
    differences = _differences(_tensors(result), _tensors(expected))
    if differences:
        return differences
    plain, expected_plain = _without_tensors(result), _without_tensors(expected)
    return "" if plain == expected_plain else f"{plain!r}, Gloo {expected_plain!r}"


def _tensors(nested: Any) -> list[torch.Tensor]:
    if isinstance(nested, dict):
        nested = list(nested.values())
    if isinstance(nested, torch.Tensor):
        return [nested]
    return [t for part in nested for t in _tensors(part)] if isinstance(nested, list | tuple) else []


def _without_tensors(nested: Any) -> Any:
    if isinstance(nested, dict):
        return {key: _without_tensors(value) for key, value in nested.items()}
    if isinstance(nested, list | tuple):
        return [_without_tensors(part) for part in nested]
    return "tensor" if isinstance(nested, torch.Tensor) else nested
