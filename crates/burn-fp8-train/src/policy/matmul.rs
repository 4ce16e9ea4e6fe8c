//! What a policy says of matrix products: the key `m`.

use burn_fp8::Fp8Config;
use burn_fp8_core::{Formats, Recipe};

/// How matrix products run under a [`Policy`](super::Policy) that has the key `m`.
///
/// It is put on top of the [`Fp8Config`] in force: it switches FP8 off, or gives it a recipe; filter and execution stay.
/// Products of a backend without [`Fp8Backend`](burn_fp8::Fp8Backend) around it are in high precision whatever a policy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MatmulPolicy {
    /// `high`: FP8 is off.
    High,
    /// `bf16`: no FP8, but bf16: [`Recipe::bf16`].
    Bf16,
    /// `fp8`: FP8 with current scaling, the default recipe: [`Recipe::current`].
    Fp8,
    /// `fp8_e4m3`: current scaling, every operand in E4M3.
    Fp8E4m3,
    /// `fp8_rowwise`: [`Recipe::rowwise`].
    Fp8Rowwise,
    /// `fp8_rowwise_e4m3`: the same, every operand in E4M3.
    Fp8RowwiseE4m3,
    /// `mxfp8`: [`Recipe::mxfp8`].
    Mxfp8,
    /// `fp8_block`: [`Recipe::blockwise`].
    Fp8Block,
    /// `fp8_block_f32`: the same, scales in f32.
    Fp8BlockF32,
    /// `fp8_delayed`: [`Recipe::delayed`].
    Fp8Delayed,
    /// `fp8_delayed_e4m3`: the same, every operand in E4M3.
    Fp8DelayedE4m3,
}

/// Each with its name and, where it has one, its recipe.
const TABLE: [(MatmulPolicy, &str, Option<Recipe>); 11] = [
    (MatmulPolicy::High, "high", None),
    (MatmulPolicy::Bf16, "bf16", Some(Recipe::bf16())),
    // `Recipe::default()`, which is not const; a test compares them.
    (MatmulPolicy::Fp8, "fp8", Some(Recipe::current())),
    (MatmulPolicy::Fp8E4m3, "fp8_e4m3", Some(Recipe::current().with_formats(Formats::E4M3))),
    (MatmulPolicy::Fp8Rowwise, "fp8_rowwise", Some(Recipe::rowwise())),
    (
        MatmulPolicy::Fp8RowwiseE4m3,
        "fp8_rowwise_e4m3",
        Some(Recipe::rowwise().with_formats(Formats::E4M3)),
    ),
    (MatmulPolicy::Mxfp8, "mxfp8", Some(Recipe::mxfp8())),
    (MatmulPolicy::Fp8Block, "fp8_block", Some(Recipe::blockwise())),
    (
        MatmulPolicy::Fp8BlockF32,
        "fp8_block_f32",
        Some(Recipe::blockwise().with_power_of_two(false)),
    ),
    (MatmulPolicy::Fp8Delayed, "fp8_delayed", Some(Recipe::delayed())),
    (
        MatmulPolicy::Fp8DelayedE4m3,
        "fp8_delayed_e4m3",
        Some(Recipe::delayed().with_formats(Formats::E4M3)),
    ),
];

impl MatmulPolicy {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.into_iter().map(|(policy, ..)| policy)
    }

    /// The value of the key `m` that means it.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The recipe; none where it is off.
    pub fn recipe(self) -> Option<Recipe> {
        self.row().2
    }

    /// The same configuration, with FP8 off or on with the recipe.
    pub fn configure(self, config: Fp8Config) -> Fp8Config {
        match self.recipe() {
            Some(recipe) => Fp8Config { enabled: true, ..config.with_recipe(recipe) },
            None => Fp8Config { enabled: false, ..config },
        }
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::all().find(|policy| policy.name() == name)
    }

    fn row(self) -> (Self, &'static str, Option<Recipe>) {
        TABLE.into_iter().find(|(policy, ..)| *policy == self).expect("every policy has a row")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fp8_is_the_default_recipe() {
        assert_eq!(MatmulPolicy::Fp8.recipe(), Some(Recipe::default()));
    }
}
