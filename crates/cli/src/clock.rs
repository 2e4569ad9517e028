//! `ostraca clock`: what a person decides about the clocks of shards.

use crate::args::ClockCommand;
use crate::exit::{Exit, Failure, say};
use crate::frontend::shards;
use crate::{data, process};

pub(crate) fn run(command: &ClockCommand) -> Result<(), Failure> {
    let ClockCommand::Confirm(args) = command;
    let data = data::open(&args.data.path)?;
    let client = shards(&data, Vec::new());
    process::local_runtime()?.block_on(async {
        let unreachable = |err: ostraca_client::Error| Failure::caused(Exit::Unavailable, &err);
        let mut ended = Ok(());
        // Also after one that does not answer: a shard that stays behind is worse than an error.
        for shard in client.shards().await.map_err(unreachable)? {
            match client.confirm_clock(&shard.address).await {
                Ok(()) => say(format_args!(
                    "shard {} takes its wall clock as right",
                    shard.id
                )),
                Err(err) => {
                    say(format_args!("shard {} was not told: {err}", shard.id));
                    ended = Err(unreachable(err));
                }
            }
        }
        ended
    })
}
