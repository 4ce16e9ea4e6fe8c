"""How transformers reads the settings of rotary embeddings, and the frequencies that it makes of them.

    pip install transformers==5.24.0 torch==2.15.0
    python rope.py > rope.json

`read` is none where transformers refuses the settings. A third entry of a setting says that the program refuses it, with an error that has this text.
"""

import json
import pathlib
import sys
import tempfile

import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.mistral.modeling_mistral import MistralRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

BASE = dict(
    hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=32,
    max_position_embeddings=256, rms_norm_eps=1e-6,
)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
LONG = dict(short_factor=[1.0] * 8, long_factor=[4.0] * 8)
SETTINGS = [
    ("llama", {}),
    ("mistral", {}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("llama", dict(rope_theta=500000.0)),
    ("qwen3", dict(rope_theta=1000000)),
    ("llama", dict(rope_theta=None)),
    ("llama", dict(rope_scaling=None, rope_theta=5e5)),
    ("llama", dict(rope_scaling={})),
    ("llama", dict(rope_parameters={})),
    ("llama", dict(rope_parameters=None, rope_theta=2e4)),
    ("llama", dict(rope_scaling=dict(rope_type="default", rope_theta=5e5))),
    ("llama", dict(rope_scaling={}, rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=1e5))),
    ("llama", dict(rope_scaling=dict(type="linear", factor=4.0), rope_theta=5e5)),
    ("llama", dict(rope_scaling=dict(rope_type="linear", factor=2))),
    ("llama", dict(rope_scaling=dict(rope_type="default", type="linear", factor=2.0))),
    ("llama", dict(rope_scaling=dict(rope_type="linear", type="default", factor=2.0))),
    ("mistral", dict(rope_parameters=dict(type="linear", factor=8.0, rope_theta=1e6))),
    ("llama", dict(rope_parameters=dict(rope_theta=3e4), rope_theta=5e5)),
    ("llama", dict(rope_parameters=dict(rope_type="default", rope_theta=1e6), rope_scaling=dict(type="linear", factor=4.0))),
    ("llama", dict(rope_parameters=dict(rope_type="default", rope_theta=1e6), rope_scaling=dict(type="linear", factor=4.0), rope_theta=3e4)),
    ("llama", dict(rope_parameters=dict(rope_type="linear", factor=2.0), rope_scaling=dict(rope_theta=7e4))),
    ("llama", dict(rope_scaling=dict(rope_type="linear", factor=0.5))),
    ("llama", dict(rope_scaling=dict(rope_type="linear"))),
    ("llama", dict(rope_scaling=dict(rope_type="linear", factor=None))),
    ("llama", dict(rope_scaling=dict(factor=4.0)), "no rope_type"),
    ("llama", dict(rope_scaling=dict(rope_type=None, factor=4.0))),
    ("llama", dict(rope_scaling=dict(type=None))),
    ("llama", dict(rope_scaling=dict(rope_type="default", rope_theta=None), rope_theta=5e5)),
    ("llama", dict(rope_scaling=LLAMA3, rope_theta=5e5)),
    ("llama", dict(rope_parameters=LLAMA3 | dict(rope_theta=5e5))),
    ("llama", dict(rope_scaling={k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"}, rope_theta=5e5)),
    ("llama", dict(rope_scaling=LLAMA3, original_max_position_embeddings=32, rope_theta=5e5)),
    ("llama", dict(rope_scaling={k: v for k, v in LLAMA3.items() if k != "high_freq_factor"})),
    ("qwen2", dict(rope_scaling=LLAMA3 | dict(factor=32))),
    ("qwen3", dict(rope_scaling=YARN, rope_theta=1e6), "yarn"),
    ("qwen2", dict(rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=64)), "yarn"),
    ("llama", dict(rope_scaling=dict(type="dynamic", factor=2.0)), "dynamic"),
    ("llama", dict(rope_scaling=dict(type="longrope", original_max_position_embeddings=64) | LONG), "longrope"),
    ("llama", dict(rope_scaling=dict(type="su", original_max_position_embeddings=64) | LONG)),
    ("qwen2", dict(rope_scaling=dict(type="mrope", mrope_section=[2, 3, 3]))),
    ("llama", dict(rope_scaling=dict(rope_type="proportional", partial_rotary_factor=0.5)), "partial_rotary_factor"),
    ("llama", dict(partial_rotary_factor=0.5), "partial_rotary_factor"),
    ("llama", dict(partial_rotary_factor=1.0, rope_theta=2e4)),
    ("llama", dict(rope_scaling=dict(rope_type="linear", factor=2.0, partial_rotary_factor=0.5)), "partial_rotary_factor"),
    ("llama", dict(rope_scaling=dict(rope_type="linear", factor=2.0, partial_rotary_factor=1.0), partial_rotary_factor=0.5)),
    ("llama", dict(rope_parameters=dict(full_attention=dict(rope_type="linear", factor=2.0))), "full_attention"),
    ("qwen3", dict(rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1e6)))),
    ("qwen3", dict(rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1e6), sliding_attention=dict(rope_type="default", rope_theta=1e4)))),
    ("qwen3", dict(rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=1e4)), rope_theta=1e6), "sliding_attention"),
    ("llama", dict(rope_scaling=dict(rope_type="linear", factor=2.0, attention_factor=3.0, unknown=1))),
    ("llama", dict(rope_scaling=[])),
    ("llama", dict(rope_scaling=False, rope_theta=2e4)),
    ("llama", dict(rope_scaling="linear")),
    ("llama", dict(rope_theta="10000")),
    ("mistral", dict(head_dim=None, rope_theta=1e6)),
    ("llama", dict(rotary_emb_base=5e5)),
    ("llama", dict(default_theta=5e5)),
    ("llama", dict(rope_type="linear", factor=2.0)),
    ("mistral", dict(rope_scaling=dict(LLAMA3, original_max_position_embeddings=None))),
]
EMBEDDINGS = dict(llama=LlamaRotaryEmbedding, mistral=MistralRotaryEmbedding, qwen2=Qwen2RotaryEmbedding, qwen3=Qwen3RotaryEmbedding)


def read(config):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        try:
            found = transformers.AutoConfig.from_pretrained(folder)
            embedding = EMBEDDINGS[config["model_type"]](found)
        except Exception as error:
            print(f"refused: {config}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            return None
    return dict(
        rope_type=embedding.rope_type, rope_theta=found.rope_parameters["rope_theta"], factor=found.rope_parameters.get("factor"),
        inv_freq=embedding.inv_freq.tolist(), attention_scaling=float(embedding.attention_scaling),
    )


cases = []
for family, settings, *refused in SETTINGS:
    config = BASE | dict(model_type=family) | settings
    config = {key: value for key, value in config.items() if key != "head_dim" or value is not None}
    cases.append(dict(config=config, read=read(config)) | ({"refused": refused[0]} if refused else {}))
lines = ",\n".join(json.dumps(case) for case in cases)
print(f'{{"transformers": "{transformers.__version__}", "torch": "{torch.__version__}", "cases": [\n{lines}\n]}}')
