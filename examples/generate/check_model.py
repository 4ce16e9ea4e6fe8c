"""Loads a folder that `generate train` wrote with transformers, and adapters of `generate tune` with PEFT, and compares the tokens that both write.

    cargo build --release -p generate
    pip install torch transformers compressed-tensors accelerate peft
    python examples/generate/check_model.py target/release/generate FOLDER [--adapter FOLDER] [PROMPT ...]

Run by hand: the libraries are gigabytes. Both take the likeliest token each time, with inputs quantized as the folder declares. A token is compared unless
transformers gives the second one nearly as much: one code that is rounded the other way would turn it.
"""

import argparse
import json
import subprocess
import sys

import compressed_tensors
import torch
import transformers

TOKENS = 64
MARGIN = 0.05
PROMPTS = ["In the beginning", "And it came to pass", "The LORD is my shepherd;", "Love"]


def main(program, folder, adapter, prompts):
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"compressed-tensors {compressed_tensors.__version__}"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu")
    options = []
    if adapter:
        import peft

        print(f"peft {peft.__version__}")
        model = peft.PeftModel.from_pretrained(model, adapter)
        options = ["--adapter", adapter]
    model.eval()
    failed = 0
    for prompt in prompts or PROMPTS:
        command = [program, folder, *options, "--prompt", prompt, "--tokens", str(TOKENS)]
        command += ["--greedy", "--ignore-end", "--cache", "f32", "--json"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        found = found["rows"][0]["tokens"]
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(torch.cat([ids, torch.tensor([found])], dim=1)).logits[0, ids.shape[1] - 1 : -1]
        best = logits.topk(2)
        margins = (best.values[:, 0] - best.values[:, 1]).tolist()
        same = [int(a == b) for a, b in zip(best.indices[:, 0].tolist(), found)]
        sure = [s for s, margin in zip(same, margins) if margin >= MARGIN]
        failed += len(sure) - sum(sure)
        print(f"{prompt!r}: {sum(sure)} of {len(sure)} sure tokens, {sum(same)} of {TOKENS} in all are the same")
        print(f"  {tokenizer.decode(found)!r}")
    sys.exit(f"{failed} tokens differ" if failed else 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("prompts", nargs="*")
    parser.add_argument("--adapter")
    main(**vars(parser.parse_args()))
