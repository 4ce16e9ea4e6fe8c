//! A linear layer for inference, its weight held in FP8.

use burn::backend::Dispatch;
#[cfg(feature = "remote")]
use burn::backend::DispatchDevice;
use burn::module::{Module, Param, ParamId};
#[cfg(feature = "burn-0-23")]
use burn::nn::Linear;
#[cfg(feature = "burn-0-23")]
use burn::tensor::quantization::{QuantMode, QuantScheme, QuantStore, QuantValue, ScaleDtype};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use burn_fp8_checkpoint::{Checkpoint, CheckpointError, QuantizedLinear};
use burn_fp8_core::{Fp8Format, Overflow, Recipe, scale};
use burn_fp8_cpu::slice;
use burn_fp8_cpu::slice::blocks::{self, Blocks};

use crate::Fp8Error;
use crate::engine::ScaleKind;
use crate::ops::{Fp8Ops, FrozenForm, is_here};
use crate::product::ActivationScale;
use crate::product::frozen_layer::{HostWeight, check_finite, check_shape};
#[cfg(feature = "burn-0-23")]
use crate::words;

const FORMAT: Fp8Format = Fp8Format::E4M3;

/// A linear layer for inference: the weight in E4M3, one byte an element, with one scale, a scale for each output, or one for each block.
///
/// It is made [from a weight](Self::from_weight), [from a layer of a checkpoint](Self::from_checkpoint), or [from its codes](Self::from_published);
/// on Burn 0.23 also from one of Burn's layers that is quantized (`from_quantized`).
/// `forward` quantizes its input to E4M3 as its [`ActivationScale`] says, multiplies it with the codes, applies both scales and adds the bias. It appears
/// once in a [`trace`](crate::trace()), is not subject to the filter, and runs in high precision inside [`high_precision`](crate::high_precision).
///
/// The gradient of an output reaches the input, straight through its quantization: `grad_x = grad · weightᵀ`, in f32. The layer itself is not trained: its
/// parameters have no gradients. A record holds codes, scales, bias and a static scale of inputs; which kind of scales these are is the layer's own, as its shape is.
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_fp8_next::nn::{ActivationScale, FrozenLinear};
///
/// let device = Device::flex();
/// let weight = Tensor::<2>::random([64, 32], Distribution::Default, &device);
/// let x = Tensor::<2>::random([1, 64], Distribution::Default, &device);
///
/// let activation = ActivationScale::from_samples([x.clone()])?;
/// let layer = FrozenLinear::from_weight(weight, None, activation)?;
/// assert_eq!(layer.bytes(), 64 * 32 + 4);
/// assert_eq!(layer.forward(x).dims(), [1, 32]);
/// # Ok::<(), burn_fp8_next::Fp8Error>(())
/// ```
#[derive(Module, Debug)]
pub struct FrozenLinear {
    /// The codes, u8 `[inputs, outputs]`.
    weight: Param<Tensor<2, Int>>,
    /// f32, `[⌈inputs / rows⌉, ⌈outputs / columns⌉]` of a block.
    weight_scale: Param<Tensor<2>>,
    /// f32, `[outputs]`.
    bias: Option<Param<Tensor<1>>>,
    /// f32, `[1]`, where inputs have a static scale.
    input_scale: Option<Param<Tensor<1>>>,
    #[module(skip)]
    form: FrozenForm,
}

impl FrozenLinear {
    /// Quantizes a weight `[inputs, outputs]` with one scale, that of its amax; `bias` is `[outputs]`. Gradients end here.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where the weight is empty, the bias has another length, a static scale of inputs is not a finite number of at least 2^-126, or
    /// no element of the weight is finite, or none of the bias.
    pub fn from_weight(
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
        activation: ActivationScale,
    ) -> Result<Self, Fp8Error> {
        let (shape, device) = (weight.dims(), weight.device());
        check_shape(shape).and_then(|()| activation.check()).map_err(invalid)?;
        let values = host(weight);
        let scale = scale::from_amax(slice::amax(&values).value, FORMAT, Recipe::current());
        let mut codes = vec![0; values.len()];
        slice::encode(&values, scale, FORMAT, Overflow::SaturateFinite, &mut codes);
        let bias = bias.map(host);
        check_finite(shape, &codes, bias.as_deref()).map_err(invalid)?;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != shape[1]) {
            let (elements, [_, d_output]) = (bias.len(), shape);
            return Err(invalid(format!(
                "the bias has {elements} elements for {d_output} outputs"
            )));
        }
        let weight = HostWeight { shape, codes, scales: vec![scale], grid: [1, 1], block: None };
        Ok(Self::on(weight, bias, activation, &device))
    }

    /// Reads the layer of this name, without `.weight`, and puts it on a device: codes and scales as they lie in the file, inputs quantized as it declares.
    ///
    /// ```no_run
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use burn_fp8_next::burn_fp8_checkpoint::Checkpoint;
    /// use burn_fp8_next::nn::FrozenLinear;
    ///
    /// let checkpoint = Checkpoint::open("Qwen3-8B-FP8")?;
    /// println!("{}", checkpoint.format());
    /// let layer = FrozenLinear::from_checkpoint(&checkpoint, "model.layers.0.mlp.up_proj", &Device::flex())?;
    /// # Ok::<(), burn_fp8_next::burn_fp8_checkpoint::CheckpointError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Checkpoint::linear`]: where there is no such layer, where a scale or a code is none, and where the file cannot be read.
    pub fn from_checkpoint(
        checkpoint: &Checkpoint,
        name: &str,
        device: &Device,
    ) -> Result<Self, CheckpointError> {
        Ok(Self::from_published(checkpoint.linear(name)?, device))
    }

    /// Puts a layer of a checkpoint on a device.
    ///
    /// # Panics
    /// On devices that have no tensors of u8, such as those of wgpu, and on remote ones; so do `from_weight` and `from_checkpoint`.
    pub fn from_published(layer: QuantizedLinear, device: &Device) -> Self {
        let activation = ActivationScale::from(layer.activations());
        let bias = layer.bias().map(<[f32]>::to_vec);
        Self::on(HostWeight::of(layer).transpose(), bias, activation, device)
    }

    /// A layer of Burn whose weight `[inputs, outputs]` `quantize_weights` has quantized to E4M3, as a frozen one: with its codes and scales, copied, on its device. A bias
    /// that is quantized, too, becomes f32.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where the weight is none of E4M3, has two levels of scales or some that are not finite and positive, or no element that is finite,
    /// or the bias none; where a static scale of inputs is none; and on devices that have no tensors of u8, and remote ones.
    #[cfg(feature = "burn-0-23")]
    pub fn from_quantized(linear: &Linear, activation: ActivationScale) -> Result<Self, Fp8Error> {
        let weight = linear.weight.val();
        let (shape, dtype, device) = (weight.dims(), weight.dtype(), weight.device());
        check_shape(shape).and_then(|()| activation.check()).map_err(invalid)?;
        takes_codes(&device).map_err(|reason| invalid(no_codes(reason, &device)))?;
        let scheme = match dtype {
            DType::QFloat(scheme)
                if scheme.value == QuantValue::E4M3
                    && scheme.mode == QuantMode::Symmetric
                    && words::scale_type(&scheme).is_some() =>
            {
                scheme
            }
            _ => {
                return Err(invalid(format!(
                    "its weight is {dtype:?}; from_quantized takes one that quantize_weights has quantized to E4M3, with one level of scales"
                )));
            }
        };
        let block = words::block(&scheme).map(|size| size.to_dim_vec(2));
        let block = block.map(|size| [0, 1].map(|dim| usize::from(size[dim])));
        let grid = block.map_or([1, 1], |block| [0, 1].map(|dim| shape[dim].div_ceil(block[dim])));
        let (codes, scales) = words::parts(weight.into_data(), &scheme, grid.iter().product());
        if let Some(scale) = scales.iter().find(|scale| !scale.is_finite() || **scale <= 0.0) {
            return Err(invalid(format!(
                "a scale of its weight is {scale}; scales are finite and positive"
            )));
        }
        // A quantizer takes the bias, too.
        let bias = linear.bias.as_ref().map(|bias| host(bias.val().dequantize()));
        check_finite(shape, &codes, bias.as_deref()).map_err(invalid)?;
        Ok(Self::on(HostWeight { shape, codes, scales, grid, block }, bias, activation, &device))
    }

    /// The layer as Burn's own on a device, its weight `[inputs, outputs]` one of Burn's quantized tensors with the same codes and scales, copied: models keep their type. So a published layer runs where layers of Burn do, such
    /// as on a served device. How its inputs were scaled is not kept: there the configuration says so, and plain Burn multiplies them as they are.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where no scheme of Burn says its blocks, which divide the weight and have at most 255 rows and columns.
    #[cfg(feature = "burn-0-23")]
    pub fn into_quantized(self, device: &Device) -> Result<Linear, Fp8Error> {
        let (shape, scales) = (self.dims(), host(self.weight_scale.val()));
        let scheme = QuantScheme::default().with_value(QuantValue::E4M3);
        let scheme = scheme.with_store(QuantStore::Native);
        let scheme = match self.form.block {
            None => scheme.per_tensor(ScaleDtype::F32),
            Some(block) => {
                let block = [0, 1].map(|dim| block[dim].min(shape[dim]));
                let size = [0, 1].map(|dim| {
                    let size = u8::try_from(block[dim]).ok();
                    size.filter(|_| shape[dim].is_multiple_of(block[dim]))
                });
                let [Some(rows), Some(columns)] = size else {
                    return Err(invalid(format!(
                        "it has a scale for each block of {}×{}; blocks of Burn's schemes have at most 255 rows and columns, and divide the weight, here {shape:?}: \
                         keep it a FrozenLinear",
                        block[0], block[1]
                    )));
                };
                let held_in = match self.form.kind {
                    ScaleKind::F32 => ScaleDtype::F32,
                    ScaleKind::PowerOfTwo => ScaleDtype::UE8M0,
                };
                scheme.per_block([rows, columns], held_in)
            }
        };
        let codes: Vec<u8> = self.weight.val().into_data().try_to_vec().expect("codes are u8");
        let codes = codes.into_iter().map(u8::cast_signed).collect();
        let weight = Tensor::from_data(words::data(codes, shape.into(), scheme, &scales), device);
        let bias = self.bias.map(|bias| Tensor::from_data(bias.val().into_data(), device));
        let bias = bias.map(|bias| Param::initialized(ParamId::new(), bias));
        Ok(Linear { weight: Param::initialized(ParamId::new(), weight), bias })
    }

    fn on(
        weight: HostWeight,
        bias: Option<Vec<f32>>,
        activation: ActivationScale,
        device: &Device,
    ) -> Self {
        if let Err(reason) = takes_codes(device) {
            panic!("{}", no_codes(reason, device));
        }
        let HostWeight { shape, codes, scales, grid, block } = weight;
        let kind = ScaleKind::of_scales(&scales);
        let (codes, scales) = (TensorData::new(codes, shape), TensorData::new(scales, grid));
        let codes = Tensor::from_data(codes, (device, DType::U8));
        let f32s = (device, DType::F32);
        let bias = bias.map(|bias| Tensor::from_data(TensorData::new(bias, [shape[1]]), f32s));
        Self {
            weight: Param::initialized(ParamId::new(), codes),
            weight_scale: constant(Tensor::from_data(scales, f32s)).load_mapper(move |scales| {
                assert!(
                    kind == ScaleKind::F32 || ScaleKind::of_scales(&host(scales.clone())) == kind,
                    "this FrozenLinear has scales that are powers of two, and those of the record are not: make it from the checkpoint that the record comes from"
                );
                scales
            }),
            input_scale: match activation {
                ActivationScale::Static(scale) => Some(constant(Tensor::from_data([scale], f32s))),
                _ => None,
            },
            bias: bias.map(constant),
            form: FrozenForm { block, kind, activation },
        }
    }

    /// The layer as checkpoints hold it, for [`Export`](burn_fp8_checkpoint::Export). [`ActivationScale::Current`] becomes a scale for each row of the
    /// input, what loaders call dynamic.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where a code of the weight is NaN, or a scale is none: no loader could use it.
    pub fn to_published(&self) -> Result<QuantizedLinear, CheckpointError> {
        let codes = self.weight.val().into_data().try_to_vec().expect("codes are u8");
        let weight = HostWeight {
            shape: self.dims(),
            codes,
            scales: host(self.weight_scale.val()),
            grid: self.weight_scale.val().dims(),
            block: self.form.block,
        };
        let bias = self.bias.as_ref().map(|bias| host(bias.val()));
        weight.transpose().publish(bias, self.activation())
    }

    /// Applies the layer to `[…, inputs]`, f32, f16 or bf16; the output `[…, outputs]` has the type of `x`. Tensors of other types are multiplied in high
    /// precision.
    ///
    /// # Panics
    /// Where the last dimension of `x` is not that of the inputs, where a record of another layer or of a static scale that is none was loaded, where
    /// [`Execution::Native`](crate::Execution::Native) is asked for and not available, on a served device, and on backends whose feature is off.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        assert!(
            is_here(&x.device()),
            "a served device takes layers of Burn: a FrozenLinear runs on Device::flex(), where its weight stays in FP8"
        );
        let (codes, scales) = (self.weight.val(), self.weight_scale.val());
        let block = self.form.block.unwrap_or([usize::MAX; 2]);
        let grid = [0, 1].map(|dim| codes.dims()[dim].div_ceil(block[dim]));
        assert!(
            scales.dims() == grid && codes.dtype() == DType::U8,
            "a FrozenLinear of codes U8 {:?} has scales {grid:?}, not codes {:?} and scales {:?}: load the record of a layer that was made in the same way",
            codes.dims(),
            codes.dtype(),
            scales.dims()
        );
        let form = FrozenForm { activation: self.activation(), ..self.form };
        form.activation.check().unwrap_or_else(|reason| panic!("{}", invalid(reason)));
        let dtype = FloatDType::from(x.dtype());
        let output = Tensor::from_dispatch(Dispatch::fp8_frozen(
            x.into_dispatch(),
            codes.into_dispatch(),
            scales.cast(FloatDType::F32).into_dispatch(),
            form,
        ));
        match &self.bias {
            Some(bias) => output + bias.val().cast(dtype).unsqueeze(),
            None => output,
        }
    }

    /// How inputs are scaled.
    pub fn activation(&self) -> ActivationScale {
        match &self.input_scale {
            Some(scale) => ActivationScale::Static(host(scale.val())[0]),
            None => self.form.activation,
        }
    }

    /// `[inputs, outputs]`. Files store the transpose.
    pub fn dims(&self) -> [usize; 2] {
        self.weight.lazy_shape().dims()
    }

    /// The weight `[inputs, outputs]` that codes and scales stand for, in f32.
    pub fn weight(&self) -> Tensor<2> {
        let shape = self.dims();
        let codes: Vec<u8> = self.weight.val().into_data().try_to_vec().expect("codes are u8");
        let block = self.form.block.unwrap_or(shape);
        let blocks =
            Blocks { columns: shape[1], block: [0, 1].map(|dim| block[dim].min(shape[dim])) };
        let mut values = vec![0.0; codes.len()];
        blocks::decode(&codes, blocks, &host(self.weight_scale.val()), FORMAT, &mut values);
        let options = (&self.weight_scale.val().device(), DType::F32);
        Tensor::from_data(TensorData::new(values, shape), options)
    }

    /// The bytes that the layer holds on its device: codes, scales of the weight, and the bias.
    pub fn bytes(&self) -> usize {
        let bias = self.bias.as_ref().map_or(0, |bias| bias.lazy_shape().num_elements());
        let scales = self.weight_scale.lazy_shape().num_elements();
        self.weight.lazy_shape().num_elements() + size_of::<f32>() * (scales + bias)
    }
}

impl ActivationScale {
    /// A static scale with which no finite element of the sample inputs saturates. Elements that are not finite are left out.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`], which tells these apart, where there are no samples or no elements in them, where none is finite, and where all finite ones
    /// are 0.
    pub fn from_samples<const D: usize>(
        samples: impl IntoIterator<Item = Tensor<D>>,
    ) -> Result<Self, Fp8Error> {
        let (mut amax, mut seen, mut is_finite) = (0f32, [0, 0], false);
        for sample in samples.into_iter().map(host) {
            seen = [seen[0] + 1, seen[1] + sample.len()];
            amax = amax.max(slice::amax(&sample).value);
            is_finite |= sample.iter().any(|x| x.is_finite());
        }
        Self::from_seen(seen, is_finite, amax)
    }
}

/// A parameter that is not trained.
fn constant<const D: usize>(tensor: Tensor<D>) -> Param<Tensor<D>> {
    Param::initialized(ParamId::new(), tensor.set_require_grad(false))
}

/// The elements of a tensor, in f32. Waits for the device.
fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.cast(FloatDType::F32).into_data().try_to_vec().expect("it is f32")
}

/// Whether a device holds codes and turns them into numbers, else why not.
fn takes_codes(device: &Device) -> Result<(), &'static str> {
    #[cfg(feature = "remote")]
    if let DispatchDevice::Remote(_) = device.clone().without_autodiff().as_dispatch() {
        return Err("Burn's remote backend cannot cast integers");
    }
    match device.supports_dtype(DType::U8) {
        true => Ok(()),
        false => Err("there are no tensors of u8"),
    }
}

fn no_codes(reason: &str, device: &Device) -> String {
    format!(
        "a FrozenLinear keeps its codes as u8, and {reason} ({device:?}): use Device::flex(), or Vulkan in place of wgpu"
    )
}

fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "frozen linear layer", reason }
}
