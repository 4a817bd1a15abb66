//! Rare cases, before and after the pure steps of a reconcile.

pub mod freshness;
pub mod orphans;
