//! What went wrong, and what the caller can do.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use ostraca_proto::v1;
use ostraca_types::{ErrorKind, Reason};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Why a call did not succeed. Its text comes from the shard or from here, and carries no key,
/// token or body.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    reason: Option<Reason>,
    message: String,
    retry_after: Option<Duration>,
    metadata: HashMap<String, String>,
}

impl Error {
    /// What the caller can do.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The stable reason; `None` where nobody of ours answered, or a newer peer has a reason that
    /// this build does not know.
    #[must_use]
    pub const fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// How long to wait before sending again, where waiting helps.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// A detail of the error, by the name that the API documentation gives it.
    #[must_use]
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.metadata.get(name).map(String::as_str)
    }

    /// For a person.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether no shard answered: the connection failed or broke.
    #[must_use]
    pub const fn is_unreachable(&self) -> bool {
        self.reason.is_none() && matches!(self.kind, ErrorKind::Unknown)
    }

    pub(crate) fn from_status(status: Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info();
        let reason = info.and_then(|info| Reason::parse(&info.reason));
        Self {
            kind: kind(status.code(), reason),
            reason: reason.or_else(|| {
                (status.code() == Code::DeadlineExceeded).then_some(Reason::DeadlineExceeded)
            }),
            message: status.message().to_owned(),
            retry_after: details.retry_info().and_then(|info| info.retry_delay),
            metadata: info.map(|info| info.metadata.clone()).unwrap_or_default(),
        }
    }

    pub(crate) fn from_failure(failure: v1::Failure) -> Self {
        let reason = Reason::parse(&failure.reason);
        Self {
            kind: kind(Code::from_i32(failure.code), reason),
            reason,
            message: failure.message,
            retry_after: (failure.retry_delay_ms > 0)
                .then(|| Duration::from_millis(failure.retry_delay_ms)),
            metadata: failure.metadata,
        }
    }

    pub(crate) fn deadline() -> Self {
        Self::new(
            ErrorKind::Unknown,
            Some(Reason::DeadlineExceeded),
            "the deadline passed before the shard answered",
        )
    }

    pub(crate) fn malformed() -> Self {
        Self::new(
            ErrorKind::Unknown,
            Some(Reason::OutcomeUnknown),
            "the shard's answer is not of this API's form",
        )
    }

    pub(crate) fn broken() -> Self {
        Self::new(
            ErrorKind::Unknown,
            None,
            "the connection to the shard broke",
        )
    }

    /// A stream's caller has as many unanswered calls as it asked for. Nothing was sent, and
    /// waiting does not help: an answer has to be taken first.
    pub(crate) fn stream_full() -> Self {
        Self::new(
            ErrorKind::Busy,
            None,
            "the stream has as many unanswered calls as it was opened for",
        )
    }

    /// Other calls to the shard were in the way until the deadline, or too many wait already. Nothing
    /// was sent.
    pub(crate) fn no_place() -> Self {
        Self {
            retry_after: Some(Duration::from_secs(1)),
            ..Self::new(
                ErrorKind::Busy,
                Some(Reason::Overloaded),
                "too many calls to the shard are unanswered; nothing was sent",
            )
        }
    }

    /// Too many calls wait to hear who leads their shard. Nothing was sent.
    pub(crate) fn no_room_to_ask() -> Self {
        Self {
            message: "too many calls wait to hear who leads; nothing was sent".to_owned(),
            ..Self::no_place()
        }
    }

    pub(crate) fn no_route(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, Some(Reason::NotReady), message)
    }

    fn new(kind: ErrorKind, reason: Option<Reason>, message: impl Into<String>) -> Self {
        let retry_after = matches!(kind, ErrorKind::Unavailable | ErrorKind::Unknown)
            .then(|| Duration::from_secs(1));
        Self {
            kind,
            reason,
            message: message.into(),
            retry_after,
            metadata: HashMap::new(),
        }
    }
}

/// A reason decides alone. Without one nobody of ours spoke: it may have happened.
fn kind(code: Code, reason: Option<Reason>) -> ErrorKind {
    match reason {
        Some(
            Reason::InvalidField
            | Reason::KeyMissing
            | Reason::KeyMalformed
            | Reason::TicketRejected
            | Reason::EmptyBody
            | Reason::BodyTooLarge
            | Reason::TokenMissing
            | Reason::UnknownConsumer
            // Waiting frees no place.
            | Reason::TooManyConsumers,
        ) => ErrorKind::Rejected,
        Some(Reason::KeyReused) => ErrorKind::Exists,
        Some(Reason::AnswerNotOpened) => ErrorKind::Sealed,
        Some(Reason::CreateTooLate) => ErrorKind::TooLate,
        Some(Reason::PasteNotFound | Reason::DeadLetterNotFound) => ErrorKind::NotFound,
        Some(Reason::TokenRejected) => ErrorKind::Denied,
        Some(Reason::WrongShard | Reason::NotLeader | Reason::WrongCluster) => {
            ErrorKind::NotLeader
        }
        Some(Reason::Overloaded) => ErrorKind::Busy,
        Some(Reason::DiskFull) => ErrorKind::Full,
        Some(Reason::IdTaken | Reason::NotReady | Reason::BodyStoreDown) => ErrorKind::Unavailable,
        Some(Reason::OutcomeUnknown | Reason::DeadlineExceeded) => ErrorKind::Unknown,
        Some(Reason::Damaged | Reason::BodyMissing | Reason::BodyDamaged) => ErrorKind::Damaged,
        // tonic's own refusals of what was sent, message limits among them.
        None if matches!(code, Code::InvalidArgument | Code::OutOfRange) => ErrorKind::Rejected,
        None => ErrorKind::Unknown,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
