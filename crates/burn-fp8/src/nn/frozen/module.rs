//! A frozen layer as one of Burn's modules.

use burn::module::{
    AutodiffModule, Content, Devices, DisplaySettings, HasAutodiffModule, Module, ModuleDisplay,
    ModuleDisplayDefault, ModuleMapper, ModuleVisitor, Param, ParamId,
};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

use super::weight::Weight;
use super::{ActivationScale, FrozenLinear, FrozenLinearRecord};
use burn_fp8_core::Fp8Format;

impl<B: Backend> Module<B> for FrozenLinear<B> {
    type Record = FrozenLinearRecord;

    fn collect_devices(&self, mut devices: Devices<B>) -> Devices<B> {
        let device = self.weight.get().device();
        if !devices.contains(&device) {
            devices.push(device);
        }
        devices
    }

    fn fork(self, device: &B::Device) -> Self {
        self.to_device(device)
    }

    fn to_device(self, device: &B::Device) -> Self {
        let weight = self.weight.to_device(device);
        let bias = self.bias.map(|bias| bias.to_device(device));
        Self { weight, bias, ..self }
    }

    fn num_params(&self) -> usize {
        let bias = self.bias.as_ref().map_or(0, |bias| bias.shape().num_elements());
        let [d_input, d_output] = self.dims();
        d_input * d_output + bias
    }

    // Something has to be visited: Burn takes an optional module in which visitors find no floats for one without a record,
    // and leaves it as it was when a record is loaded.
    fn visit<V: ModuleVisitor<B>>(&self, visitor: &mut V) {
        let scale = Param::initialized(ParamId::new(), self.weight.get().scales());
        visitor.enter_module("weight_scale", "Struct:FrozenLinear");
        visitor.visit_float::<2>(&scale);
        visitor.exit_module("weight_scale", "Struct:FrozenLinear");
    }

    fn map<M: ModuleMapper<B>>(self, _mapper: &mut M) -> Self {
        self
    }

    fn load_record(self, record: Self::Record) -> Self {
        Self::from_record(record, &self.weight.get().device())
    }

    fn into_record(self) -> Self::Record {
        self.to_record()
    }
}

impl<B: AutodiffBackend> AutodiffModule<B> for FrozenLinear<B> {
    type InnerModule = FrozenLinear<B::InnerBackend>;

    fn valid(&self) -> Self::InnerModule {
        let Self { weight, bias, activation } = self.clone();
        FrozenLinear { weight: weight.inner(), bias: bias.map(Tensor::inner), activation }
    }

    fn from_inner(module: Self::InnerModule) -> Self {
        let FrozenLinear { weight, bias, activation } = module;
        let bias = bias.map(Tensor::from_inner);
        Self { weight: Weight::from_inner(&weight), bias, activation }
    }
}

impl<B: AutodiffBackend> HasAutodiffModule<B> for FrozenLinear<B::InnerBackend> {
    type TrainModule = FrozenLinear<B>;
}

impl<B: Backend> ModuleDisplayDefault for FrozenLinear<B> {
    fn content(&self, content: Content) -> Option<Content> {
        let [d_input, d_output] = self.dims();
        let weight = self.weight.get();
        let weight_scale = match weight.block() {
            None => format!("{:.3e}", weight.read_scale()),
            Some([rows, columns]) => format!("for each {rows} × {columns}"),
        };
        let input_scale = match self.activation {
            ActivationScale::Static(scale) => format!("{scale:.3e}"),
            ActivationScale::Current => "current".into(),
            ActivationScale::PerToken => "for each row".into(),
            ActivationScale::Blocks { size, .. } => format!("for each {size} of a row"),
            ActivationScale::Mx => "MXFP8".into(),
            ActivationScale::Unquantized => "none".into(),
        };
        content
            .add("d_input", &d_input)
            .add("d_output", &d_output)
            .add("bias", &self.bias.is_some())
            .add("weight", &Fp8Format::E4M3.to_string())
            .add("weight_scale", &weight_scale)
            .add("input_scale", &input_scale)
            .optional()
    }

    fn num_params(&self) -> usize {
        Module::num_params(self)
    }
}

impl<B: Backend> ModuleDisplay for FrozenLinear<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }
}

impl<B: Backend> core::fmt::Display for FrozenLinear<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&ModuleDisplay::format(self, DisplaySettings::default()))
    }
}
