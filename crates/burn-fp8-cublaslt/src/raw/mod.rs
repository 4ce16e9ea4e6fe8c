//! The C functions of libcuda and libcublasLt that this crate calls; each returns its status as a `Result`.
//!
//! cudarc finds and loads the libraries. The functions are declared here instead of taken from `cudarc::*::sys` for three
//! reasons: a function that an older library lacks is an error here and a panic there; statuses stay integers, so that one
//! unknown to the bindings is no undefined behaviour; and the CUDA version that cudarc was built for does not matter.
//! A test in [`constants`] compares the numbers with cudarc's bindings.
#![allow(unsafe_code, reason = "calls C functions, whose contracts are in NVIDIA's documentation")]

pub mod constants;
pub mod driver;
pub mod lt;

/// Declares a table of C functions that is found in a loaded library, and a method of the same name for each function, which
/// returns its status as a `Result`: `check` of the table tells an error from success.
macro_rules! function_table {
    (
        $(#[$doc:meta])* $table:ident in $library:expr, failing with $error:ty;
        $($(#[$of:meta])* $name:ident($($argument:ident: $type:ty),* $(,)?);)*
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the names of the C functions")]
        #[derive(Debug)]
        pub struct $table {
            $($name: unsafe extern "C" fn($($type),*) -> core::ffi::c_int,)*
        }

        #[allow(non_snake_case, reason = "the names of the C functions")]
        #[allow(clippy::too_many_arguments, reason = "those of the C functions")]
        impl $table {
            /// All functions, or the name of the first that the library lacks.
            ///
            /// # Safety
            ///
            /// The library must be present: cudarc panics otherwise.
            pub(crate) unsafe fn load() -> Result<Self, &'static str> {
                // SAFETY: loading runs the library's initializers, which is sound for NVIDIA's libraries.
                let library = unsafe { $library };
                Ok(Self {
                    $($name: {
                        type Function = unsafe extern "C" fn($($type),*) -> core::ffi::c_int;
                        // SAFETY: the declared signature is the one in NVIDIA's header of the same function.
                        *unsafe { library.get::<Function>(concat!(stringify!($name), "\0").as_bytes()) }
                            .map_err(|_| stringify!($name))?
                    },)*
                })
            }

            $(
                $(#[$of])*
                ///
                /// # Safety
                ///
                /// What NVIDIA's documentation asks of this function: handles are alive, pointers name memory of these types.
                pub unsafe fn $name(&self, $($argument: $type),*) -> Result<(), $error> {
                    // SAFETY: the caller keeps the contract of the C function.
                    self.check(stringify!($name), unsafe { (self.$name)($($argument),*) })
                }
            )*
        }
    };
}
pub(crate) use function_table;

/// What a C function writes to the address that `call` is given.
pub(crate) fn written<T, E>(
    mut value: T,
    call: impl FnOnce(*mut T) -> Result<(), E>,
) -> Result<T, E> {
    call(&raw mut value)?;
    Ok(value)
}
