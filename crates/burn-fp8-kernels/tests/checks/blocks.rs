//! Scales of blocks: codes, scales and numbers are those of the core, bit for bit.

use super::layouts::{View, views};
use super::values::{FORMATS, adversarial, comparable, random_bits, spread};
use super::{Client, ELEMENTS, Held, client, gather, read, read_words, upload};
use burn_fp8_core::{Fp8Format, Granularity, Recipe, ScaleRounding, e8m0};
use burn_fp8_cpu::slice::blocks::{self, Blocks};
use burn_fp8_kernels::{
    BlockCodes, Element, Input, KernelError, dequantize_blocks, quantize_blocks, tile_e8m0,
};

const ALL: usize = usize::MAX;

/// Those of recipes, then others: by rows, by tiles, in two launches; powers of two and not; as large as the tensor or larger.
const BLOCKS: [[usize; 2]; 24] = [
    [1, 32],
    [32, 1],
    [1, 128],
    [128, 1],
    [128, 128],
    [1, 1],
    [1, 4],
    [1, 7],
    [1, 8],
    [1, 16],
    [1, 64],
    [1, 96],
    [1, 256],
    [1, 512],
    [1, ALL],
    [ALL, 1],
    [3, 5],
    [4, 4],
    [4, 1],
    [8, 1],
    [16, 1],
    [64, 1],
    [32, 32],
    [ALL, ALL],
];

fn recipes() -> Vec<Recipe> {
    let roundings =
        [ScaleRounding::Rceil, ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even];
    let mx = roundings.map(|rounding| Recipe::mxfp8().with_granularity(Granularity::Mx(rounding)));
    let others = [
        Recipe::blockwise(),
        Recipe::blockwise().with_power_of_two(false),
        Recipe::blockwise().with_margin(3),
        Recipe::blockwise().with_power_of_two(false).with_margin(-2),
        Recipe::blockwise().with_margin(64),
    ];
    mx.into_iter().chain(others).collect()
}

/// The rows and columns of the matrices of a tensor.
fn size(shape: &[usize]) -> [usize; 2] {
    *shape.last_chunk().expect("a matrix")
}

/// Codes and scales of the core, matrix by matrix.
fn expected(
    x: &[f32],
    shape: &[usize],
    block: [usize; 2],
    format: Fp8Format,
    recipe: Recipe,
) -> (Vec<u8>, Vec<f32>) {
    let [rows, columns] = size(shape);
    let matrix = Blocks { columns, block };
    let (mut all_codes, mut all_scales) = (vec![], vec![]);
    for x in x.chunks(rows * columns) {
        let [grid_rows, grid_columns] = matrix.grid(x.len());
        let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; grid_rows * grid_columns]);
        blocks::encode(x, matrix, format, recipe, &mut codes, &mut scales);
        all_codes.append(&mut codes);
        all_scales.append(&mut scales);
    }
    (all_codes, all_scales)
}

fn check(
    client: &Client,
    held: &Held,
    x: &[f32],
    block: [usize; 2],
    format: Fp8Format,
    recipe: Recipe,
) {
    let Held { shape, strides, element, .. } = held;
    let what = format!("{element} {shape:?} {strides:?} {block:?} {format} {recipe}");
    let (mut codes, scales) = expected(x, shape, block, format, recipe);
    let found = quantize_blocks(client, &held.input(), block, format, recipe).expect(&what);
    let found_scales = read_words(client, &found.scales);
    assert_eq!(found_scales.len(), scales.len(), "{what}");
    for (i, scale) in scales.iter().enumerate() {
        let found = f32::from_bits(found_scales[i]);
        assert!(found.to_bits() == scale.to_bits(), "{what}: scale {i}: {found:e}, not {scale:e}");
    }
    codes.resize(codes.len().next_multiple_of(4), 0);
    let found = read(client, &found.codes);
    assert_eq!(found.len(), codes.len(), "{what}");
    for (i, code) in codes.iter().enumerate() {
        assert!(found[i] == *code, "{what}: {i}: {:e}: code {:#x}, not {code:#x}", x[i], found[i]);
    }
}

pub fn codes_and_scales_of_every_layout() {
    let client = client();
    let mut all = views();
    all.retain(|view| view.shape.len() > 1);
    // Several matrices whose blocks are cut off, rows that are longer than blocks and not, in units and transposed.
    for shape in [&[3, 40, 64][..], &[2, 2, 33, 128], &[2, 130, 260], &[1, 4096], &[5, 4096]] {
        all.push(View::contiguous(shape));
    }
    for (shape, strides) in [
        (&[3, 64, 48][..], &[3072, 1, 64][..]),
        (&[3, 64, 48], &[64 * 64, 1, 64]),
        (&[160, 272], &[1, 160]),
        (&[300, 144], &[1, 320]),
        (&[2, 48, 160], &[1, 320, 2]),
    ] {
        all.push(View::strided(shape, strides));
    }
    let mut turn = 0;
    for view in all {
        for block in BLOCKS {
            let numbers = |len| adversarial(len, turn as u64);
            let (held, x) = view.hold_of(&client, ELEMENTS[turn % 3], numbers);
            // One of each for an element type: a pipeline takes longer to compile than to run.
            let (format, recipe) = [
                (Fp8Format::E4M3, Recipe::mxfp8()),
                (Fp8Format::E5M2, Recipe::blockwise().with_power_of_two(false)),
                (Fp8Format::E4M3, Recipe::blockwise()),
            ][turn % 3];
            check(&client, &held, &x, block, format, recipe);
            turn += 1;
        }
    }
}

pub fn every_recipe_and_block() {
    let client = client();
    let views = [
        View::contiguous(&[64, 256]),
        View::contiguous(&[131, 70]),
        View::contiguous(&[130, 264]),
        View::strided(&[136, 160], &[1, 136]),
    ];
    // Each with the view and the element type whose turn it is: a pipeline takes longer to compile than to run.
    let mut turn = 0;
    for (shift, block) in BLOCKS[..5].iter().enumerate() {
        for recipe in recipes() {
            for format in FORMATS {
                let (view, element) =
                    (&views[(turn + shift) % 4], ELEMENTS[(turn / 2 + shift) % 3]);
                let (held, x) = view.hold_of(&client, element, |len| adversarial(len, turn as u64));
                check(&client, &held, &x, *block, format, recipe);
                turn += 1;
            }
        }
    }
}

/// Blocks of every exponent, with mantissas everywhere, and all around those at which roundings turn.
pub fn every_amax() {
    let client = client();
    let turns: [u32; 6] = [0, 1 << 22, 3 << 21, 0x70_0000, 0x78_0000, (1 << 23) - 8];
    let around = turns.iter().flat_map(|turn| turn.saturating_sub(8)..turn + 8);
    let mantissas: Vec<u32> = (0..1 << 23).step_by(150_001).chain(around).collect();
    let amaxes = (0..255u32).flat_map(|exponent| {
        mantissas.iter().map(move |mantissa| f32::from_bits((exponent << 23) + mantissa))
    });
    let fractions = [0.0, -1.0, 0.5, 1.0 / 3.0, -0.0, 1e-3, 0.97, 1e-5];
    let x: Vec<f32> = amaxes.flat_map(|amax| fractions.map(|fraction| fraction * amax)).collect();
    let (held, x) = Held::new(&client, &x, &[x.len() / 8, 8], Element::F32);
    for format in FORMATS {
        for recipe in recipes() {
            for block in [[1, 8], [1, 7]] {
                check(&client, &held, &x, block, format, recipe);
            }
        }
    }
}

/// More than 65535 cubes.
pub fn more_blocks_than_a_dimension_of_a_grid() {
    let client = client();
    let (rows, columns) = (66_000, 300);
    let (mut held, row) = Held::new(&client, &spread(columns, 12, 1), &[columns], Element::F32);
    (held.shape, held.strides) = (vec![rows, columns], vec![0, 1]);
    let (format, recipe) = (FORMATS[0], Recipe::blockwise());
    let found = quantize_blocks(&client, &held.input(), [1, columns], format, recipe);
    let found = found.expect("valid");
    let (codes, scales) = expected(&row, &[1, columns], [1, columns], format, recipe);
    let all = read(&client, &found.codes);
    assert!(all[..rows * columns].chunks_exact(columns).all(|row| row == codes));
    assert_eq!(read_words(&client, &found.scales), vec![scales[0].to_bits(); rows]);
}

pub fn codes_are_multiplied_by_the_scales_of_their_blocks() {
    let client = client();
    let shapes =
        [&[1, 1][..], &[5, 7], &[64, 256], &[33, 70], &[3, 33, 20], &[2, 3, 17, 5], &[131, 260]];
    for shape in shapes {
        let [rows, columns] = size(shape);
        let elements: usize = shape.iter().product();
        let bits = random_bits(elements, elements as u64);
        let codes: Vec<u8> = bits.iter().map(|x| (x.to_bits() >> 8) as u8).collect();
        for block in BLOCKS {
            for format in FORMATS {
                let matrix = Blocks { columns, block };
                let [grid_rows, grid_columns] = matrix.grid(rows * columns);
                let of_matrix = grid_rows * grid_columns;
                let mut scales = spread(of_matrix * elements / (rows * columns), 120, 3);
                scales[0] = e8m0::decode(0);
                let mut expected = vec![0.0; elements];
                let matrices = codes.chunks(rows * columns).zip(scales.chunks(of_matrix));
                for ((codes, scales), values) in matrices.zip(expected.chunks_mut(rows * columns)) {
                    blocks::decode(codes, matrix, scales, format, values);
                }
                let bytes: Vec<u8> = scales.iter().flat_map(|x| x.to_le_bytes()).collect();
                let (held, scales) = (upload(&client, &codes), upload(&client, &bytes));
                let of_blocks = BlockCodes { codes: &held, scales: &scales, shape, block, format };
                let values = dequantize_blocks(&client, &of_blocks).expect("valid");
                let values = read_words(&client, &values);
                assert_eq!(values.len(), elements);
                for i in 0..elements {
                    let found = comparable(f32::from_bits(values[i]));
                    let wanted = expected[i];
                    assert!(
                        found == comparable(wanted),
                        "{shape:?} {block:?} {format} {i}: {:e}, not {wanted:e}",
                        f32::from_bits(found)
                    );
                }
            }
        }
    }
}

/// What torchao's `to_blocked` makes of a matrix of bytes: padded, seen in four dimensions, which are permuted, twice.
fn blocked(bytes: &[u8], rows: usize, columns: usize) -> Vec<u8> {
    let [tile_rows, tile_columns] = [rows.div_ceil(128), columns.div_ceil(4)];
    let width = 4 * tile_columns;
    let mut padded = vec![0.0; tile_rows * 128 * width];
    for (i, byte) in bytes.iter().enumerate() {
        padded[i / columns * width + i % columns] = f32::from(*byte);
    }
    // view(tile_rows, 128, tile_columns, 4).permute(0, 2, 1, 3)
    let shape = [tile_rows, tile_columns, 128, 4];
    let tiles = gather(&padded, &shape, &[128 * width, 4, width, 1]);
    // reshape(-1, 4, 32, 4).transpose(1, 2).reshape(-1, 32, 16)
    let shape = [tile_rows * tile_columns, 32, 4, 4];
    gather(&tiles, &shape, &[512, 4, 128, 1]).into_iter().map(|byte| byte as u8).collect()
}

pub fn scales_of_mxfp8_are_tiled() {
    let client = client();
    for [rows, columns] in
        [[1, 1], [256, 1], [1, 256], [128, 4], [129, 5], [32, 8], [500, 3], [257, 131], [384, 64]]
    {
        let bytes: Vec<u8> = (0..rows * columns).map(|i| (i % 257) as u8).collect();
        let scales: Vec<f32> = bytes.iter().map(|byte| e8m0::decode(*byte)).collect();
        let transposed: Vec<f32> =
            (0..scales.len()).map(|i| scales[i % rows * columns + i / rows]).collect();
        let (plain, _) = Held::new(&client, &scales, &[rows, columns], Element::F32);
        let (mut view, _) = Held::new(&client, &transposed, &[rows, columns], Element::F32);
        view.strides = vec![1, rows];
        for held in [plain, view] {
            let tiled = tile_e8m0(&client, &held.input()).expect("valid");
            let found = read(&client, &tiled);
            assert!(found == blocked(&bytes, rows, columns), "{rows} × {columns}");
        }
    }
    // What is no scale is NaN.
    let bad = [0.0, -0.0, 3.0, -2.0, 1e-40, f32::INFINITY, f32::MIN_POSITIVE * 1.5, f32::NAN];
    let (held, _) = Held::new(&client, &bad, &[1, bad.len()], Element::F32);
    let tiled = read(&client, &tile_e8m0(&client, &held.input()).expect("valid"));
    assert_eq!((&tiled[..4], &tiled[512..516]), (&[255; 4][..], &[255; 4][..]));
}

pub fn what_has_no_blocks_is_an_error() {
    let client = client();
    let (held, _) = Held::new(&client, &[1.0; 12], &[3, 4], Element::F32);
    let (input, format, recipe) = (held.input(), FORMATS[0], Recipe::mxfp8());
    let quantize = |input, block| quantize_blocks(&client, &input, block, format, recipe).err();
    let flat = Input { shape: &[12], strides: &[1], ..input };
    assert_eq!(quantize(flat, [1, 32]), Some(KernelError::NoMatrix { shape: vec![12] }));
    assert_eq!(quantize(input, [0, 32]), Some(KernelError::Block { block: [0, 32] }));
    let empty = Input { shape: &[0, 4], ..input };
    assert_eq!(quantize(empty, [1, 32]), Some(KernelError::Empty { shape: vec![0, 4] }));
    assert!(matches!(
        quantize(Input { strides: &[5, 1], ..input }, [1, 32]),
        Some(KernelError::OutOfBounds { .. })
    ));

    // One call is valid, and reads both.
    let (codes, scales) = (upload(&client, &[0; 12]), upload(&client, &[0; 12]));
    let of = |shape, block| BlockCodes { codes: &codes, scales: &scales, shape, block, format };
    let dequantize = |codes| dequantize_blocks(&client, &codes).err();
    assert_eq!(dequantize(of(&[3, 4], [1, 32])), None);
    assert_eq!(dequantize(of(&[4, 4], [1, 32])), Some(KernelError::Codes { len: 16, held: 12 }));
    assert!(matches!(dequantize(of(&[3, 4], [1, 3])), Some(KernelError::OutOfBounds { .. })));
    assert_eq!(dequantize(of(&[4], [1, 3])), Some(KernelError::NoMatrix { shape: vec![4] }));
    assert_eq!(dequantize(of(&[4, 4], [1, 0])), Some(KernelError::Block { block: [1, 0] }));
    assert!(matches!(
        dequantize(of(&[usize::MAX, 4, 4], [1, 1])),
        Some(KernelError::TooLarge { .. })
    ));

    let half = Input { element: Element::Bf16, ..input };
    let error = Some(KernelError::Element { element: Element::Bf16 });
    assert_eq!(tile_e8m0(&client, &half).err(), error);
    let error = Some(KernelError::NoMatrix { shape: vec![12] });
    assert_eq!(tile_e8m0(&client, &flat).err(), error);
}
