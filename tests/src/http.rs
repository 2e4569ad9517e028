//! HTTP/1.1 over a bare socket, so that a test decides about every byte.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::Value;

use crate::DEADLINE;

/// A client of one server. Every request has a connection of its own.
#[derive(Debug, Clone)]
pub struct Http {
    address: String,
}

/// How a body is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// `Content-Length`.
    Length,
    /// `Transfer-Encoding: chunked`, in chunks of this size.
    Chunked(usize),
}

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
    framing: Framing,
}

impl Request {
    /// Without body.
    #[must_use]
    pub fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Vec::new(),
            body: None,
            framing: Framing::Length,
        }
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// With the body framed in this way.
    #[must_use]
    pub const fn framing(mut self, framing: Framing) -> Self {
        self.framing = framing;
        self
    }

    /// The bytes of head and body.
    #[must_use]
    pub fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        let Self {
            method,
            target,
            headers,
            body,
            framing,
        } = self;
        let mut head = format!("{method} {target} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
        for (name, value) in headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let mut bytes = Vec::new();
        match (body, framing) {
            (None, _) => {}
            (Some(body), Framing::Length) => {
                let _ = write!(head, "content-length: {}\r\n", body.len());
                bytes.clone_from(body);
            }
            (Some(body), Framing::Chunked(size)) => {
                head.push_str("transfer-encoding: chunked\r\n");
                for chunk in body.chunks(*size) {
                    bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    bytes.extend_from_slice(chunk);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\n\r\n");
            }
        }
        head.push_str("\r\n");
        (head.into_bytes(), bytes)
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names in lower case, in the order in which they came.
    pub headers: Vec<(String, String)>,
    /// The body, unframed.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(have, _)| have == name)
            .map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|err| panic!("{err} in {}", self.text()))
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The reason of a problem.
    #[must_use]
    pub fn reason(&self) -> String {
        self.json()["reason"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

/// How much of a request reaches the server before the client goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Half of the head.
    MidHead,
    /// The head and nothing of the body.
    Head,
    /// Half of the body.
    MidBody,
    /// Everything; the answer is not read.
    Answer,
}

impl Http {
    /// A client of the server at `url`, which has no path.
    #[must_use]
    pub fn new(url: &str) -> Self {
        let address = url
            .strip_prefix("http://")
            .expect("an http URL")
            .trim_end_matches('/');
        Self {
            address: address.to_owned(),
        }
    }

    /// Sends a request and reads the answer.
    pub fn try_send(&self, request: &Request) -> io::Result<Response> {
        let stream = self.connect()?;
        let (head, body) = request.encode();
        let mut writer = &stream;
        // A server may answer, and stop reading, before it has everything.
        let sent = writer
            .write_all(&head)
            .and_then(|()| writer.write_all(&body));
        read_response(BufReader::new(&stream), request.method == "HEAD").map_err(|err| {
            // The first failure is the one that says more.
            sent.err().unwrap_or(err)
        })
    }

    /// Like [`Self::try_send`]; panics if there is no answer.
    #[must_use]
    pub fn send(&self, request: &Request) -> Response {
        let Request { method, target, .. } = request;
        self.try_send(request)
            .unwrap_or_else(|err| panic!("no answer to {method} {target}: {err}"))
    }

    /// GET.
    #[must_use]
    pub fn get(&self, target: &str) -> Response {
        self.send(&Request::new("GET", target))
    }

    /// Sends a part of a request, and closes the connection without reading.
    pub fn abandon(&self, request: &Request, until: Until) -> io::Result<()> {
        let stream = self.connect()?;
        let (head, body) = request.encode();
        let mut writer = &stream;
        match until {
            Until::MidHead => writer.write_all(&head[..head.len() / 2])?,
            Until::Head => writer.write_all(&head)?,
            Until::MidBody => {
                writer.write_all(&head)?;
                writer.write_all(&body[..body.len() / 2])?;
            }
            Until::Answer => {
                writer.write_all(&head)?;
                writer.write_all(&body)?;
            }
        }
        stream.shutdown(Shutdown::Both)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        Ok(stream)
    }
}

fn read_response(mut reader: impl BufRead, is_head: bool) -> io::Result<Response> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    loop {
        let line = read_line(&mut reader)?;
        let status = line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3));
        let status = status
            .and_then(|status| status.parse().ok())
            .ok_or_else(malformed)?;
        let mut headers = Vec::new();
        loop {
            let line = read_line(&mut reader)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(malformed)?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut response = Response {
            status,
            headers,
            body: Vec::new(),
        };
        if (100..200).contains(&status) {
            continue;
        }
        if !is_head && status != 204 && status != 304 {
            response.body = read_body(&mut reader, &response)?;
        }
        return Ok(response);
    }
}

fn read_body(reader: &mut impl BufRead, response: &Response) -> io::Result<Vec<u8>> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let mut body = Vec::new();
    if response
        .header("transfer-encoding")
        .is_some_and(|value| value == "chunked")
    {
        loop {
            let size = usize::from_str_radix(&read_line(reader)?, 16).map_err(|_| malformed())?;
            let at = body.len();
            body.resize(at + size, 0);
            reader.read_exact(&mut body[at..])?;
            if !read_line(reader)?.is_empty() {
                return Err(malformed());
            }
            if size == 0 {
                return Ok(body);
            }
        }
    }
    match response.header("content-length") {
        Some(length) => {
            body.resize(length.parse().map_err(|_| malformed())?, 0);
            reader.read_exact(&mut body)?;
        }
        None => {
            reader.read_to_end(&mut body)?;
        }
    }
    Ok(body)
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    // No line of a head is longer.
    reader.take(64 << 10).read_until(b'\n', &mut line)?;
    let line = line
        .strip_suffix(b"\r\n")
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    String::from_utf8(line.to_owned()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_in_both_framings() {
        let length = b"HTTP/1.1 200 OK\r\nETag: x\r\ncontent-length: 2\r\n\r\nabREST";
        let response = read_response(&length[..], false).expect("an answer");
        assert_eq!(
            (response.status, response.body.as_slice()),
            (200, &b"ab"[..])
        );
        assert_eq!(response.header("etag"), Some("x"));
        let chunked = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n";
        assert_eq!(
            read_response(&chunked[..], false).expect("an answer").body,
            b"ab"
        );
        assert!(
            read_response(&length[..length.len() - 6], false).is_err(),
            "cut short"
        );
        assert!(
            read_response(&length[..], true)
                .expect("a head")
                .body
                .is_empty()
        );
    }
}
