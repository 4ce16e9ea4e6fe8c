//! Which phases are wanted.

use std::path::Path;

use crate::arguments::Arguments;
use crate::phases::{Half, OTHERS, TEST_PROGRAMS, TESTS, half_of, prefix_of, tests_of};

/// What a command line asks for.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Phases and groups; none for what the halves say.
    names: Vec<String>,
    validation: bool,
    benchmarks: bool,
}

impl Selection {
    /// Fails, naming it, if a phase or a group is unknown. Modules of tests are known only where their program is.
    pub fn new(arguments: &Arguments, archive: Option<&Path>) -> Result<Self, String> {
        for name in &arguments.phases {
            if !is_known(name, archive) {
                return Err(format!("no phase is called {name}: --list lists them"));
            }
        }
        Ok(Self {
            names: arguments.phases.clone(),
            validation: !arguments.bench_only,
            benchmarks: !arguments.validate_only,
        })
    }

    /// Whether a phase of a group runs. A module of tests is wanted by the name of its program, too.
    pub fn wants(&self, phase: &str, group: &str) -> bool {
        if self.names.is_empty() {
            return match half_of(group) {
                Half::Validation => self.validation,
                Half::Benchmarks => self.benchmarks,
            };
        }
        let program = phase.split(':').next().unwrap_or(phase);
        self.names.iter().any(|name| [phase, program, group].contains(&name.as_str()))
    }

    /// Whether phases or groups were named.
    pub fn is_of_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Whether a name was given that begins so.
    pub fn names_one_of(&self, prefix: &str) -> bool {
        self.names.iter().any(|name| name.starts_with(prefix))
    }

    /// Whether benchmarks are to have a part of the time: tests could use all of it.
    pub fn shares_time(&self) -> bool {
        if self.is_of_names() {
            ["bench", "peers", "gpu-"].iter().any(|prefix| self.names_one_of(prefix))
        } else {
            self.validation && self.benchmarks
        }
    }
}

fn is_known(name: &str, archive: Option<&Path>) -> bool {
    if name == TESTS || OTHERS.iter().any(|(phase, group)| [*phase, *group].contains(&name)) {
        return true;
    }
    let (prefix, module) = name.split_once(':').unwrap_or((name, ""));
    let Some(program) = TEST_PROGRAMS.iter().find(|program| prefix_of(program) == prefix) else {
        return false;
    };
    match archive {
        Some(archive) if !module.is_empty() && archive.join("bin").join(program).exists() => {
            let module = format!("{module}::");
            tests_of(archive, program).iter().any(|test| test.starts_with(&module))
        }
        _ => !name.ends_with(':'),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::Selection;
    use crate::arguments::Arguments;

    fn selection(arguments: &[&str]) -> Result<Selection, String> {
        let arguments = Arguments::parse_from([&["run.sh"], arguments].concat());
        Selection::new(&arguments, None)
    }

    #[test]
    fn names_and_groups_are_known() {
        for name in ["tests", "burn-fp8", "burn-fp8-kernels", "burn-fp8:codes", "bench", "digits"] {
            assert!(selection(&["--phases", name]).is_ok(), "{name}");
        }
        for name in ["foo", "burn-fp8-foo", "burn-fp8:", "", "digits:a"] {
            let error = selection(&["--phases", name]).unwrap_err();
            assert_eq!(error, format!("no phase is called {name}: --list lists them"));
        }
    }

    #[test]
    fn a_phase_is_wanted_by_its_name_its_program_its_group_or_its_half() {
        let of_names = selection(&["--phases", "burn-fp8,gpu-host,accuracy"]).unwrap();
        for (phase, group, wanted) in [
            ("burn-fp8:codes", "tests", true),
            ("burn-fp8-kernels:codes", "tests", false),
            ("gpu-host", "bench", true),
            ("gpu-gemm", "bench", false),
            ("accuracy-products", "accuracy", true),
            ("peers", "peers", false),
        ] {
            assert_eq!(of_names.wants(phase, group), wanted, "{phase}");
        }
        let validation = selection(&["--validate-only"]).unwrap();
        assert!(validation.wants("digits", "examples") && !validation.wants("peers", "peers"));
        let benchmarks = selection(&["--bench-only"]).unwrap();
        assert!(!benchmarks.wants("digits", "examples") && benchmarks.wants("peers", "peers"));
    }

    #[test]
    fn time_is_shared_where_both_halves_run() {
        for (arguments, shares) in [
            (&[][..], true),
            (&["--validate-only"], false),
            (&["--phases", "tests"], false),
            (&["--phases", "tests,gpu-host"], true),
        ] {
            assert_eq!(selection(arguments).unwrap().shares_time(), shares, "{arguments:?}");
        }
    }
}
