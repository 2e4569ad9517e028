//! The one place where an error becomes what is said on the wire.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ostraca_engine as engine;
use ostraca_proto::v1;
use ostraca_types::{ErrorKind, Reason};
use parking_lot::Mutex;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// The domain of every ErrorInfo.
const DOMAIN: &str = "ostraca.dev";
/// Error text and details go into headers, and above 16 KiB of them calls break.
const TEXT_SIZE_MAX: usize = 512;
/// For errors that pass by themselves within moments.
const RETRY_SOON: Duration = Duration::from_millis(500);

/// Refusals of this process by their reason, for its metrics.
static REFUSALS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// How many calls were refused so far, by reason: a fixed list of names.
pub(crate) fn counts() -> Vec<(&'static str, u64)> {
    REFUSALS
        .lock()
        .iter()
        .map(|(reason, count)| (*reason, *count))
        .collect()
}

/// Why a call was refused.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    reason: Reason,
    message: String,
    retry_after: Option<Duration>,
    metadata: HashMap<String, String>,
}

impl Refusal {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        *REFUSALS.lock().entry(reason.as_str()).or_default() += 1;
        let mut message: String = message.into();
        message.truncate(message.floor_char_boundary(TEXT_SIZE_MAX));
        let retry_after = match reason {
            Reason::Overloaded | Reason::NotReady | Reason::OutcomeUnknown => Some(RETRY_SOON),
            Reason::DiskFull => Some(Duration::from_secs(30)),
            Reason::IdTaken | Reason::CreateTooLate => Some(Duration::ZERO),
            _ => None,
        };
        Self {
            reason,
            message,
            retry_after,
            metadata: HashMap::new(),
        }
    }

    /// A field that is missing or malformed, by its name in the API.
    pub(crate) fn field(name: &str, message: impl Into<String>) -> Self {
        Self::new(Reason::InvalidField, message).with("field", name)
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        let mut value: String = value.into();
        value.truncate(value.floor_char_boundary(TEXT_SIZE_MAX));
        self.metadata.insert(name.to_owned(), value);
        self
    }

    pub(crate) const fn reason(&self) -> Reason {
        self.reason
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.metadata.contains_key(name)
    }

    pub(crate) const fn code(&self) -> Code {
        match self.reason {
            Reason::InvalidField
            | Reason::KeyMissing
            | Reason::KeyMalformed
            | Reason::TicketRejected
            | Reason::EmptyBody
            | Reason::BodyTooLarge
            | Reason::TokenMissing
            | Reason::UnknownConsumer => Code::InvalidArgument,
            Reason::KeyReused => Code::AlreadyExists,
            Reason::AnswerNotOpened => Code::Internal,
            Reason::CreateTooLate
            | Reason::WrongShard
            | Reason::NotLeader
            | Reason::WrongCluster => Code::FailedPrecondition,
            Reason::IdTaken => Code::Aborted,
            Reason::PasteNotFound | Reason::DeadLetterNotFound => Code::NotFound,
            Reason::TokenRejected => Code::PermissionDenied,
            Reason::Overloaded | Reason::DiskFull | Reason::TooManyConsumers => {
                Code::ResourceExhausted
            }
            Reason::NotReady | Reason::OutcomeUnknown | Reason::BodyStoreDown => Code::Unavailable,
            Reason::Damaged | Reason::BodyMissing | Reason::BodyDamaged => Code::DataLoss,
            Reason::DeadlineExceeded => Code::DeadlineExceeded,
        }
    }
}

/// No `_` arm: a new kind must choose.
impl From<engine::Error> for Refusal {
    fn from(err: engine::Error) -> Self {
        let reason = match err.kind() {
            ErrorKind::Busy => Reason::Overloaded,
            ErrorKind::Full => Reason::DiskFull,
            ErrorKind::Unavailable => Reason::NotReady,
            ErrorKind::Unknown => Reason::OutcomeUnknown,
            ErrorKind::NotLeader => Reason::NotLeader,
            ErrorKind::Rejected => Reason::InvalidField,
            ErrorKind::Exists => Reason::KeyReused,
            ErrorKind::NotFound => Reason::PasteNotFound,
            ErrorKind::Denied => Reason::TokenRejected,
            ErrorKind::TooLate => Reason::CreateTooLate,
            ErrorKind::Damaged => Reason::Damaged,
            ErrorKind::Sealed => Reason::AnswerNotOpened,
        };
        let mut refusal = Self::new(reason, err.to_string());
        if let engine::Error::Busy { retry_after } = err {
            refusal.retry_after = Some(retry_after);
        }
        refusal
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = refusal.code();
        let mut details = ErrorDetails::new();
        details.set_error_info(refusal.reason.as_str(), DOMAIN, refusal.metadata);
        if refusal.retry_after.is_some() {
            details.set_retry_info(refusal.retry_after);
        }
        Self::with_error_details(code, refusal.message, details)
    }
}

impl From<Refusal> for v1::Failure {
    fn from(refusal: Refusal) -> Self {
        let delay = refusal.retry_after.unwrap_or_default().as_millis();
        Self {
            code: refusal.code().into(),
            reason: refusal.reason.as_str().to_owned(),
            message: refusal.message,
            // 0 would say that waiting does not help.
            retry_delay_ms: match refusal.retry_after {
                None => 0,
                Some(_) => u64::try_from(delay).unwrap_or(u64::MAX).max(1),
            },
            metadata: refusal.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_carry_one_reason_and_the_delay() {
        let busy = engine::Error::Busy {
            retry_after: Duration::from_millis(250),
        };
        let status = Status::from(Refusal::from(busy));
        assert_eq!(status.code(), Code::ResourceExhausted);
        let details = status.get_error_details();
        let info = details.error_info().expect("an ErrorInfo");
        assert_eq!(
            (info.reason.as_str(), info.domain.as_str()),
            ("OVERLOADED", DOMAIN)
        );
        let delay = details.retry_info().and_then(|info| info.retry_delay);
        assert_eq!(delay, Some(Duration::from_millis(250)));
    }

    #[test]
    fn text_and_details_are_capped() {
        let long = "ä".repeat(40_000);
        let refusal = Refusal::new(Reason::Damaged, long.clone()).with("field", long);
        let status = Status::from(refusal);
        assert!(status.message().len() <= TEXT_SIZE_MAX);
        assert!(
            status.details().len() < 4096,
            "{} bytes of details",
            status.details().len()
        );
    }
}
