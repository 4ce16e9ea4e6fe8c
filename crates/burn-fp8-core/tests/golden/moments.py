"""Makes moments.safetensors and moments.json: steps of torchao's AdamWFp8 and AdamFp8, whose moments are E4M3 codes with a scale for each block.

pip install torch==2.15.0 torchao==0.18.0 numpy safetensors; python moments.py [FOLDER]; the same bytes each time.

The steps are torchao's own function `single_param_adam`, not compiled. Gradients are up to 2^24 times apart in a block; one block has none but zeros.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import torchao
from safetensors.numpy import save_file
from torchao.optim.adam import single_param_adam
from torchao.optim.subclass_fp8 import OptimStateFp8

ELEMENTS, STEPS = 4096, 4
CASES = {
    "adamw": dict(decoupled=True, block=256, lr=1e-2, betas=(0.9, 0.999), weight_decay=0.1, eps=1e-8),
    "adam": dict(decoupled=False, block=128, lr=3e-3, betas=(0.8, 0.95), weight_decay=0.01, eps=1e-5),
}


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    tensors = {}
    for index, (name, case) in enumerate(CASES.items()):
        random = np.random.default_rng(2026 + index)
        p = torch.from_numpy(random.normal(size=ELEMENTS).astype(np.float32))
        spread = 2.0 ** random.uniform(-12, 12, size=ELEMENTS)
        grads = (random.normal(size=(STEPS, ELEMENTS)) * spread * 1e-3).astype(np.float32)
        grads[:, case["block"] : 2 * case["block"]] = 0
        m, v = (OptimStateFp8.zeros(p.shape, case["block"]) for _ in range(2))
        tensors[f"{name}/p"], tensors[f"{name}/grads"] = p.numpy().copy(), grads
        kept = {key: [] for key in ("after", "m_codes", "m_scales", "v_codes", "v_scales")}
        for step in range(STEPS):
            # As torchao's optimizers hand it over.
            numbers = torch.tensor(case["lr"]), *case["betas"], case["weight_decay"], case["eps"]
            time = torch.tensor(float(step + 1))
            single_param_adam(p, torch.from_numpy(grads[step]), time, m, v, None, *numbers, case["decoupled"], False)
            kept["after"].append(p.numpy().copy())
            for moment, state in (("m", m), ("v", v)):
                kept[f"{moment}_codes"].append(state.codes.view(torch.uint8).numpy().copy())
                kept[f"{moment}_scales"].append(state.scale.numpy().copy())
        tensors |= {f"{name}/{key}": np.stack(values) for key, values in kept.items()}
    save_file(tensors, folder / "moments.safetensors")
    about = {
        "made_by": f"moments.py, torch {torch.__version__.split('+')[0]}, torchao {torchao.__version__}, numpy {np.__version__}, on a CPU",
        "holds": "CASE/p, f32 [elements]; grads [steps, elements]; after each step: after, m_codes, v_codes [steps, elements], m_scales, v_scales [steps, blocks]",
        "cases": [{"name": name} | case for name, case in CASES.items()],
    }
    (folder / "moments.json").write_text(json.dumps(about, indent=1) + "\n")


main()
