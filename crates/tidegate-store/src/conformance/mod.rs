//! The contract of a store, executable.
