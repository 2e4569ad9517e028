#![expect(
    clippy::disallowed_methods,
    reason = "tests damage the store behind its back"
)]

use std::fs;

use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, PutMultipartOptions,
    PutPayload, PutResult,
};
use ostraca_types::{PasteId, Slot};

use super::*;
use crate::Kind;

fn key(slot: u8, fill: u8) -> String {
    PasteId::mint(Slot(slot), |random| random.fill(fill)).object_key()
}

fn store() -> (tempfile::TempDir, Bodies) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("p")).expect("made");
    let bodies = Bodies::local(dir.path()).expect("a store");
    (dir, bodies)
}

/// Goal: a store that is not there is never made anew, neither by opening it nor by a PUT.
/// Method: its directory is moved away, and so is all that is in it, as when a volume is unmounted.
#[tokio::test]
async fn a_store_that_is_gone_stays_gone() {
    let (dir, bodies) = store();
    let (prefix, moved) = (dir.path().join("p"), dir.path().join("moved"));
    let put = async || bodies.put(&key(7, 1), Bytes::from_static(b"x")).await;
    fs::rename(&prefix, &moved).expect("moved");
    assert_eq!(put().await.expect_err("no store").kind(), Kind::Down);
    let opened = Bodies::local(dir.path()).expect_err("no store");
    assert!(matches!(opened, Error::NoStore(_)), "{opened}");
    assert!(!prefix.exists(), "nothing was made");
    fs::rename(&moved, &prefix).expect("moved back");
    put().await.expect("a new key");
}

#[tokio::test]
async fn a_body_is_written_once_and_never_replaced() {
    let (_dir, bodies) = store();
    let key = key(7, 1);
    bodies
        .put(&key, Bytes::from_static(b"first"))
        .await
        .expect("a new key");
    let again = bodies
        .put(&key, Bytes::from_static(b"second"))
        .await
        .expect_err("taken");
    assert_eq!(again.kind(), Kind::Exists);
    assert_eq!(bodies.get(&key).await.expect("there"), "first");
}

#[tokio::test]
async fn of_two_puts_at_once_one_wins() {
    let (_dir, bodies) = store();
    let key = key(9, 2);
    let puts = (0..8u8).map(|writer| {
        let (bodies, key) = (bodies.clone(), key.clone());
        tokio::spawn(async move { bodies.put(&key, Bytes::from(vec![writer; 1000])).await })
    });
    let mut won = 0;
    for put in puts.collect::<Vec<_>>() {
        match put.await.expect("no panic") {
            Ok(()) => won += 1,
            Err(err) => assert_eq!(err.kind(), Kind::Exists, "{err}"),
        }
    }
    assert_eq!(won, 1);
    assert_eq!(bodies.get(&key).await.expect("there").len(), 1000);
}

#[tokio::test]
async fn r07_a_missing_object_is_a_kind_of_its_own() {
    let (dir, bodies) = store();
    let key = key(0, 3);
    assert_eq!(
        bodies.get(&key).await.expect_err("missing").kind(),
        Kind::Missing
    );
    assert_eq!(
        bodies.delete(&key).await.expect("nothing to delete"),
        Deleted::WasNot
    );
    // An unmounted volume is no missing object, and no finished delete.
    fs::remove_dir_all(dir.path().join("p")).expect("removed");
    assert_eq!(
        bodies.get(&key).await.expect_err("no directory").kind(),
        Kind::Down
    );
    assert_eq!(
        bodies.delete(&key).await.expect_err("no directory").kind(),
        Kind::Down
    );
}

#[tokio::test]
async fn an_object_that_cannot_be_read_is_not_missing() {
    let (dir, bodies) = store();
    let key = key(3, 3);
    std::os::unix::fs::symlink("loop", dir.path().join("p/03/loop")).expect("linked");
    let to = dir.path().join(&key);
    std::os::unix::fs::symlink("loop", to).expect("linked");
    assert_eq!(
        bodies.get(&key).await.expect_err("a loop").kind(),
        Kind::Down
    );
}

#[tokio::test]
async fn a_deleted_object_is_gone() {
    let (_dir, bodies) = store();
    let key = key(255, 4);
    bodies
        .put(&key, Bytes::from_static(b"x"))
        .await
        .expect("a new key");
    assert_eq!(bodies.delete(&key).await.expect("deleted"), Deleted::Was);
    assert_eq!(bodies.delete(&key).await.expect("deleted"), Deleted::WasNot);
    assert_eq!(
        bodies.get(&key).await.expect_err("gone").kind(),
        Kind::Missing
    );
}

#[tokio::test]
async fn keys_that_are_no_keys_are_refused() {
    let (_dir, bodies) = store();
    for key in ["p/../x", "p//x", "p/00/a\0b"] {
        let put = bodies
            .put(key, Bytes::from_static(b"x"))
            .await
            .expect_err("refused");
        assert_eq!(put.kind(), Kind::Rejected, "{key}");
    }
}

#[tokio::test]
async fn an_object_larger_than_any_body_is_not_read() {
    let (dir, bodies) = store();
    let key = key(1, 5);
    let file = fs::File::create(dir.path().join(&key)).expect("a file");
    file.set_len(1 << 40).expect("a sparse file");
    let err = bodies.get(&key).await.expect_err("too large");
    assert!(
        matches!(err, Error::TooLarge { size, .. } if size == 1 << 40),
        "{err}"
    );
}

#[tokio::test]
async fn a_listing_has_objects_and_no_leftovers() {
    let (dir, bodies) = store();
    let mut keys: Vec<String> = (0..50).map(|n| key(n, n)).collect();
    for key in &keys {
        bodies
            .put(key, Bytes::from(key.clone()))
            .await
            .expect("a new key");
    }
    let leftover = dir.path().join(format!("{}#1", key(60, 6)));
    fs::write(&leftover, "half a bo").expect("written");
    let mut listed = Vec::new();
    let mut objects = bodies.list();
    while let Some(object) = objects.next().await {
        let object = object.expect("listed");
        assert_eq!(object.size, object.key.len() as u64);
        assert!(object.last_modified > Timestamp(1_700_000_000_000));
        listed.push(object.key);
    }
    keys.sort();
    listed.sort();
    assert_eq!(listed, keys);

    assert_eq!(
        bodies.remove_leftovers(Timestamp(1)).await.expect("looked"),
        0,
        "too young"
    );
    assert_eq!(
        bodies
            .remove_leftovers(Timestamp(u64::MAX))
            .await
            .expect("removed"),
        1
    );
    assert!(!leftover.exists());
    assert!(bodies.get(&keys[0]).await.is_ok());
}

/// A store whose writes take as long as it is told.
#[derive(Debug)]
struct Slow(InMemory, Duration);

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slow")
    }
}

type Pinned<'a, T> = Pin<Box<dyn Future<Output = object_store::Result<T>> + Send + 'a>>;

impl ObjectStore for Slow {
    fn put_opts<'a: 'w, 'b: 'w, 'w>(
        &'a self,
        location: &'b object_store::path::Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Pinned<'w, PutResult>
    where
        Self: 'w,
    {
        Box::pin(async move {
            tokio::time::sleep(self.1).await;
            self.0.put_opts(location, payload, options).await
        })
    }

    fn put_multipart_opts<'a: 'w, 'b: 'w, 'w>(
        &'a self,
        location: &'b object_store::path::Path,
        options: PutMultipartOptions,
    ) -> Pinned<'w, Box<dyn MultipartUpload>>
    where
        Self: 'w,
    {
        self.0.put_multipart_opts(location, options)
    }

    fn get_opts<'a: 'w, 'b: 'w, 'w>(
        &'a self,
        location: &'b object_store::path::Path,
        options: GetOptions,
    ) -> Pinned<'w, GetResult>
    where
        Self: 'w,
    {
        self.0.get_opts(location, options)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<object_store::path::Path>>,
    ) -> BoxStream<'static, object_store::Result<object_store::path::Path>> {
        self.0.delete_stream(locations)
    }

    fn list(
        &self,
        prefix: Option<&object_store::path::Path>,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    fn list_with_delimiter<'a: 'w, 'b: 'w, 'w>(
        &'a self,
        prefix: Option<&'b object_store::path::Path>,
    ) -> Pinned<'w, ListResult>
    where
        Self: 'w,
    {
        self.0.list_with_delimiter(prefix)
    }

    fn copy_opts<'a: 'w, 'b: 'w, 'c: 'w, 'w>(
        &'a self,
        from: &'b object_store::path::Path,
        to: &'c object_store::path::Path,
        options: CopyOptions,
    ) -> Pinned<'w, ()>
    where
        Self: 'w,
    {
        self.0.copy_opts(from, to, options)
    }
}

/// Goal: a store that hangs costs a bounded number of bodies in memory, and callers their deadline.
/// Method: more PUTs than permits, with a deadline far below the store's time.
#[tokio::test(start_paused = true)]
async fn a_hanging_store_costs_the_deadline_and_a_bounded_number_of_bodies() {
    let store = Slow(InMemory::new(), Duration::from_millis(300));
    let deadline = Duration::from_millis(20);
    let bodies = Bodies {
        put_deadline: deadline,
        ..Bodies::over(Arc::new(store))
    };
    let puts = (0..IN_FLIGHT_MAX + 10).map(|n| {
        let bodies = bodies.clone();
        let key = key(u8::try_from(n).expect("few"), 1);
        tokio::spawn(async move { bodies.put(&key, Bytes::from_static(b"x")).await })
    });
    for put in puts.collect::<Vec<_>>() {
        let err = put.await.expect("no panic").expect_err("too slow");
        assert!(
            matches!(
                err,
                Error::Deadline {
                    action: Action::Put,
                    ..
                }
            ),
            "{err}"
        );
    }
    assert_eq!(
        bodies.permits.available_permits(),
        0,
        "what was begun holds its permit"
    );
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(bodies.permits.available_permits(), IN_FLIGHT_MAX);
    // What was begun ended later; what had no permit never began.
    let mut listed = 0;
    let mut objects = bodies.list();
    while let Some(object) = objects.next().await {
        object.expect("listed");
        listed += 1;
    }
    assert_eq!(listed, IN_FLIGHT_MAX);
}
