//! A part of the world refuses everything, for hours.

use crate::kernel::{HOUR, MILLI, Nanos};
use crate::world::{Part, StoreMood, World};

/// What is left of one.
struct Outage {
    part: Part,
    steps: u64,
    /// How far the machine sleeps at each step, at least and at most.
    step: (Nanos, Nanos),
}

/// Starts one, of hours that go by in steps, after each of which what is due is tried again: some are
/// shorter than a message may be given up after, with more attempts than that needs, and some longer.
pub(super) fn start(world: &World) {
    let chance = &world.kernel.chance;
    let outage = Outage {
        part: chance.pick(&Part::ALL).copied().unwrap_or(Part::Edge),
        steps: chance.within(20, 25),
        step: if chance.hits(350) {
            (HOUR / 10, HOUR / 5)
        } else {
            (HOUR * 2 / 5, HOUR * 3 / 5)
        },
    };
    world.kernel.tell("faults", || {
        format!("{:?} refuses, for {} steps", outage.part, outage.steps)
    });
    set(world, outage.part, 1000);
    next(world, outage);
}

fn set(world: &World, part: Part, refuses: u64) {
    let mood = StoreMood { refuses, slow: 0 };
    world.outside.lock().moods.insert(part, mood);
}

fn next(world: &World, outage: Outage) {
    let kernel = &world.kernel;
    let world = world.clone();
    kernel.after(
        kernel.chance.within(80 * MILLI, 220 * MILLI),
        move |kernel| {
            if world.is_quiet() {
                return;
            }
            if outage.steps == 0 {
                return set(&world, outage.part, 0);
            }
            // Whoever healed it meanwhile has to wait.
            set(&world, outage.part, 1000);
            let (from, to) = outage.step;
            kernel.leap(kernel.chance.within(from, to));
            let steps = outage.steps - 1;
            next(&world, Outage { steps, ..outage });
        },
    );
}
