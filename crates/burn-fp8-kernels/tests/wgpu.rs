//! Every check on wgpu: on Mesa's lavapipe where there is no GPU.

#[macro_use]
mod checks;

type TestRuntime = cubecl::wgpu::WgpuRuntime;

tests!();
