//! The ticket that a create holds between its begin and its commit.
//!
//! It carries what the shard would otherwise have to remember, authenticated by a secret of the
//! cluster; so a begin appends nothing and costs no memory, and any leader of the slot takes it.
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 1 | version, 1 |
//! | 1 | 16 | key digest; its first byte is the slot |
//! | 17 | 32 | request hash |
//! | 49 | 12 | random characters of the paste id, from which the object key follows |
//! | 61 | 8 | shard time of the begin, milliseconds, little-endian |
//! | 69 | 16 | first half of HMAC-SHA-256 over cluster id and everything before |
//!
//! It names no sealing generation: the answer is sealed under the generation of the commit. Under
//! that of the begin, up to an hour earlier, secrets would have to live an hour longer (k16).

use hmac::Mac as _;
use ostraca_types::{ClusterId, KeyDigest, PasteId, RequestHash, Timestamp};
use subtle::ConstantTimeEq as _;

use crate::secrets::{SecretKey, mac};

const VERSION: u8 = 1;
const SIGNED_SIZE: usize = 69;
const MAC_SIZE: usize = 16;
const SIZE: usize = SIGNED_SIZE + MAC_SIZE;

/// What a ticket says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) key_digest: KeyDigest,
    pub(crate) request_hash: RequestHash,
    pub(crate) paste_id: PasteId,
    pub(crate) begun_at: Timestamp,
}

fn authenticator(key: &SecretKey, cluster: ClusterId, signed: &[u8]) -> [u8; MAC_SIZE] {
    let mut mac = mac(key);
    mac.update(b"ostraca ticket");
    mac.update(&cluster.0);
    mac.update(signed);
    let full = mac.finalize().into_bytes();
    let mut half = [0; MAC_SIZE];
    half.copy_from_slice(&full[..MAC_SIZE]);
    half
}

impl Ticket {
    pub(crate) fn issue(&self, key: &SecretKey, cluster: ClusterId) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SIZE);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.key_digest.0);
        bytes.extend_from_slice(&self.request_hash.0);
        bytes.extend_from_slice(self.paste_id.random_part());
        bytes.extend_from_slice(&self.begun_at.0.to_le_bytes());
        let mac = authenticator(key, cluster, &bytes);
        bytes.extend_from_slice(&mac);
        bytes
    }

    /// `None` for anything that this cluster did not issue.
    pub(crate) fn verify(bytes: &[u8], key: &SecretKey, cluster: ClusterId) -> Option<Self> {
        let bytes: &[u8; SIZE] = bytes.try_into().ok()?;
        let (signed, mac) = bytes.split_at(SIGNED_SIZE);
        let genuine: bool = authenticator(key, cluster, signed).ct_eq(mac).into();
        if !genuine || signed[0] != VERSION {
            return None;
        }
        let key_digest = KeyDigest(signed[1..17].try_into().ok()?);
        Some(Self {
            key_digest,
            request_hash: RequestHash(signed[17..49].try_into().ok()?),
            paste_id: PasteId::from_parts(key_digest.slot(), &signed[49..61]).ok()?,
            begun_at: Timestamp(u64::from_le_bytes(signed[61..69].try_into().ok()?)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_io::SeededEntropy;
    use ostraca_types::Slot;

    fn key(seed: u64) -> SecretKey {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        crate::secrets::make(&path, &SeededEntropy::new(seed)).expect("made");
        crate::Secrets::load(&path).expect("loaded").ticket
    }

    #[test]
    fn a_ticket_is_taken_unchanged_and_by_its_cluster_alone() {
        let (key, cluster) = (key(1), ClusterId([1; 16]));
        let ticket = Ticket {
            key_digest: KeyDigest([9; 16]),
            request_hash: RequestHash([8; 32]),
            paste_id: PasteId::mint(Slot(9), |bytes| bytes.fill(3)),
            begun_at: Timestamp(77),
        };
        let bytes = ticket.issue(&key, cluster);
        assert_eq!(Ticket::verify(&bytes, &key, cluster), Some(ticket));
        assert_eq!(Ticket::verify(&bytes, &key, ClusterId([2; 16])), None);
        assert_eq!(Ticket::verify(&bytes, &self::key(2), cluster), None);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(Ticket::verify(&changed, &key, cluster), None, "byte {at}");
        }
        assert_eq!(Ticket::verify(&bytes[1..], &key, cluster), None);
    }
}
