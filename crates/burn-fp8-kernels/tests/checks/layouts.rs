//! Tensors of any shape and layout: flat, as matrices, padded, transposed.

use super::values::{comparable, spread};
use super::{Client, ELEMENTS, Held, client, contiguous, gather, read, read_scalar, read_words};
use burn_fp8_core::{Fp8Format, Overflow};
use burn_fp8_cpu::slice;
use burn_fp8_kernels::{
    Element, Layouts, NonFinite, Outputs, Scalar, ScaleRule, amax, quantize, quantize_matrix,
};

const FORMAT: Fp8Format = Fp8Format::E4M3;
const SCALE: f32 = 0.37;

/// A view: how many elements there are in memory, bytes before the first, shape and strides.
pub struct View {
    memory: usize,
    offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

impl View {
    pub fn contiguous(shape: &[usize]) -> Self {
        Self::strided(shape, &contiguous(shape))
    }

    pub fn strided(shape: &[usize], strides: &[usize]) -> Self {
        let last: usize = shape.iter().zip(strides).map(|(size, stride)| (size - 1) * stride).sum();
        Self { memory: last + 1, offset: 0, shape: shape.into(), strides: strides.into() }
    }

    /// The same view `offset` elements further on.
    fn at(self, offset: usize) -> Self {
        Self { memory: self.memory + offset, offset, ..self }
    }

    /// The tensor, and what it holds in row-major order.
    fn hold(&self, client: &Client, element: Element) -> (Held, Vec<f32>) {
        self.hold_of(client, element, |len| spread(len, 12, len as u64))
    }

    /// The same, with other numbers.
    pub fn hold_of(
        &self,
        client: &Client,
        element: Element,
        numbers: impl FnOnce(usize) -> Vec<f32>,
    ) -> (Held, Vec<f32>) {
        let x = numbers(self.memory);
        let (mut held, x) = Held::new(client, &x, &[self.memory], element);
        held.handle = held.handle.offset_start((self.offset * element.size()) as u64);
        (held.shape, held.strides) = (self.shape.clone(), self.strides.clone());
        let x = gather(&x[self.offset..], &self.shape, &self.strides);
        (held, x)
    }
}

pub fn views() -> Vec<View> {
    let contiguous = [
        &[][..],
        &[1],
        &[1, 1],
        &[1, 7],
        &[7, 1],
        &[1, 16],
        &[16, 1],
        &[17, 33],
        &[128, 128],
        &[129, 136],
        &[251, 257],
        &[2, 3, 40],
        &[3, 5, 7, 8],
        &[1000, 64],
        &[64, 1000],
        &[31, 509],
    ];
    let strided = [
        // Transposed, in units and not, with one dimension of one.
        (&[64, 40][..], &[1, 64][..]),
        (&[40, 64], &[1, 40]),
        (&[33, 17], &[1, 33]),
        (&[1, 17], &[1, 1]),
        (&[130, 1], &[1, 130]),
        (&[264, 144], &[1, 264]),
        // Permuted.
        (&[3, 4, 8], &[8, 24, 1]),
        (&[4, 8, 6], &[6, 24, 1]),
        (&[6, 4, 8], &[1, 48, 6]),
        (&[2, 3, 4, 16], &[192, 16, 48, 1]),
        (&[2, 3, 5, 7], &[1, 70, 14, 2]),
        // Gaps between rows, in units and not.
        (&[20, 48], &[64, 1]),
        (&[20, 48], &[50, 1]),
        (&[20, 47], &[64, 1]),
        (&[48, 20], &[1, 64]),
        (&[3, 10, 24], &[640, 32, 1]),
        // Every second column, every third row.
        (&[20, 30], &[60, 2]),
        (&[20, 32], &[96, 1]),
        // Broadcast.
        (&[24, 32], &[0, 1]),
        (&[24, 32], &[1, 0]),
        (&[5, 6], &[0, 0]),
        (&[4, 3, 16], &[16, 0, 1]),
    ];
    let mut views: Vec<_> = contiguous.into_iter().map(View::contiguous).collect();
    views.extend(strided.iter().map(|(shape, strides)| View::strided(shape, strides)));
    // Slices: aligned to 256 bytes, as buffers can be bound.
    views.push(View::contiguous(&[30, 64]).at(512));
    views.push(View::strided(&[30, 48], &[64, 1]).at(1024));
    views.push(View::strided(&[30, 7], &[64, 1]).at(1024));
    views.push(View::strided(&[64, 30], &[1, 64]).at(512));
    views
}

fn encode(x: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let (mut codes, mut values) = (vec![0; x.len()], vec![0.0; x.len()]);
    slice::encode_and_round(x, SCALE, FORMAT, Overflow::SaturateFinite, &mut codes, &mut values);
    (codes, values)
}

fn given() -> ScaleRule {
    ScaleRule::Given { scale: Scalar::Host(SCALE), overflow: Overflow::SaturateFinite }
}

fn pad(codes: &[u8], rows: usize, columns: usize) -> Vec<u8> {
    let [padded_rows, padded_columns] = [rows, columns].map(|size| size.next_multiple_of(16));
    let mut padded = vec![0; padded_rows * padded_columns];
    for row in 0..rows {
        padded[row * padded_columns..][..columns]
            .copy_from_slice(&codes[row * columns..][..columns]);
    }
    padded
}

fn transpose(codes: &[u8], rows: usize, columns: usize) -> Vec<u8> {
    (0..rows * columns).map(|i| codes[i % rows * columns + i / rows]).collect()
}

pub fn codes_and_values_are_in_row_major_order() {
    let client = client();
    for view in views() {
        for element in ELEMENTS {
            let (held, x) = view.hold(&client, element);
            let what = format!("{element} {:?} {:?}", view.shape, view.strides);
            let (expected, expected_values) = encode(&x);
            for outputs in [Outputs::Codes, Outputs::Values, Outputs::CodesAndValues] {
                let quantized =
                    quantize(&client, &held.input(), FORMAT, &given(), outputs).expect(&what);
                assert_eq!(quantized.codes.is_some(), outputs != Outputs::Values);
                assert_eq!(quantized.values.is_some(), outputs != Outputs::Codes);
                assert!(quantized.amax.is_none());
                if let Some(codes) = quantized.codes {
                    let mut padded = expected.clone();
                    padded.resize(expected.len().next_multiple_of(4), 0);
                    assert_eq!(read(&client, &codes), padded, "{what}");
                }
                if let Some(values) = quantized.values {
                    let expected: Vec<_> = expected_values.iter().map(|x| comparable(*x)).collect();
                    assert_eq!(read_words(&client, &values), expected, "{what}");
                }
            }
            let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let measured = amax(&client, &held.input(), NonFinite::Excluded).expect(&what);
            assert_eq!(read_scalar(&client, &measured), largest, "{what}");
        }
    }
}

pub fn matrices_are_padded_and_transposed() {
    let client = client();
    for view in views() {
        let columns = view.shape.last().copied().unwrap_or(1);
        let rows = view.shape.iter().product::<usize>() / columns;
        for element in ELEMENTS {
            let (held, x) = view.hold(&client, element);
            let what = format!("{element} {:?} {:?}", view.shape, view.strides);
            let (codes, _) = encode(&x);
            let expected = pad(&codes, rows, columns);
            let turned = pad(&transpose(&codes, rows, columns), columns, rows);
            for layouts in [Layouts::Rows, Layouts::Transposed, Layouts::Both] {
                let matrix = quantize_matrix(&client, &held.input(), FORMAT, &given(), layouts)
                    .expect(&what);
                assert_eq!(matrix.padded, [rows, columns].map(|size| size.next_multiple_of(16)));
                assert_eq!(matrix.rows.is_some(), layouts != Layouts::Transposed);
                assert_eq!(matrix.transposed.is_some(), layouts != Layouts::Rows);
                if let Some(rows) = matrix.rows {
                    assert!(read(&client, &rows) == expected, "{what} {layouts:?}");
                }
                if let Some(transposed) = matrix.transposed {
                    assert!(read(&client, &transposed) == turned, "{what} {layouts:?}");
                }
            }
        }
    }
}

/// More cubes than fit into one dimension of a grid: 65535.
pub fn large_grids() {
    let client = client();
    let (period, rows) = (1009, 66_600);
    let (mut held, x) = Held::new(&client, &spread(period, 12, 1), &[period], Element::F32);
    (held.shape, held.strides) = (vec![rows, period], vec![0, 1]);
    assert!(rows * period / 1024 > 65_535);
    let (expected, _) = encode(&x);
    let quantized =
        quantize(&client, &held.input(), FORMAT, &given(), Outputs::Codes).expect("valid");
    let codes = read(&client, &quantized.codes.expect("asked for"));
    assert!(codes[..rows * period].chunks_exact(period).all(|row| row == expected));
    let measured = amax(&client, &held.input(), NonFinite::Excluded).expect("valid");
    assert_eq!(read_scalar(&client, &measured), slice::amax(&x).value);
}

/// A column of tiles.
pub fn tall_matrices() {
    let client = client();
    let (rows, columns) = (100_003, 16);
    let x = spread(rows * columns, 12, 4);
    let (held, x) = Held::new(&client, &x, &[rows, columns], Element::Bf16);
    let (codes, _) = encode(&x);
    let matrix =
        quantize_matrix(&client, &held.input(), FORMAT, &given(), Layouts::Both).expect("valid");
    let turned = pad(&transpose(&codes, rows, columns), columns, rows);
    assert!(read(&client, &matrix.rows.expect("asked for")) == pad(&codes, rows, columns));
    assert!(read(&client, &matrix.transposed.expect("asked for")) == turned);
}
