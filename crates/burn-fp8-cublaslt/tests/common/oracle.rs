//! Every rule that a product breaks, found by tables and arithmetic that share nothing with the planner.
#![allow(dead_code, reason = "each test file is a crate of its own and uses a part")]

use burn_fp8_core::Fp8Format::{E4M3, E5M2};
use burn_fp8_cublaslt::DataType::{Bf16, F16, F32, Fp8};
use burn_fp8_cublaslt::*;

/// The rows of NVIDIA's table as `(mixed formats, C, D, bias)`: the first column says whether one operand is E5M2.
const TABLE: [(bool, DataType, DataType, DataType); 12] = [
    (false, Bf16, Bf16, Bf16),
    (false, Bf16, Fp8(E4M3), Bf16),
    (false, F16, F16, F16),
    (false, F16, Fp8(E4M3), F16),
    (false, F32, F32, Bf16),
    (true, Bf16, Bf16, Bf16),
    (true, Bf16, Fp8(E4M3), Bf16),
    (true, Bf16, Fp8(E5M2), Bf16),
    (true, F16, F16, F16),
    (true, F16, Fp8(E4M3), F16),
    (true, F16, Fp8(E5M2), F16),
    (true, F32, F32, Bf16),
];

pub fn broken(p: &ScaledMatmul, capability: &Capability) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut add = |broken: bool, rule: Rule| {
        if broken {
            rules.push(rule);
        }
    };
    let cc = capability.compute.major * 10 + capability.compute.minor;
    let library = capability.library.major * 100 + capability.library.minor;
    add(cc < 89, Rule::Device);
    add(library < if cc >= 100 { 1208 } else { 1204 }, Rule::Library);

    let (m, n, k, batch) = (p.shape.m, p.shape.n, p.shape.k, p.shape.batch);
    add([m, n, k, batch].contains(&0), Rule::DimensionZero);
    add([m, n, k, batch].iter().any(|d| *d >= 1 << 31), Rule::DimensionRange);
    add(k % 16 != 0, Rule::KMultiple);

    // Types: rows of the table that fit, narrowed by one column after the other.
    let formats = [p.a.format, p.b.format];
    let aux = p.epilogue.aux;
    add(formats == [E5M2, E5M2], Rule::OperandFormats);
    let rows: Vec<_> = TABLE
        .into_iter()
        .filter(|row| row.0 == (formats[0] != formats[1]) && row.2 == p.d.dtype)
        .collect();
    let mut c_type = None;
    if formats != [E5M2, E5M2] {
        add(rows.is_empty(), Rule::OutputType);
        if !rows.is_empty() {
            // A missing C is what the bias needs, BF16 if there is none.
            let given = p.c.map(|c| c.dtype);
            let needed = p.epilogue.bias.map(|bias| bias.dtype);
            let fits = |row: &&(bool, DataType, DataType, DataType)| match given {
                Some(c) => row.1 == c,
                None => Some(row.1) == needed,
            };
            let row = rows.iter().find(fits).or(if given.is_none() { rows.first() } else { None });
            add(row.is_none(), Rule::CType);
            if let Some(row) = row {
                c_type = Some(row.1);
                add(p.epilogue.bias.is_some_and(|bias| bias.dtype != row.3), Rule::BiasType);
            }
        }
    }

    // Scales.
    let fp8_out = matches!(p.d.dtype, Fp8(_));
    add(p.scaled_d && !fp8_out, Rule::ScaleD);
    add(p.amax_d && !fp8_out, Rule::AmaxD);
    let of_32 = match p.scales {
        Scales::Blocks { a, b } => {
            u8::from(a == BlockScale::Row32) + u8::from(b == BlockScale::Row32)
        }
        _ => 0,
    };
    if !matches!(p.scales, Scales::None | Scales::PerTensor) {
        add(cc != 90 && of_32 == 0 || cc < 100 && of_32 == 2, Rule::ScaleDevice);
        add(library < 1209 && of_32 == 0, Rule::ScaleLibrary);
        add(of_32 == 1, Rule::ScaleBlocks);
        add(fp8_out, Rule::ScaleOutput);
        add(batch != 1, Rule::ScaleBatch);
    }
    if let Scales::Blocks { a, b } = p.scales {
        add(a == BlockScale::Square128 && b == BlockScale::Square128, Rule::ScaleBlocks);
        add(m % 4 + n % 4 != 0 && of_32 == 0, Rule::ScaleBlockShape);
    }

    // Memory.
    let bytes = |dtype: DataType| match dtype {
        Bf16 | F16 => 2u128,
        F32 => 4,
        Fp8(_) => 1,
    };
    let n_bytes = |dtype| u128::from(n) * bytes(dtype);
    add(n_bytes(p.d.dtype) % 16 != 0, Rule::NMultiple);
    add(c_type.is_some_and(|c| n_bytes(c) % 16 != 0), Rule::NMultiple);
    let mut matrices = vec![
        (Fp8(p.a.format), m, k, p.a.ld, p.a.batch_stride),
        (Fp8(p.b.format), n, k, p.b.ld, p.b.batch_stride),
        (p.d.dtype, m, n, p.d.ld, p.d.batch_stride),
    ];
    matrices.extend(p.c.map(|c| (c.dtype, m, n, c.ld, c.batch_stride)));
    for (dtype, rows, columns, ld, stride) in matrices {
        let stride = if batch > 1 { u128::from(stride) } else { 0 };
        add(ld < columns, Rule::LdRange);
        add(u128::from(ld) * bytes(dtype) % 16 != 0, Rule::LdMultiple);
        add(stride * bytes(dtype) % 16 != 0, Rule::StrideMultiple);
        let all_strides = u128::from(batch.saturating_sub(1)).saturating_mul(stride);
        let elements = (u128::from(rows) * u128::from(ld)).saturating_add(all_strides);
        add(elements.saturating_mul(bytes(dtype)) >= 1 << 63, Rule::Extent);
    }
    let reach =
        (u128::from(m.saturating_sub(1)) * u128::from(p.d.ld)).saturating_add(u128::from(n));
    add(batch > 1 && u128::from(p.d.batch_stride) < reach, Rule::StrideRange);
    let mut alignments = vec![p.alignment.a, p.alignment.b, p.alignment.d];
    alignments.extend(p.c.map(|_| p.alignment.c));
    alignments.extend(p.epilogue.bias.map(|_| p.alignment.bias));
    alignments.extend(aux.map(|_| p.alignment.aux));
    add(alignments.iter().any(|bytes| ![16, 32, 64, 128, 256].contains(bytes)), Rule::Alignment);

    // The auxiliary output.
    if let Some(Aux { kind, ld, batch_stride }) = aux {
        let mut unit = 8;
        match (p.epilogue.activation, kind) {
            (Activation::Relu, AuxKind::ReluMask) => unit = 128,
            (Activation::Gelu, AuxKind::GeluInput { dtype, scaled, amax }) => {
                add(dtype != p.d.dtype, Rule::AuxType);
                add((scaled || amax) && !matches!(dtype, Fp8(_)), Rule::AuxScale);
            }
            _ => add(true, Rule::AuxKind),
        }
        add(ld < n || ld % unit != 0 || ld >= 1 << 63, Rule::AuxLd);
        let area = u128::from(m) * u128::from(ld);
        let stride_fits = batch_stride % unit == 0 && u128::from(batch_stride) >= area;
        add(batch > 1 && (!stride_fits || batch_stride >= 1 << 63), Rule::AuxStride);
    }
    rules
}
