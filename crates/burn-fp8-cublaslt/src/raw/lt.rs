//! cuBLASLt, libcublasLt: descriptors, heuristics, the product.
//!
//! Reference: <https://docs.nvidia.com/cuda/cublas/index.html#using-the-cublaslt-api>. Descriptors need neither a device nor a driver.

use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, size_of};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use super::driver::{DevicePointer, Stream};
use super::table::function_table;

/// `cublasLtHandle_t`.
pub type Handle = *mut c_void;
/// `cublasLtMatmulDesc_t`.
pub type MatmulDesc = *mut c_void;
/// `cublasLtMatrixLayout_t`.
pub type MatrixLayout = *mut c_void;
/// `cublasLtMatmulPreference_t`.
pub type Preference = *mut c_void;

/// `cublasLtMatmulAlgo_t`: an algorithm with its configuration, valid for one version of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Algorithm {
    data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[derive(Clone, Copy, Debug)]
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
    /// Functions that every cuBLASLt since CUDA 11 has.
    Functions in cudarc::cublaslt::sys::culib();
    cublasLtGetProperty(c_int, *mut c_int);
    cublasLtCreate(*mut Handle);
    cublasLtDestroy(Handle);
    cublasLtMatmulDescCreate(*mut MatmulDesc, c_int, c_int);
    cublasLtMatmulDescDestroy(MatmulDesc);
    cublasLtMatmulDescSetAttribute(MatmulDesc, c_int, *const c_void, usize);
    cublasLtMatmulDescGetAttribute(MatmulDesc, c_int, *mut c_void, usize, *mut usize);
    cublasLtMatrixLayoutCreate(*mut MatrixLayout, c_int, u64, u64, i64);
    cublasLtMatrixLayoutDestroy(MatrixLayout);
    cublasLtMatrixLayoutSetAttribute(MatrixLayout, c_int, *const c_void, usize);
    cublasLtMatrixLayoutGetAttribute(MatrixLayout, c_int, *mut c_void, usize, *mut usize);
    cublasLtMatmulPreferenceCreate(*mut Preference);
    cublasLtMatmulPreferenceDestroy(Preference);
    cublasLtMatmulPreferenceSetAttribute(Preference, c_int, *const c_void, usize);
    cublasLtMatmulPreferenceGetAttribute(Preference, c_int, *mut c_void, usize, *mut usize);
    cublasLtMatmulAlgoGetHeuristic(
        Handle, MatmulDesc, MatrixLayout, MatrixLayout, MatrixLayout, MatrixLayout, Preference, c_int,
        *mut HeuristicResult, *mut c_int,
    );
    cublasLtMatmulAlgoConfigGetAttribute(*const Algorithm, c_int, *mut c_void, usize, *mut usize);
    cublasLtMatmul(
        Handle, MatmulDesc, *const c_void, *const c_void, MatrixLayout, *const c_void, MatrixLayout, *const c_void,
        *const c_void, MatrixLayout, *mut c_void, MatrixLayout, *const Algorithm, *mut c_void, usize, Stream,
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

/// libcublasLt, loaded.
#[derive(Debug)]
pub struct Lt {
    functions: Functions,
}

/// Calls a function of the table and turns its `cublasStatus_t` into a `Result`.
macro_rules! call {
    ($lt:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the caller keeps the contract of the enclosing wrapper, which is that of the C function.
        match unsafe { ($lt.functions.$name)($($argument),*) } {
            0 => Ok(()),
            status => Err(LtError { call: stringify!($name), status }),
        }
    }};
}

/// A value that attributes hold: plain integers of the width that the header names.
pub trait Attribute: Copy + Default {}
impl Attribute for i8 {}
impl Attribute for u16 {}
impl Attribute for i32 {}
impl Attribute for u32 {}
impl Attribute for i64 {}
impl Attribute for u64 {}

/// Setter and getter of one descriptor type.
macro_rules! attributes {
    ($handle:ty, $set:ident = $c_set:ident, $get:ident = $c_get:ident, $link:literal) => {
        #[doc = concat!("[`", stringify!($c_set), "`](https://docs.nvidia.com/cuda/cublas/index.html#", $link, "setattribute).")]
        ///
        /// # Safety
        ///
        /// `handle` is alive, and `T` has the width that the header names for `attribute`.
        pub unsafe fn $set<T: Attribute>(&self, handle: $handle, attribute: i32, value: T) -> Result<(), LtError> {
            call!(self, $c_set(handle, attribute, (&raw const value).cast(), size_of::<T>()))
        }

        #[doc = concat!("[`", stringify!($c_get), "`](https://docs.nvidia.com/cuda/cublas/index.html#", $link, "getattribute).")]
        ///
        /// # Safety
        ///
        /// `handle` is alive, and `T` has the width that the header names for `attribute`.
        pub unsafe fn $get<T: Attribute>(&self, handle: $handle, attribute: i32) -> Result<T, LtError> {
            let (mut value, mut written) = (T::default(), 0);
            call!(self, $c_get(handle, attribute, (&raw mut value).cast(), size_of::<T>(), &raw mut written))?;
            Ok(value)
        }
    };
}

impl Lt {
    /// Finds the functions, or names the one that is missing.
    ///
    /// # Safety
    ///
    /// libcublasLt must be present: cudarc panics otherwise.
    pub(crate) unsafe fn load() -> Result<Self, &'static str> {
        // SAFETY: the caller vouches for the library.
        Ok(Self { functions: unsafe { Functions::load() }? })
    }

    /// `cublasLtGetProperty`: one part of the version. Needs no device.
    pub fn property(&self, property: i32) -> Result<i32, LtError> {
        let mut value = 0;
        call!(self, cublasLtGetProperty(property, &raw mut value))?;
        Ok(value)
    }

    /// [`cublasLtCreate`](https://docs.nvidia.com/cuda/cublas/index.html#cublasltcreate). Needs a driver and a device.
    pub fn create(&self) -> Result<Handle, LtError> {
        let mut handle = ptr::null_mut();
        call!(self, cublasLtCreate(&raw mut handle))?;
        Ok(handle)
    }

    /// [`cublasLtDestroy`](https://docs.nvidia.com/cuda/cublas/index.html#cublasltdestroy).
    ///
    /// # Safety
    ///
    /// `handle` is alive and not used afterwards.
    pub unsafe fn destroy(&self, handle: Handle) -> Result<(), LtError> {
        call!(self, cublasLtDestroy(handle))
    }

    /// [`cublasLtMatmulDescCreate`](https://docs.nvidia.com/cuda/cublas/index.html#cublasltmatmuldesccreate).
    pub fn create_desc(&self, compute: i32, scale: i32) -> Result<MatmulDesc, LtError> {
        let mut desc = ptr::null_mut();
        call!(self, cublasLtMatmulDescCreate(&raw mut desc, compute, scale))?;
        Ok(desc)
    }

    /// `cublasLtMatmulDescDestroy`.
    ///
    /// # Safety
    ///
    /// `desc` is alive and not used afterwards.
    pub unsafe fn destroy_desc(&self, desc: MatmulDesc) -> Result<(), LtError> {
        call!(self, cublasLtMatmulDescDestroy(desc))
    }

    attributes!(
        MatmulDesc,
        set_desc = cublasLtMatmulDescSetAttribute,
        get_desc = cublasLtMatmulDescGetAttribute,
        "cublasltmatmuldesc"
    );

    /// [`cublasLtMatrixLayoutCreate`](https://docs.nvidia.com/cuda/cublas/index.html#cublasltmatrixlayoutcreate), column-major.
    pub fn create_layout(
        &self,
        dtype: i32,
        rows: u64,
        columns: u64,
        ld: i64,
    ) -> Result<MatrixLayout, LtError> {
        let mut layout = ptr::null_mut();
        call!(self, cublasLtMatrixLayoutCreate(&raw mut layout, dtype, rows, columns, ld))?;
        Ok(layout)
    }

    /// `cublasLtMatrixLayoutDestroy`.
    ///
    /// # Safety
    ///
    /// `layout` is alive and not used afterwards.
    pub unsafe fn destroy_layout(&self, layout: MatrixLayout) -> Result<(), LtError> {
        call!(self, cublasLtMatrixLayoutDestroy(layout))
    }

    attributes!(
        MatrixLayout,
        set_layout = cublasLtMatrixLayoutSetAttribute,
        get_layout = cublasLtMatrixLayoutGetAttribute,
        "cublasltmatrixlayout"
    );

    /// [`cublasLtMatmulPreferenceCreate`](https://docs.nvidia.com/cuda/cublas/index.html#cublasltmatmulpreferencecreate).
    pub fn create_preference(&self) -> Result<Preference, LtError> {
        let mut preference = ptr::null_mut();
        call!(self, cublasLtMatmulPreferenceCreate(&raw mut preference))?;
        Ok(preference)
    }

    /// `cublasLtMatmulPreferenceDestroy`.
    ///
    /// # Safety
    ///
    /// `preference` is alive and not used afterwards.
    pub unsafe fn destroy_preference(&self, preference: Preference) -> Result<(), LtError> {
        call!(self, cublasLtMatmulPreferenceDestroy(preference))
    }

    attributes!(
        Preference,
        set_preference = cublasLtMatmulPreferenceSetAttribute,
        get_preference = cublasLtMatmulPreferenceGetAttribute,
        "cublasltmatmulpreference"
    );

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
        let mut results: Vec<MaybeUninit<HeuristicResult>> =
            (0..count).map(|_| MaybeUninit::zeroed()).collect();
        let (mut found, [a, b, c, d]) = (0, layouts);
        let requested = c_int::try_from(count).unwrap_or(c_int::MAX);
        call!(
            self,
            cublasLtMatmulAlgoGetHeuristic(
                handle,
                desc,
                a,
                b,
                c,
                d,
                preference,
                requested,
                results.as_mut_ptr().cast(),
                &raw mut found,
            )
        )?;
        results.truncate(usize::try_from(found).unwrap_or(0));
        // SAFETY: zeroed memory is a valid value of this struct of integers and a float, whatever was written over it.
        let results = results.into_iter().map(|result| unsafe { result.assume_init() });
        Ok(results.filter(|result| result.state == 0).collect())
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
        let (mut value, mut written) = (T::default(), 0);
        call!(
            self,
            cublasLtMatmulAlgoConfigGetAttribute(
                algorithm,
                attribute,
                (&raw mut value).cast(),
                size_of::<T>(),
                &raw mut written,
            )
        )?;
        Ok(value)
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
        call!(
            self,
            cublasLtMatmul(
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
        )
    }
}
