//! Products on the tensor cores of CUDA devices, through cuBLASLt.

mod buffer;
mod device;
mod launch;
mod multiply;
mod problem;

pub(super) use device::capability;
pub(super) use multiply::multiply;
pub(super) use problem::check;
