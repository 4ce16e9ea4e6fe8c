//! Native products have the bits that the model of the card's sums gives, on a simulated device; a real one may split K, and what differs is printed.

use burn_fp8::Sums as OfCard;
use burn_fp8::engine::Untracked;
use burn_fp8::tensor::ScaledMatrix;

use crate::common::*;
use crate::support::is_small;

crate::on_cuda!([
    native_steps_have_the_bits_of_emulated_ones,
    a_matrix_is_added_with_the_bits_of_emulation,
]);

fn card<B: Fp8Matmul>() -> OfCard {
    let Capability::Native(device) = capability::<B>() else { panic!("no tensor cores") };
    match device.compute_capability {
        (8, 9) => OfCard::Ada,
        (9, _) => OfCard::Hopper,
        _ => OfCard::Blackwell,
    }
}

/// `scaled_matmul` with C, of sizes that are padded.
pub fn a_matrix_is_added_with_the_bits_of_emulation<B: Untracked + Fp8Matmul>() {
    let (card, [m, k, n]) = (card::<B>(), [50, 300, 37]);
    let mut random = Random(9);
    let (x, w, c) = (random.units(m * k), random.units(n * k), random.units(m * n));
    let [x, w] = [(x, m), (w, n)]
        .map(|(x, lines)| Fp8Tensor::quantize(tensor::<B, 2>(&x, [lines, k]), E4M3));
    let run = |config: Fp8Config, options: ScaledMatmulOptions<B>, dtype| {
        let c = tensor::<B, 2>(&c, [n, m]).transpose().cast(dtype);
        let options = options.with_c(c, -0.7);
        let product = || scaled_matmul(&x, &w.transpose(), &options).expect("a product");
        let (product, report) = config.scope(|| trace(product));
        let numbers = match product.d {
            ScaledMatrix::Float(d) => bits(&values(d)),
            ScaledMatrix::Fp8(d) => d.to_bytes().into_iter().map(u32::from).collect(),
        };
        let amax = product.amax.map_or(vec![], |amax| bits(&values(amax)));
        (numbers, amax, report)
    };
    for (options, of_c) in [
        (ScaledMatmulOptions::float(FloatDType::F32), FloatDType::F32),
        (ScaledMatmulOptions::float(FloatDType::BF16), FloatDType::BF16),
        (ScaledMatmulOptions::fp8(E4M3, 0.125).with_amax(), FloatDType::F16),
    ] {
        let native = Fp8Config::default().with_execution(Execution::Native);
        let (d, amax, report) = run(native, options.clone(), of_c);
        assert!(matches!(report.products[0].ran, Implementation::Native { .. }), "{report}");
        let emulated =
            Fp8Config::default().with_execution(Execution::FakeQuantized).with_sums(card);
        let (expected, of_expected, _) = run(emulated, options, of_c);
        let differ = d.iter().zip(&expected).filter(|(d, expected)| d != expected).count();
        println!("{of_c:?}: {differ} of {} differ from the sums of {card}", d.len());
        assert!(!is_small() || (differ == 0 && amax == of_expected), "{of_c:?}");
    }
}

/// A linear layer forward and backward, natively and by the host's model.
pub fn native_steps_have_the_bits_of_emulated_ones<B: Untracked + Fp8Matmul>() {
    let card = card::<B>();
    let data = linear_data(8, [140, 150, 130]);
    let native = Fp8Config::default().with_execution(Execution::Native);
    let (step, report) = native.scope(|| trace(|| linear_step::<Outer<B>, 2>(&data, [140, 0])));
    // Asked for what it has, the card runs natively.
    let asked = native.with_sums(card).scope(|| linear_step::<Outer<B>, 2>(&data, [140, 0]));
    assert_eq!(step.each_ref().map(|x| bits(x)), asked.each_ref().map(|x| bits(x)));
    let is_native = |ran: &Implementation| matches!(ran, Implementation::Native { .. });
    assert!(report.fp8().all(|product| is_native(&product.ran)), "{report}");
    let emulated = Fp8Config::default().with_execution(Execution::FakeQuantized).with_sums(card);
    let on_device = emulated.scope(|| linear_step::<Outer<B>, 2>(&data, [140, 0]));
    let on_host = emulated.scope(|| linear_step::<Outer<Flex>, 2>(&data, [140, 0]));
    for (what, index) in [("output", 0), ("grad_input", 1), ("grad_weight", 2)] {
        let [native, device, host] = [&step, &on_device, &on_host].map(|step| bits(&step[index]));
        assert_eq!(device, host, "{what}: the kernel and the host");
        let differ = native.iter().zip(&host).filter(|(native, host)| native != host).count();
        println!("{what}: {differ} of {} differ from the sums of {card}", host.len());
        assert!(differ == 0 || !is_small(), "{what}");
    }
}
