//! A gRPC client that costs next to nothing: one HTTP/2 connection, unary calls of one method, frames
//! prepared once.
//!
//! The stock client takes more CPU for a call than the server does, so on shared cores it would be
//! the bottleneck of any measurement of overload. This one copies a call's bytes behind a stream
//! number, and of an answer looks at its status alone. It keeps to what the server allows: streams,
//! windows, pings. For this repository's own servers: it reads what the `h2` crate writes.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// What the whole connection may send us before it hears that we took it.
const WINDOW: u32 = 1 << 30;
/// Calls whose bytes the socket has not taken yet are held back, rather than queued here.
const UNSENT_MAX: usize = 256 << 10;
const READ_SIZE: usize = 64 << 10;
const FRAME_HEADER: usize = 9;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The name `grpc-status` as HPACK writes it, Huffman-coded, with its length before it.
const GRPC_STATUS: [u8; 9] = [0x88, 0x9a, 0xca, 0xc8, 0xb2, 0x12, 0x34, 0xda, 0x8f];

mod kind {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
}

mod flag {
    pub(super) const END_STREAM: u8 = 1;
    pub(super) const ACK: u8 = 1;
    pub(super) const END_HEADERS: u8 = 4;
}

mod setting {
    pub(super) const HEADER_TABLE_SIZE: u16 = 1;
    pub(super) const ENABLE_PUSH: u16 = 2;
    pub(super) const MAX_CONCURRENT_STREAMS: u16 = 3;
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// OK.
    Accepted,
    /// RESOURCE_EXHAUSTED.
    Refused,
    /// Any other status, or a stream that was reset.
    Failed,
}

/// The body of a unary call: a gRPC message with its prefix.
#[derive(Debug, Clone)]
pub struct Call(Box<[u8]>);

impl Call {
    /// Of an encoded message.
    #[must_use]
    pub fn new(message: &impl prost::Message) -> Self {
        let size = u32::try_from(message.encoded_len()).unwrap_or(u32::MAX);
        let mut bytes = vec![0];
        bytes.extend(size.to_be_bytes());
        bytes.extend(message.encode_to_vec());
        Self(bytes.into())
    }
}

/// One connection; `T` is what the caller wants to know of a call when it is answered.
pub struct Connection<T> {
    stream: TcpStream,
    first_headers: Vec<u8>,
    out: Vec<u8>,
    /// How much of `out` the socket has taken.
    out_taken: usize,
    input: Vec<u8>,
    chunk: Box<[u8]>,
    open: HashMap<u32, T>,
    streams_max: usize,
    next_stream: u32,
    send_window: i64,
    taken_unsaid: u32,
}

impl<T> std::fmt::Debug for Connection<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("open", &self.open.len())
            .finish_non_exhaustive()
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let size = u32::try_from(payload.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes();
    out.extend_from_slice(&[size[1], size[2], size[3], kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// An HPACK string, not Huffman-coded. Ours are shorter than 127 bytes.
fn text(out: &mut Vec<u8>, text: &str) {
    assert!(text.len() < 127);
    out.push(u8::try_from(text.len()).unwrap_or_default());
    out.extend_from_slice(text.as_bytes());
}

/// The headers of the first call. They enter the server's table, so that those of later calls are
/// [`LATER_HEADERS`].
fn first_headers(address: &str, path: &str) -> Vec<u8> {
    // :method POST and :scheme http.
    let mut block = vec![0x83, 0x86];
    // By the numbers of their names in HPACK's own table: :path, :authority, content-type.
    for (name, value) in [(0x44, path), (0x41, address), (0x5f, "application/grpc")] {
        block.push(name);
        text(&mut block, value);
    }
    // The deadline is the stock client's.
    for (name, value) in [("te", "trailers"), ("grpc-timeout", "5S")] {
        block.push(0x40);
        text(&mut block, name);
        text(&mut block, value);
    }
    block
}

/// What was entered last has number 62.
const LATER_HEADERS: [u8; 7] = [
    0x83,
    0x86,
    0x80 | 66,
    0x80 | 65,
    0x80 | 64,
    0x80 | 63,
    0x80 | 62,
];

impl<T> Connection<T> {
    /// Connects to `address` (host:port) for calls of the method at `path`.
    pub fn open(address: &str, path: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut out = PREFACE.to_vec();
        let mut settings = Vec::new();
        // Without a table of theirs, a status is found without decoding what came before.
        for (name, value) in [(setting::HEADER_TABLE_SIZE, 0), (setting::ENABLE_PUSH, 0)] {
            settings.extend_from_slice(&u16::to_be_bytes(name));
            settings.extend_from_slice(&u32::to_be_bytes(value));
        }
        frame(&mut out, kind::SETTINGS, 0, 0, &settings);
        frame(&mut out, kind::WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        Ok(Self {
            stream,
            first_headers: first_headers(address, path),
            out,
            out_taken: 0,
            input: Vec::new(),
            chunk: vec![0; READ_SIZE].into(),
            open: HashMap::new(),
            // Until the server says how many.
            streams_max: 1,
            next_stream: 1,
            send_window: 65_535,
            taken_unsaid: 0,
        })
    }

    /// Calls without an answer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.open.len()
    }

    /// Whether the server, and the socket, take another call of this size.
    #[must_use]
    pub fn has_room(&self, call: &Call) -> bool {
        self.open.len() < self.streams_max
            && self.send_window >= i64::try_from(call.0.len()).unwrap_or(i64::MAX)
            && self.out.len() - self.out_taken < UNSENT_MAX
    }

    /// Queues a call. Ask [`Self::has_room`] first.
    pub fn send(&mut self, call: &Call, context: T) {
        let stream = self.next_stream;
        self.next_stream += 2;
        let later: &[u8] = &LATER_HEADERS;
        let headers = if stream == 1 {
            &self.first_headers
        } else {
            later
        };
        frame(
            &mut self.out,
            kind::HEADERS,
            flag::END_HEADERS,
            stream,
            headers,
        );
        frame(&mut self.out, kind::DATA, flag::END_STREAM, stream, &call.0);
        self.send_window -= i64::try_from(call.0.len()).unwrap_or(i64::MAX);
        self.open.insert(stream, context);
    }

    /// Writes and reads what can be without waiting, and tells of each call that was answered.
    pub fn pump(&mut self, answered: &mut impl FnMut(T, Outcome)) -> io::Result<()> {
        self.write()?;
        self.read()?;
        let input = std::mem::take(&mut self.input);
        let mut rest = input.as_slice();
        while let Some((header, after)) = rest.split_first_chunk::<FRAME_HEADER>() {
            let [a, b, c, kind, flags, stream @ ..] = *header;
            let size = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some((payload, after)) = after.split_at_checked(size) else {
                break;
            };
            let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
            self.take(kind, flags, stream, payload, answered)?;
            rest = after;
        }
        self.input = rest.to_vec();
        self.write()
    }

    fn take(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
        answered: &mut impl FnMut(T, Outcome),
    ) -> io::Result<()> {
        match kind {
            kind::DATA => {
                self.taken_unsaid += u32::try_from(payload.len()).unwrap_or(u32::MAX);
                if self.taken_unsaid > WINDOW / 2 {
                    let taken = std::mem::take(&mut self.taken_unsaid).to_be_bytes();
                    frame(&mut self.out, kind::WINDOW_UPDATE, 0, 0, &taken);
                }
            }
            kind::HEADERS if flags & flag::END_STREAM != 0 => {
                if let Some(context) = self.open.remove(&stream) {
                    answered(context, outcome(payload));
                }
            }
            kind::RST_STREAM => {
                if let Some(context) = self.open.remove(&stream) {
                    answered(context, Outcome::Failed);
                }
            }
            kind::SETTINGS if flags & flag::ACK == 0 => {
                for entry in payload.as_chunks::<6>().0 {
                    let [name @ .., a, b, c, d] = *entry;
                    if u16::from_be_bytes(name) == setting::MAX_CONCURRENT_STREAMS {
                        self.streams_max = u32::from_be_bytes([a, b, c, d]) as usize;
                    }
                }
                frame(&mut self.out, kind::SETTINGS, flag::ACK, 0, &[]);
            }
            kind::PING if flags & flag::ACK == 0 => {
                frame(&mut self.out, kind::PING, flag::ACK, 0, payload);
            }
            kind::WINDOW_UPDATE if stream == 0 => {
                let more = payload
                    .first_chunk()
                    .map_or(0, |bytes| u32::from_be_bytes(*bytes));
                self.send_window += i64::from(more);
            }
            kind::GOAWAY => return Err(io::ErrorKind::ConnectionAborted.into()),
            _ => {}
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        while self.out_taken < self.out.len() {
            match self.stream.write(&self.out[self.out_taken..]) {
                Ok(taken) => self.out_taken += taken,
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(err) => return Err(err),
            }
        }
        self.out.clear();
        self.out_taken = 0;
        Ok(())
    }

    fn read(&mut self) -> io::Result<()> {
        loop {
            match self.stream.read(&mut self.chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.input.extend_from_slice(&self.chunk[..read]);
                    if read < self.chunk.len() {
                        return Ok(());
                    }
                }
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(err) => return Err(err),
            }
        }
    }

    /// Whether the socket has not taken all that was queued.
    #[must_use]
    pub fn wants_to_write(&self) -> bool {
        self.out_taken < self.out.len()
    }
}

impl<T> AsFd for Connection<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The status in a block of trailers: the byte behind the name's length and the value's is `0` or
/// `8`, Huffman-coded and padded.
fn outcome(block: &[u8]) -> Outcome {
    let mut found = block.windows(GRPC_STATUS.len() + 2).filter_map(|at| {
        let value = at.strip_prefix(&GRPC_STATUS)?;
        Some([value[0], value[1]])
    });
    match found.next() {
        Some([0x81, 0x07] | [0x01, b'0']) => Outcome::Accepted,
        Some([0x81, 0x7b] | [0x01, b'8']) => Outcome::Refused,
        _ => Outcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ostraca_proto::v1;
    use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
    use tonic::transport::Server;
    use tonic::{Request, Response, Status, Streaming};
    use tonic_types::{ErrorDetails, StatusExt as _};
    use v1::paste_service_server::{PasteService, PasteServiceServer};

    use super::*;
    use crate::calls::COMMIT_PATH;

    /// Answers a commit as its title says.
    struct Told;

    type Answer<T> = Result<Response<T>, Status>;

    #[tonic::async_trait]
    impl PasteService for Told {
        type StreamCreatesStream = ReceiverStream<Result<v1::StreamCreatesResponse, Status>>;

        async fn commit_create(
            &self,
            request: Request<v1::CommitCreateRequest>,
        ) -> Answer<v1::CommitCreateResponse> {
            let mut details = ErrorDetails::new();
            details.set_retry_info(Some(Duration::from_millis(500)));
            let text = "the shard has more work than it can queue";
            match request.get_ref().title.as_str() {
                "accept" => Ok(Response::new(v1::CommitCreateResponse::default())),
                "refuse" => {
                    let code = tonic::Code::ResourceExhausted;
                    Err(Status::with_error_details(code, text, details))
                }
                _ => Err(Status::unavailable(text)),
            }
        }

        async fn begin_create(
            &self,
            _: Request<v1::BeginCreateRequest>,
        ) -> Answer<v1::BeginCreateResponse> {
            Err(Status::unimplemented(""))
        }

        async fn stream_creates(
            &self,
            _: Request<Streaming<v1::StreamCreatesRequest>>,
        ) -> Answer<Self::StreamCreatesStream> {
            Err(Status::unimplemented(""))
        }

        async fn get_paste(&self, _: Request<v1::GetPasteRequest>) -> Answer<v1::GetPasteResponse> {
            Err(Status::unimplemented(""))
        }

        async fn delete_paste(
            &self,
            _: Request<v1::DeletePasteRequest>,
        ) -> Answer<v1::DeletePasteResponse> {
            Err(Status::unimplemented(""))
        }
    }

    /// Goal: what a run counts as accepted, refused or failed is what the server answered.
    /// Method: a server of the same library answers each, more often than it has streams.
    #[expect(clippy::disallowed_methods, reason = "a limit for a loop that hangs")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_status_is_read_as_what_it_is() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let server = Server::builder()
            .max_concurrent_streams(4)
            .add_service(PasteServiceServer::new(Told))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(server);
        let wanted = [
            ("accept", Outcome::Accepted),
            ("refuse", Outcome::Refused),
            ("fail", Outcome::Failed),
        ];
        let calls = wanted.map(|(title, _)| {
            Call::new(&v1::CommitCreateRequest {
                title: title.to_owned(),
                ..Default::default()
            })
        });
        let mut connection = Connection::open(&address, COMMIT_PATH).expect("connected");
        let started = Instant::now();
        let (mut sent, mut answered) = (0, 0);
        while answered < 300 {
            while sent < 300 && connection.has_room(&calls[sent % 3]) {
                connection.send(&calls[sent % 3], sent % 3);
                sent += 1;
            }
            let mut check = |which: usize, outcome| {
                assert_eq!(outcome, wanted[which].1, "{}", wanted[which].0);
                answered += 1;
            };
            connection.pump(&mut check).expect("open");
            assert!(
                connection.in_flight() <= 4,
                "more streams than the server allows"
            );
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "{answered} answers"
            );
            std::thread::yield_now();
        }
        server.abort();
    }
}
