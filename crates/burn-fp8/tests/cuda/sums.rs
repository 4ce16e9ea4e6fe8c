//! Native products have the bits that the model of the card's sums gives, on a simulated device; a real one may split K, and what differs is printed.

use burn_fp8::Sums as OfCard;
use burn_fp8::engine::Untracked;

use crate::common::*;
use crate::support::is_small;

crate::on_cuda!([native_steps_have_the_bits_of_emulated_ones]);

/// A linear layer forward and backward, natively and by the host's model.
pub fn native_steps_have_the_bits_of_emulated_ones<B: Untracked + Fp8Matmul>() {
    let Capability::Native(device) = capability::<B>() else { panic!("no tensor cores") };
    let card = match device.compute_capability {
        (8, 9) => OfCard::Ada,
        (9, _) => OfCard::Hopper,
        _ => OfCard::Blackwell,
    };
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
