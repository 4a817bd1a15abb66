//! One folder for each kind of object. Controllers never import each other: they meet through objects of the API server.

pub mod peerpod;
pub mod pool;
pub mod sip;
pub mod vm;
