//! The worker against a world that can be stopped, broken and slowed down at every step.

mod fake;
mod order;
mod run;
