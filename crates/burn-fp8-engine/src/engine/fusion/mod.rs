//! CubeCL backends under Burn's Fusion, as they are by default: each operation below is one node of the stream, which runs what
//! the backend itself does. Nothing waits for the device.

mod op;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_fp8_core::PADDING;
use burn_fp8_core::sums::Sums;
use burn_fusion::{Fusion, FusionBackend};

use super::backend::{self, Fp8Engine, Untracked};
use super::capability::Capability;
use super::codes::Codes;
use super::matrix::{Matrix, MatrixOf, ScaleKind, Scales, WHOLE, swapped};
use super::portable::{self, grid::Grid};
use super::problem::{Problem, shape_of};
use super::product::{EpilogueOf, Operand, OperandOf, OutputType, Product, ProductOf, Run, Target};
use super::request::{Request, RequestOf, ScaleRule, Wanted};
use super::scalar::Scalar;
use super::tensor::matrix_shape;
use op::{Node, Spec, into_inputs, one, register, specs};

impl<B: FusionBackend + Untracked> Untracked for Fusion<B> {}

impl<B: FusionBackend + Fp8Engine> Fp8Engine for Fusion<B> {
    const FP8_KERNELS: bool = B::FP8_KERNELS;

    fn fp8_capability(device: &Self::Device, problem: Option<&Problem>) -> Capability {
        B::fp8_capability(device, problem)
    }

    fn fp8_quantize(tensor: FloatTensor<Self>, request: RequestOf<Self>) -> MatrixOf<Self> {
        if !B::FP8_KERNELS {
            return backend::quantize::<Self>(tensor, request);
        }
        let form = form(&tensor, &request);
        let given = match &request.rule {
            ScaleRule::Given(scale, _) => Some(scale.clone()),
            _ => None,
        };
        let is_given = given.is_some();
        let mut inputs = vec![tensor];
        let request = request.map(|number| inputs.push(number));
        let (form, outputs) = specs(|specs| form.map(specs, Vec::push, Vec::push));
        let outputs = register("fp8_quantize", inputs, outputs, move |node: &mut Node<'_, B>| {
            let tensor = node.float(());
            let matrix = B::fp8_quantize(tensor, request.map(|()| node.float(())));
            let matrix = if is_given { with_scale(matrix, Scalar::Host(1.0)) } else { matrix };
            matrix.map(node, Node::write_float, Node::write_int);
        });
        let mut outputs = outputs.into_iter();
        let matrix = form.map(&mut outputs, op::next, op::next);
        match given {
            Some(scale) => with_scale(matrix, scale),
            None => matrix,
        }
    }

    fn fp8_dequantize(matrix: MatrixOf<Self>) -> FloatTensor<Self> {
        let is_packed = matches!(
            (&matrix.values, &matrix.codes, &matrix.transposed),
            (None, Some(Codes::Packed(..) | Codes::Padded(..)), _)
                | (None, None, Some(Codes::Packed(..) | Codes::Padded(..)))
        );
        if !is_packed || !B::FP8_KERNELS {
            return backend::dequantize::<Self>(matrix);
        }
        let outputs = vec![(matrix.shape(), DType::F32)];
        let (matrix, inputs) = into_inputs(|inputs| matrix.map(inputs, Vec::push, Vec::push));
        let run = move |node: &mut Node<'_, B>| {
            let matrix = matrix.clone().map(node, Node::float, Node::int);
            node.write_float(B::fp8_dequantize(matrix));
        };
        op::single(register("fp8_dequantize", inputs, outputs, run))
    }

    fn fp8_multiply(
        lhs: OperandOf<Self>,
        rhs: OperandOf<Self>,
        epilogue: EpilogueOf<Self>,
        run: Run,
    ) -> ProductOf<Self> {
        let is_one = run.target == Target::TensorCores || run.sums != Sums::F32;
        let (Operand::Matrix(a), Operand::Matrix(b), true) = (&lhs, &rhs, is_one) else {
            // As operations of the stream, which fuses them. CubeCL has no matrix units of CPUs.
            return backend::multiply::<Self>(lhs, rhs, epilogue, run);
        };
        let shape = shape_of([a.shape(), b.shape()]);
        let (amax, given) = (epilogue.amax.then(one), epilogue.output.clone());
        let result = match &epilogue.output {
            OutputType::Float(dtype) => Operand::Float((shape, DType::from(*dtype))),
            OutputType::Fp8 { format, .. } => {
                let codes = packed(shape);
                Operand::Matrix(Matrix::new(codes, Scales::One(Scalar::Host(1.0)), *format))
            }
        };
        let product = Product { result, amax };
        let ((lhs, rhs, epilogue), inputs) = into_inputs(|inputs| {
            let [lhs, rhs] = [lhs, rhs].map(|x| x.map(inputs, Vec::push, Vec::push));
            (lhs, rhs, epilogue.map(inputs, Vec::push))
        });
        let run = Run { otherwise: run.otherwise.in_stream(), ..run };
        let (product, outputs) = specs(|specs| product.map(specs, Vec::push, Vec::push));
        let outputs = register("fp8_multiply", inputs, outputs, move |node: &mut Node<'_, B>| {
            let [lhs, rhs] =
                [&lhs, &rhs].map(|operand| operand.clone().map(node, Node::float, Node::int));
            let epilogue = epilogue.clone().map(node, Node::float);
            let Product { result, amax } = B::fp8_multiply(lhs, rhs, epilogue, run.clone());
            let result = match result {
                Operand::Matrix(codes) => Operand::Matrix(with_scale(codes, Scalar::Host(1.0))),
                float => float,
            };
            Product { result, amax }.map(node, Node::write_float, Node::write_int);
        });
        let product = product.map(&mut outputs.into_iter(), op::next, op::next);
        match (product.result, given) {
            (Operand::Matrix(codes), OutputType::Fp8 { scale, .. }) => {
                Product { result: Operand::Matrix(with_scale(codes, scale)), amax: product.amax }
            }
            (result, _) => Product { result, amax: product.amax },
        }
    }

    fn fp8_rescale(
        product: FloatTensor<Self>,
        scales: [Scales<FloatTensor<Self>>; 2],
    ) -> FloatTensor<Self> {
        if !B::FP8_KERNELS || !matches!(scales, [Scales::One(_), Scales::One(_)]) {
            return portable::rescale::<Self>(product, scales);
        }
        let outputs = vec![(product.shape(), DType::F32)];
        let (scales, inputs) = into_inputs(|inputs| {
            inputs.push(product);
            scales.map(|scales| scales.map(|scale| inputs.push(scale)))
        });
        op::single(register("fp8_rescale", inputs, outputs, move |node: &mut Node<'_, B>| {
            let product = node.float(());
            let scales = scales.clone().map(|scales| scales.map(|()| node.float(())));
            node.write_float(B::fp8_rescale(product, scales));
        }))
    }

    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        if !B::FP8_KERNELS {
            return portable::scale::amax_with_non_finite::<Self>(tensor);
        }
        op::single(register("fp8_amax", vec![tensor], vec![one()], |node: &mut Node<'_, B>| {
            let tensor = node.float(());
            node.write_float(B::fp8_amax(tensor));
        }))
    }
}

/// What kernels make of a tensor, without it: the shape and type of each part.
fn form<F: TensorMetadata, G>(tensor: &F, request: &Request<G>) -> Matrix<Spec, Spec> {
    let Request { format, block, rule, wanted } = request;
    let shape = tensor.shape();
    let values = (shape.clone(), DType::F32);
    let is_whole = *block == WHOLE;
    let (codes, transposed, values) = match wanted {
        Wanted::Values if is_whole => (Some(Codes::Values(values)), None, None),
        Wanted::CodesAndValues if is_whole => (Some(packed(shape.clone())), None, Some(values)),
        Wanted::Lines(layouts) => {
            let [rows, columns] = matrix_shape(tensor);
            let lines = |rows: usize, columns: usize| match is_whole {
                true => {
                    let [padded, of_row] =
                        [rows, columns].map(|size| size.next_multiple_of(PADDING));
                    let words = (Shape::new([padded, of_row / 4]), DType::I32);
                    Codes::Padded(words, Shape::new([rows, columns]))
                }
                false => packed(Shape::new([rows, columns])),
            };
            let transposed = layouts.transposed().then(|| lines(columns, rows));
            (layouts.rows().then(|| lines(rows, columns)), transposed, None)
        }
        Wanted::Batch(layouts) => {
            let lines = |shape: Shape| {
                let rank = shape.num_dims();
                let mut padded = shape.clone();
                padded[rank - 2] = padded[rank - 2].next_multiple_of(PADDING);
                padded[rank - 1] = padded[rank - 1].next_multiple_of(PADDING) / 4;
                Codes::Padded((padded, DType::I32), shape)
            };
            let transposed = layouts.transposed().then(|| lines(swapped(shape.clone())));
            (layouts.rows().then(|| lines(shape.clone())), transposed, None)
        }
        _ => (Some(packed(shape.clone())), None, None),
    };
    let is_measured = is_whole && !matches!(rule, ScaleRule::Given(..));
    let scales = match (is_whole, is_measured) {
        (true, true) => Scales::One(Scalar::Device(one())),
        (true, false) => Scales::One(Scalar::Host(1.0)),
        (false, _) => Scales::Grid {
            scales: (Grid::new(&shape, *block).of_scales(&shape), DType::F32),
            block: *block,
            kind: ScaleKind::of(&rule.of_blocks()),
        },
    };
    let amax = is_measured.then(|| Scalar::Device(one()));
    Matrix { codes, transposed, values, scales, format: *format, amax }
}

/// Four codes in a word, row by row.
fn packed(shape: Shape) -> Codes<Spec, Spec> {
    let words = Shape::new([shape.num_elements().div_ceil(4)]);
    Codes::Packed((words, DType::I32), shape)
}

/// A matrix with a scale that is known without it.
fn with_scale<F, I>(matrix: Matrix<F, I>, scale: Scalar<F>) -> Matrix<F, I> {
    Matrix { scales: Scales::One(scale), ..matrix }
}
