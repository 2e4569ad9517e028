//! HTML pages and static files. Templates escape everything; none marks anything as safe.

use std::sync::LazyLock;

use askama::Template;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use sha2::{Digest as _, Sha256};

use crate::read::Preview;

/// One static file.
#[derive(Debug)]
pub(crate) struct Asset {
    /// With a part of its content's hash, so that a changed file has another name.
    pub(crate) name: String,
    pub(crate) content_type: &'static str,
    pub(crate) text: &'static str,
}

impl Asset {
    fn new(stem: &str, ending: &str, content_type: &'static str, text: &'static str) -> Self {
        let hash = Sha256::digest(text);
        let hash: String = hash
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self {
            name: format!("{stem}-{hash}.{ending}"),
            content_type,
            text,
        }
    }
}

/// The static files.
#[derive(Debug)]
pub(crate) struct Assets {
    pub(crate) script: Asset,
    pub(crate) style: Asset,
    pub(crate) icon: Asset,
}

impl Assets {
    pub(crate) fn find(&self, name: &str) -> Option<&Asset> {
        [&self.script, &self.style, &self.icon]
            .into_iter()
            .find(|asset| asset.name == name)
    }
}

pub(crate) fn assets() -> &'static Assets {
    static ASSETS: LazyLock<Assets> = LazyLock::new(|| Assets {
        script: Asset::new(
            "app",
            "js",
            "text/javascript; charset=utf-8",
            include_str!("../assets/app.js"),
        ),
        style: Asset::new(
            "app",
            "css",
            "text/css; charset=utf-8",
            include_str!("../assets/app.css"),
        ),
        icon: Asset::new(
            "icon",
            "svg",
            "image/svg+xml",
            include_str!("../assets/icon.svg"),
        ),
    });
    &ASSETS
}

#[derive(Template)]
#[template(path = "index.html")]
pub(crate) struct IndexPage<'a> {
    pub(crate) assets: &'a Assets,
    pub(crate) idempotency_key: &'a str,
    pub(crate) size_max: &'a str,
    pub(crate) size_max_bytes: usize,
}

#[derive(Template)]
#[template(path = "created.html")]
pub(crate) struct CreatedPage<'a> {
    pub(crate) assets: &'a Assets,
    pub(crate) id: &'a str,
    pub(crate) url: &'a str,
    pub(crate) raw_url: &'a str,
    pub(crate) expires_at: &'a str,
    pub(crate) delete_token: &'a str,
}

#[derive(Template)]
#[template(path = "paste.html")]
pub(crate) struct PastePage<'a> {
    pub(crate) assets: &'a Assets,
    pub(crate) id: &'a str,
    pub(crate) url: &'a str,
    pub(crate) title: Option<&'a str>,
    pub(crate) syntax: Option<&'a str>,
    pub(crate) created_at: &'a str,
    pub(crate) expires_at: &'a str,
    pub(crate) size: &'a str,
    pub(crate) preview: &'a Preview,
}

#[derive(Template)]
#[template(path = "delete.html")]
pub(crate) struct DeletePage<'a> {
    pub(crate) assets: &'a Assets,
    pub(crate) id: &'a str,
}

#[derive(Template)]
#[template(path = "deleted.html")]
pub(crate) struct DeletedPage<'a> {
    pub(crate) assets: &'a Assets,
}

#[derive(Template)]
#[template(path = "error.html")]
pub(crate) struct ErrorPage<'a> {
    pub(crate) assets: &'a Assets,
    pub(crate) status: u16,
    pub(crate) title: &'a str,
    pub(crate) detail: &'a str,
    /// The form that this came from.
    pub(crate) form: Option<&'a str>,
    /// Sending the same again may help.
    pub(crate) retry: bool,
    /// The form's key was used up: a new form has a new one.
    pub(crate) conflict: bool,
}

#[derive(Template)]
#[template(path = "help.txt", escape = "none")]
pub(crate) struct Help<'a> {
    pub(crate) origin: &'a str,
    pub(crate) size_max_bytes: usize,
}

/// A page that nobody keeps, unless its handler says otherwise.
pub(crate) fn html(text: impl Into<Body>) -> Response {
    let mut response = Response::new(text.into());
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/html; charset=utf-8"),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A small page from its template; templates over strings have no way to fail.
pub(crate) fn small(page: &impl Template) -> Response {
    html(page.render().unwrap_or_default())
}

/// A size for people.
pub(crate) fn size(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    let tenths = |unit: u64| {
        let tenths = bytes * 10 / unit;
        match tenths % 10 {
            0 => format!("{}", tenths / 10),
            part => format!("{}.{part}", tenths / 10),
        }
    };
    match bytes {
        1 => "1 byte".to_owned(),
        0..KIB => format!("{bytes} bytes"),
        KIB..MIB => format!("{} KiB", tenths(KIB)),
        _ => format!("{} MiB", tenths(MIB)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        let cases = [
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size(10 << 20), "10 MiB");
    }

    #[test]
    fn static_names_follow_their_content() {
        let [one, two] = ["a", "b"].map(|text| Asset::new("app", "js", "text/javascript", text));
        assert_ne!(one.name, two.name);
        assert!(assets().find(&assets().script.name).is_some());
        assert!(assets().find("app.js").is_none());
    }

    #[test]
    fn what_a_paste_says_is_inert_on_its_page() {
        let markup = "</pre></title><script>alert(1)</script>\"'&";
        let preview = Preview::of(markup.as_bytes());
        let page = PastePage {
            assets: assets(),
            id: "00abcdefghijkl",
            url: "http://localhost/00abcdefghijkl",
            title: Some(markup),
            syntax: Some("c++"),
            created_at: "now",
            expires_at: "later",
            size: "1 byte",
            preview: &preview,
        };
        let html = page.render().expect("a page");
        assert!(!html.contains("<script>"), "{html}");
        assert_eq!(html.matches("</pre>").count(), 1, "{html}");
        assert_eq!(html.matches("</title>").count(), 1, "{html}");
    }
}
