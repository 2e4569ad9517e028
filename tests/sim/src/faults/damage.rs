//! Damage at rest, and the person who looks after it.

use std::sync::Arc;

use super::{kill, seats_of};
use crate::kernel::SECOND;
use crate::shard::{Damage, Directory, Seat};
use crate::world::World;

/// A bit changes at rest, while nobody serves. Either it does no harm, or the shard refuses and says
/// where, and a person puts the file back.
///
/// Only of a log that is led: after a power cut, and before the next leader has flushed the page, the
/// last batches are in doubt, as FORMAT.md says.
pub(super) fn damage(world: &World, seat: &Arc<Seat>) {
    let dir = &seat.dir;
    let chance = &world.kernel.chance;
    if dir.damaged.lock().is_some() || seat.shard().is_none() {
        return;
    }
    for seat in seats_of(world, dir) {
        kill(world, seat);
    }
    let disk = dir.disk.lock().clone();
    let mut files = ostraca_io::Disk::list(&disk).unwrap_or_default();
    files.retain(|name| name.as_str().ends_with(".log"));
    if let Some(file) = chance.pick(&files)
        && let Some(bytes) = disk.contents(file)
        && let Some(last) = bytes.iter().rposition(|&byte| byte != 0)
    {
        let damage = Damage {
            file: file.clone(),
            offset: chance.below(last as u64 + 1),
            bit: u32::try_from(chance.below(8)).unwrap_or(0),
        };
        world.kernel.tell("faults", || format!("{damage:?}"));
        disk.flip_bit(file, damage.offset, damage.bit);
        world.kernel.count("Damage");
        *dir.damaged.lock() = Some(damage);
        look_after(world.clone(), Arc::clone(dir));
    }
}

/// What a person does after damage: looks whether the shard serves or refuses, and puts the file back
/// if it refuses.
fn look_after(world: World, dir: Arc<Directory>) {
    let kernel = world.kernel.clone();
    kernel.after(SECOND / 2, move |kernel| {
        let refuses = |seat: &Arc<Seat>| seat.now.lock().refuses.lock().is_some();
        if seats_of(&world, &dir).any(|seat| seat.shard().is_some()) {
            // It was read whole.
            *dir.damaged.lock() = None;
        } else if seats_of(&world, &dir).any(refuses) {
            if let Some(damage) = dir.damaged.lock().take() {
                kernel.tell("person", || format!("puts {} back", damage.file));
                let disk = dir.disk.lock().clone();
                disk.flip_bit(&damage.file, damage.offset, damage.bit);
            }
            for seat in seats_of(&world, &dir).filter(|seat| refuses(seat)) {
                kill(&world, seat);
            }
        } else {
            look_after(world, dir);
        }
    });
}
