//! Which floor each crate and each room lies on: a crate or a room imports from its own floor and those below, never from above.

/// The floors of a house, from the ground up.
pub struct Floors {
    /// Packages, by floor.
    pub crates: &'static [&'static [&'static str]],
    /// For a package whose rooms lie on floors of their own: its name, and the rooms by floor.
    ///
    /// A room is a folder or a file of `src`, named without `.rs`. In a package without an entry only circles of files are looked for.
    pub rooms: &'static [(&'static str, &'static [&'static [&'static str]])],
}

/// This repository's.
pub const FLOORS: Floors = Floors {
    crates: &[
        &["burn-fp8-core", "burn-fp8-test-support"],
        &[
            "burn-fp8-checkpoint",
            "burn-fp8-cpu",
            "burn-fp8-cublaslt",
            "burn-fp8-kernels",
            "burn-fp8-report",
        ],
        &["burn-fp8", "burn-fp8-next"],
        &[
            "burn-fp8-bench",
            "burn-fp8-bench-f32",
            "burn-fp8-docs",
            "burn-fp8-gpu-run",
            "char-lm",
            "digits",
            "digits-next",
            "examples-common",
            "fused_matmul",
            "generate",
            "xtask",
        ],
    ],
    rooms: &[
        (
            "burn-fp8",
            &[
                &["host", "peers", "weights"],
                &["engine", "error", "file"],
                &["config", "report"],
                &["product"],
                &["backend", "ops", "tensor"],
                &["nn"],
                &["gains", "optim", "policy"],
                &["lib"],
            ],
        ),
        (
            "burn-fp8-next",
            &[
                &["host", "peers", "weights"],
                &["engine", "error", "file"],
                &["config", "report"],
                &["product"],
                &["backend"],
                &["device"],
                &["ops"],
                &["nn"],
                &["lib"],
            ],
        ),
    ],
};

impl Floors {
    /// The floor of a package, from 0.
    pub fn of_crate(&self, name: &str) -> Option<usize> {
        self.crates.iter().position(|floor| floor.contains(&name))
    }

    /// The floor of a room, from 0.
    pub fn of_room(&self, package: &str, room: &str) -> Option<usize> {
        self.rooms_of(package)?.iter().position(|floor| floor.contains(&room))
    }

    /// The rooms of a package by floor, if they are to keep to floors.
    pub fn rooms_of(&self, package: &str) -> Option<&'static [&'static [&'static str]]> {
        self.rooms.iter().find(|(name, _)| *name == package).map(|(_, floors)| *floors)
    }
}
