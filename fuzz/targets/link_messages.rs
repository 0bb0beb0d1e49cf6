#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    assert!(onefold_cdp::link::fuzzing::run("link_messages", bytes), "the target exists");
});
