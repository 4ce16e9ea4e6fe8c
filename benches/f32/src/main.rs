//! Runs f32 as Burn builds it by default: one run for each line on standard input, answered by a line on standard output.
//!
//! `burn-fp8-bench-f32 mlp-step | mlp-passes | gemm M N K`; threads by `RAYON_NUM_THREADS`.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use burn::backend::{Autodiff, Flex};
use burn::optim::SgdConfig;
use burn_fp8_bench_f32::{Gemm, Mlp, passes, steps};

type B = Autodiff<Flex>;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let Some(run) = runner(&arguments) else {
        eprintln!("usage: burn-fp8-bench-f32 mlp-step | mlp-passes | gemm M N K");
        return ExitCode::FAILURE;
    };
    // On a thread of the pool, as the benchmarks run what it is compared with.
    let pool = rayon::ThreadPoolBuilder::new().build().expect("a pool of a few threads");
    match pool.install(|| answer(run)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn runner(arguments: &[String]) -> Option<Box<dyn FnMut() + Send>> {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["mlp-step"] => Some(Box::new(steps::<B, Mlp<B>, _>(Mlp::new, SgdConfig::new().init()))),
        ["mlp-passes"] => Some(Box::new(passes::<B, Mlp<B>>(Mlp::new))),
        ["gemm", m, n, k] => {
            let mut gemm = Gemm::new([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?]);
            Some(Box::new(move || gemm.run()))
        }
        _ => None,
    }
}

fn answer(mut run: Box<dyn FnMut() + Send>) -> io::Result<()> {
    let mut output = io::stdout();
    let mut say = || writeln!(output).and_then(|()| output.flush());
    say()?;
    for line in io::stdin().lock().lines() {
        line?;
        run();
        say()?;
    }
    Ok(())
}
