//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Checks that this machine has what is needed, validates burn-fp8 on its GPU, then measures it
///
/// Writes results.json, table.txt, table.md and a log for each phase into the output folder.
///
/// Uses the first GPU of CUDA_VISIBLE_DEVICES, numbered as nvidia-smi numbers them, or else the first of compute capability 8.9.
///
/// Exit status: 0 all passed; 1 something failed, was cut short, or missed a target; 2 this machine lacks something, or the
/// command line is wrong.
#[derive(Clone, Debug, Parser)]
#[command(name = "run.sh", version, args_override_self = true)]
pub struct Arguments {
    /// Output folder [default: burn-fp8-gpu-results]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Only check what this machine has
    #[arg(long)]
    pub check_only: bool,
    /// No benchmarks
    #[arg(long)]
    pub validate_only: bool,
    /// Benchmarks only
    #[arg(long, conflicts_with = "validate_only")]
    pub bench_only: bool,
    /// Fewer and smaller cases; ends within 8 minutes
    #[arg(long)]
    pub quick: bool,
    /// End within N seconds
    ///
    /// What does not fit is cut short or left out, and reported as such; half of the time is kept for benchmarks where both are
    /// wanted. 0 sets no limit.
    #[arg(long, value_name = "N")]
    pub seconds: Option<u64>,
    /// Only these phases, as --list names them, or groups
    ///
    /// Groups: tests, burn-fp8, burn-fp8-cublaslt, burn-fp8-kernels, sanitizer, accuracy, examples, peers, bench.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub phases: Vec<String>,
    /// List the phases and end
    #[arg(long)]
    pub list: bool,
    /// The Python whose torch is compared with
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub python: PathBuf,
}

impl Arguments {
    /// Within what all phases have to end.
    pub(crate) fn limit(&self) -> Option<Duration> {
        let seconds = self.seconds.or(self.quick.then_some(480)).filter(|seconds| *seconds > 0);
        seconds.map(Duration::from_secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_ends_within_eight_minutes_unless_told_otherwise() {
        let limit =
            |arguments: &[&str]| Arguments::parse_from([&["run.sh"], arguments].concat()).limit();
        assert_eq!(limit(&[]), None);
        assert_eq!(limit(&["--quick"]), Some(Duration::from_secs(480)));
        assert_eq!(limit(&["--quick", "--seconds", "60"]), Some(Duration::from_secs(60)));
        assert_eq!(limit(&["--seconds", "0"]), None);
    }
}
