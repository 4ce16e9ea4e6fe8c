//! cuBLASLt, libcublasLt: descriptors, heuristics, the product.
//!
//! Reference: <https://docs.nvidia.com/cuda/cublas/index.html#using-the-cublaslt-api>. Descriptors need neither a device nor a driver.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use super::driver::{DevicePointer, Stream};
use super::{function_table, written};

/// `cublasLtHandle_t`.
pub type Handle = *mut c_void;
/// `cublasLtMatmulDesc_t`.
pub type MatmulDesc = *mut c_void;
/// `cublasLtMatrixLayout_t`.
pub type MatrixLayout = *mut c_void;
/// `cublasLtMatmulPreference_t`.
pub type Preference = *mut c_void;

/// `cublasLtMatmulAlgo_t`: an algorithm with its configuration, valid for one version of the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Algorithm {
    data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct HeuristicResult {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The workspace that it needs, in bytes.
    pub workspace: usize,
    /// The other fields are valid only if this is 0.
    pub state: c_int,
    /// Waves of thread blocks; 1 fills the device once.
    pub waves: f32,
    reserved: [c_int; 4],
}

/// The matrices and layouts of one call of `cublasLtMatmul`, in its column-major terms.
#[derive(Clone, Copy, Debug)]
pub struct Arguments {
    /// The operation.
    pub desc: MatmulDesc,
    /// Layouts of A, B, C and D.
    pub layouts: [MatrixLayout; 4],
    /// Addresses of A, B, C and D; C may be 0 if beta is 0.
    pub pointers: [DevicePointer; 4],
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of C.
    pub beta: f32,
    /// Workspace: address, a multiple of 256, and bytes.
    pub workspace: (DevicePointer, usize),
    /// Where the work is enqueued.
    pub stream: Stream,
}

function_table! {
    /// libcublasLt, loaded: functions that every cuBLASLt since CUDA 11 has.
    Lt in cudarc::cublaslt::sys::culib(), failing with LtError;
    /// One part of the version. Needs no device.
    cublasLtGetProperty(property: c_int, value: *mut c_int);
    /// Needs a driver and a device.
    cublasLtCreate(handle: *mut Handle);
    /// Waits for the device.
    cublasLtDestroy(handle: Handle);
    /// An operation.
    cublasLtMatmulDescCreate(desc: *mut MatmulDesc, compute: c_int, scale: c_int);
    /// Of an operation.
    cublasLtMatmulDescDestroy(desc: MatmulDesc);
    /// Of an operation.
    cublasLtMatmulDescSetAttribute(desc: MatmulDesc, attribute: c_int, value: *const c_void, size: usize);
    /// Of an operation.
    cublasLtMatmulDescGetAttribute(
        desc: MatmulDesc, attribute: c_int, value: *mut c_void, size: usize, written: *mut usize,
    );
    /// A column-major matrix.
    cublasLtMatrixLayoutCreate(layout: *mut MatrixLayout, dtype: c_int, rows: u64, columns: u64, ld: i64);
    /// Of a matrix.
    cublasLtMatrixLayoutDestroy(layout: MatrixLayout);
    /// Of a matrix.
    cublasLtMatrixLayoutSetAttribute(layout: MatrixLayout, attribute: c_int, value: *const c_void, size: usize);
    /// Of a matrix.
    cublasLtMatrixLayoutGetAttribute(
        layout: MatrixLayout, attribute: c_int, value: *mut c_void, size: usize, written: *mut usize,
    );
    /// What algorithms may need.
    cublasLtMatmulPreferenceCreate(preference: *mut Preference);
    /// Of what algorithms may need.
    cublasLtMatmulPreferenceDestroy(preference: Preference);
    /// Of what algorithms may need.
    cublasLtMatmulPreferenceSetAttribute(
        preference: Preference, attribute: c_int, value: *const c_void, size: usize,
    );
    /// Of what algorithms may need.
    cublasLtMatmulPreferenceGetAttribute(
        preference: Preference, attribute: c_int, value: *mut c_void, size: usize, written: *mut usize,
    );
    /// See [`Lt::heuristics`].
    cublasLtMatmulAlgoGetHeuristic(
        handle: Handle, desc: MatmulDesc, a: MatrixLayout, b: MatrixLayout, c: MatrixLayout, d: MatrixLayout,
        preference: Preference, requested: c_int, results: *mut HeuristicResult, found: *mut c_int,
    );
    /// See [`Lt::algorithm_attribute`].
    cublasLtMatmulAlgoConfigGetAttribute(
        algorithm: *const Algorithm, attribute: c_int, value: *mut c_void, size: usize, written: *mut usize,
    );
    /// See [`Lt::matmul`].
    cublasLtMatmul(
        handle: Handle, desc: MatmulDesc, alpha: *const c_void, a: *const c_void, layout_a: MatrixLayout,
        b: *const c_void, layout_b: MatrixLayout, beta: *const c_void, c: *const c_void, layout_c: MatrixLayout,
        d: *mut c_void, layout_d: MatrixLayout, algorithm: *const Algorithm, workspace: *mut c_void,
        workspace_size: usize, stream: Stream,
    );
}

/// A call of cuBLASLt that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {} ({status})", status_name(*status))]
pub struct LtError {
    /// The function.
    pub call: &'static str,
    /// Its `cublasStatus_t`.
    pub status: i32,
}

/// `CUBLAS_STATUS_INVALID_VALUE`.
pub const INVALID_VALUE: i32 = 7;
/// `CUBLAS_STATUS_NOT_SUPPORTED`.
pub const NOT_SUPPORTED: i32 = 15;

/// The names of `cublasStatus_t` in `cublas_api.h`.
pub(crate) fn status_name(status: i32) -> &'static str {
    match status {
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        INVALID_VALUE => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        NOT_SUPPORTED => "CUBLAS_STATUS_NOT_SUPPORTED",
        16 => "CUBLAS_STATUS_LICENSE_ERROR",
        _ => "unknown status",
    }
}

static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// How often this process has called `cublasLtMatmul`. For tests: it shows in how many calls a product ran.
#[doc(hidden)]
pub fn launches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// A value that attributes hold: plain integers of the width that the header names.
pub trait Attribute: Copy + Default {}
impl Attribute for i8 {}
impl Attribute for u16 {}
impl Attribute for i32 {}
impl Attribute for u32 {}
impl Attribute for u64 {}

impl Lt {
    fn check(&self, call: &'static str, status: c_int) -> Result<(), LtError> {
        if status == 0 { Ok(()) } else { Err(LtError { call, status }) }
    }

    /// `cublasLtCreate`. Needs a driver and a device.
    pub fn create(&self) -> Result<Handle, LtError> {
        // SAFETY: writes one handle.
        written(ptr::null_mut(), |handle| unsafe { self.cublasLtCreate(handle) })
    }

    /// [`cublasLtMatmulAlgoGetHeuristic`](https://docs.nvidia.com/cuda/cublas/index.html#cublasltmatmulalgogetheuristic): at most
    /// `count` algorithms, the most promising first. Where nothing fits it returns none, or an error: by the documentation
    /// [`NOT_SUPPORTED`], and for some products [`INVALID_VALUE`].
    ///
    /// # Safety
    ///
    /// All handles are alive; a context of the device is current. Pointers in `desc` are not followed, only their alignment counts.
    pub unsafe fn heuristics(
        &self,
        handle: Handle,
        desc: MatmulDesc,
        layouts: [MatrixLayout; 4],
        preference: Preference,
        count: usize,
    ) -> Result<Vec<HeuristicResult>, LtError> {
        let mut results = vec![HeuristicResult::default(); count];
        let (mut found, [a, b, c, d]) = (0, layouts);
        let requested = c_int::try_from(count).unwrap_or(c_int::MAX);
        let to = results.as_mut_ptr();
        // SAFETY: the caller vouches for the handles; there is room for as many results as are asked for.
        unsafe {
            self.cublasLtMatmulAlgoGetHeuristic(
                handle,
                desc,
                a,
                b,
                c,
                d,
                preference,
                requested,
                to,
                &raw mut found,
            )
        }?;
        results.truncate(usize::try_from(found).unwrap_or(0));
        results.retain(|result| result.state == 0);
        Ok(results)
    }

    /// `cublasLtMatmulAlgoConfigGetAttribute`.
    ///
    /// # Safety
    ///
    /// `T` has the width that the header names for `attribute`.
    pub unsafe fn algorithm_attribute<T: Attribute>(
        &self,
        algorithm: &Algorithm,
        attribute: i32,
    ) -> Result<T, LtError> {
        let (size, mut bytes) = (size_of::<T>(), 0);
        // SAFETY: as the caller says, the library writes a `T`.
        written(T::default(), |value| unsafe {
            let value = value.cast();
            self.cublasLtMatmulAlgoConfigGetAttribute(
                algorithm,
                attribute,
                value,
                size,
                &raw mut bytes,
            )
        })
    }

    /// [`cublasLtMatmul`](https://docs.nvidia.com/cuda/cublas/index.html#cublasltmatmul): enqueues the product.
    ///
    /// # Safety
    ///
    /// All handles are alive, the algorithm was found for them on this device, its context is current, and every address in
    /// `arguments` and in the descriptor names device memory that covers the layouts and stays valid until the stream has
    /// passed this point.
    pub unsafe fn matmul(
        &self,
        handle: Handle,
        arguments: &Arguments,
        algorithm: &Algorithm,
    ) -> Result<(), LtError> {
        let Arguments { desc, layouts, pointers, alpha, beta, workspace, stream } = *arguments;
        let [a, b, c, d] = pointers.map(|pointer| pointer as usize as *mut c_void);
        LAUNCHES.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller says; alpha and beta are on the host, where the operation has its scalars.
        unsafe {
            self.cublasLtMatmul(
                handle,
                desc,
                (&raw const alpha).cast(),
                a,
                layouts[0],
                b,
                layouts[1],
                (&raw const beta).cast(),
                c,
                layouts[2],
                d,
                layouts[3],
                algorithm,
                workspace.0 as usize as *mut c_void,
                workspace.1,
                stream,
            )
        }
    }
}
