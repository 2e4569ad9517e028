//! Which form of an answer a client prefers.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

/// The forms in which answers exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// For programs.
    Json,
    /// For pipes.
    Text,
    /// For browsers.
    Html,
}

impl Format {
    /// The media types that ask for it.
    const fn types(self) -> &'static [&'static str] {
        match self {
            Self::Json => &["application/json", "application/problem+json"],
            Self::Text => &["text/plain"],
            Self::Html => &["text/html"],
        }
    }
}

/// The one of `offers` that the `Accept` header likes best: the highest quality; of equals the one
/// that is named rather than covered by a wildcard; of those the first offer. The first offer too
/// when nothing suits or nothing is said: an answer in another form is worth more than none.
pub(crate) fn prefer(headers: &HeaderMap, offers: &[Format]) -> Format {
    let values = headers
        .get_all(ACCEPT)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    let ranges: Vec<Range<'_>> = values
        .flat_map(|value| value.split(','))
        .map(range)
        .collect();
    let mut best = (
        Rank::default(),
        offers.first().copied().unwrap_or(Format::Json),
    );
    for &offer in offers {
        let rank = offer
            .types()
            .iter()
            .map(|name| rank(&ranges, name))
            .max()
            .unwrap_or_default();
        // Strictly better: of equals the first stays.
        if rank > best.0 {
            best = (rank, offer);
        }
    }
    best.1
}

struct Range<'a> {
    name: &'a str,
    /// In thousandths.
    quality: u16,
}

/// Quality, then how precisely the type was named.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u16, u8);

fn range(text: &str) -> Range<'_> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let quality = parts
        .find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")))
        .map_or(1000, thousandths);
    Range { name, quality }
}

/// `0.5` as 500; 0 for what is no quality.
fn thousandths(text: &str) -> u16 {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 3 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return 0;
    }
    match whole {
        "1" => 1000,
        "0" => format!("{part:0<3}").parse().unwrap_or(0),
        _ => 0,
    }
}

/// The most precise range that covers `name` decides.
fn rank(ranges: &[Range<'_>], name: &str) -> Rank {
    let precision = |range: &Range<'_>| {
        let group = range.name.strip_suffix("/*");
        if range.name.eq_ignore_ascii_case(name) {
            Some(3)
        } else if range.name == "*/*" {
            Some(1)
        } else {
            let of_name = name.split_once('/').map(|(group, _)| group);
            (group.is_some()
                && group
                    .zip(of_name)
                    .is_some_and(|(a, b)| a.eq_ignore_ascii_case(b)))
            .then_some(2)
        }
    };
    let covering = ranges
        .iter()
        .filter_map(|range| Some((precision(range)?, range.quality)));
    match covering.max_by_key(|&(precision, _)| precision) {
        Some((precision, quality)) if quality > 0 => Rank(quality, precision),
        _ => Rank::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::Format::{Html, Json, Text};
    use super::*;

    #[test]
    fn clients_get_the_form_that_they_ask_for() {
        let cases = [
            (None, Json),
            (Some("*/*"), Json), // curl
            (Some("application/json"), Json),
            (Some("application/problem+json"), Json),
            (Some("text/plain"), Text),
            (Some("TEXT/PLAIN"), Text),
            (Some("text/plain, */*"), Text),
            (Some("application/json, text/plain, */*"), Json), // axios
            (
                Some("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
                Html,
            ),
            (Some("text/html;q=0.1, text/plain;q=0.2"), Text),
            (Some("text/*"), Text),
            (Some("text/plain;q=0, text/*"), Html),
            (Some("image/png"), Json),     // nothing suits
            (Some("text/html;q=2"), Json), // no quality
            (Some(";;,,q=1"), Json),
        ];
        for (accept, expected) in cases {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, accept.parse().expect("a header value"));
            }
            assert_eq!(
                prefer(&headers, &[Json, Text, Html]),
                expected,
                "{accept:?}"
            );
        }
    }

    #[test]
    fn several_accept_headers_are_one() {
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT, "text/plain;q=0.5".parse().expect("a header value"));
        headers.append(ACCEPT, "text/html".parse().expect("a header value"));
        assert_eq!(prefer(&headers, &[Json, Text, Html]), Html);
    }
}
