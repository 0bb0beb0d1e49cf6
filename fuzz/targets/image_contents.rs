#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    assert!(onefold_lab::fuzzing::run("image_contents", bytes), "the target exists");
});
