"""isthmus.weights on the CPU: what was encoded comes out bit for bit, of tensors of all kinds. No process group."""

import gc
import re
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import isthmus
from isthmus.weights import apply, changes, encode
from support.places import ROOT

DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
QUANTISED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}
SHAPES = [(), (0,), (1,), (3, 5), (2, 0, 3), (7, 2341), (16384,), (16385,)]


def bits(tensor: torch.Tensor) -> bytes:
    values = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(values.as_strided((values.numel(),), (1,)).view(torch.uint8).numpy())


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    empty = torch.empty(shape, dtype=dtype)
    noise = torch.randint(0, 256, (empty.numel() * empty.element_size(),), dtype=torch.uint8, generator=generator)
    return noise.view(dtype).view(shape)


def moved(old: torch.Tensor, seed: int = 5) -> torch.Tensor:
    """Return a tensor of which about half of the elements have other bits."""
    other = random_bits(tuple(old.shape), old.dtype, seed)
    stays = torch.rand(old.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    words = [bytearray(bits(old)), bytes(bits(other))]
    size = old.element_size()
    for i in range(min(old.numel(), 2000)):
        if not stays.view(-1)[i]:
            words[0][i * size : (i + 1) * size] = words[1][i * size : (i + 1) * size]
    if not old.numel():
        return old.clone()
    return torch.frombuffer(words[0], dtype=torch.uint8).view(old.dtype).view(old.shape)


def patched(old: torch.Tensor, update: bytes) -> bytes:
    """Return the bits of a tensor where its changes stand."""
    elements = np.frombuffer(bits(old), np.uint8).reshape(old.numel(), old.element_size()).copy()
    for name, indices, values in changes(old, update):
        assert (name, values.dtype, values.shape) == (None, old.dtype, indices.shape)
        new = np.frombuffer(bits(values), np.uint8).reshape(len(indices), -1)
        assert (np.diff(indices.numpy()) > 0).all() and (elements[indices] != new).any(1).all()
        elements[indices] = new
    return elements.tobytes()


def assert_comes_out(old: torch.Tensor, new: torch.Tensor) -> None:
    before = bits(old)
    update = encode(old, new)
    assert patched(old, update) == bits(new)
    result = apply(old, update)
    assert bits(result) == bits(new)
    assert (result.dtype, result.shape, result.device) == (new.dtype, new.shape, new.device)
    assert bits(old) == before


@pytest.mark.filterwarnings("ignore")  # that support of a type is experimental
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype not in QUANTISED], ids=str)
def test_any_bits_of_any_type_and_shape(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        old = random_bits(shape, dtype, 1)
        assert_comes_out(old, moved(old))
        assert_comes_out(old, random_bits(shape, dtype, 2))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype not in QUANTISED], ids=str)
def test_any_type_with_its_dimensions_in_another_order(dtype: torch.dtype) -> None:
    """Also those that torch does not copy."""
    old, new = (random_bits((5, 7), dtype, seed) for seed in (1, 2))
    result = apply(old.t(), encode(old.t(), new.t()))
    assert result.shape == (7, 5)
    assert bits(result) == bytes(new.view(torch.uint8).view(5, 7, -1).transpose(0, 1).contiguous().numpy())


@given(st.integers(0, 40000), st.floats(1e-7, 10), st.sampled_from([torch.bfloat16, torch.float16, torch.float32]))
@settings(max_examples=40, deadline=None)
def test_steps_of_all_lengths(numel: int, distance: float, dtype: torch.dtype) -> None:
    old = torch.randn(numel, generator=torch.Generator().manual_seed(numel))
    new = old + distance * torch.randn(numel, generator=torch.Generator().manual_seed(1)) * old.abs()
    assert_comes_out(old.to(dtype), new.to(dtype))


def test_any_strides() -> None:
    old = torch.randn(12, 14)
    new = old + 1e-3
    for view in (
        lambda tensor: tensor.t(),
        lambda tensor: tensor[:, ::3],
        lambda tensor: tensor[:1, 3],  # one element, whose stride is not 1
        lambda tensor: tensor.flatten()[1:],  # at no multiple of 16
        lambda tensor: tensor[0].expand(5, 14),
        lambda tensor: torch.complex(tensor, tensor).conj(),
        lambda tensor: torch.complex(tensor, tensor).conj().imag,
        lambda tensor: torch.complex(tensor, tensor)[0, :1].conj().imag,  # contiguous, and to be negated
        lambda tensor: torch.nn.Parameter(tensor),
        lambda tensor: tensor.clone().requires_grad_() * 2,
    ):
        assert_comes_out(view(old), view(new))
    with torch.inference_mode():
        in_inference = new + 1
    assert_comes_out(new, in_inference)
    assert_comes_out(in_inference, new)


def state_dict(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Embedding(3, 2)).state_dict()


def test_state_dicts() -> None:
    old, new = state_dict(1), state_dict(2)
    result = apply(old, encode(old, new))
    assert list(result) == list(new)
    assert all(bits(result[name]) == bits(new[name]) for name in new)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Embedding(3, 2))
    model.load_state_dict(result)


def test_what_did_not_change_is_the_old_tensor_itself() -> None:
    old = state_dict(1)
    new = {name: tensor.clone() for name, tensor in old.items()} | {"0.bias": old["0.bias"] + 1}
    update = encode(old, new)
    result = apply(old, update)
    assert [name for name in old if result[name] is not old[name]] == ["0.bias"]
    assert result["0.bias"].untyped_storage().data_ptr() != old["0.bias"].untyped_storage().data_ptr()
    assert len(update) < 64 * len(old) + 64 * len(old) + 100


def test_part_of_a_model_at_a_time() -> None:
    old, new = state_dict(1), state_dict(2)
    snapshot = dict(old)
    for name, tensor in new.items():
        snapshot |= apply(snapshot, encode(snapshot, {name: tensor}))
    assert {name: bits(tensor) for name, tensor in snapshot.items()} == {name: bits(new[name]) for name in old}


def test_no_tensors() -> None:
    assert apply({}, encode({}, {})) == {}
    assert apply({"a": torch.ones(2)}, encode({"a": torch.ones(2)}, {})) == {}


def test_any_name() -> None:
    old = {name: torch.zeros(2) for name in ("", "a.b", 'ä\n"\\', "\ud800", "0")}
    result = apply(old, encode(old, {name: tensor + 1 for name, tensor in old.items()}))
    assert list(result) == list(old)
    assert all(torch.equal(tensor, torch.ones(2)) for tensor in result.values())


class OnDisk(Mapping[str, torch.Tensor]):
    """Tensors that are read when they are asked for; counts those that are held."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.asked: list[str] = []
        self.held: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        self.most_held = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        self.asked.append(name)
        tensor = torch.full((100,), float(self.seed))
        self.held.add(tensor)
        gc.collect()
        self.most_held = max(self.most_held, len(self.held))
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter("abcd")

    def __len__(self) -> int:
        return 4


def test_each_tensor_is_asked_for_once_and_let_go() -> None:
    old, new = OnDisk(1), OnDisk(2)
    update = encode(old, new)
    assert (old.asked, new.asked, old.most_held, new.most_held) == ([*"abcd"], [*"abcd"], 1, 1)
    assert all(torch.equal(tensor, torch.full((100,), 2.0)) for tensor in apply(OnDisk(1), update).values())


def test_changes_hold_one_tensor_at_a_time() -> None:
    held, update = OnDisk(1), encode(OnDisk(1), OnDisk(2))
    found = changes(held, update)
    assert (held.asked, held.most_held) == ([*"abcd"], 1)
    places = torch.arange(100)
    for name, indices, values in found:
        assert name == held.asked[-1] and torch.equal(indices, places) and torch.equal(values, torch.full((100,), 2.0))
    assert (held.asked, held.most_held) == ([*"abcdabcd"], 1)


def test_changes_of_what_changed_alone() -> None:
    old = state_dict(1)
    new = {name: tensor.clone() for name, tensor in old.items()}
    new["0.weight"][2, 3], new["2.weight"][0, 1] = 7, float("nan")
    found = {name: (indices.tolist(), values) for name, indices, values in changes(old, encode(old, new))}
    assert {name: indices for name, (indices, _) in found.items()} == {"0.weight": [17], "2.weight": [1]}
    assert found["0.weight"][1].tolist() == [7] and bits(found["2.weight"][1]) == bits(new["2.weight"][0, 1])


def test_weights_that_share_memory_are_patched_while_their_changes_come() -> None:
    """Tied ones, a view of some rows, columns of a fused matrix: an earlier patch may change a later one's old bits."""
    memory = torch.randn(6, 8).bfloat16()

    def views(memory: torch.Tensor) -> dict[str, torch.Tensor]:
        apart = torch.ones(3)
        columns = {"left": memory[:, :3], "right": memory[:, 3:]}
        return {
            "rows": memory[2:4],
            "apart": apart,
            "whole": memory,
            "tied": memory.view(48),
            **columns,
            "none": memory[:0],
        }

    new = {name: tensor + 1 for name, tensor in views(memory).items()}
    update = encode(views(memory), new)
    held = views(memory)
    names = []
    for name, indices, values in changes(held, update):
        names.append(name)
        held[name].put_(indices, values)
    assert names == ["rows", "apart", "whole", "tied", "left", "right"]
    assert all(torch.equal(held[name], new[name]) for name in new)


def test_several_threads() -> None:
    old = [torch.randn(50_001).bfloat16() for _ in range(8)]
    new = [(tensor * 1.01).bfloat16() for tensor in old]
    with ThreadPoolExecutor(4) as pool:
        updates = list(pool.map(encode, old, new))
        results = list(pool.map(apply, old, updates))
    assert updates == list(map(encode, old, new))
    assert list(map(bits, results)) == list(map(bits, new))


def test_any_memory_with_bytes() -> None:
    old, new = torch.zeros(3), torch.ones(3)
    update = encode(old, new)
    for held in (
        bytearray(update),
        memoryview(b"x" + update)[1:],
        torch.frombuffer(bytearray(update), dtype=torch.uint8).numpy(),
    ):
        assert torch.equal(apply(old, held), new)


# A state dict of two tensors. Whoever changes these bytes gives them another version.
RECORDED = {"a": ([0.25] * 40, torch.bfloat16), "b": ([1.0, 2.0], torch.float64)}


def test_the_bytes_of_this_version() -> None:
    old = {name: torch.tensor(values, dtype=dtype) for name, (values, dtype) in RECORDED.items()}
    new = {name: tensor.clone() for name, tensor in old.items()}
    new["a"][3], new["a"][20] = 0.251953125, -2
    recorded = bytes.fromhex((ROOT / "tests/python/weights/recorded.txt").read_text())
    assert encode(old, new) == recorded
    result = apply(old, recorded)
    assert all(bits(result[name]) == bits(new[name]) for name in new)


def test_it_is_a_part_of_the_package() -> None:
    assert isthmus.weights.encode is encode


def test_the_loop_that_the_page_shows() -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs/weight_updates.md").read_text(), re.DOTALL)
    assert block
    model = torch.nn.Linear(3, 3).bfloat16()
    sent = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    names = {"torch": torch, "model": model, "sent": sent, "held": dict(sent)}
    for _ in range(2):
        with torch.no_grad():
            model.weight += 1
        expected = {name: bits(tensor) for name, tensor in model.state_dict().items()}
        exec(block[1], names)
        assert {name: bits(tensor) for name, tensor in names["held"].items()} == expected
