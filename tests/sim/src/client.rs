//! A client and the frontend that it talks to: creates, retries, reads, deletes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ostraca_checker::{Begun, Instant, Op, Position, Time, Told};
use ostraca_types::{DeleteToken, IdempotencyKey, RequestDigest, RequestHash};
use parking_lot::Mutex;

use crate::kernel::{HOUR, MILLI, Nanos, Process, SECOND};
use crate::net::{Answer, Created, Reply, Request, Silence};
use crate::world::World;

/// Tries of one create after which a client gives up.
const TRIES_MAX: u32 = 8;

/// What a client saves, and what it knows of it.
#[derive(Clone)]
struct Save {
    key: IdempotencyKey,
    request: RequestDigest,
    lifetime_ms: u64,
    created: Option<Created>,
}

/// What all clients know: they read and delete each other's pastes.
pub(crate) type Saves = Arc<Mutex<Vec<SaveRef>>>;
pub(crate) struct SaveRef(Save);

pub(crate) struct Client {
    pub(crate) world: World,
    pub(crate) process: Arc<Process>,
    pub(crate) saves: Saves,
    id: u32,
}

impl Client {
    /// Starts a client that works until the quiet phase, and settles then what is open.
    pub(crate) fn start(world: &World, saves: &Saves, until: Nanos) {
        let id = world.client();
        let process = world.kernel.process(format!("c{id}"));
        let client = Self {
            world: world.clone(),
            process: Arc::clone(&process),
            saves: Arc::clone(saves),
            id,
        };
        world.clients.fetch_add(1, Ordering::Relaxed);
        world.kernel.spawn(&process, move || {
            client.work(until);
            client.world.clients.fetch_sub(1, Ordering::Relaxed);
        });
    }

    fn chance(&self, of: u64) -> bool {
        self.world.kernel.chance.hits(of)
    }

    fn pause(&self, from: Nanos, to: Nanos) {
        let kernel = &self.world.kernel;
        kernel.wait(kernel.chance.within(from, to));
    }

    fn patience(&self) -> Nanos {
        self.world.kernel.chance.within(300 * MILLI, 3 * SECOND)
    }

    fn work(&self, until: Nanos) {
        while self.world.kernel.awake() < until && !self.world.is_quiet() {
            self.pause(MILLI, 250 * MILLI);
            self.turn();
        }
        while !self.world.is_quiet() {
            self.world.kernel.wait(100 * MILLI);
        }
        // Whoever asked and never heard asks again (k10), and some look once more at what they know.
        let open = |(at, save): (usize, &SaveRef)| save.0.created.is_none().then_some(at);
        let open: Vec<_> = self
            .saves
            .lock()
            .iter()
            .enumerate()
            .filter_map(open)
            .collect();
        for at in open {
            let save = self.saves.lock()[at].0.clone();
            if save.created.is_none() {
                self.create(&save, TRIES_MAX);
            }
        }
        for _ in 0..6 {
            self.pause(10 * MILLI, 500 * MILLI);
            match self.any() {
                Some((_, save)) if save.created.is_none() => self.create(&save, TRIES_MAX),
                Some((_, save)) if self.chance(500) => self.create(&save, 3),
                Some((_, save)) => self.read(&save),
                None => {}
            }
        }
    }

    fn any(&self) -> Option<(usize, Save)> {
        let saves = self.saves.lock();
        let chance = &self.world.kernel.chance;
        // Mostly of late: that is where the races are.
        let from = if chance.hits(700) {
            saves.len().saturating_sub(6)
        } else {
            0
        };
        let at = chance.within(from as u64, saves.len() as u64);
        let at = usize::try_from(at).ok()?;
        saves.get(at).map(|save| (at, save.0.clone()))
    }

    fn turn(&self) {
        let kind = self.world.kernel.chance.below(100);
        if kind < 38 {
            let save = self.new_save();
            return self.create(&save, TRIES_MAX);
        }
        let Some((_, save)) = self.any() else { return };
        match kind {
            38..47 => self.create(&save, 3),
            47..51 => {
                let other = Save {
                    request: RequestDigest(self.bytes()),
                    ..save
                };
                self.create(&other, 2);
            }
            51..62 => self.twins(&save),
            62..84 => self.read(&save),
            84..95 => self.delete(&save, false),
            _ => self.delete(&save, true),
        }
    }

    fn bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        ostraca_io::Entropy::fill(&*self.world.kernel.entropy, &mut bytes);
        bytes
    }

    fn new_save(&self) -> Save {
        let entropy = &self.world.kernel.entropy;
        let chance = &self.world.kernel.chance;
        let lifetime_ms = match chance.below(10) {
            0..4 => chance.within(300, 8_000),
            4..6 => chance.within(8_000, 60_000),
            _ => chance.within(3_600_000, 30 * 24 * 3_600_000),
        };
        let save = Save {
            key: IdempotencyKey::mint(|bytes| ostraca_io::Entropy::fill(&**entropy, bytes)),
            request: RequestDigest(self.bytes()),
            lifetime_ms,
            created: None,
        };
        self.saves.lock().push(SaveRef(save.clone()));
        save
    }

    /// The same save from two places at once, one of which may ask for something else.
    fn twins(&self, old: &Save) {
        let save = if self.chance(700) {
            self.new_save()
        } else {
            old.clone()
        };
        let mut twin = save.clone();
        if self.chance(450) {
            twin.request = RequestDigest(self.bytes());
        }
        let other = Self {
            world: self.world.clone(),
            process: Arc::clone(&self.process),
            saves: Arc::clone(&self.saves),
            id: self.world.client(),
        };
        self.world.clients.fetch_add(1, Ordering::Relaxed);
        self.world.kernel.spawn(&self.process, move || {
            other.create(&twin, 3);
            other.world.clients.fetch_sub(1, Ordering::Relaxed);
        });
        self.create(&save, 3);
    }

    fn create(&self, save: &Save, tries: u32) {
        for _ in 0..tries {
            let invoked = self.world.now();
            let mut begun = None;
            let (told, at, twice) = self.try_create(save, &mut begun);
            let open = matches!(told, Told::Unknown | Told::Refused { .. });
            let op = Op::Create {
                key: save.key.digest(),
                request: save.request,
                lifetime_ms: save.lifetime_ms,
            };
            self.world
                .note_create(self.id, invoked, op, begun, (told, at), twice);
            if !open || self.chance(100) {
                return;
            }
            self.pause(20 * MILLI, 900 * MILLI);
        }
    }

    /// Begin, PUT, commit, each once; and what the begin gave.
    fn try_create(&self, save: &Save, begun: &mut Option<Begun>) -> (Told, Option<Position>, bool) {
        let (key, world) = (save.key.digest(), &self.world);
        let shard = World::owner(key.slot());
        let request = RequestHash(save.request.0);
        let refused = |reason: &str| {
            let reason = reason.to_owned();
            (Told::Refused { reason }, None, false)
        };
        let begin = Request::Begin { key, request };
        // A begin appends nothing, however often it comes.
        let (answered, _) = world.ask(shard, &begin, self.patience());
        let ticket = match answered {
            Ok(Reply {
                answer: Answer::Ticket(ticket),
                ..
            }) => ticket,
            Ok(reply) => {
                let (told, at) = self.created(save, shard, reply);
                return (told, at, false);
            }
            Err(_) => return refused("UNREACHABLE"),
        };
        *begun = Some(Begun {
            paste: ticket.paste,
            at: Some(Time(ticket.begun_at)),
        });
        if !world.put(ticket.paste) {
            return refused("BODY_STORE_DOWN");
        }
        // A frontend that dies here, or a request that waits in some queue for long.
        if self.chance(20) {
            return refused("VANISHED");
        }
        if self.chance(5) && !world.is_quiet() {
            self.pause(SECOND, HOUR / 30);
        }
        // And one that is held while the machine may sleep: it can come hours after its begin.
        if self.chance(30) && !world.is_quiet() {
            self.pause(200 * MILLI, 4 * SECOND);
        }
        let commit = Request::Commit {
            ticket,
            lifetime_ms: save.lifetime_ms,
        };
        let (committed, twice) = world.ask(shard, &commit, self.patience());
        match committed {
            Ok(reply) => {
                let (told, at) = self.created(save, shard, reply);
                (told, at, twice)
            }
            Err(Silence::Refused) => refused("UNREACHABLE"),
            Err(Silence::Lost) => (Told::Unknown, None, twice),
        }
    }

    fn created(
        &self,
        save: &Save,
        shard: ostraca_types::ShardId,
        reply: Reply,
    ) -> (Told, Option<Position>) {
        let at = World::position(shard, &reply);
        let told = match reply.answer {
            Answer::Created(created) => {
                let told = Told::Created {
                    paste: created.paste,
                    expires_at: created.expires_at,
                    token: created.token.hash(),
                    replayed: created.replayed,
                };
                let mut saves = self.saves.lock();
                if let Some(known) = saves.iter_mut().find(|known| known.0.key == save.key) {
                    known.0.created = Some(created);
                }
                told
            }
            Answer::Conflict => Told::Conflict,
            Answer::Refused(reason) => Told::Refused {
                reason: reason.to_owned(),
            },
            Answer::Unknown => Told::Unknown,
            other => unreachable!("no answer to a create: {other:?}"),
        };
        (told, at)
    }

    fn read(&self, save: &Save) {
        let Some(created) = &save.created else { return };
        let id = created.paste;
        let shard = World::owner(id.slot());
        let invoked = self.world.now();
        let (answered, _) = self.world.ask(shard, &Request::Get(id), self.patience());
        let told = told(shard, answered);
        if matches!(told, (Told::Found { .. }, _)) {
            self.world.cache(id, invoked);
        }
        self.world
            .note(self.id, invoked, Op::Get { paste: id }, told, false);
    }

    fn delete(&self, save: &Save, wrong: bool) {
        let Some(created) = &save.created else { return };
        let (id, mut token) = (created.paste, created.token.clone());
        if wrong {
            // Another paste's, one that differs in its last bit, or any.
            let mut bytes = *token.expose();
            match self.world.kernel.chance.below(3) {
                0 => bytes[15] ^= 1,
                _ => bytes.copy_from_slice(&self.bytes()[..16]),
            }
            token = DeleteToken::from_bytes(bytes);
        }
        let shard = World::owner(id.slot());
        let op = Op::Delete {
            paste: id,
            token: token.hash(),
        };
        let invoked: Instant = self.world.now();
        let request = Request::Delete(id, token);
        let (answered, twice) = self.world.ask(shard, &request, self.patience());
        self.world
            .note(self.id, invoked, op, told(shard, answered), twice);
    }
}

/// What an answer to a read or a delete tells.
fn told(
    shard: ostraca_types::ShardId,
    answered: Result<Reply, Silence>,
) -> (Told, Option<Position>) {
    let reply = match answered {
        Ok(reply) => reply,
        Err(Silence::Refused) => {
            let reason = "UNREACHABLE".to_owned();
            return (Told::Refused { reason }, None);
        }
        Err(Silence::Lost) => return (Told::Unknown, None),
    };
    let at = World::position(shard, &reply);
    let told = match reply.answer {
        Answer::Found { now, expires_at } => Told::Found { now, expires_at },
        Answer::Missing => Told::Missing,
        Answer::Deleted => Told::Deleted,
        Answer::TokenRejected => Told::TokenRejected,
        Answer::Refused(reason) => Told::Refused {
            reason: reason.to_owned(),
        },
        Answer::Unknown => Told::Unknown,
        other => unreachable!("no answer to a read or a delete: {other:?}"),
    };
    (told, at)
}
