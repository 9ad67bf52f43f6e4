//! Tests of definitions, creations and patches.
