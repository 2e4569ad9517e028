//! What an operator can set.

use std::fmt;

use ostraca_types::contract::{BODY_SIZE_DEFAULT, BODY_SIZE_MAX};

use crate::admission;

/// The settings of a frontend. [`Config::default`] has the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// What links start with: `http://` or `https://`, a host, maybe a port, no path. Never the
    /// Host header of a request. `None` for `http://` and the address that [`crate::serve`]
    /// listens on.
    pub public_url: Option<String>,
    /// The largest body in decoded bytes: 1 to [`BODY_SIZE_MAX`]; [`BODY_SIZE_DEFAULT`] by
    /// default. A larger one costs memory per create in flight.
    pub body_size_max: usize,
    /// Creates in flight; more are refused at once with `OVERLOADED`. More of them use the shards
    /// better until the shards refuse.
    pub creates_in_flight_max: usize,
    /// Bytes that the bodies of all creates in flight may take, counted before they are read; more
    /// are refused at once with `OVERLOADED`. At least one create of the largest body must fit.
    pub create_memory_max: usize,
    /// Bytes that the bodies of all answers in flight may take; more reads are refused at once
    /// with `OVERLOADED`. At least one page of the largest body must fit.
    pub read_memory_max: usize,
    /// Connections served at one time; more wait in the listener's queue. Below the limit of open
    /// files, or accepting fails.
    pub connections_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            public_url: None,
            body_size_max: BODY_SIZE_DEFAULT,
            creates_in_flight_max: 512,
            create_memory_max: 256 << 20,
            read_memory_max: 256 << 20,
            connections_max: 900,
        }
    }
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Its name, as the field of [`Config`].
    pub setting: &'static str,
    /// What was given.
    pub value: String,
    /// What it has to be.
    pub expected: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} must be {}: {}",
            self.setting, self.expected, self.value
        )
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reports the first setting that cannot be used. Changes nothing.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |setting, value: &dyn fmt::Display, expected: String| {
            Err(ConfigError {
                setting,
                value: value.to_string(),
                expected,
            })
        };
        if self.body_size_max == 0 || self.body_size_max > BODY_SIZE_MAX {
            let expected = format!("1 to {BODY_SIZE_MAX} bytes");
            return refuse("body_size_max", &self.body_size_max, expected);
        }
        if self.creates_in_flight_max == 0 {
            return refuse("creates_in_flight_max", &0, "at least 1".to_owned());
        }
        if self.connections_max == 0 {
            return refuse("connections_max", &0, "at least 1".to_owned());
        }
        let least = admission::cost_max(self.body_size_max);
        if self.create_memory_max < least {
            let expected = format!("at least {least} bytes with this body_size_max");
            return refuse("create_memory_max", &self.create_memory_max, expected);
        }
        let least = admission::read_cost_max(self.body_size_max);
        if self.read_memory_max < least {
            let expected = format!("at least {least} bytes with this body_size_max");
            return refuse("read_memory_max", &self.read_memory_max, expected);
        }
        match &self.public_url {
            Some(url) if !is_origin(url) => {
                let expected = "http:// or https:// and a host, without a path".to_owned();
                refuse("public_url", url, expected)
            }
            _ => Ok(()),
        }
    }
}

/// Scheme, host and maybe a port; one slash at the end is forgiven. Nothing that could end an
/// attribute or a header line.
fn is_origin(url: &str) -> bool {
    let Some(authority) = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"))
    else {
        return false;
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    !authority.is_empty()
        && authority.bytes().all(host_byte)
        && authority.parse::<axum::http::uri::Authority>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: &Config) -> &'static str {
        config.validate().expect_err("refused").setting
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(Config::default().validate(), Ok(()));
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        for body_size_max in [0, BODY_SIZE_MAX + 1] {
            assert_eq!(
                refused(&Config {
                    body_size_max,
                    ..Config::default()
                }),
                "body_size_max"
            );
        }
        let config = Config {
            create_memory_max: 1 << 20,
            ..Config::default()
        };
        assert_eq!(refused(&config), "create_memory_max");
        let config = Config {
            read_memory_max: 1 << 20,
            ..Config::default()
        };
        assert_eq!(refused(&config), "read_memory_max");
        let config = Config {
            body_size_max: BODY_SIZE_MAX,
            ..Config::default()
        };
        assert_eq!(
            config.validate(),
            Ok(()),
            "the largest body fits the default memory"
        );
    }

    #[test]
    fn a_public_url_is_an_origin() {
        let with = |url: &str| Config {
            public_url: Some(url.to_owned()),
            ..Config::default()
        };
        for url in [
            "http://localhost:8080",
            "https://paste.example.org",
            "http://[::1]:80/",
        ] {
            assert_eq!(with(url).validate(), Ok(()), "{url}");
        }
        for url in [
            "",
            "paste.example.org",
            "ftp://x",
            "https://",
            "https://x/paste",
            "https://x?y",
            "https://u:p@x",
            "https://x\r\nA: b",
            "https://x\"><script>",
        ] {
            assert_eq!(refused(&with(url)), "public_url", "{url}");
        }
    }
}
