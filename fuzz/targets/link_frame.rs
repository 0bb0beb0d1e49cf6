#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    assert!(onefold_cdp::link::fuzzing::run("link_frame", bytes), "the target exists");
});
