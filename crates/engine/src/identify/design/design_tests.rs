//! Every value of every dimension is read, printed and built, and combinations that cannot work are refused.

use crate::identify::design::dimension::Values;
use crate::identify::design::division::NO_FILTER_BYTES;
use crate::identify::design::{DIMENSIONS, Design, RULES, Size, Sizes};
use crate::identify::options::{IndexOptions, Order, Schedule, StoreKind, WindowRule};
use crate::identify::{IndexPreset, PrefetchUnit, Sampling, Segmenting};
use crate::random::SplitMix64;

/// Returns values of a dimension as text: all names, or the limits and what is between.
fn values_of(number: usize) -> Vec<String> {
    let between = |least: u64, most: u64| [least, least + (most - least) / 3, most];
    match &DIMENSIONS[number].values {
        Values::Choice(choice) => choice.names().into_iter().map(str::to_owned).collect(),
        Values::Number { limits, .. } => between(*limits.start(), *limits.end()).map(|it| it.to_string()).to_vec(),
        Values::Size { limits, .. } => between(*limits.start(), *limits.end()).map(|it| Size(it).text()).to_vec(),
    }
}

/// Returns designs in which different dimensions have an effect: the default, and those with one other name.
fn contexts() -> Vec<Design> {
    let is_choice = |number: &usize| matches!(DIMENSIONS[*number].values, Values::Choice(_));
    let choices = (0..DIMENSIONS.len()).filter(is_choice);
    let all = choices.flat_map(|number| values_of(number).into_iter().map(move |text| (DIMENSIONS[number].name, text)));
    let others = all.map(|(name, text)| Design::with(&[(name, &text)]).unwrap());
    [Design::default()].into_iter().chain(others).collect()
}

#[test]
fn every_value_of_every_dimension_is_read_and_printed_as_it_is_written() {
    let contexts = contexts();
    for (number, dimension) in DIMENSIONS.iter().enumerate() {
        for text in values_of(number) {
            let mut effects = 0;
            for context in &contexts {
                let mut design = context.clone();
                dimension.set(&mut design, &text).unwrap();
                match dimension.get(&design) {
                    Some(printed) => {
                        assert_eq!(printed, text, "{}", dimension.name);
                        effects += 1;
                    }
                    None => assert_eq!(&design, context, "{}={text}", dimension.name),
                }
            }
            assert!(0 < effects, "{}={text} has no effect anywhere", dimension.name);
        }
    }
}

#[test]
fn each_dimension_changes_a_part_of_the_design_that_no_other_one_changes() {
    for (number, dimension) in DIMENSIONS.iter().enumerate() {
        for context in contexts() {
            let before = context.assignments();
            for text in values_of(number) {
                let mut design = context.clone();
                dimension.set(&mut design, &text).unwrap();
                let after = design.assignments();
                let is_choice = matches!(dimension.values, Values::Choice(_));
                for (name, value) in &before {
                    let kept = after.iter().find(|(other, _)| other == name).map(|(_, value)| value);
                    // A name decides whether other dimensions have an effect, and these begin with their defaults.
                    assert!(
                        *name == dimension.name || is_choice || kept == Some(value),
                        "{}={text}: {name}",
                        dimension.name
                    );
                }
            }
        }
    }
}

/// Draws a value for some dimensions.
fn drawn(random: &mut SplitMix64) -> Vec<(&'static str, String)> {
    let mut assignments = Vec::new();
    for (number, dimension) in DIMENSIONS.iter().enumerate() {
        if random.below(3) == 0 {
            let values = values_of(number);
            assignments.push((dimension.name, values[random.index(values.len())].clone()));
        }
    }
    assignments
}

fn as_text<'a>(assignments: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    assignments.iter().map(|(name, text)| (*name, &**text)).collect()
}

#[test]
fn a_design_that_is_printed_and_read_is_the_same_and_the_order_does_not_matter() {
    let mut random = SplitMix64::new(19);
    for _ in 0..1_000 {
        let mut assignments = drawn(&mut random);
        let design = Design::with(&as_text(&assignments)).unwrap();
        assert_eq!(Design::with(&as_text(&design.assignments())).unwrap(), design, "{assignments:?}");
        for last in (1..assignments.len()).rev() {
            assignments.swap(last, random.index(last + 1));
        }
        assert_eq!(Design::with(&as_text(&assignments)).unwrap(), design, "{assignments:?}");
    }
}

#[test]
fn names_and_help_texts_are_there_once() {
    for (number, dimension) in DIMENSIONS.iter().enumerate() {
        assert!(!dimension.about.is_empty() && !dimension.accepted().is_empty());
        assert!(DIMENSIONS[..number].iter().all(|before| before.name != dimension.name), "{}", dimension.name);
    }
}

#[test]
fn values_beyond_the_limits_and_unknown_names_are_refused() {
    let refused = |name: &str, text: &str| Design::with(&[(name, text)]).unwrap_err().to_string();
    for text in ["many", "-1", "0", "4294967296", ""] {
        assert_eq!(refused("threshold", text), format!("threshold={text}: it takes 1 to 1048576"));
    }
    // It has no effect on the default schedule, and is read all the same.
    assert_eq!(Design::with(&[("threshold", "7")]).unwrap(), Design::default());
    assert_eq!(refused("filter-hashes", "11"), "filter-hashes=11: it takes 1 to 10");
    assert_eq!(refused("schedule", "lasy"), "schedule=lasy: it takes eager, lazy, pool, exhaustive, adaptive");
    assert_eq!(refused("memory", "1000"), "memory=1000: it takes size of 1M to 16T");
    assert!(refused("memory", "lots").starts_with("memory: \"lots\": not a size; "));
    assert!(refused("memory", "99999999T").starts_with("memory: \"99999999T\": more than "));
    assert_eq!(refused("treshold", "4"), "there is no dimension \"treshold\"");
    let mut design = Design::default();
    design.options.filter_hashes = 11;
    assert_eq!(design.check().unwrap_err().to_string(), "filter-hashes=11: it takes 1 to 10");
    let small = Design { sizes: Sizes::of(Size(1000)), ..Design::default() };
    assert_eq!(small.build().unwrap_err().to_string(), "memory=1000: it takes size of 1M to 16T");
}

#[test]
fn each_combination_that_cannot_work_is_refused_with_its_reason() {
    const NEAR: (&str, &str) = ("completeness", "near-exact");
    let examples: [&[(&str, &str)]; 16] = [
        &[("store-size", "1M")],
        &[("store", "memory"), ("memtable-size", "1M")],
        &[("store", "memory"), ("run-order", "newest-first")],
        &[("order", "none"), ("filter-size", "1")],
        &[("order", "cache-first"), ("prelookup", "never")],
        &[("unit", "container"), ("window-records", "0")],
        &[("segment-max", "100")],
        &[("unit", "segment"), ("sampling-ratio", "100")],
        &[("selection", "top")],
        &[("unit", "segment"), ("selection", "mix"), ("prelookup", "never")],
        &[("unit", "segment"), ("selection", "all"), ("following", "1")],
        &[("mapping", "2")],
        &[NEAR],
        &[NEAR, ("unit", "container"), ("sampling", "all")],
        &[NEAR, ("unit", "container")],
        &[NEAR, ("unit", "segment"), ("order", "none"), ("selection", "top")],
    ];
    assert_eq!(examples.len(), RULES.len());
    for (example, rule) in examples.into_iter().zip(RULES) {
        let design = Design::with(example).unwrap();
        assert_eq!(design.check().unwrap_err().to_string(), rule.reason);
        assert!(design.build().is_err());
        // Each of the dimensions is needed for the refusal, and the reason names one of them.
        for left_out in 0..example.len() {
            let others = [&example[..left_out], &example[left_out + 1..]].concat();
            let others = Design::with(&others).unwrap();
            assert!(!(rule.is_broken)(&others), "{example:?}");
        }
        assert!(example.iter().any(|(name, _)| rule.reason.contains(name)), "{example:?}: {}", rule.reason);
    }
}

#[test]
fn text_builds_the_options_that_the_mechanism_reads() {
    let design = Design::with(&[
        ("threshold", "4"),
        ("schedule", "lazy"),
        ("following", "3"),
        ("unit", "segment"),
        ("segmenting", "fixed"),
        ("segment-chunks", "77"),
        ("sampling", "uniform"),
        ("sampling-ratio", "9"),
        ("window", "fixed"),
        ("window-records", "512"),
        ("memory", "64M"),
        ("memtable-size", "5M"),
    ]);
    let options = design.unwrap().build().unwrap();
    assert_eq!(options.schedule, Schedule::Lazy { threshold: 4 });
    assert_eq!(options.unit, PrefetchUnit::Segment { following: 3 });
    assert_eq!(options.segmenting, Segmenting::Fixed { chunks: 77 });
    assert_eq!(options.sampling, Sampling::Uniform { ratio: 9 });
    assert_eq!((options.window, options.memtable_bytes), (WindowRule::Fixed(512), 5 << 20));
    let content = Design::with(&[("segment-chunks", "500"), ("segment-min", "10"), ("segment-max", "900")]).unwrap();
    assert_eq!(content.options.segmenting, Segmenting::ContentDefined { min: 10, average: 500, max: 900 });
}

#[test]
fn dimensions_of_presets_are_those_in_which_they_differ_from_the_default() {
    for preset in IndexPreset::all() {
        let design = Design::with(preset.dimensions()).unwrap();
        design.build().unwrap();
        let printed = design.assignments();
        for (name, text) in preset.dimensions() {
            assert!(printed.iter().any(|(known, value)| known == name && value == text), "{preset:?}: {name}");
        }
    }
}

#[test]
fn parts_without_a_size_take_the_rest() {
    let with = |assignments: &[(&str, &str)]| Design::with(&[&[("memory", "64M")], assignments].concat()).unwrap();
    let built = |assignments: &[(&str, &str)]| with(assignments).build().unwrap();
    let refused = |assignments: &[(&str, &str)]| with(assignments).build().unwrap_err().to_string();
    let options = built(&[]);
    assert_eq!(options.memory_bytes(), 64 << 20);
    assert!(24 << 20 < options.filter_bytes_max, "{options:?}");
    assert_eq!(options.filter_bytes, options.filter_bytes_max / 16);
    let is_filled = |options: &IndexOptions| {
        let taken = options.memory_bytes();
        ((64 << 20) - 1024..=64 << 20).contains(&taken)
    };
    let options = built(&[("filter-size", "16M"), ("schedule", "eager")]);
    assert!(options.filter_bytes == 16 << 20 && 8 << 20 < options.cache_bytes && is_filled(&options), "{options:?}");
    let options = built(&[("filter-size", "16M"), ("schedule", "eager"), ("cache-size", "1M")]);
    assert_eq!((options.filter_bytes, options.cache_bytes), (16 << 20, 1 << 20));
    assert!(options.memory_bytes() < 64 << 20);
    let options = built(&[("order", "none")]);
    assert_eq!((options.order, options.filter_bytes), (Order::Unfiltered, NO_FILTER_BYTES));
    assert!(20 << 20 < options.cache_bytes && options.memory_bytes() <= 64 << 20, "{options:?}");
    assert!(refused(&[("filter-size", "64M")]).contains("more than 64 MiB"));
    let options = built(&[("store", "memory")]);
    assert!(options.store == StoreKind::Memory { bytes: 32 << 20 } && is_filled(&options), "{options:?}");
    let too_large = refused(&[("store", "memory"), ("store-size", "64M")]);
    assert!(too_large.contains("store 64 MiB") && too_large.contains("more than 64 MiB"), "{too_large}");
    // No size that text can have leads to an overflow.
    for part in ["memtable-size", "filter-size", "cache-size"] {
        assert!(refused(&[(part, "16T")]).contains("more than 64 MiB"), "{part}");
    }
}
