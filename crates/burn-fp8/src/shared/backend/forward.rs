//! Writes the methods of the generated `delegate` from their signatures.

/// Methods of a trait. What each of them does with `B`, the wrapped backend:
///
/// | word | what |
/// |---|---|
/// | `[plain]` | calls that of `B` |
/// | `[rewrapped]` | so, and rewraps the result, a struct over the backend |
/// | `[intercepted]` | calls the function of this name in `intercept` |
/// | `[quantized tensor]` | calls that of `B` unless `tensor`, a quantized tensor, holds FP8 |
/// | `[requantized tensor]` | so; the result is, or has, a quantized tensor |
/// | `[flowing lhs rhs]` | so; the result is a `TensorPrimitive` |
/// | `[once grad]` | calls that of `B`, which has no derivative by its argument `grad`: Burn's `Autodiff` would panic |
macro_rules! forward {
    ($how:tt $(
        $(#[$cfg:meta])* fn $name:ident($($argument:ident: $ty:ty),* $(,)?) $(-> $out:ty)?;
    )*) => {$(
        $(#[$cfg])*
        fn $name($($argument: $ty),*) $(-> $out)? {
            call!($how $name $($argument)*)
        }
    )*};
}

macro_rules! call {
    ([plain] $name:ident $($argument:ident)*) => { B::$name($($argument),*) };
    ([rewrapped] $name:ident $($argument:ident)*) => { B::$name($($argument),*).rewrap() };
    ([intercepted] $name:ident $($argument:ident)*) => { intercept::$name::<B>($($argument),*) };
    ([quantized $($taken:ident)+] $name:ident $($argument:ident)*) => {
        quantized!(as_it_is [$($taken)+] $name $($argument)*)
    };
    ([requantized $($taken:ident)+] $name:ident $($argument:ident)*) => {
        quantized!(own [$($taken)+] $name $($argument)*)
    };
    ([flowing $($taken:ident)+] $name:ident $($argument:ident)*) => {
        quantized!(rewrapped [$($taken)+] $name $($argument)*)
    };
    ([once $grad:ident] $name:ident $($argument:ident)*) => {{
        intercept::differentiates_once::<B>(&$grad, stringify!($name));
        B::$name($($argument),*)
    }};
}
