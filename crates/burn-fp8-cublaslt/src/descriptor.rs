//! cuBLASLt's descriptors, built from a plan and destroyed with their owner. They need neither a device nor a driver.
#![allow(unsafe_code, reason = "owns C handles")]

use core::ffi::{c_int, c_void};
use core::ptr;

use burn_fp8_core::Fp8Format;

use crate::call::{Argument, Pointers};
use crate::plan::{LayoutPlan, Plan};
use crate::problem::{Accumulation, DataType};
use crate::raw::constants as c;
use crate::raw::driver::DevicePointer;
use crate::raw::lt::{Attribute, Lt, LtError, MatrixLayout};
use crate::raw::written;

/// An owned C handle of one kind, with its attributes.
#[derive(Debug)]
pub struct Descriptor {
    lt: &'static Lt,
    raw: *mut c_void,
    kind: &'static Kind,
}

type Done = Result<(), LtError>;

/// The functions of a kind of descriptor.
#[derive(Debug)]
struct Kind {
    destroy: unsafe fn(&Lt, *mut c_void) -> Done,
    set: unsafe fn(&Lt, *mut c_void, c_int, *const c_void, usize) -> Done,
    get: unsafe fn(&Lt, *mut c_void, c_int, *mut c_void, usize, *mut usize) -> Done,
}

/// `cublasLtMatmulDesc_t`: the operation.
static MATMUL: Kind = Kind {
    destroy: Lt::cublasLtMatmulDescDestroy,
    set: Lt::cublasLtMatmulDescSetAttribute,
    get: Lt::cublasLtMatmulDescGetAttribute,
};
/// `cublasLtMatrixLayout_t`: one matrix.
static LAYOUT: Kind = Kind {
    destroy: Lt::cublasLtMatrixLayoutDestroy,
    set: Lt::cublasLtMatrixLayoutSetAttribute,
    get: Lt::cublasLtMatrixLayoutGetAttribute,
};
/// `cublasLtMatmulPreference_t`: what algorithms may need.
static PREFERENCE: Kind = Kind {
    destroy: Lt::cublasLtMatmulPreferenceDestroy,
    set: Lt::cublasLtMatmulPreferenceSetAttribute,
    get: Lt::cublasLtMatmulPreferenceGetAttribute,
};

// SAFETY: the handle is plain memory of cuBLASLt without ties to a thread; it changes through `&mut` alone.
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    /// The C handle, which lives as long as this value.
    pub fn raw(&self) -> *mut c_void {
        self.raw
    }

    /// Sets an attribute.
    ///
    /// # Errors
    ///
    /// What cuBLASLt returned.
    ///
    /// # Safety
    ///
    /// `T` has the width that the header names for `attribute`.
    pub unsafe fn set<T: Attribute>(&mut self, attribute: i32, value: T) -> Done {
        // SAFETY: the handle is alive; the caller vouches for the width.
        unsafe {
            (self.kind.set)(self.lt, self.raw, attribute, (&raw const value).cast(), size_of::<T>())
        }
    }

    /// Reads an attribute.
    ///
    /// # Errors
    ///
    /// What cuBLASLt returned.
    ///
    /// # Safety
    ///
    /// As [`set`](Self::set).
    pub unsafe fn get<T: Attribute>(&self, attribute: i32) -> Result<T, LtError> {
        let (size, mut bytes) = (size_of::<T>(), 0);
        // SAFETY: the handle is alive; the caller vouches for the width.
        written(T::default(), |value| unsafe {
            (self.kind.get)(self.lt, self.raw, attribute, value.cast(), size, &raw mut bytes)
        })
    }

    /// The operation of a plan, without addresses.
    fn matmul(lt: &'static Lt, plan: &Plan) -> Result<Self, LtError> {
        // SAFETY: writes one handle.
        let raw = written(ptr::null_mut(), |desc| unsafe {
            lt.cublasLtMatmulDescCreate(desc, c::CUBLAS_COMPUTE_32F, c::CUDA_R_32F)
        })?;
        let mut desc = Self { lt, raw, kind: &MATMUL };
        let problem = &plan.problem;
        // SAFETY: every value has the width that cublasLt.h names for its attribute.
        unsafe {
            desc.set(c::CUBLASLT_MATMUL_DESC_TRANSA, c::CUBLAS_OP_T)?;
            desc.set(c::CUBLASLT_MATMUL_DESC_TRANSB, c::CUBLAS_OP_N)?;
            desc.set(c::CUBLASLT_MATMUL_DESC_EPILOGUE, plan.epilogue)?;
            let fast = i8::from(problem.accumulation == Accumulation::Fast);
            desc.set(c::CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast)?;
            // Libraries before 12.8 do not have the attributes, and the mode is the default.
            if plan.scale_modes != [c::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F; 2] {
                let [a, b] = plan.scale_modes;
                desc.set(c::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, a)?;
                desc.set(c::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, b)?;
            }
            if let Some(bias) = problem.epilogue.bias {
                desc.set(c::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(bias))?;
            }
        }
        Ok(desc)
    }

    fn layout(lt: &'static Lt, plan: LayoutPlan) -> Result<Self, LtError> {
        let LayoutPlan { dtype, rows, columns, ld, count, stride } = plan;
        // SAFETY: writes one handle.
        let raw = written(ptr::null_mut(), |layout| unsafe {
            let ld = ld.cast_signed();
            lt.cublasLtMatrixLayoutCreate(layout, data_type(dtype), rows, columns, ld)
        })?;
        let mut layout = Self { lt, raw, kind: &LAYOUT };
        if count > 1 {
            // The plan keeps the count within i32.
            let count = i32::try_from(count).unwrap_or(i32::MAX);
            // SAFETY: both values have the width that cublasLt.h names.
            unsafe {
                layout.set(c::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count)?;
                layout.set(c::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride)?;
            }
        }
        Ok(layout)
    }

    /// Algorithms that need at most `workspace` bytes and the alignments of `plan`.
    ///
    /// # Errors
    ///
    /// What cuBLASLt returned.
    pub fn preference(lt: &'static Lt, plan: &Plan, workspace: usize) -> Result<Self, LtError> {
        // SAFETY: writes one handle.
        let raw = written(ptr::null_mut(), |preference| unsafe {
            lt.cublasLtMatmulPreferenceCreate(preference)
        })?;
        let mut preference = Self { lt, raw, kind: &PREFERENCE };
        let alignments = [
            c::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            c::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            c::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            c::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        // SAFETY: the values have the width that cublasLt.h names.
        unsafe {
            preference.set(c::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace as u64)?;
            for (attribute, bytes) in alignments.into_iter().zip(plan.alignments) {
                preference.set(attribute, bytes)?;
            }
        }
        Ok(preference)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made by the create function of its kind, destroyed once. A failure could only leak: nothing to do.
        let _ = unsafe { (self.kind.destroy)(self.lt, self.raw) };
    }
}

/// Everything that cuBLASLt is told of a plan.
#[derive(Debug)]
pub struct Descriptors {
    /// The operation.
    pub desc: Descriptor,
    /// Layouts of cuBLASLt's A (our B), B (our A), C and D.
    pub layouts: [Descriptor; 4],
    /// Whether C and D have the same layout.
    same_layout: bool,
}

impl Descriptors {
    /// Builds them. Pointers are set to addresses that nothing reads but whose alignment the heuristics see.
    ///
    /// # Errors
    ///
    /// What cuBLASLt returned.
    pub fn build(lt: &'static Lt, plan: &Plan) -> Result<Self, LtError> {
        let [a, b, c, d] = plan.layouts.map(|layout| Descriptor::layout(lt, layout));
        let (layouts, desc) = ([a?, b?, c?, d?], Descriptor::matmul(lt, plan)?);
        let same_layout = plan.layouts[2] == plan.layouts[3];
        let mut descriptors = Self { desc, layouts, same_layout };
        descriptors.set_each_pointer(plan, &Pointers::default(), |attribute, argument| {
            match attribute {
                c::CUBLASLT_MATMUL_DESC_BIAS_POINTER => argument.alignment.into(),
                _ => 256,
            }
        })?;
        Ok(descriptors)
    }

    /// Sets the addresses of one call. Those that the problem of `plan` does not have stay unset.
    ///
    /// # Errors
    ///
    /// What cuBLASLt returned.
    pub fn set_pointers(&mut self, plan: &Plan, pointers: &Pointers) -> Result<(), LtError> {
        self.set_each_pointer(plan, pointers, |_, argument| argument.address)
    }

    fn set_each_pointer(
        &mut self,
        plan: &Plan,
        pointers: &Pointers,
        address: impl Fn(i32, &Argument) -> DevicePointer,
    ) -> Result<(), LtError> {
        // In the order of the arguments. Swapped: cuBLASLt's A is our B.
        const ATTRIBUTES: [i32; 5] = [
            c::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
            c::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
            c::CUBLASLT_MATMUL_DESC_D_SCALE_POINTER,
            c::CUBLASLT_MATMUL_DESC_AMAX_D_POINTER,
            c::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
        ];
        let (_, arguments) = pointers.arguments(&plan.problem);
        for (attribute, argument) in ATTRIBUTES.into_iter().zip(&arguments) {
            if argument.expected {
                // SAFETY: these attributes are pointers, 64 bits wide. Setting follows none.
                unsafe { self.desc.set(attribute, address(attribute, argument)) }?;
            }
        }
        Ok(())
    }

    /// The C handles of the layouts. Equal layouts of C and D have one handle: since CUDA 13.0 update 2 C may be D "if and only if
    /// Cdesc == Ddesc".
    pub fn raw_layouts(&self) -> [MatrixLayout; 4] {
        let [a, b, c, d] = self.layouts.each_ref().map(Descriptor::raw);
        [a, b, if self.same_layout { d } else { c }, d]
    }
}

/// `cudaDataType_t`.
fn data_type(dtype: DataType) -> i32 {
    match dtype {
        DataType::Bf16 => c::CUDA_R_16BF,
        DataType::F16 => c::CUDA_R_16F,
        DataType::F32 => c::CUDA_R_32F,
        DataType::Fp8(Fp8Format::E4M3) => c::CUDA_R_8F_E4M3,
        DataType::Fp8(Fp8Format::E5M2) => c::CUDA_R_8F_E5M2,
    }
}
