//! A long run is checked in a time that grows with it, and no more.

use ostraca_checker::{Call, Instant, KeyState, Kind, Ledger, Limits, Op, PasteState, Position};
use ostraca_checker::{ShardState, Store, Told, check};
use ostraca_types::contract::IDEMPOTENCY_RETENTION;
use ostraca_types::{KeyDigest, OutboxId, PasteId, RequestDigest, Slot, Timestamp, TokenHash};

const START: u64 = 1_700_000_000_000;
const LIFETIME_MS: u64 = 30 * 86_400_000;
const PASTES: u64 = 30_000;
const READS: u64 = 60_000;

/// Bytes that only `number` has.
fn bytes<const N: usize>(number: u64) -> [u8; N] {
    let mut bytes = [0; N];
    let mut rest = number;
    for byte in &mut bytes {
        *byte = u8::try_from(rest % 60).expect("below 60");
        rest /= 60;
    }
    bytes
}

#[derive(Default)]
struct Run {
    ledger: Ledger,
    store: Store,
    now: u64,
    sequence: u64,
}

impl Run {
    /// A call that overlaps with some 16 others.
    fn call(&mut self, op: Op, told: Told) {
        let appends = matches!(
            told,
            Told::Created {
                replayed: false,
                ..
            }
        );
        self.sequence += u64::from(appends);
        self.ledger.calls.push(Call {
            client: 0,
            invoked: Instant(self.now * 1_000_000),
            returned: Instant((self.now + 16) * 1_000_000),
            op,
            told,
            at: Some(Position {
                shard: 0,
                epoch: 1,
                sequence: self.sequence,
            }),
            begun: None,
        });
        self.now += 1;
    }

    fn shard_time(&self) -> Timestamp {
        Timestamp(START + self.now + 8)
    }

    fn create(&mut self, number: u64) -> (PasteId, Timestamp) {
        let paste = PasteId::parse(&format!("00{number:012}")).expect("digits are base62");
        let now = self.shard_time();
        let expires_at = Timestamp(now.0 + LIFETIME_MS);
        let (token, key) = (TokenHash(bytes(number)), KeyDigest(bytes(number)));
        for replayed in [false, true] {
            let op = Op::Create {
                key,
                request: RequestDigest(bytes(number)),
                lifetime_ms: LIFETIME_MS,
            };
            let told = Told::Created {
                paste,
                expires_at,
                token,
                replayed,
            };
            self.call(op, told);
        }
        self.store.pastes.push(PasteState {
            id: paste,
            expires_at,
            token,
            outbox: OutboxId::from_parts(Slot(0), &bytes::<15>(number)).expect("in range"),
        });
        self.store.keys.push(KeyState {
            digest: key,
            paste,
            expires_at: now.plus(IDEMPOTENCY_RETENTION),
        });
        self.store.objects.insert(paste);
        (paste, expires_at)
    }

    fn read(&mut self, (paste, expires_at): (PasteId, Timestamp)) {
        let now = self.shard_time();
        self.call(Op::Get { paste }, Told::Found { now, expires_at });
    }
}

/// Goal: neither many pastes nor one that everybody reads make a pass that is quadratic in the calls.
/// Method: enough of both that such a pass would not end while a test runs, and a search that may
/// take no more steps than there are calls.
#[test]
fn many_pastes_and_a_popular_one_are_checked() {
    let mut run = Run::default();
    run.store.owners = vec![0; 256];
    let popular = run.create(0);
    for number in 1..=PASTES {
        let made = run.create(number);
        run.read(made);
    }
    for _ in 0..READS {
        run.read(popular);
    }
    run.store.shards.push(ShardState {
        shard: 0,
        epoch: 1,
        sequence: run.sequence,
        now: Timestamp(START + run.now + 16),
        dropped: 0,
    });
    let limits = Limits {
        search_max: run.ledger.calls.len(),
        ..Limits::default()
    };
    let verdict = check(&run.ledger, &run.store, &limits);
    assert!(verdict.is_good(), "{} findings", verdict.findings.len());

    // Wrong at all of them, it is told of all of them.
    run.store.objects.clear();
    let verdict = check(&run.ledger, &run.store, &limits);
    let pastes = usize::try_from(PASTES + 1).expect("it fits");
    assert_eq!(verdict.findings.len(), pastes);
    assert!(
        verdict
            .findings
            .iter()
            .all(|finding| finding.kind == Kind::ObjectMissing)
    );
}
