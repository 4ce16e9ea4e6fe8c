//! The code blocks of the README and of the chapters, as doctests. They lie in a package of their own because a published package
//! cannot read files outside of its folder.

/// Makes doctests of Markdown files, each under a name that a failure tells.
macro_rules! documents {
    ($($name:ident = $file:literal;)*) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!($file)]
            pub struct $name;
        )*

        #[cfg(test)]
        const FILES: &[&str] = &[$($file),*];
    };
}

documents! {
    Readme = "../README.md";
    DelayedScaling = "delayed-scaling.md";
    FormatsAndRecipes = "formats-and-recipes.md";
    GpuHosts = "gpu-hosts.md";
    Hardware = "hardware.md";
    Layers = "layers.md";
    Limits = "limits.md";
    ManyMachines = "many-machines.md";
    MixedPrecision = "mixed-precision.md";
    Observatory = "observatory.md";
    OptimizerMemory = "optimizer-memory.md";
    ScaledMatmul = "scaled-matmul.md";
    Serving = "serving.md";
    WhatAGpuComputes = "what-a-gpu-computes.md";
    WhatRunsInFp8 = "what-runs-in-fp8.md";
}

#[cfg(test)]
#[test]
fn every_chapter_with_code_is_compiled() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        if name.ends_with(".md") && !FILES.contains(&name) {
            let text = std::fs::read_to_string(&path).expect("a text");
            assert!(!text.contains("```rust"), "{name} has code; name it in lib.rs");
        }
    }
}
