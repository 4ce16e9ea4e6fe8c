"""Quantize and dequantize f32 -> E4M3 -> f32 by JAX, Flax, PyTorch and ml_dtypes on a CPU.

    python cpu_peers.py ELEMENTS THREADS REPETITIONS

Prints one JSON object: `rows` with the median time of each library, and `absent` with the libraries that cannot be
imported. Run by `burn-fp8-bench --peers`.
"""
import importlib.util
import json
import os
import statistics
import sys
import time

ELEMENTS, THREADS, REPETITIONS = map(int, sys.argv[1:])
SCALE = 0.013
MAX = 448.0

# Before any library starts its threads: all of them size their pools by the CPUs they may use.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
os.environ["OMP_NUM_THREADS"] = str(THREADS)
os.environ["JAX_PLATFORMS"] = "cpu"


def present(name):
    return importlib.util.find_spec(name) is not None


def measure(run):
    run()
    run()
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def values():
    """The same distribution as in `benches/src/slices.rs`."""
    import numpy as np

    i = np.arange(ELEMENTS, dtype=np.uint64)
    mixed = (i * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    uniform = mixed.astype(np.float32) / np.float32(2**32) - np.float32(0.5)
    return uniform**3 * np.float32(8 * MAX * SCALE)


def jax_rows(x):
    import jax
    import jax.numpy as jnp

    x = jnp.asarray(x)
    scale = jnp.float32(SCALE)

    @jax.jit
    def qdq(x, scale):
        q = jnp.clip(x / scale, -MAX, MAX).astype(jnp.float8_e4m3fn)
        return q.astype(jnp.float32) * scale

    yield f"JAX {jax.__version__}, jit: clip, astype", measure(lambda: qdq(x, scale).block_until_ready())
    if present("flax"):
        import flax
        from flax.linen import fp8_ops

        scale = jnp.full((1,), SCALE, jnp.float32)
        qdq = jax.jit(lambda x, s: fp8_ops.qdq(x, jnp.float8_e4m3fn, s, jnp.float32))
        yield f"Flax {flax.__version__}, jit: fp8_ops.qdq", measure(lambda: qdq(x, scale).block_until_ready())


def torch_rows(x):
    import torch

    torch.set_num_threads(THREADS)
    x = torch.from_numpy(x)

    def qdq():
        q = (x / SCALE).clamp_(-MAX, MAX).to(torch.float8_e4m3fn)
        return q.to(torch.float32).mul_(SCALE)

    yield f"PyTorch {torch.__version__}: clamp, to", measure(qdq)
    scaled = x / SCALE
    yield f"PyTorch {torch.__version__}: only to and back", measure(
        lambda: scaled.to(torch.float8_e4m3fn).to(torch.float32)
    )


def ml_dtypes_rows(x):
    import ml_dtypes
    import numpy as np

    scale = np.float32(SCALE)

    def qdq():
        q = np.clip(x / scale, -MAX, MAX).astype(ml_dtypes.float8_e4m3fn)
        return q.astype(np.float32) * scale

    # numpy uses one thread, however many there are.
    yield f"ml_dtypes {ml_dtypes.__version__}, numpy: clip, astype", measure(qdq)


def main():
    report = {"rows": [], "absent": []}
    for name, rows in (("jax", jax_rows), ("torch", torch_rows), ("ml_dtypes", ml_dtypes_rows)):
        if present("numpy") and present(name):
            for row, milliseconds in rows(values()):
                report["rows"].append({"name": row, "milliseconds": milliseconds})
        else:
            report["absent"].append(name)
    if not present("flax"):
        report["absent"].append("flax")
    json.dump(report, sys.stdout)


main()
