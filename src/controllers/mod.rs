//! One folder for each kind of object. Controllers never import each other.

pub mod vm;
