//! NVRTC, out of the folder of a CUDA toolkit.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

/// NVRTC and the headers that kernels include.
pub struct Nvrtc {
    library: Library,
    /// NVRTC opens this one by its name, which is found where it is open already.
    _builtins: Option<Library>,
    includes: Vec<String>,
}

type Program = *mut c_void;

impl Nvrtc {
    /// Opens the library in a toolkit's folder: `lib` or `lib64`, any version.
    pub fn open(toolkit: &Path) -> Result<Self, String> {
        let include = toolkit.join("include");
        if !include.join("cuda_runtime.h").exists() {
            return Err(format!("{} has no cuda_runtime.h", include.display()));
        }
        let builtins = find(toolkit, "libnvrtc-builtins.so").map(|path| open(&path)).transpose()?;
        let path = find(toolkit, "libnvrtc.so")
            .ok_or_else(|| format!("{} has no libnvrtc.so in lib or lib64", toolkit.display()))?;
        let includes = [include.clone(), include.join("cccl")]
            .map(|path| format!("--include-path={}", path.display()));
        Ok(Self { library: open(&path)?, _builtins: builtins, includes: includes.into() })
    }

    /// Compiles to machine code of `arch`, with the options of the CUDA runtime. The log where that fails.
    pub fn compile(&self, source: &str, arch: &str) -> Result<Vec<u8>, String> {
        let source = CString::new(source).map_err(|error| error.to_string())?;
        let mut options = vec![format!("--gpu-architecture={arch}"), "-lineinfo".into()];
        options.extend(self.includes.iter().cloned());
        let options: Vec<_> =
            options.into_iter().map(|option| CString::new(option).expect("no zeros")).collect();
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        // SAFETY: The functions have these signatures in every version of NVRTC since 11.1; strings end in zero and outlive the
        // calls; buffers have the sizes that NVRTC asks for; the program is destroyed once.
        #[allow(unsafe_code, reason = "a C library")]
        unsafe {
            let create: Symbol<
                unsafe extern "C" fn(
                    *mut Program,
                    *const c_char,
                    *const c_char,
                    c_int,
                    *const *const c_char,
                    *const *const c_char,
                ) -> c_int,
            > = self.symbol(c"nvrtcCreateProgram")?;
            let compile: Symbol<
                unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
            > = self.symbol(c"nvrtcCompileProgram")?;
            let destroy: Symbol<unsafe extern "C" fn(*mut Program) -> c_int> =
                self.symbol(c"nvrtcDestroyProgram")?;
            let created =
                create(&mut program, source.as_ptr(), ptr::null(), 0, ptr::null(), ptr::null());
            if created != 0 {
                return Err(format!("nvrtcCreateProgram returned {created}"));
            }
            let compiled = match compile(program, options.len() as c_int, options.as_ptr()) {
                0 => self.output(program, c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN"),
                code => {
                    let log =
                        self.output(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog")?;
                    Err(format!("error {code}: {}", String::from_utf8_lossy(&log)))
                }
            };
            destroy(&mut program);
            compiled
        }
    }

    /// Something of a program that NVRTC tells the size of first.
    ///
    /// # Safety
    /// The program is alive, and the functions have the signatures below.
    #[allow(unsafe_code, reason = "a C library")]
    unsafe fn output(
        &self,
        program: Program,
        size_of: &std::ffi::CStr,
        get: &std::ffi::CStr,
    ) -> Result<Vec<u8>, String> {
        // SAFETY: See above.
        unsafe {
            let size_of: Symbol<unsafe extern "C" fn(Program, *mut usize) -> c_int> =
                self.symbol(size_of)?;
            let get: Symbol<unsafe extern "C" fn(Program, *mut c_char) -> c_int> =
                self.symbol(get)?;
            let mut size = 0;
            size_of(program, &mut size);
            let mut bytes = vec![0u8; size];
            match get(program, bytes.as_mut_ptr().cast()) {
                0 => Ok(bytes),
                code => Err(format!("NVRTC returned {code}")),
            }
        }
    }

    /// # Safety
    /// The function has this type.
    #[allow(unsafe_code, reason = "a C library")]
    unsafe fn symbol<T>(&self, name: &std::ffi::CStr) -> Result<Symbol<'_, T>, String> {
        // SAFETY: See above.
        unsafe { self.library.get(name.to_bytes_with_nul()) }.map_err(|error| error.to_string())
    }
}

type Symbol<'a, T> = libloading::Symbol<'a, T>;

fn find(toolkit: &Path, name: &str) -> Option<PathBuf> {
    let folders = ["lib", "lib64"].map(|folder| toolkit.join(folder));
    let entries = folders.iter().filter_map(|folder| folder.read_dir().ok()).flatten();
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    let mut paths: Vec<_> = paths
        .filter(|path| {
            path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name))
        })
        .collect();
    paths.sort();
    paths.into_iter().next()
}

fn open(path: &Path) -> Result<Library, String> {
    // SAFETY: NVIDIA's compiler library has no initializers beyond its own.
    #[allow(unsafe_code, reason = "a C library")]
    unsafe { Library::new(path) }.map_err(|error| error.to_string())
}
