//! Dimensions, leading dimensions, strides, alignment.

use super::error::{PlanError, Rule};
use crate::data_type::DataType;
use crate::problem::ScaledMatmul;

/// What pointers, rows and strides are multiples of, in bytes ("Tensor Core Usage" of the cuBLAS documentation).
pub const ALIGNMENT: u64 = 16;

/// Dimensions alone.
pub(super) fn check(problem: &ScaledMatmul) -> Result<(), PlanError> {
    let shape = problem.shape;
    for (name, value) in
        [("M", shape.m), ("N", shape.n), ("K", shape.k), ("the batch", shape.batch)]
    {
        if value == 0 {
            return Err(PlanError::new(
                Rule::DimensionZero,
                format!("{name} is 0"),
                "skip the product: its result is empty, or zero where K is 0",
            ));
        }
        if value > i32::MAX as u64 {
            return Err(PlanError::new(
                Rule::DimensionRange,
                format!("{name} is {value}"),
                "split the product",
            ));
        }
    }
    if !shape.k.is_multiple_of(ALIGNMENT) {
        let found = format!("K is {}", shape.k);
        return Err(PlanError::new(Rule::KMultiple, found, "pad A and B with zeros along K"));
    }
    Ok(())
}

/// One matrix in row-major terms.
struct Rows {
    name: &'static str,
    dtype: DataType,
    rows: u64,
    columns: u64,
    ld: u64,
    batch_stride: u64,
}

/// Everything about A, B, C and D in memory. `c` is the type of C, given or implied.
pub(super) fn check_layouts(problem: &ScaledMatmul, c: DataType) -> Result<(), PlanError> {
    let (shape, d) = (problem.shape, problem.d);
    for (name, dtype) in [("C", c), ("D", d.dtype)] {
        if !(shape.n * dtype.size()).is_multiple_of(ALIGNMENT) {
            return Err(PlanError::new(
                Rule::NMultiple,
                format!("N is {} and {name} is {dtype}", shape.n),
                "pad B with zero rows and D with columns, for example to a multiple of 16",
            ));
        }
    }
    let operand = |name, operand: crate::problem::Operand, rows| Rows {
        name,
        dtype: DataType::Fp8(operand.format),
        rows,
        columns: shape.k,
        ld: operand.ld,
        batch_stride: operand.batch_stride,
    };
    let matrix = |name, matrix: crate::problem::Matrix| Rows {
        name,
        dtype: matrix.dtype,
        rows: shape.m,
        columns: shape.n,
        ld: matrix.ld,
        batch_stride: matrix.batch_stride,
    };
    let batch = shape.batch;
    layout(&operand("A", problem.a, shape.m), batch)?;
    layout(&operand("B", problem.b, shape.n), batch)?;
    if let Some(c) = problem.c {
        layout(&matrix("C", c), batch)?;
    }
    layout(&matrix("D", d), batch)?;
    // The last row may end with its last column, but the next matrix must not start before.
    let span = (shape.m - 1) * d.ld + shape.n;
    if batch > 1 && d.batch_stride < span {
        return Err(PlanError::new(
            Rule::StrideRange,
            format!("the stride is {} elements and a matrix spans {span}", d.batch_stride),
            "store the matrices one after the other",
        ));
    }
    let alignment = problem.alignment;
    let used = [
        ("A", Some(alignment.a)),
        ("B", Some(alignment.b)),
        ("C", problem.c.map(|_| alignment.c)),
        ("D", Some(alignment.d)),
        ("the bias", problem.epilogue.bias.map(|_| alignment.bias)),
        ("the auxiliary output", problem.epilogue.aux.map(|_| alignment.aux)),
    ];
    for (name, bytes) in used {
        let Some(bytes) = bytes else { continue };
        if !bytes.is_power_of_two() || !(16..=256).contains(&bytes) {
            return Err(PlanError::new(
                Rule::Alignment,
                format!("{name} is aligned to {bytes} bytes"),
                "copy it to an aligned allocation",
            ));
        }
    }
    Ok(())
}

fn layout(matrix: &Rows, batch: u64) -> Result<(), PlanError> {
    let Rows { name, dtype, rows, columns, ld, batch_stride } = *matrix;
    if ld < columns {
        return Err(PlanError::new(
            Rule::LdRange,
            format!("that of {name} is {ld} where a row has {columns} elements"),
            "pass the distance between rows in elements",
        ));
    }
    let stride = if batch == 1 { 0 } else { batch_stride };
    let extent = (u128::from(rows) * u128::from(ld) + u128::from(batch - 1) * u128::from(stride))
        * u128::from(dtype.size());
    if extent > i64::MAX as u128 {
        return Err(PlanError::new(
            Rule::Extent,
            format!("{name} spans {extent} bytes"),
            "check its leading dimension and stride",
        ));
    }
    if !(ld * dtype.size()).is_multiple_of(ALIGNMENT) {
        return Err(PlanError::new(
            Rule::LdMultiple,
            format!("that of {name} is {ld} elements of {dtype}"),
            "pad its rows",
        ));
    }
    if !(stride * dtype.size()).is_multiple_of(ALIGNMENT) {
        return Err(PlanError::new(
            Rule::StrideMultiple,
            format!("that of {name} is {stride} elements of {dtype}"),
            "pad its matrices",
        ));
    }
    Ok(())
}
