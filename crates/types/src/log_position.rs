//! Where and under whose leadership a record was written.

use std::fmt;

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// The one after this. Panics at the end of 64 bits, which no shard reaches.
            #[must_use]
            pub const fn next(self) -> Self {
                match self.0.checked_add(1) {
                    Some(value) => Self(value),
                    None => panic!("a 64-bit counter ran out"),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter! {
    /// The fencing token of one leadership: only grows; an older one may never write again.
    /// 0 is before the first.
    Epoch
}
counter! {
    /// A record's place in its shard's log: no gaps. 0 is before the first.
    Sequence
}
