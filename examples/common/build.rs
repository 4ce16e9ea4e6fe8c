//! Nothing: Cargo looks at build dependencies where there is one of these.

fn main() {}
