"""Ways to send what a step changed, on one tensor of bfloat16: those whose packages are installed."""

import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isthmus import weights

ROUNDS = 7


class Method(NamedTuple):
    """What is sent has so many bytes; `apply` takes the old tensor and it, and returns the new one."""

    encode: Callable[[Tensor, Tensor], Any]
    apply: Callable[[Tensor, Any], Tensor]
    num_bytes: Callable[[Any], int] = len


def methods() -> dict[str, Method]:
    """Methods by name; isthmus.weights is the first."""
    found = {
        "isthmus.weights": Method(weights.encode, weights.apply),
        "gap and value": Method(_gaps_and_values, _put, lambda sent: sum(part.nbytes for part in sent)),
    }
    if find_spec("zstandard"):
        found["XOR, zstd -3"] = _of_xor(*_zstd())
    if find_spec("fireworks_delta_compression"):
        found |= {f"fireworks {form}": _fireworks(form) for form in ("arc_v2", "arc_v3")}
    if find_spec("zipnn"):
        found["XOR, zipnn"] = _of_xor(*_zipnn())
    return found


def speeds(old: Tensor, new: Tensor) -> dict[str, dict[str, float]]:
    """Return bits an element and GB/s of bfloat16 of each method: the median of rounds by turns, time of all threads.

    Raises RuntimeError if a bit comes out wrong.
    """
    seconds: dict[str, list[tuple[float, float]]] = {}
    bits = {}
    for _ in range(ROUNDS):
        for name, method in methods().items():
            begin = time.process_time()
            sent = method.encode(old, new)
            middle = time.process_time()
            result = method.apply(old, sent)
            end = time.process_time()
            if not torch.equal(result.view(torch.int16), new.view(torch.int16)):
                raise RuntimeError(f"{name}: weights came out with other bits than those that were encoded")
            bits[name] = 8 * method.num_bytes(sent) / new.numel()
            seconds.setdefault(name, []).append((middle - begin, end - middle))
    return {
        name: {
            "bits": bits[name],
            "encode GB/s": new.nbytes / median(one[0] for one in of_rounds) / 1e9,
            "apply GB/s": new.nbytes / median(one[1] for one in of_rounds) / 1e9,
        }
        for name, of_rounds in seconds.items()
    }


def _gaps_and_values(old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    (places,) = (old.view(torch.int16) != new.view(torch.int16)).nonzero(as_tuple=True)
    return places.diff(prepend=torch.tensor([0])).int(), new[places]


def _put(old: Tensor, sent: tuple[Tensor, Tensor]) -> Tensor:
    result = old.clone()
    result[sent[0].cumsum(0)] = sent[1]
    return result


def _of_xor(compress: Callable[[bytes], bytes], decompress: Callable[[bytes], bytes]) -> Method:
    def encode(old: Tensor, new: Tensor) -> bytes:
        return compress((old.view(torch.int16) ^ new.view(torch.int16)).numpy().tobytes())

    def apply(old: Tensor, sent: bytes) -> Tensor:
        xor = torch.frombuffer(bytearray(decompress(sent)), dtype=torch.int16)
        return (old.view(torch.int16) ^ xor).view(old.dtype)

    return Method(encode, apply)


def _zstd() -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    import zstandard

    return zstandard.ZstdCompressor(level=3).compress, zstandard.ZstdDecompressor().decompress


def _zipnn() -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    from zipnn import ZipNN

    coder = ZipNN(input_format="byte", bytearray_dtype="bfloat16", threads=1)
    return coder.compress, coder.decompress


def _fireworks(form: str) -> Method:
    import fireworks_delta_compression as fireworks

    def encode(old: Tensor, new: Tensor) -> Any:
        return fireworks.delta_compress(src=old, dst=new, compression_format=form)

    def apply(old: Tensor, sent: Any) -> Tensor:
        result: Tensor = fireworks.delta_decompress(
            src=old, compressed_diff=sent[0], checksum=sent[1], compression_format=form
        )
        return result

    return Method(encode, apply, lambda sent: sent[0].nbytes)
