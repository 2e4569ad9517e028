//! Calls of workers and of people, written down as they were answered.

use ostraca_checker::{Op, Position, Told};
use ostraca_types::ShardId;
use ostraca_worker::Fault;

use crate::kernel::{Nanos, SECOND};
use crate::net::{Answer, Request, Silence};
use crate::world::World;

const PATIENCE: Nanos = 2 * SECOND;

/// Somebody who calls.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    world: World,
    pub(crate) id: u32,
}

impl Caller {
    pub(crate) fn new(world: &World) -> Self {
        Self {
            world: world.clone(),
            id: world.client(),
        }
    }

    /// Asks a shard and writes down what it said; nothing where that was nothing.
    pub(crate) fn call<T>(
        &self,
        shard: ShardId,
        request: &Request,
        op: Op,
        answered: impl FnOnce(&Answer) -> Option<(Told, T)>,
    ) -> Result<T, Fault> {
        if self.world.kernel.is_dying() {
            return Err(Fault("killed".to_owned()));
        }
        let invoked = self.world.now();
        let (reply, twice) = self.world.ask(shard, request, PATIENCE);
        let refused = |reason: &str| {
            let reason = reason.to_owned();
            let fault = Fault(reason.clone());
            (Told::Refused { reason }, Err(fault))
        };
        let unknown = |why: &str| (Told::Unknown, Err(Fault(why.to_owned())));
        let mut at: Option<Position> = None;
        let (told, value) = match &reply {
            // Nobody lived to hear it.
            _ if self.world.kernel.is_dying() => unknown("killed"),
            Ok(reply) => {
                at = World::position(shard, reply);
                match (answered(&reply.answer), &reply.answer) {
                    (Some((told, value)), _) => (told, Ok(value)),
                    (None, Answer::Refused(reason)) => refused(reason),
                    _ => unknown("unknown"),
                }
            }
            Err(Silence::Refused) => refused("UNREACHABLE"),
            Err(Silence::Lost) => unknown("no reply"),
        };
        let empty = match &told {
            Told::Delivered(messages) => messages.is_empty(),
            Told::Dead(letters) => letters.is_empty(),
            _ => false,
        };
        // Whichever answer came, one of the two requests may have been given messages.
        if !empty || twice {
            self.world.note(self.id, invoked, op, (told, at), twice);
        }
        value
    }
}
