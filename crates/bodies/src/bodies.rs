//! The store of bodies: what callers see.

use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, Stream, StreamExt as _};
use object_store::local::LocalFileSystem;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions};
use ostraca_types::Timestamp;
use ostraca_types::contract::{BODY_SIZE_MAX, PUT_DEADLINE};
use tokio::sync::Semaphore;

use crate::{Action, Error, local};

/// A read is given up after this.
pub const GET_DEADLINE: Duration = Duration::from_secs(10);
/// A delete is given up after this.
pub const DELETE_DEADLINE: Duration = Duration::from_secs(10);
/// A listing is given up when the next object is not there after this.
pub const LIST_STEP_DEADLINE: Duration = Duration::from_secs(30);
/// PUTs, reads and deletes that the store works on at one time. More wait, within their deadlines.
/// It bounds the bodies that a hanging store keeps in memory.
pub const IN_FLIGHT_MAX: usize = 64;

/// The object store of paste bodies. Clones share it.
#[derive(Clone)]
pub struct Bodies {
    store: Arc<dyn ObjectStore>,
    /// The directory of a local store.
    root: Option<Arc<Path>>,
    permits: Arc<Semaphore>,
    put_deadline: Duration,
}

impl fmt::Debug for Bodies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bodies({})", self.store)
    }
}

/// Whether a delete found the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// It was there and is gone.
    Was,
    /// It was not there.
    WasNot,
}

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its key.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
    /// When it was written, by the store's clock.
    pub last_modified: Timestamp,
}

/// A listing in progress, in no particular order. After an error it ends.
pub struct Objects(BoxStream<'static, Result<Object, Error>>);

impl Objects {
    /// The next object; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Object, Error>> {
        self.0.next().await
    }
}

impl Stream for Objects {
    type Item = Result<Object, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Objects")
    }
}

impl Bodies {
    /// Opens the store under `dir`, which was made with the cluster; `NoStore` if its directory `p`
    /// is not there. Blocks on the disk; on return the directories of all slots are durable.
    pub fn local(dir: &Path) -> Result<Self, Error> {
        if !local::is_store(dir) {
            return Err(Error::NoStore(dir.to_owned()));
        }
        let open = |err| Error::store(Action::Open, err);
        local::prepare(dir).map_err(open)?;
        let store = LocalFileSystem::new_with_prefix(dir)
            .map_err(|err| Error::store(Action::Open, err))?
            .with_fsync(true);
        // As the library does: a later change of the working directory changes nothing.
        let root = dir.canonicalize().map_err(open)?;
        Ok(Self {
            root: Some(root.into()),
            ..Self::over(Arc::new(store))
        })
    }

    fn over(store: Arc<dyn ObjectStore>) -> Self {
        let permits = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
        Self {
            store,
            root: None,
            permits,
            put_deadline: PUT_DEADLINE,
        }
    }

    /// Writes a new object. On return bytes and name survive a power cut. `Exists` if the key is
    /// taken: the object there is not touched. After `Down` it may be written later all the same:
    /// an orphan, unless its create commits.
    pub async fn put(&self, key: &str, body: Bytes) -> Result<(), Error> {
        let (store, path) = (Arc::clone(&self.store), parse(key)?);
        let directory = self.root.as_deref().map(|root| local::holder(root, key));
        let owned = key.to_owned();
        let put = async move {
            if let Some(directory) = directory {
                check_directory(Action::Put, directory).await?;
            }
            let options = PutOptions {
                mode: PutMode::Create,
                ..PutOptions::default()
            };
            let put = store.put_opts(&path, body.into(), options).await;
            put.map(|_| ())
                .map_err(|err| Error::from_store(Action::Put, &owned, err))
        };
        self.within(Action::Put, self.put_deadline, put).await?
    }

    /// Reads an object whole.
    pub async fn get(&self, key: &str) -> Result<Bytes, Error> {
        let (store, path) = (Arc::clone(&self.store), parse(key)?);
        let owned = key.to_owned();
        let get = async move {
            let from_store = |err| Error::from_store(Action::Get, &owned, err);
            let found = store.get(&path).await.map_err(from_store)?;
            let size = found.meta.size;
            // Bounded before anything is allocated by it.
            if size > BODY_SIZE_MAX as u64 {
                return Err(Error::TooLarge { key: owned, size });
            }
            found.bytes().await.map_err(from_store)
        };
        match self.within(Action::Get, GET_DEADLINE, get).await? {
            Err(Error::Missing { key }) => {
                self.check_holder(Action::Get, &key).await?;
                Err(Error::Missing { key })
            }
            other => other,
        }
    }

    /// Deletes an object. On return it stays away, also after a power cut.
    pub async fn delete(&self, key: &str) -> Result<Deleted, Error> {
        let (store, path) = (Arc::clone(&self.store), parse(key)?);
        let delete = async move { store.delete(&path).await };
        let result = self.within(Action::Delete, DELETE_DEADLINE, delete).await?;
        let deleted = match result.map_err(|err| Error::from_store(Action::Delete, key, err)) {
            Ok(()) => Deleted::Was,
            Err(Error::Missing { .. }) => {
                self.check_holder(Action::Delete, key).await?;
                Deleted::WasNot
            }
            Err(err) => return Err(err),
        };
        // Also when it was not there: whoever unlinked it may have been killed before the sync.
        if let Some(root) = &self.root {
            let directory = local::holder(root, key);
            let sync = blocking(Action::Delete, move || local::sync(&directory));
            self.within(Action::Delete, DELETE_DEADLINE, sync).await??;
        }
        Ok(deleted)
    }

    /// Lists all objects, in no particular order. One that is written or deleted meanwhile may be
    /// listed or not.
    #[must_use]
    pub fn list(&self) -> Objects {
        let prefix = object_store::path::Path::from(local::PREFIX);
        let listing = self.store.list(Some(&prefix));
        let step = |listing: Option<BoxStream<'static, object_store::Result<ObjectMeta>>>| async {
            let mut listing = listing?;
            match tokio::time::timeout(LIST_STEP_DEADLINE, listing.next()).await {
                Ok(None) => None,
                Ok(Some(Ok(meta))) => Some((Ok(object(&meta)), Some(listing))),
                Ok(Some(Err(err))) => Some((Err(Error::store(Action::List, err)), None)),
                Err(_) => {
                    let after = LIST_STEP_DEADLINE;
                    Some((
                        Err(Error::Deadline {
                            action: Action::List,
                            after,
                        }),
                        None,
                    ))
                }
            }
        };
        Objects(stream::unfold(Some(listing), step).boxed())
    }

    /// Removes what writers left that were killed while they wrote, if it was last written before
    /// `before`, and says how many files that were. They are in no listing and belong to no paste.
    /// `before` must lie further back than any PUT can be in flight.
    pub async fn remove_leftovers(&self, before: Timestamp) -> Result<usize, Error> {
        let Some(root) = self.root.clone() else {
            return Ok(0);
        };
        let work = move || local::remove_leftovers(&root, before);
        match tokio::task::spawn_blocking(work).await {
            Ok(removed) => removed.map_err(|err| Error::store(Action::RemoveLeftovers, err)),
            Err(err) => Err(Error::store(Action::RemoveLeftovers, err)),
        }
    }

    /// Runs `work` on a task of its own, which goes on when the deadline has passed and keeps its
    /// permit until it is done: a blocking write cannot be called back, and its body stays in
    /// memory as long as it lasts.
    async fn within<T: Send + 'static>(
        &self,
        action: Action,
        deadline: Duration,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        let permits = Arc::clone(&self.permits);
        let run = async {
            // The semaphore is never closed.
            let permit = permits.acquire_owned().await.ok();
            let task = tokio::spawn(async move {
                let done = work.await;
                drop(permit);
                done
            });
            task.await.map_err(|err| Error::store(action, err))
        };
        match tokio::time::timeout(deadline, run).await {
            Ok(done) => done,
            Err(_) => Err(Error::Deadline {
                action,
                after: deadline,
            }),
        }
    }

    /// An object is missing only if the directory that would hold it is there.
    async fn check_holder(&self, action: Action, key: &str) -> Result<(), Error> {
        let Some(root) = &self.root else {
            return Ok(());
        };
        let check = check_directory(action, local::holder(root, key));
        self.within(action, GET_DEADLINE, check).await?
    }
}

async fn check_directory(action: Action, directory: PathBuf) -> Result<(), Error> {
    blocking(action, move || local::check(&directory)).await
}

async fn blocking(
    action: Action,
    work: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> Result<(), Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|err| Error::store(action, err)),
        Err(err) => Err(Error::store(action, err)),
    }
}

fn parse(key: &str) -> Result<object_store::path::Path, Error> {
    object_store::path::Path::parse(key).map_err(|_| Error::InvalidKey)
}

fn object(meta: &ObjectMeta) -> Object {
    // A time before 1970 is no time at which this program wrote.
    let millis = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
    Object {
        key: meta.location.to_string(),
        size: meta.size,
        last_modified: Timestamp(millis),
    }
}

#[cfg(test)]
mod tests;
