//! Structs of counts that only grow, and counts as numbers to calculate with.

/// Declares a struct of counts, with their sum and their growth.
macro_rules! counts {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// Returns the growth since earlier counts.
            #[must_use]
            pub fn since(&self, before: &Self) -> Self {
                Self { $($field: self.$field - before.$field,)* }
            }

            /// Adds other counts.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}
pub(crate) use counts;

/// Returns a count as a number to calculate with.
#[expect(clippy::cast_precision_loss, reason = "estimates, and figures for people")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}
