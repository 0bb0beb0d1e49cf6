#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    assert!(onefold_engine::testing::fuzzing::run("similar_regions", bytes), "the target exists");
});
