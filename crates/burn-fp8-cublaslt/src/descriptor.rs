//! cuBLASLt's descriptors, built from a plan and destroyed with their owner. They need neither a device nor a driver.
#![allow(unsafe_code, reason = "owns C handles")]

use burn_fp8_core::Fp8Format;

use crate::data_type::DataType;
use crate::plan::{LayoutPlan, Plan, ScaleMode};
use crate::problem::{Accumulation, Scales};
use crate::raw::constants as c;
use crate::raw::driver::DevicePointer;
use crate::raw::lt::{self, Lt, LtError};

/// An owned C handle with the function that destroys it.
macro_rules! owned {
    ($(#[$doc:meta])* $name:ident: $raw:ty, $destroy:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            lt: &'static Lt,
            raw: $raw,
        }

        // SAFETY: the handle is plain memory of cuBLASLt without ties to a thread; it changes through `&mut` alone.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// The C handle, which lives as long as this value.
            pub fn raw(&self) -> $raw {
                self.raw
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made by the matching create function, destroyed once. A failure could only leak: nothing to do.
                let _ = unsafe { self.lt.$destroy(self.raw) };
            }
        }
    };
}

owned! {
    /// `cublasLtMatmulDesc_t`: the operation.
    MatmulDesc: lt::MatmulDesc, destroy_desc
}
owned! {
    /// `cublasLtMatrixLayout_t`: one matrix.
    Layout: lt::MatrixLayout, destroy_layout
}
owned! {
    /// `cublasLtMatmulPreference_t`: what algorithms may need.
    Preference: lt::Preference, destroy_preference
}

/// Everything that cuBLASLt is told of a plan.
#[derive(Debug)]
pub struct Descriptors {
    /// The operation.
    pub desc: MatmulDesc,
    /// Layouts of cuBLASLt's A (our B), B (our A), C and D.
    pub layouts: [Layout; 4],
    /// Whether C and D have the same layout.
    same_layout: bool,
}

/// The addresses that are attributes of the operation, in this crate's terms: `scale_a` belongs to our A.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorPointers {
    /// Scale of A, or 0.
    pub scale_a: DevicePointer,
    /// Scale of B, or 0.
    pub scale_b: DevicePointer,
    /// Factor of D, or 0.
    pub scale_d: DevicePointer,
    /// Where the amax of D goes, or 0.
    pub amax_d: DevicePointer,
    /// The bias, or 0.
    pub bias: DevicePointer,
    /// Where the auxiliary output goes, or 0.
    pub aux: DevicePointer,
    /// Factor of the auxiliary output, or 0.
    pub scale_aux: DevicePointer,
    /// Where the amax of the auxiliary output goes, or 0.
    pub amax_aux: DevicePointer,
}

impl Descriptors {
    /// Builds them. Pointers are set to addresses that nothing reads but whose alignment the heuristics see.
    ///
    /// # Errors
    ///
    /// What cuBLASLt returned.
    pub fn build(lt: &'static Lt, plan: &Plan) -> Result<Self, LtError> {
        let layouts = plan.layouts.map(|layout| Layout::build(lt, &layout));
        let [a, b, c, d] = layouts;
        let layouts = [a?, b?, c?, d?];
        let desc = MatmulDesc::build(lt, plan)?;
        let mut descriptors =
            Self { desc, layouts, same_layout: plan.layouts[2] == plan.layouts[3] };
        descriptors.forget_pointers(plan)?;
        Ok(descriptors)
    }

    /// Sets the pointers back to those of [`build`](Self::build), so that the heuristics see the alignments of the plan and not those
    /// of the last call.
    ///
    /// # Errors
    ///
    /// What cuBLASLt returned.
    pub fn forget_pointers(&mut self, plan: &Plan) -> Result<(), LtError> {
        self.desc.set_pointers(plan, &placeholders(plan))
    }

    /// The C handles of the layouts. Equal layouts of C and D have one handle: since CUDA 13.0 update 2 C may be D "if and only if
    /// Cdesc == Ddesc".
    pub fn raw_layouts(&self) -> [lt::MatrixLayout; 4] {
        let [a, b, c, d] = self.layouts.each_ref().map(Layout::raw);
        [a, b, if self.same_layout { d } else { c }, d]
    }
}

/// Addresses with the alignments of the problem, null where the problem has no such pointer.
fn placeholders(plan: &Plan) -> DescriptorPointers {
    const SCALE: DevicePointer = 256;
    let problem = &plan.problem;
    let some = |present: bool, address: u64| if present { address } else { 0 };
    let aux = problem.epilogue.aux;
    DescriptorPointers {
        scale_a: some(problem.scales != Scales::None, SCALE),
        scale_b: some(problem.scales != Scales::None, SCALE),
        scale_d: some(problem.scaled_d, SCALE),
        amax_d: some(problem.amax_d, SCALE),
        bias: some(problem.epilogue.bias.is_some(), problem.alignment.bias.into()),
        aux: some(aux.is_some(), problem.alignment.aux.into()),
        scale_aux: some(aux.is_some_and(|aux| aux.kind.scaled()), SCALE),
        amax_aux: some(aux.is_some_and(|aux| aux.kind.amax()), SCALE),
    }
}

impl MatmulDesc {
    fn build(lt: &'static Lt, plan: &Plan) -> Result<Self, LtError> {
        let raw = lt.create_desc(c::CUBLAS_COMPUTE_32F, c::CUDA_R_32F)?;
        let desc = Self { lt, raw };
        let problem = &plan.problem;
        // SAFETY: the handle is alive; every value has the width that cublasLt.h names for its attribute.
        unsafe {
            lt.set_desc(raw, c::CUBLASLT_MATMUL_DESC_TRANSA, c::CUBLAS_OP_T)?;
            lt.set_desc(raw, c::CUBLASLT_MATMUL_DESC_TRANSB, c::CUBLAS_OP_N)?;
            lt.set_desc(raw, c::CUBLASLT_MATMUL_DESC_EPILOGUE, plan.epilogue)?;
            let fast = i8::from(problem.accumulation == Accumulation::Fast);
            lt.set_desc(raw, c::CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast)?;
            // Libraries before 12.8 do not have the attributes, and the mode is the default.
            if plan.scale_modes != [ScaleMode::Scalar; 2] {
                let [a, b] = plan.scale_modes.map(scale_mode);
                lt.set_desc(raw, c::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, a)?;
                lt.set_desc(raw, c::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, b)?;
            }
            if let Some(dtype) = plan.bias {
                lt.set_desc(raw, c::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(dtype))?;
            }
            if let (Some(bias), 2..) = (problem.epilogue.bias, problem.shape.batch) {
                let stride = bias.batch_stride.cast_signed();
                lt.set_desc(raw, c::CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, stride)?;
            }
            if let Some(aux) = problem.epilogue.aux {
                lt.set_desc(raw, c::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux.ld.cast_signed())?;
                if problem.shape.batch > 1 {
                    let stride = aux.batch_stride.cast_signed();
                    lt.set_desc(raw, c::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, stride)?;
                }
            }
        }
        Ok(desc)
    }

    /// Sets the addresses of one call. Those that the problem of `plan` does not have stay unset.
    ///
    /// # Errors
    ///
    /// What cuBLASLt returned.
    pub fn set_pointers(
        &mut self,
        plan: &Plan,
        pointers: &DescriptorPointers,
    ) -> Result<(), LtError> {
        let problem = &plan.problem;
        let aux = problem.epilogue.aux;
        let scaled = problem.scales != Scales::None;
        // Swapped: cuBLASLt's A is our B.
        let attributes = [
            (c::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scaled, pointers.scale_b),
            (c::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scaled, pointers.scale_a),
            (c::CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, problem.scaled_d, pointers.scale_d),
            (c::CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, problem.amax_d, pointers.amax_d),
            (c::CUBLASLT_MATMUL_DESC_BIAS_POINTER, problem.epilogue.bias.is_some(), pointers.bias),
            (c::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.is_some(), pointers.aux),
            (
                c::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER,
                aux.is_some_and(|aux| aux.kind.scaled()),
                pointers.scale_aux,
            ),
            (
                c::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER,
                aux.is_some_and(|aux| aux.kind.amax()),
                pointers.amax_aux,
            ),
        ];
        for (attribute, present, address) in attributes {
            if present {
                // SAFETY: the handle is alive; these attributes are pointers, 64 bits wide. Setting follows none.
                unsafe { self.lt.set_desc(self.raw, attribute, address) }?;
            }
        }
        Ok(())
    }
}

impl Layout {
    fn build(lt: &'static Lt, plan: &LayoutPlan) -> Result<Self, LtError> {
        let LayoutPlan { dtype, rows, columns, ld, batch, batch_stride } = *plan;
        let raw = lt.create_layout(data_type(dtype), rows, columns, ld.cast_signed())?;
        let layout = Self { lt, raw };
        if batch > 1 {
            // The plan keeps the batch within i32.
            let count = i32::try_from(batch).unwrap_or(i32::MAX);
            let stride = batch_stride.cast_signed();
            // SAFETY: the handle is alive; both values have the width that cublasLt.h names.
            unsafe {
                lt.set_layout(raw, c::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count)?;
                lt.set_layout(raw, c::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride)?;
            }
        }
        Ok(layout)
    }
}

impl Preference {
    /// Algorithms that need at most `workspace` bytes and the alignments of `plan`.
    ///
    /// # Errors
    ///
    /// What cuBLASLt returned.
    pub fn build(lt: &'static Lt, plan: &Plan, workspace: usize) -> Result<Self, LtError> {
        let raw = lt.create_preference()?;
        let preference = Self { lt, raw };
        let alignments = [
            c::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            c::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            c::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            c::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        // SAFETY: the handle is alive; the values have the width that cublasLt.h names.
        unsafe {
            let bytes = workspace as u64;
            lt.set_preference(raw, c::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes)?;
            for (attribute, bytes) in alignments.into_iter().zip(plan.alignments) {
                lt.set_preference(raw, attribute, bytes)?;
            }
        }
        Ok(preference)
    }
}

/// `cudaDataType_t`.
pub fn data_type(dtype: DataType) -> i32 {
    match dtype {
        DataType::Bf16 => c::CUDA_R_16BF,
        DataType::F16 => c::CUDA_R_16F,
        DataType::F32 => c::CUDA_R_32F,
        DataType::Fp8(Fp8Format::E4M3) => c::CUDA_R_8F_E4M3,
        DataType::Fp8(Fp8Format::E5M2) => c::CUDA_R_8F_E5M2,
    }
}

/// `cublasLtMatmulMatrixScale_t`.
pub fn scale_mode(mode: ScaleMode) -> i32 {
    match mode {
        ScaleMode::Scalar => c::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
        ScaleMode::OuterVector => c::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
        ScaleMode::Vector32 => c::CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0,
        ScaleMode::Vector128 => c::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
        ScaleMode::Block128 => c::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128X128_32F,
    }
}
