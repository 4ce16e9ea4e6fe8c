"""Loads models that `generate export` wrote with the Python libraries that serve them, and compares.

    cargo run -p generate -- export ORIGINAL --out EXPORTED      # then, with both folders
    pip install torch transformers compressed-tensors accelerate
    python examples/generate/check_export.py ORIGINAL EXPORTED

Run by hand: the libraries are gigabytes. Both folders go through `transformers`, which hands the exported one to `compressed-tensors`.
It compares the weights of every linear layer, as the libraries dequantize them, and the logits for the same tokens.
"""

import sys

import compressed_tensors
import torch
import transformers


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu")
    # What was dequantized to bf16 beside other tensors in f32.
    model = model if hasattr(model.config, "quantization_config") else model.float()
    return model.eval()


def spread(scale, shape):
    """The scale of each element: one for all, for each row, or for each block."""
    scale = torch.exp2(scale.to(torch.float64) - 127) if scale.dtype == torch.uint8 else scale.to(torch.float64)
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    # Blocks are powers of two wide; the last of them may be smaller.
    for axis, size in enumerate(shape):
        block = 1 << (-(-size // scale.shape[axis]) - 1).bit_length()
        scale = scale.repeat_interleave(block if scale.shape[axis] > 1 else size, axis).narrow(axis, 0, size)
    return scale


def dequantized(model):
    """The weights of linear layers in f64, by name."""
    weights = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is None or weight.dim() != 2 or isinstance(module, torch.nn.Embedding):
            continue
        scale = getattr(module, "weight_scale", getattr(module, "weight_scale_inv", None))
        values = weight.detach().to(torch.float64)
        if weight.dtype == torch.float8_e4m3fn:
            values = values * spread(scale.detach(), values.shape)
        weights[name] = (weight.dtype, values)
    return weights


def main(original, exported):
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"compressed-tensors {compressed_tensors.__version__}"
    )
    models = {"original": load(original), "exported": load(exported)}
    for name, model in models.items():
        # Without a GPU transformers dequantizes the formats of DeepSeek and Qwen as it loads them.
        config = getattr(model.config, "quantization_config", None)
        print(f"{name}: {'dequantized when loaded' if config is None else type(config).__name__}")
    before, after = (dequantized(model) for model in models.values())
    assert before.keys() == after.keys(), before.keys() ^ after.keys()
    differences = []
    for name, (dtype, expected) in before.items():
        found_dtype, found = after[name]
        difference = ((found - expected).abs().max() / expected.abs().max()).item()
        differences.append(difference)
        print(f"  {name}: {dtype} and {found_dtype}, largest relative difference {difference:.2e}")
    tokens = torch.arange(24).reshape(2, 12) % models["original"].config.vocab_size
    with torch.no_grad():
        logits = {name: model(tokens).logits.double() for name, model in models.items()}
    difference = (logits["exported"] - logits["original"]).norm() / logits["original"].norm()
    print(f"weights differ by at most {max(differences):.2e}, logits by {difference:.2e}")
    is_quantized = hasattr(models["original"].config, "quantization_config")
    # An original that was dequantized was rounded to bf16, and does not quantize activations: 5% are left for that.
    limits = (1e-6, 1e-6) if is_quantized else (2**-8, 5e-2)
    # NaN is not at most anything.
    if not (all(found <= limits[0] for found in differences) and difference <= limits[1]):
        sys.exit("they differ")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
