"""Published models, as shapes of their parameters: each transformer block is a unit, everything else the root's.

GPT-2: config.json of openai-community/gpt2, -medium, -large and -xl; its head is the token embedding. Llama 2, Llama 3
and Mistral: config.json of meta-llama/Llama-2-*-hf, meta-llama/Meta-Llama-3*, mistralai/Mistral-7B-v0.1; the head is a
matrix of its own. Parameters are counted from the shapes; tests compare them with the published totals.
"""

from collections.abc import Callable
from dataclasses import dataclass

from isthmus.plan.units import Model, Unit
from isthmus.units.layout import Parameter


@dataclass(frozen=True)
class _Gpt2:
    """Learned positions, LayerNorm and biases everywhere, MLP four times as wide."""

    num_layers: int
    width: int

    def model(self, name: str) -> Model:
        root = {"wte": (50257, self.width), "wpe": (1024, self.width), **_norm("ln_f", self.width)}
        return _model(name, root, self.num_layers, self._block())

    def _block(self) -> dict[str, tuple[int, ...]]:
        d = self.width
        return {
            **_norm("ln_1", d),
            **_linear("attn.c_attn", 3 * d, d),
            **_linear("attn.c_proj", d, d),
            **_norm("ln_2", d),
            **_linear("mlp.c_fc", 4 * d, d),
            **_linear("mlp.c_proj", d, 4 * d),
        }


@dataclass(frozen=True)
class _Llama:
    """RMSNorm, gated MLP, heads of 128 of which several may share keys and values, no biases."""

    num_layers: int
    width: int
    hidden: int
    num_kv_heads: int
    vocabulary: int

    def model(self, name: str) -> Model:
        matrix = (self.vocabulary, self.width)
        root = {"embed_tokens": matrix, "norm": (self.width,), "lm_head": matrix}
        return _model(name, root, self.num_layers, self._block())

    def _block(self) -> dict[str, tuple[int, ...]]:
        d, kv = self.width, 128 * self.num_kv_heads
        return {
            "self_attn.q_proj": (d, d),
            "self_attn.k_proj": (kv, d),
            "self_attn.v_proj": (kv, d),
            "self_attn.o_proj": (d, d),
            "mlp.gate_proj": (self.hidden, d),
            "mlp.up_proj": (self.hidden, d),
            "mlp.down_proj": (d, self.hidden),
            "input_layernorm": (d,),
            "post_attention_layernorm": (d,),
        }


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _linear(name: str, out_features: int, in_features: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out_features, in_features), f"{name}.bias": (out_features,)}


def _model(name: str, root: dict[str, tuple[int, ...]], num_layers: int, block: dict[str, tuple[int, ...]]) -> Model:
    parameters = tuple(Parameter(key, shape) for key, shape in block.items())
    blocks = (Unit(f"layers.{index}", parameters) for index in range(num_layers))
    root_unit = Unit("root", tuple(Parameter(key, shape) for key, shape in root.items()), is_root=True)
    return Model(name, (root_unit, *blocks))


_PRESETS: dict[str, Callable[[str], Model]] = {
    "gpt2-124m": _Gpt2(12, 768).model,
    "gpt2-355m": _Gpt2(24, 1024).model,
    "gpt2-774m": _Gpt2(36, 1280).model,
    "gpt2-1.5b": _Gpt2(48, 1600).model,
    "llama2-7b": _Llama(32, 4096, 11008, 32, 32000).model,
    "llama2-13b": _Llama(40, 5120, 13824, 40, 32000).model,
    "llama2-70b": _Llama(80, 8192, 28672, 8, 32000).model,
    "llama3-8b": _Llama(32, 4096, 14336, 8, 128256).model,
    "llama3-70b": _Llama(80, 8192, 28672, 8, 128256).model,
    "llama3-405b": _Llama(126, 16384, 53248, 8, 128256).model,
    "mistral-7b": _Llama(32, 4096, 14336, 8, 32000).model,
}
PRESETS = tuple(_PRESETS)


def preset(name: str) -> Model:
    """The published model of that name. ValueError names those that are known."""
    if name.lower() not in _PRESETS:
        raise ValueError(f"preset '{name}': expected one of {', '.join(PRESETS)}")
    return _PRESETS[name.lower()](name.lower())
