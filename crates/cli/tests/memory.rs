//! `--memory`: what a command takes altogether, by the kernel's own count.

use crate::place::{Place, Ran};

/// What a command may take beside its budget: the program, its stacks, what the allocator cannot use.
const BESIDE_BYTES: u64 = 64 << 20;
/// The smallest budget, which [`Place`] runs every command with.
const BUDGET_BYTES: u64 = 64 << 20;

/// Returns bytes that neither compress nor repeat, the same for the same seed. (SplitMix64.)
fn noise(seed: u64, words: usize) -> Vec<u8> {
    let mut state = seed;
    let word = |_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31).to_le_bytes()
    };
    (0..words).flat_map(word).collect()
}

/// Returns text that compresses to about a quarter and does not repeat.
fn text(seed: u64, words: usize) -> Vec<u8> {
    noise(seed, words)
        .chunks(2)
        .flat_map(|pair| format!("value = {};\n", u16::from_le_bytes([pair[0], pair[1]])).into_bytes())
        .collect()
}

#[track_caller]
fn assert_within_budget(ran: &Ran) {
    let peak = ran.messages().pop().unwrap()["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak < BUDGET_BYTES + BESIDE_BYTES, "{} MiB of memory", peak >> 20);
}

#[test]
fn no_command_takes_more_than_its_budget_and_64_mib() {
    let place = Place::encrypted();
    place.write("noise", &noise(1, 6 << 20));
    place.write("text", &text(2, 1 << 20));
    for number in 0..2000 {
        place.write(&format!("small/{number}"), &text(1000 + number, 200));
    }
    let source = place.path("source");
    let target = place.path("target");
    let (source, target) = (source.to_str().unwrap(), target.to_str().unwrap());
    assert_within_budget(&place.run(["backup", source, "--json"]).code(0));
    assert_within_budget(&place.run(["backup", source, "--force", "--json"]).code(0));
    assert_within_budget(&place.run(["restore", "latest", "--target", target, "--json"]).code(0));
    assert_within_budget(&place.run(["check", "--read-data", "--json"]).code(0));
}
