//! Integration tests of the engine, one binary.
