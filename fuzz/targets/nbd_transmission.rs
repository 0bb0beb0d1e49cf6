#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    assert!(onefold_cdp::nbd::fuzzing::run("nbd_transmission", bytes), "the target exists");
});
