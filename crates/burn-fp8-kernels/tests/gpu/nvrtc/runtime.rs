//! A runtime that compiles to CUDA C++ and runs nothing: what its server is sent is kept as source.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cubecl::bytes::Bytes;
use cubecl::device::{Device, DeviceId, DeviceService};
use cubecl::future::DynFut;
use cubecl::ir::{
    ContiguousElements, DeviceProperties, HardwareProperties, MatrixLayout, MemoryDeviceProperties,
    MmaProperties, TargetProperties, VectorSize,
};
use cubecl::prelude::*;
use cubecl::profile::{ProfileDuration, TimingMethod};
use cubecl::server::{
    Binding, ComputeServer, CopyDescriptor, IoError, KernelArguments, ProfileError, ProfilingToken,
    ServerCommunication, ServerError, ServerUtilities,
};
use cubecl::stream_id::StreamId;
use cubecl::zspace::{Shape, Strides};
use cubecl::{Compiler, CubeTask, ExecutionMode, MemoryUsage};
use cubecl_cpp::cuda::CudaDialect;
use cubecl_cpp::cuda::mma::CudaWmmaCompiler;
use cubecl_cpp::shared::CppCompiler;
use cubecl_runtime::allocator::ContiguousMemoryLayoutPolicy;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{ManagedMemoryHandle, MemoryAllocationMode};
use cubecl_runtime::storage::{BytesResource, BytesStorage, ManagedResource};

/// What the CUDA runtime compiles with.
type CudaCompiler = CppCompiler<CudaDialect<CudaWmmaCompiler>>;

pub type Client = ComputeClient<CompileOnly>;

/// Every kernel that was launched: its source by its identity, or why there is none.
#[derive(Default)]
pub struct Launched {
    pub launches: usize,
    pub kernels: BTreeMap<String, Result<Kernel, String>>,
}

#[derive(Clone)]
pub struct Kernel {
    /// The type of the kernel, with its path.
    pub name: String,
    /// What tells it from others of the same type.
    pub id: String,
    pub source: String,
}

impl Kernel {
    /// The last part of the name, without parameters.
    pub fn function(&self) -> &str {
        let path = self.name.split('<').next().unwrap_or_default();
        path.rsplit("::").next().unwrap_or_default()
    }

    /// A name for files: that of the function, and a number that stands for the variant.
    pub fn file_name(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.id.hash(&mut hasher);
        format!("{}-{:016x}", self.function(), hasher.finish())
    }
}

static LAUNCHED: Mutex<Launched> = Mutex::new(Launched { launches: 0, kernels: BTreeMap::new() });

pub fn launched() -> MutexGuard<'static, Launched> {
    LAUNCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Clone)]
pub struct CompileOnly;

#[derive(Clone, Debug, Hash, PartialEq, Eq, Default)]
pub struct NoDevice;

impl Device for NoDevice {
    fn from_id(_: DeviceId) -> Self {
        Self
    }

    fn to_id(&self) -> DeviceId {
        DeviceId { type_id: 0, index_id: 0 }
    }
}

impl Runtime for CompileOnly {
    type Compiler = CudaCompiler;
    type Server = Server;
    type Device = NoDevice;

    fn client(device: &NoDevice) -> Client {
        ComputeClient::load(device)
    }

    /// That of the CUDA runtime: kernels may depend on it.
    fn name(_: &Client) -> &'static str {
        "cuda"
    }

    fn require_array_lengths() -> bool {
        true
    }

    fn max_cube_count() -> (u32, u32, u32) {
        (i32::MAX as u32, u16::MAX as u32, u16::MAX as u32)
    }

    fn can_read_tensor(_: &Shape, _: &Strides) -> bool {
        false
    }

    fn target_properties() -> TargetProperties {
        TargetProperties {
            mma: MmaProperties {
                register_size_bits: 32,
                const_plane_size: 32,
                register_layout_a: MatrixLayout::RowMajor,
                register_layout_b: MatrixLayout::ColMajor,
                register_layout_acc: MatrixLayout::RowMajor,
                register_duplication_a: 1,
                register_duplication_b: 1,
                register_duplication_acc: 1,
                contiguous_elements: ContiguousElements::new(|_, _| 1),
            },
        }
    }

    fn enumerate_devices(_: u16, (): &()) -> Vec<DeviceId> {
        vec![NoDevice.to_id()]
    }
}

#[derive(Debug)]
pub struct Server {
    utilities: Arc<ServerUtilities<Self>>,
}

impl DeviceService for Server {
    fn init(_: DeviceId) -> Self {
        // As the CUDA runtime describes an H200.
        let hardware = HardwareProperties {
            load_width: 128,
            plane_size_min: 32,
            plane_size_max: 32,
            max_bindings: 1024,
            max_shared_memory_size: 227 * 1024,
            max_cube_count: CompileOnly::max_cube_count(),
            max_units_per_cube: 1024,
            max_cube_dim: (1024, 1024, 64),
            num_streaming_multiprocessors: Some(132),
            num_tensor_cores: Some(4),
            min_tensor_cores_dim: Some(8),
            num_cpu_cores: None,
            max_vector_size: VectorSize::MAX,
        };
        let memory = MemoryDeviceProperties { max_page_size: 1 << 37, alignment: 512 };
        let mut properties =
            DeviceProperties::new(Default::default(), memory, hardware, TimingMethod::System);
        cubecl_cpp::register_supported_types(&mut properties);
        let utilities = ServerUtilities::new(
            properties,
            Arc::new(ServerLogger::default()),
            (),
            ContiguousMemoryLayoutPolicy::new(512),
        );
        Self { utilities: Arc::new(utilities) }
    }

    fn utilities(&self) -> Arc<dyn core::any::Any + Send + Sync> {
        self.utilities.clone()
    }
}

impl ServerCommunication for Server {
    const SERVER_COMM_ENABLED: bool = false;
}

impl ComputeServer for Server {
    type Kernel = Box<dyn CubeTask<CudaCompiler>>;
    type Storage = BytesStorage;
    type MemoryLayoutPolicy = ContiguousMemoryLayoutPolicy;
    type Info = ();

    fn logger(&self) -> Arc<ServerLogger> {
        self.utilities.logger.clone()
    }

    fn utilities(&self) -> Arc<ServerUtilities<Self>> {
        self.utilities.clone()
    }

    /// Buffers are never read nor written, so they have no memory.
    fn initialize_memory(&mut self, _: ManagedMemoryHandle, _: u64, _: StreamId) {}

    fn read(
        &mut self,
        _: Vec<CopyDescriptor>,
        _: StreamId,
    ) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        Box::pin(async { Err(unsupported().into()) })
    }

    fn write(&mut self, _: Vec<(CopyDescriptor, Bytes)>, _: StreamId) {}

    fn sync(&mut self, _: StreamId) -> DynFut<Result<(), ServerError>> {
        Box::pin(async { Ok(()) })
    }

    fn get_resource(
        &mut self,
        _: Binding,
        _: StreamId,
    ) -> Result<ManagedResource<BytesResource>, ServerError> {
        Err(unsupported().into())
    }

    #[allow(unsafe_code, reason = "the trait declares it so; nothing is executed")]
    unsafe fn launch(
        &mut self,
        kernel: Self::Kernel,
        _: CubeCount,
        _: KernelArguments,
        mode: ExecutionMode,
        _: StreamId,
    ) {
        let id = format!("{:?} {mode:?}", kernel.id());
        launched().launches += 1;
        if launched().kernels.contains_key(&id) {
            return;
        }
        // A panic while a kernel expands would end the thread of the device without a word.
        let compiled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut options = <CudaCompiler as Compiler>::CompilationOptions::default();
            options.supports_features.grid_constants = true;
            options.supports_features.clusters = true;
            options.supports_features.elect_sync = true;
            options.supports_features.fast_math = true;
            kernel.compile(&mut CudaCompiler::default(), &options, mode, kernel.address_type())
        }));
        let result = match compiled {
            Ok(Ok(compiled)) => {
                let (name, source) = (kernel.name().into(), compiled.source);
                Ok(Kernel { name, id: id.clone(), source })
            }
            Ok(Err(error)) => Err(format!("{error}")),
            Err(_) => Err("it panics while it expands".into()),
        };
        launched().kernels.insert(id, result);
    }

    fn flush(&mut self, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn memory_usage(&mut self, _: StreamId) -> Result<MemoryUsage, ServerError> {
        Err(unsupported().into())
    }

    fn memory_cleanup(&mut self, _: StreamId) {}

    fn start_profile(&mut self, _: StreamId) -> Result<ProfilingToken, ServerError> {
        Err(unsupported().into())
    }

    fn end_profile(
        &mut self,
        _: StreamId,
        _: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        unreachable!("no profile is started")
    }

    fn allocation_mode(&mut self, _: MemoryAllocationMode, _: StreamId) {}
}

fn unsupported() -> IoError {
    IoError::UnsupportedIoOperation { backtrace: cubecl::backtrace::BackTrace::capture() }
}
