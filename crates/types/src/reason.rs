//! The stable reasons of errors on the wire.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The machine-readable reason of an error: the `reason` of a `google.rpc.ErrorInfo` and
        /// the last part of a problem's `type` over HTTP. Once released a reason keeps its text.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// The reason as it stands on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Reads a reason; `None` for one that a newer peer has and this build does not.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    /// A field is missing or malformed.
    InvalidField = "INVALID_FIELD",
    /// A create without an idempotency key (k01).
    KeyMissing = "IDEMPOTENCY_KEY_MISSING",
    /// The idempotency key is no random UUID (k01).
    KeyMalformed = "IDEMPOTENCY_KEY_MALFORMED",
    /// The idempotency key belongs to another request (k05).
    KeyReused = "IDEMPOTENCY_KEY_REUSED",
    /// The stored answer cannot be opened (k16).
    AnswerNotOpened = "ANSWER_NOT_OPENED",
    /// The ticket is not of this cluster, or not of this request.
    TicketRejected = "TICKET_REJECTED",
    /// The create was in flight for more than its bound (p03).
    CreateTooLate = "CREATE_TOO_LATE",
    /// The paste id was taken between begin and commit.
    IdTaken = "ID_TAKEN",
    /// The paste never existed, or has ended.
    PasteNotFound = "PASTE_NOT_FOUND",
    /// The delete token is not this paste's (r03).
    TokenRejected = "DELETE_TOKEN_REJECTED",
    /// The process does not lead this slot.
    WrongShard = "WRONG_SHARD",
    /// Another process leads this shard, or is about to (f06). Nothing was appended.
    NotLeader = "NOT_LEADER",
    /// The call is for another cluster than the process is of. Nothing was done.
    WrongCluster = "WRONG_CLUSTER",
    /// The queue of the shard is full.
    Overloaded = "OVERLOADED",
    /// There is no room on the disk.
    DiskFull = "DISK_FULL",
    /// The shard is starting, stopping, or out of reach before anything was sent.
    NotReady = "NOT_READY",
    /// It may or may not have happened.
    OutcomeUnknown = "OUTCOME_UNKNOWN",
    /// Stored bytes are not what was written.
    Damaged = "DAMAGED",
    /// The row is there and its object is not (r07).
    BodyMissing = "BODY_MISSING",
    /// The object is not what the row says.
    BodyDamaged = "BODY_DAMAGED",
    /// The object store does not answer.
    BodyStoreDown = "BODY_STORE_DOWN",
    /// A body of no bytes.
    EmptyBody = "EMPTY_BODY",
    /// A body over the limit.
    BodyTooLarge = "BODY_TOO_LARGE",
    /// A delete without a token.
    TokenMissing = "DELETE_TOKEN_MISSING",
    /// No consumer of this name is registered with the shard.
    UnknownConsumer = "UNKNOWN_CONSUMER",
    /// A shard has 64 consumers at most.
    TooManyConsumers = "TOO_MANY_CONSUMERS",
    /// There is no such dead letter, or it is over its age.
    DeadLetterNotFound = "DEAD_LETTER_NOT_FOUND",
    /// The deadline passed; it may have happened.
    DeadlineExceeded = "DEADLINE_EXCEEDED",
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
