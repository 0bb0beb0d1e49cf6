#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    assert!(onefold_engine::testing::fuzzing::run("manifest", bytes), "the target exists");
});
