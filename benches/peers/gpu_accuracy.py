"""Compares the errors of burn-fp8's products with those of `torch._scaled_mm` on the same codes, both against f64.

    python3 gpu_accuracy.py FOLDER OUT.json      # FOLDER: written by `burn-fp8-gpu accuracy FOLDER`
    python3 gpu_accuracy.py --self-check         # writes a small folder with torch's own products and judges that; needs no GPU

The error of a product is its distance from the exact one, relative to the exact one, over all elements (Frobenius norms). Fails if
an error of ours is more than 1.1 times that of torch with the same formats, output type and accumulation. Needs torch and numpy.
"""
import argparse
import ctypes
import json
import math
import pathlib
import sys
import tempfile

import numpy
import torch

LIMIT = 1.1
FORMATS = {'e4m3': torch.float8_e4m3fn, 'e5m2': torch.float8_e5m2}
TYPES = {'f32': torch.float32, 'bf16': torch.bfloat16}
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'


def cublaslt():
    """Path and version of the libcublasLt that torch has loaded; nulls where it has none."""
    with open('/proc/self/maps') as maps:
        paths = [line.split(maxsplit=5)[5].strip() for line in maps if '/libcublasLt.so' in line]
    if not paths:
        return dict(path=None, version=None)
    library = ctypes.CDLL(paths[0])
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return dict(path=paths[0], version=library.cublasLtGetVersion())


def finite(row):
    """A row as JSON can hold it, which knows no infinity: null stands for what is not finite."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


def read(path, dtype, shape):
    """A tensor from a file of little-endian numbers."""
    data = numpy.fromfile(path, dtype=numpy.uint8)
    return torch.from_numpy(data).to(DEVICE).view(dtype).reshape(shape)


def error(product, exact):
    """The norm of the difference over the norm of what is exact; infinite where something is not finite."""
    difference = (product.double() - exact).norm() / exact.norm()
    return difference.item() if torch.isfinite(difference) else float('inf')


def scaled_mm(lhs, rhs, scales, bias, dtype, fast):
    """torch's product, with a bias unless that is None, or why it has none."""
    try:
        return torch._scaled_mm(lhs, rhs.t(), *scales, bias=bias, out_dtype=dtype, use_fast_accum=fast), None
    except (RuntimeError, ValueError, NotImplementedError) as reason:
        return None, str(reason).splitlines()[0][:200]


def judge(folder, case):
    """A row for each output of a case."""
    shape = {'lhs': (case['m'], case['k']), 'rhs': (case['n'], case['k'])}
    codes = {side: read(folder / case[side]['file'], FORMATS[case[side]['format']], shape[side]) for side in shape}
    scales = [torch.tensor(case[side]['scale'], dtype=torch.float32, device=DEVICE) for side in shape]
    # Codes times scale as the library has it: the scales are multiplied in f64, the codes are exact there.
    exact = (codes['lhs'].double() @ codes['rhs'].double().t()) * (scales[0].double() * scales[1].double())
    bias = None
    if case.get('bias') is not None:
        bias = read(folder / case['bias'], torch.bfloat16, (case['n'],))
        exact = exact + bias.double()
    for output in case['outputs']:
        dtype, fast = TYPES[output['dtype']], output['fast_accumulation']
        ours = error(read(folder / output['file'], dtype, (case['m'], case['n'])), exact)
        row = dict(case=case['name'], dtype=output['dtype'], fast_accumulation=fast, error=ours)
        product, reason = scaled_mm(codes['lhs'], codes['rhs'], scales, bias, dtype, fast)
        if product is None:
            row['torch_has_none'] = reason
        else:
            row['torch_error'] = error(product, exact)
            row['ratio'] = ours / row['torch_error'] if row['torch_error'] > 0 else (1.0 if ours == 0 else float('inf'))
            row['ok'] = row['ratio'] <= LIMIT
        yield row


def run(folder):
    """The rows of all cases, printed as they come."""
    rows = []
    for case in json.loads((folder / 'index.json').read_text())['cases']:
        for row in judge(folder, case):
            rows.append(row)
            name = f"{row['case']} {row['dtype']} {'fast' if row['fast_accumulation'] else 'precise'}"
            if 'ratio' in row:
                verdict = 'ok' if row['ok'] else 'TOO LARGE'
                print(f"{name}: {row['error']:.3e}, torch {row['torch_error']:.3e}, ratio {row['ratio']:.3f} {verdict}", flush=True)
            else:
                print(f"{name}: {row['error']:.3e}, torch has none: {row['torch_has_none']}", flush=True)
    return rows


def verdict(rows):
    """The exit status: 0 where something was compared and nothing was too large."""
    compared = [row for row in rows if 'ratio' in row]
    bad = [row for row in compared if not row['ok']]
    worst = max((row['ratio'] for row in compared), default=float('nan'))
    print(f'{len(rows)} products, {len(compared)} compared with torch {torch.__version__}: {len(bad)} have an error of more than '
          f'{LIMIT} times that of torch; the largest ratio is {worst:.3f}')
    if not compared:
        print('torch computed none of these products: nothing was compared', file=sys.stderr)
    return 1 if bad or not compared else 0


def self_check():
    """torch's products pass as ours; the same with one operand's scale off by an ulp of bf16 do not."""
    statuses = []
    for spoil in (1.0, 1.0 + 2**-7):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            index = []
            for formats, biased in ((('e4m3', 'e4m3'), False), (('e5m2', 'e4m3'), False), (('e4m3', 'e4m3'), True)):
                m, k, n = 32, 64, 48
                case = dict(name='-'.join(formats) + ('-bias' if biased else ''), m=m, k=k, n=n, bias=None, outputs=[])
                sides = {}
                for side, rows, fmt in (('lhs', m, formats[0]), ('rhs', n, formats[1])):
                    x = torch.randn(rows, k)
                    scale = x.abs().max() / torch.finfo(FORMATS[fmt]).max
                    sides[side] = ((x / scale).to(FORMATS[fmt]).to(DEVICE), scale.to(DEVICE))
                    sides[side][0].view(torch.uint8).cpu().numpy().tofile(folder / f"{case['name']}-{side}.bin")
                    case[side] = dict(file=f"{case['name']}-{side}.bin", format=fmt, scale=scale.item())
                scales = [sides[side][1] for side in ('lhs', 'rhs')]
                bias = None
                if biased:
                    bias = (8 * torch.randn(n)).to(torch.bfloat16).to(DEVICE)
                    case['bias'] = f"{case['name']}.bin"
                    bias.cpu().view(torch.uint8).numpy().tofile(folder / case['bias'])
                for dtype in TYPES:
                    product, _ = scaled_mm(sides['lhs'][0], sides['rhs'][0], scales, bias, TYPES[dtype], False)
                    if product is None:
                        continue
                    file = f"{case['name']}-{dtype}.bin"
                    (product * spoil).cpu().view(torch.uint8).numpy().tofile(folder / file)
                    case['outputs'].append(dict(file=file, dtype=dtype, fast_accumulation=False))
                index.append(case)
            (folder / 'index.json').write_text(json.dumps(dict(cases=index)))
            statuses.append(verdict(run(folder)))
    assert json.dumps(finite(dict(error=float('inf'), ok=False)), allow_nan=False) == '{"error": null, "ok": false}'
    good = statuses == [0, 1]
    print('self-check:', 'ok' if good else f'FAILED, statuses {statuses} instead of [0, 1]')
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', nargs='?', type=pathlib.Path)
    parser.add_argument('out', nargs='?', type=pathlib.Path)
    parser.add_argument('--self-check', action='store_true')
    arguments = parser.parse_args()
    if arguments.self_check:
        return self_check()
    if arguments.folder is None or arguments.out is None:
        parser.error('FOLDER and OUT.json are needed, or --self-check')
    rows = run(arguments.folder)
    result = dict(torch=torch.__version__, device=DEVICE, limit=LIMIT, cublaslt=cublaslt(), rows=[finite(row) for row in rows])
    print('cuBLASLt of torch:', result['cublaslt'])
    arguments.out.write_text(json.dumps(result, indent=1, allow_nan=False) + '\n')
    return verdict(rows)


sys.exit(main())
