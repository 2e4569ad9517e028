//! A cache that understands PURGE, keeps nothing, and remembers what it was asked to drop.

use std::collections::HashMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// A listening edge; it stops with this value.
pub struct Edge {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    purges: Mutex<HashMap<String, u64>>,
    stopping: AtomicBool,
}

impl Edge {
    /// Listens on a free port.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let shared = Arc::new(Shared::default());
        let accepting = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                for stream in listener.incoming() {
                    if shared.stopping.load(Ordering::SeqCst) {
                        return;
                    }
                    let shared = Arc::clone(&shared);
                    // Each ends with its connection. A client that was killed ends it anywhere.
                    thread::spawn(move || stream.and_then(|stream| shared.serve(&stream)));
                }
            }
        });
        Self {
            address,
            shared,
            accepting: Some(accepting),
        }
    }

    /// The value of `--edge`.
    #[must_use]
    pub fn argument(&self) -> String {
        format!("http-purge=http://{}", self.address)
    }

    /// How often this path was purged.
    #[must_use]
    pub fn purges(&self, path: &str) -> u64 {
        self.shared.lock().get(path).copied().unwrap_or_default()
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, u64>> {
        // A map with one count more or less is whole.
        self.purges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut writer = stream;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let path = line
                .strip_prefix("PURGE ")
                .and_then(|rest| rest.strip_suffix(" HTTP/1.1\r\n"));
            let path = path.ok_or(io::ErrorKind::InvalidData)?.to_owned();
            loop {
                line.clear();
                match reader.read_line(&mut line)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    _ if line == "\r\n" => break,
                    _ => {}
                }
            }
            *self.lock().entry(path).or_default() += 1;
            writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        }
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Its next connection wakes it; if it is gone already, there is nobody to wake.
        let woken = TcpStream::connect(self.address);
        if let (Ok(_), Some(accepting)) = (woken, self.accepting.take()) {
            let _ = accepting.join();
        }
    }
}
