//! What a caller can do about an error, whatever crate it comes from.

/// The kinds of failure that cross crate borders. Each says what the caller can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The input is wrong; sending it again will not help.
    Rejected,
    /// The idempotency key belongs to another request (k05).
    Exists,
    /// There is no such paste, or it has ended.
    NotFound,
    /// The delete token is not this paste's (r03).
    Denied,
    /// The queue is full: back off, then send again. Nothing was appended.
    Busy,
    /// The disk is full: creates are refused until there is room. Nothing was appended.
    Full,
    /// This process does not lead the slot. Definite: nothing was appended.
    NotLeader,
    /// Whether it happened is unknown: ask again with the same key.
    Unknown,
    /// Not reachable or not ready. Definite: nothing was appended.
    Unavailable,
    /// The create was in flight for too long (p03): start anew with the same key.
    TooLate,
    /// Stored bytes are not what was written.
    Damaged,
    /// The stored answer cannot be opened (k16).
    Sealed,
}
