//! One line on a terminal that says how far the reading of a log has come.

use std::io::{self, IsTerminal as _, Write};
use std::sync::Arc;
use std::time::Duration;

use ostraca_io::Clock;
use ostraca_wal::{RECORD_HEADER_SIZE, Record};

use crate::machine;

/// Between two drawings, and before the first one: what is done at once needs none.
const INTERVAL: Duration = Duration::from_millis(250);
/// How many records go by between two looks at the clock. They are read in a millisecond or two.
const LOOK_EVERY: u64 = 256;

/// The line. It goes with the value.
pub(super) struct Progress<C: Clock = Arc<dyn Clock>, W: Write = io::Stderr> {
    clock: C,
    out: W,
    label: String,
    records: u64,
    bytes: u64,
    /// When it was drawn last, or the reading began.
    last: Duration,
    drawn: bool,
}

impl Progress {
    /// `None` unless stderr is a terminal.
    pub(super) fn on_terminal(label: &str) -> Option<Self> {
        let stderr = io::stderr();
        if !stderr.is_terminal() {
            return None;
        }
        // Without a clock there is no line; it is not what the command is for.
        Some(Self::new(machine::clock().ok()?, stderr, label))
    }
}

impl<C: Clock, W: Write> Progress<C, W> {
    fn new(clock: C, out: W, label: &str) -> Self {
        let last = clock.boot().elapsed;
        Self {
            clock,
            out,
            label: label.to_owned(),
            records: 0,
            bytes: 0,
            last,
            drawn: false,
        }
    }

    pub(super) fn record(&mut self, record: &Record<'_>) {
        self.count((RECORD_HEADER_SIZE + record.payload.len()) as u64);
    }

    fn count(&mut self, bytes: u64) {
        self.records += 1;
        self.bytes += bytes;
        if self.records.is_multiple_of(LOOK_EVERY) {
            let now = self.clock.boot().elapsed;
            if now.saturating_sub(self.last) >= INTERVAL {
                self.last = now;
                self.draw();
            }
        }
    }

    fn draw(&mut self) {
        let (label, records) = (&self.label, self.records);
        // Tenths, without a float.
        let (whole, tenths) = (self.bytes >> 20, ((self.bytes & 0xf_ffff) * 10) >> 20);
        let line = format!("\r\x1b[2K{label}: {records} records, {whole}.{tenths} MiB");
        self.write(&line);
        self.drawn = true;
    }

    /// A terminal that is gone misses nothing.
    fn write(&mut self, text: &str) {
        let _ = self.out.write_all(text.as_bytes());
        let _ = self.out.flush();
    }
}

impl<C: Clock, W: Write> Drop for Progress<C, W> {
    fn drop(&mut self) {
        if self.drawn {
            self.write("\r\x1b[2K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_io::ManualClock;
    use ostraca_types::Timestamp;

    fn read(records: u64, of: Duration) -> String {
        let clock = ManualClock::new(Timestamp(0));
        let mut out = Vec::new();
        let mut progress = Progress::new(clock.clone(), &mut out, "shard-0");
        for _ in 0..records {
            clock.advance(of);
            progress.count(1 << 10);
        }
        drop(progress);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn what_is_done_at_once_is_not_drawn() {
        assert_eq!(read(100_000, Duration::ZERO), "");
        assert_eq!(read(LOOK_EVERY - 1, Duration::from_secs(1)), "");
    }

    #[test]
    fn a_line_is_drawn_a_few_times_a_second_and_cleared() {
        let text = read(10_240, Duration::from_micros(100));
        let lines: Vec<_> = text.split("\r\x1b[2K").skip(1).collect();
        let (last, drawn) = lines.split_last().expect("it was drawn");
        assert_eq!(*last, "", "cleared at the end");
        assert!((2..=4).contains(&drawn.len()), "in a second: {drawn:?}");
        assert_eq!(drawn[0], "shard-0: 2560 records, 2.5 MiB");
        assert!(!text.contains('\n'));
    }
}
