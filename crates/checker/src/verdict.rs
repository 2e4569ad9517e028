//! What was found.

use std::collections::HashSet;
use std::fmt;

use crate::Context;
use crate::ledger::Instant;

/// The kinds and the list of them, from one text, so that a test can ask for each.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What is wrong. Each names the rule of the contract that it breaks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

kinds! {
    /// d01, r01: an acknowledged create is not there, and neither expired nor was deleted.
    CreateLost,
    /// k10, k14: an acknowledged create's key is not honoured any more, before its time.
    KeyLost,
    /// k08: a paste is there that neither an answer nor its key's row names.
    PasteUnnamed,
    /// p03: a create was committed later than its in-flight bound after its begin.
    CommittedTooLate,
    /// k11: one key has two pastes within its 25 h.
    KeyWithTwoPastes,
    /// k02, k04: an answer of a key is not its first one, or claims to be the first once more; or what
    /// the store or a read says of the paste is not what was answered.
    AnswerChanged,
    /// k05: a key answered for another request than the one it was used for, or refused its own.
    WrongRequest,
    /// k13: a stored answer came after the key's time, or is kept for longer.
    KeyHonouredTooLong,
    /// r01, r04, f04: a paste that had ended was there again.
    CameBack,
    /// r01: a paste was there at or after its expiry.
    Outlived,
    /// r04: a paste was ended by two deletes.
    EndedTwice,
    /// r03: a paste was deleted with a token that is not its own.
    WrongTokenAccepted,
    /// r03: a paste's own token was rejected.
    TokenRefused,
    /// d06: shard time ran back.
    ClockRanBack,
    /// f03, f05: of two answers the later one is earlier in the log, one record answered two calls, or
    /// a replaced leader's record comes after one of its successor.
    OrderViolated,
    /// f01, f04: an answer under a fencing token that had been replaced before it was asked for.
    StaleLeader,
    /// r04, o01, k08: a paste ended and has no message.
    EndWithoutMessage,
    /// o01, r04: a paste has two messages.
    TwoMessages,
    /// o01: two pastes have one message.
    MessageShared,
    /// o03, o04: a message is gone that a consumer was given and did not finish, before its 7 days.
    MessageLost,
    /// i01, o06: a consumer was never given an end that came after its registration.
    ConsumerSkipped,
    /// o05: a message was delivered or kept 7 days after its end.
    MessageOverAge,
    /// o05: a message was dropped undelivered, and is not counted.
    DropNotCounted,
    /// o04: a message was given up before it had been tried often and long enough.
    DeadTooEarly,
    /// o02: an old handle settled something, the newest did not, or one was given twice; or what was
    /// acked came again.
    WrongHandle,
    /// i05, i06: what was recorded in the inbox is not there, or was recorded twice.
    InboxLost,
    /// i06: what was recorded in the inbox is still there after its 8 days.
    InboxKeptTooLong,
    /// i01: a message is recorded for a consumer that has not done its effects.
    Suppressed,
    /// i02: a message was acked that nobody had been told is recorded.
    AckBeforeRecord,
    /// i02, i06: an effect ran again, and nobody had been told that it must.
    EffectRepeated,
    /// i02, i04: a message was recorded before its effects were done.
    RecordBeforeEffects,
    /// r05: an object was deleted, or the edge purged, before the paste's end was durable.
    EffectBeforeEnd,
    /// k07, p02: a paste is there and its object is not.
    ObjectMissing,
    /// i03: a message is finished, and the object or the edge's copy is still there.
    LeftOver,
    /// The calls about one key or one paste are in no order that explains all answers.
    NotLinearizable,
    /// Too many calls at once to tell in time whether such an order exists.
    Undecided,
}

/// One thing that is wrong, and how it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// About which key, paste, message or shard.
    pub subject: String,
    /// In words.
    pub text: String,
    /// The calls that show it, by their place in the ledger, in the order in which they were asked.
    pub calls: Vec<usize>,
    /// The effects that show it, by their place in the ledger, in the order of time.
    pub effects: Vec<usize>,
    /// Both, in the order of time, to be read.
    pub evidence: Vec<String>,
}

/// All that was found.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// In the order of the checks.
    pub findings: Vec<Finding>,
    /// What they are about.
    subjects: HashSet<String>,
}

impl Verdict {
    pub(crate) fn add(
        &mut self,
        context: &Context<'_>,
        kind: Kind,
        subject: impl fmt::Display,
        text: impl Into<String>,
        calls: &[usize],
    ) {
        self.add_with(context, kind, subject, text, calls, &[]);
    }

    /// With effects that show it.
    pub(crate) fn add_with(
        &mut self,
        context: &Context<'_>,
        kind: Kind,
        subject: impl fmt::Display,
        text: impl Into<String>,
        calls: &[usize],
        effects: &[usize],
    ) {
        let asked = |&at: &usize| (context.calls[at].invoked, at);
        let (mut calls, mut effects) = (calls.to_vec(), effects.to_vec());
        calls.sort_by_key(asked);
        calls.dedup();
        effects.sort_by_key(|&at| (context.effects[at].at, at));
        effects.dedup();
        let mut evidence: Vec<(Instant, String)> = Vec::new();
        for &at in &calls {
            evidence.push((context.calls[at].invoked, context.calls[at].to_string()));
        }
        for &at in &effects {
            evidence.push((context.effects[at].at, context.effects[at].to_string()));
        }
        evidence.sort_by_key(|&(at, _)| at);
        let subject = subject.to_string();
        self.subjects.insert(subject.clone());
        self.findings.push(Finding {
            kind,
            subject,
            text: text.into(),
            calls,
            effects,
            evidence: evidence.into_iter().map(|(_, line)| line).collect(),
        });
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.findings.is_empty()
    }

    pub(crate) fn is_about(&self, subject: &str) -> bool {
        self.subjects.contains(subject)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(
                f,
                "{:?}: {}: {}",
                finding.kind, finding.subject, finding.text
            )?;
            for line in &finding.evidence {
                writeln!(f, "    {line}")?;
            }
        }
        Ok(())
    }
}
