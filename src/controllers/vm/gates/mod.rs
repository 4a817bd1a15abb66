//! Checks before and after the pure steps of a reconcile, for rare cases.

pub mod freshness;
pub mod orphans;
pub mod stopped_claims;
