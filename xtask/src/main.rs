//! Tidegate.

fn main() {}
