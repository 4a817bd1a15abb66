//! The operator.
