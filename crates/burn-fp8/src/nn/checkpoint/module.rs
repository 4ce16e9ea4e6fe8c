//! A published layer as one of Burn's modules: without parameters.

use burn::module::{
    AutodiffModule, Content, Devices, DisplaySettings, EmptyRecord, HasAutodiffModule, Module,
    ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

use super::held::Held;
use super::layer::CheckpointLinear;
use crate::nn::frozen::FrozenLinear;
use crate::scaled::Fp8Codes;

impl<B: Backend> Module<B> for CheckpointLinear<B> {
    type Record = EmptyRecord;

    fn collect_devices(&self, mut devices: Devices<B>) -> Devices<B> {
        let device = self.weight.device();
        if !devices.contains(&device) {
            devices.push(device);
        }
        devices
    }

    fn fork(self, device: &B::Device) -> Self {
        self.to_device(device)
    }

    fn to_device(self, device: &B::Device) -> Self {
        let bias = self.bias.map(|bias| bias.to_device(device));
        Self { weight: self.weight.moved_to(device), bias, ..self }
    }

    fn num_params(&self) -> usize {
        let [d_input, d_output] = self.dims;
        d_input * d_output + self.bias.as_ref().map_or(0, |bias| bias.shape().num_elements())
    }

    fn visit<V: ModuleVisitor<B>>(&self, _visitor: &mut V) {}

    fn map<M: ModuleMapper<B>>(self, _mapper: &mut M) -> Self {
        self
    }

    fn load_record(self, _record: EmptyRecord) -> Self {
        self
    }

    fn into_record(self) -> EmptyRecord {
        EmptyRecord::new()
    }
}

impl<B: AutodiffBackend> AutodiffModule<B> for CheckpointLinear<B> {
    type InnerModule = CheckpointLinear<B::InnerBackend>;

    fn valid(&self) -> Self::InnerModule {
        let Self { weight, bias, activations, dims } = self.clone();
        let weight = match weight {
            Held::Tensor(frozen) => Held::Tensor(frozen.valid()),
            Held::Outputs { codes, scales } => {
                Held::Outputs { codes: codes.inner(), scales: scales.inner() }
            }
            Held::Blocks { codes, scales, block, are_powers_of_two } => {
                let (codes, scales) = (codes.inner(), scales.inner());
                Held::Blocks { codes, scales, block, are_powers_of_two }
            }
        };
        CheckpointLinear { weight, bias: bias.map(Tensor::inner), activations, dims }
    }

    fn from_inner(module: Self::InnerModule) -> Self {
        let CheckpointLinear { weight, bias, activations, dims } = module;
        let weight = match weight {
            Held::Tensor(frozen) => Held::Tensor(FrozenLinear::from_inner(frozen)),
            Held::Outputs { codes, scales } => Held::Outputs {
                codes: Fp8Codes::from_inner(codes),
                scales: Tensor::from_inner(scales),
            },
            Held::Blocks { codes, scales, block, are_powers_of_two } => Held::Blocks {
                codes: Fp8Codes::from_inner(codes),
                scales: Tensor::from_inner(scales),
                block,
                are_powers_of_two,
            },
        };
        Self { weight, bias: bias.map(Tensor::from_inner), activations, dims }
    }
}

impl<B: AutodiffBackend> HasAutodiffModule<B> for CheckpointLinear<B::InnerBackend> {
    type TrainModule = CheckpointLinear<B>;
}

impl<B: Backend> ModuleDisplayDefault for CheckpointLinear<B> {
    fn content(&self, content: Content) -> Option<Content> {
        let [d_input, d_output] = self.dims;
        let weight = match &self.weight {
            Held::Tensor(_) => "E4M3, a scale per tensor".to_owned(),
            Held::Outputs { .. } => "E4M3, a scale per output".to_owned(),
            Held::Blocks { block: [rows, columns], .. } => {
                format!("E4M3, a scale per {rows} × {columns}")
            }
        };
        content
            .add("d_input", &d_input)
            .add("d_output", &d_output)
            .add("bias", &self.bias.is_some())
            .add("weight", &weight)
            .add("activations", &format!("{:?}", self.activations))
            .optional()
    }

    fn num_params(&self) -> usize {
        Module::num_params(self)
    }
}

impl<B: Backend> ModuleDisplay for CheckpointLinear<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }
}

impl<B: Backend> core::fmt::Display for CheckpointLinear<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&ModuleDisplay::format(self, DisplaySettings::default()))
    }
}
