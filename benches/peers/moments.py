"""Which rule for moments in FP8 keeps the loss closest to AdamW with moments in f32: a small GPT on the text of char-lm, in PyTorch.

    python moments.py STEPS SEED...

Rules, all with E4M3 for both moments:

    root   the first moment, and the root of the second, over a scale for each block of 256 (burn_fp8's)
    random the same, but the root is rounded at random, so that the mean of its square is right (burn_fp8's, with a seed)
    square the second moment itself instead (torchao's AdamWFp8)
    coat   sign(x) |x|^k over a scale for each block of 128, with k for each block, so that its numbers fill the range of the format (COAT, Xi et al., ICLR 2025)

Prints a Markdown table: loss of validation at the end, for each seed, and how far it is from f32's. `f32 again` begins with weights that are 1e-6 off: noise.
"""
import gzip
import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional as F

STEPS, SEEDS = int(sys.argv[1]), [int(seed) for seed in sys.argv[2:]]
LAYERS, WIDTH, HEADS, CONTEXT, BATCH, RATE = 2, 128, 4, 64, 16, 3e-3
BETAS, EPSILON, DECAY, WARMUP = (0.9, 0.999), 1e-5, 0.1, 50
MAX, LEAST = 448.0, 2.0**-9

data = pathlib.Path(__file__).parents[2] / "examples/char-lm/data/kjv.txt.gz"
text = gzip.decompress(data.read_bytes()).decode()
letters = {letter: index for index, letter in enumerate(sorted(set(text)))}
tokens = torch.tensor([letters[letter] for letter in text])
train, valid = tokens[: -len(tokens) // 10], tokens[-len(tokens) // 10 :]
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = lambda x: x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)
        q, k, v = map(heads, self.qkv(self.norms[0](x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(letters), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(letters))

    def loss(self, windows):
        x = self.tokens(windows[:, :-1]) + self.places.weight
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def in_blocks(x, size, kept):
    flat = F.pad(x.flatten(), (0, -x.numel() % size)).view(-1, size)
    return kept(flat).flatten()[: x.numel()].view_as(x)


def scaled(x):
    scale = x.abs().amax(1, keepdim=True) / MAX
    scale[scale == 0] = 1.0
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def lifted(v, codes):
    # What is not 0 does not become 0.
    least = v.sqrt().amax(1, keepdim=True) / MAX * LEAST
    return torch.where((v > 0) & (codes < least), least, codes) ** 2


def root(v):
    return lifted(v, scaled(v.sqrt()))


def at_random(v):
    scale = v.sqrt().amax(1, keepdim=True) / MAX
    scale[scale == 0] = 1.0
    x = v.sqrt() / scale
    # The distance of the codes around x.
    step = torch.exp2(torch.floor(torch.log2(x.clamp(min=8 * LEAST))) - 3)
    below = torch.floor(x / step) * step
    above = below + step
    codes = torch.where(torch.rand_like(x) * (above**2 - below**2) < x**2 - below**2, above, below)
    return lifted(v, codes.clamp(max=MAX) * scale)


def expanded(x):
    size = x.abs()
    largest = size.amax(1, keepdim=True)
    smallest = torch.where(size > 0, size, torch.inf).amin(1, keepdim=True)
    spread = largest / smallest
    k = torch.log(torch.tensor(MAX / LEAST)) / torch.log(spread)
    # A block of one number, or of zeros, has no range to fill.
    k = torch.where(spread.isfinite() & (spread > 1), k, 1.0)
    power = torch.where(size > 0, (size / largest) ** k, 0.0)
    return scaled(power) ** (1 / k) * largest * x.sign()


nothing = lambda x: x
RULES = {
    "f32": (nothing, nothing),
    "f32 again": (nothing, nothing),
    "root": (lambda m: in_blocks(m, 256, scaled), lambda v: in_blocks(v, 256, root)),
    "random": (lambda m: in_blocks(m, 256, scaled), lambda v: in_blocks(v, 256, at_random)),
    "square": (lambda m: in_blocks(m, 256, scaled), lambda v: in_blocks(v, 256, scaled)),
    "coat": (lambda m: in_blocks(m, 128, expanded), lambda v: in_blocks(v, 128, expanded)),
}


def final_loss(rule, seed):
    keep_m, keep_v = RULES[rule]
    torch.manual_seed(seed)
    model = Gpt()
    if rule == "f32 again":
        for p in model.parameters():
            p.data *= 1 + 1e-6
    moments = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    draw = torch.Generator().manual_seed(seed)
    windows = lambda part: torch.stack(
        [part[start : start + CONTEXT + 1] for start in torch.randint(len(part) - CONTEXT, (BATCH,), generator=draw)]
    )
    for step in range(1, STEPS + 1):
        rate = RATE * min(step / WARMUP, 1) * (0.505 + 0.495 * torch.cos(torch.tensor(torch.pi * step / STEPS)).item())
        model.zero_grad()
        model.loss(windows(train)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with torch.no_grad():
            for p, m, v in moments:
                m.lerp_(p.grad, 1 - BETAS[0])
                v.lerp_(p.grad**2, 1 - BETAS[1])
                corrected = (v / (1 - BETAS[1] ** step)).sqrt() + EPSILON
                p.mul_(1 - rate * DECAY).sub_(rate / (1 - BETAS[0] ** step) * m / corrected)
                if p.numel() >= 4096:
                    m.copy_(keep_m(m))
                    v.copy_(keep_v(v))
    draw.manual_seed(0)
    with torch.no_grad():
        return sum(model.loss(windows(valid)).item() for _ in range(64)) / 64


losses = {rule: [] for rule in RULES}
for seed in SEEDS:
    for rule in RULES:
        losses[rule].append(final_loss(rule, seed))
        print(rule, seed, losses[rule][-1], file=sys.stderr, flush=True)
print("| rule | " + " | ".join(f"seed {seed}" for seed in SEEDS) + " | mean distance from f32 |")
print("|---|" + "---:|" * (len(SEEDS) + 1))
for rule, ends in losses.items():
    distance = sum(end / f32 - 1 for end, f32 in zip(ends, losses["f32"])) / len(SEEDS)
    print(f"| {rule} | " + " | ".join(f"{end:.4f}" for end in ends) + f" | {100 * distance:+.2f}% |")
