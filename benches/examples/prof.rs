//! prof
use burn::backend::{Autodiff, Flex};
use burn_fp8::Fp8Backend;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let threads: usize = a[2].parse().unwrap();
    let mut run = char_lm::training_steps::<Fp8Backend<Autodiff<Flex>>>(
        char_lm::Size::Medium,
        a[1].parse().unwrap(),
    )
    .unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        run();
        for _ in 0..3 {
            let t = std::time::Instant::now();
            run();
            eprintln!("{} {} {:.0} ms", a[1], threads, t.elapsed().as_secs_f64() * 1e3);
        }
    });
}
