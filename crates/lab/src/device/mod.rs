//! Devices that an index lies on: a real one, or the model of one.
//!
//! [`model`] has the numbers, [`clock`] the time that passes by them, [`disk`] the engine's disk that charges it.

pub mod clock;
pub mod disk;
pub mod model;
