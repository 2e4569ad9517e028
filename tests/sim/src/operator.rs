//! Who is paged for dead letters (w02), lists and replays them: one, or all.

use ostraca_checker::{DeadLetter, Op, Told};
use ostraca_types::{ConsumerName, OutboxId, ShardId};

use crate::caller::Caller;
use crate::kernel::{MILLI, SECOND};
use crate::net::{Answer, Request};
use crate::worker::consumers;
use crate::world::{SHARDS, World};

/// Looks after dead letters until the run ends.
pub(crate) fn start(world: &World) {
    let operator = Operator {
        caller: Caller::new(world),
        world: world.clone(),
    };
    let process = world.kernel.process(format!("o{}", operator.caller.id));
    world.kernel.spawn(&process.clone(), move || {
        while !process.is_dead() {
            let kernel = &operator.world.kernel;
            kernel.wait(kernel.chance.within(500 * MILLI, 2 * SECOND));
            operator.look();
        }
    });
}

struct Operator {
    world: World,
    caller: Caller,
}

impl Operator {
    fn look(&self) {
        let chance = &self.world.kernel.chance;
        for shard in (0..SHARDS).map(ShardId) {
            let pages = self.pages(shard);
            for consumer in consumers().into_iter().filter(|_| pages) {
                let letters = self.list(shard, &consumer);
                // Before the faults are over there is no hurry.
                let hurry = self.world.is_quiet();
                let all = chance.hits(500);
                for id in letters {
                    if hurry || chance.hits(150) {
                        self.replay(shard, &consumer, id);
                    }
                    if !all {
                        break;
                    }
                }
            }
        }
    }

    /// Whether some process that believes to lead has dead letters.
    fn pages(&self, shard: ShardId) -> bool {
        let seats = self.world.seats.iter().filter(|seat| seat.dir.id == shard);
        let mut led = seats.filter_map(|seat| seat.shard());
        led.any(|shard| shard.status().counts.outbox.dead > 0)
    }

    fn list(&self, shard: ShardId, consumer: &ConsumerName) -> Vec<OutboxId> {
        let request = Request::DeadLetters(consumer.clone());
        let op = Op::DeadLetters {
            consumer: consumer.to_string(),
        };
        let letters = self
            .caller
            .call(shard, &request, op, |answer| match answer {
                Answer::Dead(letters) => {
                    let told = letters.iter().map(|letter| DeadLetter {
                        outbox: letter.row.outbox_id,
                        paste: letter.row.paste_id,
                        attempts: letter.attempts,
                        ended_at: letter.row.ended_at,
                        dead_at: letter.dead_at,
                    });
                    let ids = letters.iter().map(|letter| letter.row.outbox_id);
                    Some((Told::Dead(told.collect()), ids.collect()))
                }
                _ => None,
            });
        letters.unwrap_or_default()
    }

    fn replay(&self, shard: ShardId, consumer: &ConsumerName, outbox: OutboxId) {
        let request = Request::Replay(consumer.clone(), outbox);
        let op = Op::Replay {
            consumer: consumer.to_string(),
            outbox,
        };
        let replayed = self
            .caller
            .call(shard, &request, op, |answer| match answer {
                Answer::Replayed(was) => Some((Told::Replayed(*was), ())),
                _ => None,
            });
        // Who heard nothing looks at the list again.
        drop(replayed);
    }
}
