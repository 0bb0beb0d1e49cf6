#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    assert!(onefold_lab::fuzzing::run("lzjb", bytes), "the target exists");
});
