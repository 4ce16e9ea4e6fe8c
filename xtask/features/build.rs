//! Nothing: it is here so that what the packages of build scripts have in common is found.
fn main() {}
