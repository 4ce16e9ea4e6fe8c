"""Makes attention.safetensors and attention.json: attention and its gradients in f64, by torch.

pip install torch==2.15.0 numpy safetensors; python attention.py [FOLDER]; the same bytes each time.

Inputs are f32, everything after them is f64. Plain cases go through scaled_dot_product_attention; its `is_causal` aligns the first
query with the first key, so that causal masks are written out here, where the last query sees the last key. Softcaps, and rows that
see no key, are not in it: those cases are written out in single operations. Rows that see no key give 0.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.numpy import save_file

# batch, heads, heads of keys, queries, keys, width
CASES = {
    "plain": dict(shape=(2, 3, 3, 17, 33, 16)),
    "tile": dict(shape=(1, 1, 1, 64, 64, 64), causal=True),
    "two_tiles": dict(shape=(1, 1, 1, 129, 130, 32), causal=True),
    "one_row": dict(shape=(1, 2, 1, 1, 70, 24), causal=True),
    "few_queries": dict(shape=(2, 2, 2, 5, 40, 40), causal=True),
    "more_queries": dict(shape=(1, 2, 2, 40, 25, 20), causal=True),
    "grouped": dict(shape=(2, 6, 2, 21, 19, 8), causal=True),
    "widest": dict(shape=(1, 1, 1, 9, 11, 256)),
    "narrowest": dict(shape=(1, 2, 2, 9, 11, 1)),
    "bias": dict(shape=(2, 2, 2, 23, 31, 16), bias=(1, 2, 23, 31)),
    "bias_of_keys": dict(shape=(2, 2, 2, 23, 31, 16), bias=(2, 1, 1, 31)),
    "softcap": dict(shape=(1, 2, 2, 23, 31, 16), softcap=0.8, causal=True),
    "padded": dict(shape=(3, 2, 2, 23, 31, 16), padding=(31, 4, 0)),
    "masked": dict(shape=(2, 2, 1, 23, 31, 16), masked=True, scale=0.5),
    "everything": dict(
        shape=(2, 4, 2, 70, 81, 24), causal=True, softcap=1.5, bias=(1, 1, 70, 81), padding=(81, 60), masked=True
    ),
    "large": dict(shape=(1, 2, 2, 20, 66, 16), factor=30.0),
}


def attend(q, k, v, bias, seen, scale, softcap):
    """In single operations: the output, and the largest magnitude of a score. `seen` is a mask, or None."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * scale
    largest_score = scores.abs().max().item()
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if seen is None:
        return torch.softmax(scores, 3) @ v, largest_score
    # exp of minus infinity is 0; a row of zeros is divided by 1.
    scores = scores.masked_fill(~seen, -torch.inf)
    largest = scores.detach().amax(3, keepdim=True).clamp(min=-1e300)
    weights = torch.exp(scores - largest)
    total = weights.sum(3, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total) @ v, largest_score


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    random = np.random.default_rng(20261125)
    tensors, listed = {}, []
    for name, case in CASES.items():
        batch, heads, kv_heads, queries, keys, width = case["shape"]

        def normal(*shape, factor=1.0):
            return (random.standard_normal(shape) * factor).astype(np.float32)

        inputs = {
            "q": normal(batch, heads, queries, width, factor=case.get("factor", 1.0)),
            "k": normal(batch, kv_heads, keys, width),
            "v": normal(batch, kv_heads, keys, width),
        }
        if "bias" in case:
            inputs["bias"] = normal(*case["bias"])
        grad = normal(batch, heads, queries, width)
        scale = case.get("scale", width**-0.5)
        visible = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
        if case.get("causal"):
            visible &= torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        stored = {}
        if "padding" in case:
            padded = np.arange(keys)[None] >= np.array(case["padding"])[:, None]
            stored["mask_pad"] = padded.astype(np.uint8)
            visible &= ~torch.from_numpy(padded)[:, None, None]
        if case.get("masked"):
            masked = random.random((batch, 1, queries, keys)) < 0.3
            masked[:, :, 2] = True
            stored["mask"] = masked.astype(np.uint8)
            visible &= ~torch.from_numpy(masked)
        leaves = {part: torch.from_numpy(x).double().requires_grad_() for part, x in inputs.items()}
        seen = None if bool(visible.all()) else visible
        arguments = [leaves["q"], leaves["k"], leaves["v"], leaves.get("bias"), seen, scale, case.get("softcap")]
        output, largest_score = attend(*arguments)
        everything_seen = seen is None or bool(seen.any(3).all())
        if everything_seen and "softcap" not in case:
            added = leaves.get("bias")
            if seen is not None:
                hidden = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)
                added = hidden if added is None else added + hidden
            by_torch = torch.nn.functional.scaled_dot_product_attention(
                leaves["q"], leaves["k"], leaves["v"], attn_mask=added, scale=scale, enable_gqa=heads != kv_heads
            )
            assert torch.allclose(output, by_torch, rtol=0, atol=1e-13), name
            output = by_torch
        output.backward(torch.from_numpy(grad).double())
        for part, x in {**inputs, **stored, "grad": grad, "output": output.detach().numpy()}.items():
            tensors[f"{name}/{part}"] = x
        for part, leaf in leaves.items():
            tensors[f"{name}/grad_{part}"] = leaf.grad.numpy()
        listed.append(
            {
                "name": name,
                "causal": bool(case.get("causal")),
                "scale": scale,
                "softcap": case.get("softcap"),
                "largest_score": largest_score,
                "made_by": "scaled_dot_product_attention" if everything_seen and "softcap" not in case else "single operations",
            }
        )
    tensors = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    save_file(tensors, folder / "attention.safetensors")
    about = {
        "made_by": f"attention.py, torch {torch.__version__.split('+')[0]}, numpy {np.__version__}, f64 on a CPU",
        "holds": "CASE/q, k, v, bias, grad in f32; mask_pad, mask, 1 where a query does not see a key; output and grad_… in f64",
        "cases": listed,
    }
    (folder / "attention.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")


main()
