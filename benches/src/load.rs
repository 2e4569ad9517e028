//! Load on one shard over several connections, from one thread.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Failure;
use crate::calls::{COMMIT_PATH, Pool};
use crate::http2::{Connection, Outcome};

/// How long the client sleeps at most between two looks at what is due. Arrivals are no finer than
/// that; their latencies count from when they were due.
const TICK: Duration = Duration::from_micros(200);
/// What was sent is answered within its deadline.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// When calls are sent.
#[derive(Debug, Clone, Copy)]
pub enum Arrivals {
    /// As many at a time; the next when one was answered.
    Closed(usize),
    /// So many a second, whatever happened to the earlier ones.
    Open(f64),
}

/// What became of a window of load.
#[derive(Debug)]
pub struct Report {
    /// How long it was.
    pub window: Duration,
    /// Calls that were due.
    pub due: u64,
    /// Calls that were due while the server, by its limit of streams or by not reading, took none.
    /// They were not sent, then or later.
    pub held_back: u64,
    /// Accepted within the window.
    pub accepted: u64,
    /// Refused with RESOURCE_EXHAUSTED within the window.
    pub refused: u64,
    /// Anything else, whenever it came.
    pub failed: u64,
    /// The largest number of calls without an answer.
    pub in_flight_max: usize,
    /// Microseconds from when a call was due to when it was accepted, of all that were sent.
    pub accepted_us: Histogram<u64>,
    /// The same, of those that were refused.
    pub refused_us: Histogram<u64>,
    /// How late the client came to a call that was due.
    pub late_us: Histogram<u64>,
}

impl Report {
    fn new(window: Duration) -> Result<Self, Failure> {
        Ok(Self {
            window,
            due: 0,
            held_back: 0,
            accepted: 0,
            refused: 0,
            failed: 0,
            in_flight_max: 0,
            accepted_us: histogram()?,
            refused_us: histogram()?,
            late_us: histogram()?,
        })
    }

    /// A count as a rate.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "figures are rounded anyway")]
    pub fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.window.as_secs_f64()
    }
}

/// Up to a minute: more than any call takes.
fn histogram() -> Result<Histogram<u64>, Failure> {
    Ok(Histogram::new_with_max(60_000_000, 3)?)
}

/// A call on its way.
#[derive(Debug, Clone, Copy)]
struct Sent {
    place: usize,
    due: Instant,
}

/// The connections.
#[derive(Debug)]
pub struct Load {
    connections: Vec<Connection<Sent>>,
    /// Whose turn it is.
    turn: usize,
}

impl Load {
    /// Connects to the shard at `address`.
    pub fn connect(address: &str, connections: usize) -> Result<Self, Failure> {
        let open = |_| Connection::open(address, COMMIT_PATH);
        Ok(Self {
            connections: (0..connections).map(open).collect::<Result<_, _>>()?,
            turn: 0,
        })
    }

    /// Sends commits for `window`, or until `stop` says so, and waits for their answers.
    #[allow(clippy::disallowed_methods, reason = "a benchmark times")]
    pub fn drive(
        &mut self,
        pool: &mut Pool,
        arrivals: Arrivals,
        window: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Result<Report, Failure> {
        let mut report = Report::new(window)?;
        let started = Instant::now();
        let ends = started + window;
        loop {
            let now = Instant::now();
            let over = now >= ends || stop();
            if !over {
                self.send_due(pool, arrivals, started, now, &mut report)?;
            }
            let mut in_flight = 0;
            for connection in &mut self.connections {
                connection.pump(&mut |sent: Sent, outcome| {
                    let now = Instant::now();
                    let us = u64::try_from((now - sent.due).as_micros()).unwrap_or(u64::MAX);
                    let in_window = u64::from(now < ends);
                    match outcome {
                        Outcome::Accepted => {
                            report.accepted += in_window;
                            report.accepted_us.saturating_record(us);
                        }
                        Outcome::Refused => {
                            report.refused += in_window;
                            report.refused_us.saturating_record(us);
                            pool.give_back(sent.place);
                        }
                        Outcome::Failed => report.failed += 1,
                    }
                })?;
                in_flight += connection.in_flight();
            }
            report.in_flight_max = report.in_flight_max.max(in_flight);
            if over && in_flight == 0 {
                report.window = window.min(now - started);
                return Ok(report);
            }
            if now > ends + ANSWERS_WITHIN {
                return Err(format!("{in_flight} calls were never answered").into());
            }
            self.wait()?;
        }
    }

    fn send_due(
        &mut self,
        pool: &mut Pool,
        arrivals: Arrivals,
        started: Instant,
        now: Instant,
        report: &mut Report,
    ) -> Result<(), Failure> {
        match arrivals {
            Arrivals::Closed(in_flight) => {
                let mut open: usize = self.connections.iter().map(Connection::in_flight).sum();
                while open < in_flight && self.send(pool, now)? {
                    report.due += 1;
                    open += 1;
                }
            }
            Arrivals::Open(rate) => {
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    clippy::cast_precision_loss,
                    reason = "a count of calls"
                )]
                let (until, due_at) = (((now - started).as_secs_f64() * rate) as u64, |n: u64| {
                    started + Duration::from_secs_f64(n as f64 / rate)
                });
                while report.due < until {
                    let due = due_at(report.due);
                    let late = u64::try_from((now - due).as_micros()).unwrap_or(u64::MAX);
                    report.late_us.saturating_record(late);
                    if !self.send(pool, due)? {
                        report.held_back += 1;
                    }
                    report.due += 1;
                }
            }
        }
        Ok(())
    }

    /// Sends one call over the next connection that takes it. `false`: none does.
    fn send(&mut self, pool: &mut Pool, due: Instant) -> Result<bool, Failure> {
        let place = pool
            .take()
            .ok_or("more was accepted than was prepared for")?;
        let count = self.connections.len();
        for _ in 0..count {
            self.turn = (self.turn + 1) % count;
            let connection = &mut self.connections[self.turn];
            if connection.has_room(pool.call(place)) {
                connection.send(pool.call(place), Sent { place, due });
                return Ok(true);
            }
        }
        pool.give_back(place);
        Ok(false)
    }

    fn wait(&self) -> Result<(), Failure> {
        let interest = |connection: &Connection<Sent>| {
            if connection.wants_to_write() {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            }
        };
        let mut descriptors: Vec<_> = self
            .connections
            .iter()
            .map(|connection| PollFd::new(connection, interest(connection)))
            .collect();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(TICK.subsec_nanos()),
        };
        poll(&mut descriptors, Some(&timeout))?;
        Ok(())
    }
}
