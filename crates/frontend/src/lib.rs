//! The HTTP API and the web pages of ostraca, for browsers and plain curl.
//!
//! What it promises:
//! - A create carries an idempotency key and is never retried here (k01, k17). It runs on a task of
//!   its own, so a client that goes away does not cancel a commit under way. The body is PUT before
//!   the commit (k07).
//! - A body is stored and read back byte for byte; only the text of an HTML form has its line ends
//!   made LF again. It is verified before its first byte is sent (r07).
//! - Errors have one shape at every layer, and caches are told what they may keep (r06).
//! - Keys, tokens, bodies and titles stand in no log, metric, error or URL (k16).
//! - Every answer comes within its deadline, and memory is bounded by the settings.
//!
//! | module | holds |
//! | --- | --- |
//! | `config`, `admission` | settings; how many creates are in flight |
//! | `body`, `options`, `json`, `form` | a request's bytes, options and forms |
//! | `create`, `read`, `delete`, `site` | the handlers |
//! | `problem`, `negotiate`, `finish`, `pages` | errors, forms of an answer, headers, HTML |
//! | `metrics` | counters |
//! | `serve`, `stall` | connections, the drain, clients that stop reading |

mod admission;
mod body;
mod config;
mod create;
mod delete;
mod finish;
mod form;
mod frontend;
mod instant;
mod json;
mod metrics;
mod negotiate;
mod options;
mod pages;
mod problem;
mod read;
mod serve;
mod site;
mod stall;

pub use config::{Config, ConfigError};
pub use frontend::Frontend;
pub use serve::{DRAIN_MAX, serve};

#[cfg(test)]
mod tests;
