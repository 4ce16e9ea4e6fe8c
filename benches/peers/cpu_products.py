"""Products and training steps of PyTorch on a CPU: one run for each line on standard input, answered by a line on standard output.

    python cpu_products.py THREADS gemm-bf16 M N K
    python cpu_products.py THREADS mlp-step f32|bf16
    python cpu_products.py THREADS mlp-passes f32|bf16

bf16 of a model is autocast. The first line of the answer names the library. Run by `burn-fp8-bench --peers`.
"""
import os
import sys

THREADS, KIND, *REST = sys.argv[1:]
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(THREADS)])
os.environ["OMP_NUM_THREADS"] = THREADS

import torch

torch.set_num_threads(int(THREADS))
WIDTHS, BATCH = (1024, 4096, 1024), 256


def product():
    m, n, k = map(int, REST)
    a, b = (torch.randn(*shape).to(torch.bfloat16) for shape in ((m, k), (k, n)))
    return lambda: a @ b


def model(with_update):
    inputs, hidden, outputs = WIDTHS
    layers = torch.nn.Sequential(
        torch.nn.Linear(inputs, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs)
    )
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)
    x, target = torch.randn(BATCH, inputs), torch.randn(BATCH, outputs)

    def run():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=REST == ["bf16"]):
            output = layers(x)
        if with_update:
            torch.nn.functional.mse_loss(output.float(), target).backward()
            optimizer.step()
        else:
            output.backward(target.to(output.dtype))

    return run


run = product() if KIND == "gemm-bf16" else model(KIND == "mlp-step")
print(f"PyTorch {torch.__version__}", flush=True)
for _ in sys.stdin:
    run()
    print(flush=True)
