//! A table of C functions.

/// Declares a struct of C function pointers and a function that finds them all in a loaded library.
macro_rules! function_table {
    ($(#[$doc:meta])* $table:ident in $library:expr; $($name:ident($($argument:ty),* $(,)?);)*) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the names of the C functions")]
        #[derive(Debug)]
        struct $table {
            $($name: unsafe extern "C" fn($($argument),*) -> core::ffi::c_int,)*
        }

        impl $table {
            /// All functions, or the name of the first that the library lacks.
            ///
            /// # Safety
            ///
            /// The library must be present: cudarc panics otherwise.
            unsafe fn load() -> Result<Self, &'static str> {
                // SAFETY: loading runs the library's initializers, which is sound for NVIDIA's libraries.
                let library = unsafe { $library };
                Ok(Self {
                    $($name: {
                        type Function = unsafe extern "C" fn($($argument),*) -> core::ffi::c_int;
                        // SAFETY: the declared signature is the one in NVIDIA's header of the same function.
                        *unsafe { library.get::<Function>(concat!(stringify!($name), "\0").as_bytes()) }
                            .map_err(|_| stringify!($name))?
                    },)*
                })
            }
        }
    };
}
pub(crate) use function_table;
