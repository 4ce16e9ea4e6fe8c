//! Writes the methods of the generated `delegate` from their signatures.

/// Methods of a trait. What each of them does with `B`, the wrapped backend:
///
/// | word | what |
/// |---|---|
/// | `[plain]` | calls that of `B` |
/// | `[rewrapped]` | so, and rewraps the result, a struct over the backend |
/// | `[intercepted]` | calls the function of this name in `intercept` |
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
    ([once $grad:ident] $name:ident $($argument:ident)*) => {{
        intercept::differentiates_once::<B>(&$grad, stringify!($name));
        B::$name($($argument),*)
    }};
}
