//! The example of the README runs, and is the one that stands there.
#![cfg(feature = "flex")]

#[rustfmt::skip]
#[test]
fn the_example_runs() {
    use burn::nn::LinearConfig;
    use burn::tensor::{Device, Distribution, Tensor};
    use burn_fp8_next::nn::Fp8Linear;
    use burn_fp8_next::{Fp8Config, Recipe, trace};

    let device = Device::flex().autodiff();
    let layer: Fp8Linear = LinearConfig::new(64, 32).init(&device).into();
    let x = Tensor::<2>::random([16, 64], Distribution::Default, &device);

    let config = Fp8Config::default().with_recipe(Recipe::current());
    let (gradients, report) = config.scope(|| trace(|| layer.forward(x).powi_scalar(2).mean().backward()));
    assert!(layer.weight.grad(&gradients).is_some());
    assert_eq!(report.fp8().count(), 2); // the output, and the gradient of the weight; the input needs none
}

#[test]
fn it_is_that_of_the_readme() {
    let (_, code) = include_str!("../README.md").split_once("```rust\n").expect("an example");
    let (code, _) = code.split_once("```").expect("its end");
    let indented: String = code
        .lines()
        .map(|line| if line.is_empty() { "\n".into() } else { format!("    {line}\n") })
        .collect();
    assert!(include_str!("readme.rs").contains(&indented));
}
