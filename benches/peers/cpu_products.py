"""Products and training steps of PyTorch on a CPU: one run for each line on standard input, answered by a line on standard output.

    python cpu_products.py THREADS gemm-bf16 M N K
    python cpu_products.py THREADS mlp-step f32|bf16
    python cpu_products.py THREADS mlp-passes f32|bf16
    python cpu_products.py THREADS attention f32|bf16 BATCH HEADS LENGTH WIDTH
    python cpu_products.py THREADS lm f32|bf16 CHARACTERS CONTEXT BATCH LAYERS HEADS WIDTH DROPOUT
    python cpu_products.py THREADS encoder f32|bf16 BATCH LENGTH WIDTH INNER HEADS LAYERS DROPOUT

bf16 of a model is autocast. Attention is causal, forward and backward; its bf16 is that of its tensors. `lm` is a training step of the GPT of char-lm: forward,
backward and AdamW; `encoder` is one of `nn.TransformerEncoder`, with SGD. The first line of the answer names the library; each other is the peak of the process so far less what it held before the
model, in bytes (on Linux). Run by `burn-fp8-bench --peers`.
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


def of_process(name):
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))
    except OSError:
        return 0


BEFORE = of_process("VmRSS:")


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


def attention():
    dtype = torch.bfloat16 if REST[0] == "bf16" else torch.float32
    shape = tuple(map(int, REST[1:]))
    q, k, v = (torch.randn(*shape, dtype=dtype, requires_grad=True) for _ in range(3))
    grad = torch.randn(*shape, dtype=dtype)

    def run():
        q.grad = k.grad = v.grad = None
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).backward(grad)

    return run


class Block(torch.nn.Module):
    def __init__(self, heads, width, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.projection = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.drop = torch.nn.Dropout(dropout)

    def forward(self, x):
        batch, context, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, context, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout, is_causal=True
        )
        x = x + self.drop(self.projection(y.transpose(1, 2).reshape(batch, context, width)))
        y = self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))
        return x + self.drop(y)


class Gpt(torch.nn.Module):
    def __init__(self, characters, context, layers, heads, width, dropout):
        super().__init__()
        self.tokens = torch.nn.Embedding(characters, width)
        self.positions = torch.nn.Embedding(context, width)
        self.drop = torch.nn.Dropout(dropout)
        self.blocks = torch.nn.Sequential(*(Block(heads, width, dropout) for _ in range(layers)))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, characters)

    def forward(self, x):
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(self.drop(x))))


def language_model():
    characters, context, batch, layers, heads, width = map(int, REST[1:7])
    model = Gpt(characters, context, layers, heads, width, float(REST[7]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, target = (torch.randint(characters, (batch, context)) for _ in range(2))

    def run():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=REST[0] == "bf16"):
            logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), target.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return run


def encoder():
    batch, length, width, inner, heads, layers = map(int, REST[1:7])
    layer = torch.nn.TransformerEncoderLayer(
        width, heads, inner, float(REST[7]), "gelu", batch_first=True, norm_first=True
    )
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(batch, length, width)

    def run():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=REST[0] == "bf16"):
            y = model(x)
        y.float().square().mean().backward()
        optimizer.step()

    return run


run = {
    "gemm-bf16": product,
    "mlp-step": lambda: model(True),
    "mlp-passes": lambda: model(False),
    "attention": attention,
    "lm": language_model,
    "encoder": encoder,
}[KIND]()
print(f"PyTorch {torch.__version__}", flush=True)
for _ in sys.stdin:
    run()
    print(of_process("VmHWM:") - BEFORE, flush=True)
