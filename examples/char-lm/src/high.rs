//! What a run keeps out of FP8 although the rest is in it, by name.

use std::fmt;
use std::str::FromStr;

use burn_fp8::GemmRole;
use serde::{Deserialize, Serialize};

use crate::model::{LayerKind, Layers};

/// What stays in high precision although the rest runs in FP8. In JSON it is its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum High {
    /// All products of one role.
    Role(GemmRole),
    /// All products of some layers.
    Layers(Layers),
}

impl High {
    /// Each role and each kind of layer.
    fn parts() -> impl Iterator<Item = Self> {
        let roles = [GemmRole::Output, GemmRole::GradInput, GemmRole::GradWeight].map(Self::Role);
        let kinds = LayerKind::ALL.map(|kind| Self::Layers(Layers::Kind(kind)));
        roles.into_iter().chain(kinds)
    }
}

impl fmt::Display for High {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role(role) => write!(f, "{role}"),
            Self::Layers(layers) => write!(f, "{layers}"),
        }
    }
}

impl FromStr for High {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let named = Self::parts().find(|high| high.to_string() == name);
        named.or_else(|| of_block(name).map(Self::Layers)).ok_or_else(|| {
            let parts: Vec<_> = Self::parts().map(|high| high.to_string()).collect();
            let layers = LayerKind::OF_BLOCK.map(|kind| format!("block0.{}", kind.as_str()));
            let (parts, layers) = (parts.join(", "), layers.join(", "));
            format!("no such role or layer; there are {parts}, block0, block1, …, {layers}, …")
        })
    }
}

impl From<High> for String {
    fn from(high: High) -> Self {
        high.to_string()
    }
}

impl TryFrom<String> for High {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

/// `block0`, or a layer of it, as the observatory calls it: `block0.qkv`.
fn of_block(name: &str) -> Option<Layers> {
    let (block, layer) = match name.split_once('.') {
        Some((block, layer)) => (block, Some(layer)),
        None => (name, None),
    };
    let index = block.strip_prefix("block")?.parse().ok()?;
    let layers = match layer {
        Some(layer) => {
            let mut kinds = LayerKind::OF_BLOCK.into_iter();
            Layers::One(index, kinds.find(|kind| kind.as_str() == layer)?)
        }
        None => Layers::Block(index),
    };
    // `block+1` and `block01` are numbers, too.
    (layers.to_string() == name).then_some(layers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Gpt;
    use crate::precision::Setup;
    use crate::size::Size;
    use burn::backend::{Autodiff, Flex};
    use burn::tensor::{Int, Tensor};
    use burn_fp8::{Fp8Backend, ProductKind, trace};

    type B = Fp8Backend<Autodiff<Flex>>;

    #[test]
    fn names_lead_back() {
        let names =
            "output grad_input grad_weight qkv projection up down head block0 block1 block1.down";
        for name in names.split(' ') {
            assert_eq!(name.parse::<High>().map(|high| high.to_string()), Ok(name.into()));
        }
        for name in ["blocks", "block01", "block+1", "block0.", "block0.head", "block.qkv", "Qkv"] {
            let error = name.parse::<High>().unwrap_err();
            for known in ["grad_weight", "head", "block1", "block0.projection"] {
                assert!(error.contains(known), "{name}: {error}");
            }
        }
    }

    /// The linear products of a training step by role, each as outputs and inputs of its layer, in the order of the layers: those in FP8,
    /// then those that are not. Of a layer that is not, the trace has the forward product alone.
    fn products(precision: &str, high: Option<&str>, role: GemmRole) -> [Vec<[usize; 2]>; 2] {
        let high = high.map(|name| name.parse().expect("a part"));
        let setup = Setup::new(precision.parse().expect("a precision"), high).expect("a setup");
        let shape = Size::Smoke.shape();
        let model = setup.layers(Gpt::<B>::new(&shape, 64, &Default::default())).expect("a model");
        let text = || Tensor::<B, 2, Int>::ones([shape.batch, shape.context], &Default::default());
        let step = || model.loss(text(), text()).backward();
        let (_, report) = setup.scope(|| trace(step));
        [true, false].map(|fp8| {
            let products = report.products.iter().filter(|product| {
                product.kind == ProductKind::Linear
                    && product.role == role
                    && product.lhs.is_some() == fp8
            });
            let layers = products.map(|product| match (role, product.gemm) {
                (GemmRole::Output, gemm) => [gemm.n, gemm.k],
                (GemmRole::GradInput, gemm) => [gemm.k, gemm.n],
                (GemmRole::GradWeight, gemm) => [gemm.n, gemm.m],
            });
            let mut layers: Vec<_> = layers.collect();
            // The backward pass comes to the layers the other way round.
            if role != GemmRole::Output {
                layers.reverse();
            }
            layers
        })
    }

    #[test]
    fn one_layer_alone_runs_in_high_precision() {
        // Of width 32, with 64 characters: qkv, projection, up and down of two blocks, and the head.
        let block = [[96, 32], [32, 32], [128, 32], [32, 128]];
        let layers = [&block[..], &block[..], &[[64, 32]]].concat();
        for precision in ["m=fp8", "layers=fp8"] {
            for role in [GemmRole::Output, GemmRole::GradInput, GemmRole::GradWeight] {
                assert_eq!(products(precision, None, role), [layers.clone(), vec![]]);
                for (name, place) in [("block0.qkv", 0), ("block0.down", 3), ("block1.up", 6)] {
                    let mut fp8 = layers.clone();
                    let high = vec![fp8.remove(place)];
                    let high = if role == GemmRole::Output { high } else { vec![] };
                    let found = products(precision, Some(name), role);
                    assert_eq!(found, [fp8, high], "{precision} without {name}, {role}");
                }
            }
        }
    }
}
