"""Published models, as shapes of their parameters: each transformer block is a unit, everything else the root's.

config.json of meta-llama/Llama-2-*-hf, meta-llama/Meta-Llama-3*, mistralai/Mistral-7B-v0.1; the head is a matrix of its
own. Parameters are counted from the shapes; tests compare them with the published totals.
"""

from isthmus.plan.ranges import check_choice
from isthmus.plan.units import Model, Unit
from isthmus.units.layout import Parameter

#: Layers, width, width within the MLP, heads for keys and values (of 128 elements; those of queries may share them),
#: and vocabulary.
_SIZES = {
    "llama2-7b": (32, 4096, 11008, 32, 32000),
    "llama2-13b": (40, 5120, 13824, 40, 32000),
    "llama2-70b": (80, 8192, 28672, 8, 32000),
    "llama3-8b": (32, 4096, 14336, 8, 128256),
    "llama3-70b": (80, 8192, 28672, 8, 128256),
    "llama3-405b": (126, 16384, 53248, 8, 128256),
    "mistral-7b": (32, 4096, 14336, 8, 32000),
}
PRESETS = tuple(_SIZES)


def preset(name: str) -> Model:
    """The published model of that name. ValueError names those that are known."""
    check_choice("preset", name.lower(), PRESETS)
    num_layers, d, hidden, num_kv_heads, vocabulary = _SIZES[name.lower()]
    kv = 128 * num_kv_heads
    root = {"embed_tokens": (vocabulary, d), "norm": (d,), "lm_head": (vocabulary, d)}
    block = {
        "self_attn.q_proj": (d, d),
        "self_attn.k_proj": (kv, d),
        "self_attn.v_proj": (kv, d),
        "self_attn.o_proj": (d, d),
        "mlp.gate_proj": (hidden, d),
        "mlp.up_proj": (hidden, d),
        "mlp.down_proj": (d, hidden),
        "input_layernorm": (d,),
        "post_attention_layernorm": (d,),
    }
    blocks = (Unit(f"layers.{index}", _parameters(block)) for index in range(num_layers))
    return Model(name.lower(), (Unit("root", _parameters(root), is_root=True), *blocks))


def _parameters(shapes: dict[str, tuple[int, ...]]) -> tuple[Parameter, ...]:
    return tuple(Parameter(name, shape) for name, shape in shapes.items())
