//! Integration tests of the engine. They are a module of its unit tests, so that the parts that they reach need not be public.

#![expect(clippy::print_stdout, reason = "tests stop at a surprise and tell what they tried")]

mod bases;
mod condemned;
mod copying;
mod crash;
mod damage;
mod deleting;
mod depending;
mod deriving;
mod devices;
mod drivers;
mod erasing;
mod exactness;
mod forgetting;
mod hostile;
mod inspecting;
mod interrupting;
mod ledger;
mod manifests;
mod marking;
mod moving;
mod object_store;
mod old_formats;
mod property;
mod pruning;
mod quarantining;
mod quick;
mod races;
mod rebuilding;
mod refreshing;
mod regressions;
mod rehearsing;
mod repairing;
mod replacing;
mod restore_faults;
mod sessions;
mod similar;
mod sources;
mod standing;
mod stopping;
mod support;
mod taking_apart;
mod undecided;
mod volumes;
mod why;
