#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    assert!(onefold_lab::fuzzing::run("image_checkpoint", bytes), "the target exists");
});
