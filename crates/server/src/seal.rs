//! Sealing of stored answers, and the hash by which requests are compared (k03, k16).
//!
//! The delete token is at rest only here: in the idempotency row, encrypted under a key that needs
//! both the client's idempotency key, which is stored nowhere, and the cluster's sealing secret.
//! The seal is bound to cluster, generation, key, request and paste, so that a row which was moved
//! or mixed does not open.

use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use hmac::{Hmac, Mac as _};
use ostraca_engine::SealedAnswer;
use ostraca_io::Entropy;
use ostraca_types::{
    ClusterId, DeleteToken, IdempotencyKey, KeyDigest, PasteId, RequestDigest, RequestHash,
    Timestamp,
};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::secrets::SecretKey;

/// The version of what is sealed: the first byte of what the seal is bound to.
const VERSION: u8 = 1;
const NONCE_SIZE: usize = 24;
const PLAIN_SIZE: usize = 24;

/// What a seal is bound to.
#[derive(Clone, Copy)]
pub(crate) struct Binding<'a> {
    pub(crate) cluster: ClusterId,
    pub(crate) key_digest: KeyDigest,
    pub(crate) request_hash: RequestHash,
    pub(crate) paste_id: &'a PasteId,
}

impl Binding<'_> {
    fn bytes(&self, generation: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(83);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.cluster.0);
        bytes.extend_from_slice(&generation.to_le_bytes());
        bytes.extend_from_slice(&self.key_digest.0);
        bytes.extend_from_slice(&self.request_hash.0);
        bytes.extend_from_slice(self.paste_id.as_str().as_bytes());
        bytes
    }
}

/// The stored answer cannot be opened: not the secret, or not the bytes, that it was sealed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotOpened;

/// HMAC-SHA-256 of the request digest under the client's key.
pub(crate) fn request_hash(key: &IdempotencyKey, digest: &RequestDigest) -> RequestHash {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(key.expose()).expect("HMAC takes a key of any length");
    mac.update(&digest.0);
    RequestHash(mac.finalize().into_bytes().into())
}

fn cipher(key: &IdempotencyKey, secret: &SecretKey) -> XChaCha20Poly1305 {
    let mut sealing_key = Zeroizing::new([0; 32]);
    Hkdf::<Sha256>::new(Some(secret.expose()), key.expose())
        .expand(b"ostraca sealed answer 1", &mut *sealing_key)
        .expect("32 bytes are fewer than HKDF can give");
    XChaCha20Poly1305::new((&*sealing_key).into())
}

/// Seals what an answer has beyond the id, under the secret of a generation.
pub(crate) fn seal(
    key: &IdempotencyKey,
    (generation, secret): (u32, &SecretKey),
    binding: Binding<'_>,
    expires_at: Timestamp,
    token: &DeleteToken,
    entropy: &dyn Entropy,
) -> SealedAnswer {
    let mut plain = Zeroizing::new([0; PLAIN_SIZE]);
    plain[..8].copy_from_slice(&expires_at.0.to_le_bytes());
    plain[8..].copy_from_slice(token.expose());
    let mut bytes = [0; ostraca_engine::SEALED_ANSWER_SIZE];
    let (nonce, sealed) = bytes.split_at_mut(NONCE_SIZE);
    entropy.fill(nonce);
    let nonce = <&XNonce>::try_from(&*nonce).expect("24 bytes");
    let payload = Payload {
        msg: &*plain,
        aad: &binding.bytes(generation),
    };
    let ciphertext = cipher(key, secret)
        .encrypt(nonce, payload)
        .expect("24 bytes are fewer than the limit");
    sealed.copy_from_slice(&ciphertext);
    SealedAnswer { generation, bytes }
}

/// Opens a stored answer with the secret of its generation.
pub(crate) fn open(
    key: &IdempotencyKey,
    secret: &SecretKey,
    binding: Binding<'_>,
    answer: &SealedAnswer,
) -> Result<(Timestamp, DeleteToken), NotOpened> {
    let (nonce, sealed) = answer.bytes.split_at(NONCE_SIZE);
    let nonce = <&XNonce>::try_from(nonce).map_err(|_| NotOpened)?;
    let payload = Payload {
        msg: sealed,
        aad: &binding.bytes(answer.generation),
    };
    let plain = cipher(key, secret)
        .decrypt(nonce, payload)
        .map_err(|_| NotOpened)?;
    let plain = Zeroizing::new(plain);
    let (expires_at, token) = plain.split_first_chunk::<8>().ok_or(NotOpened)?;
    let token = token.try_into().map_err(|_| NotOpened)?;
    Ok((
        Timestamp(u64::from_le_bytes(*expires_at)),
        DeleteToken::from_bytes(token),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_io::SeededEntropy;
    use ostraca_types::Slot;

    struct Sample {
        key: IdempotencyKey,
        secret: SecretKey,
        paste_id: PasteId,
        request_hash: RequestHash,
        token: DeleteToken,
        answer: SealedAnswer,
    }

    const CLUSTER: ClusterId = ClusterId([3; 16]);

    fn secret(seed: u64) -> SecretKey {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        crate::secrets::make(&path, &SeededEntropy::new(seed)).expect("made");
        crate::Secrets::load(&path).expect("loaded").ticket
    }

    fn sample() -> Sample {
        let entropy = SeededEntropy::new(1);
        let key = IdempotencyKey::mint(|bytes| entropy.fill(bytes));
        let secret = secret(2);
        let paste_id = PasteId::mint(Slot(4), |bytes| entropy.fill(bytes));
        let request_hash = request_hash(&key, &RequestDigest([1; 32]));
        let token = DeleteToken::mint(|bytes| entropy.fill(bytes));
        let binding = Binding {
            cluster: CLUSTER,
            key_digest: key.digest(),
            request_hash,
            paste_id: &paste_id,
        };
        let answer = seal(&key, (1, &secret), binding, Timestamp(99), &token, &entropy);
        Sample {
            key,
            secret,
            paste_id,
            request_hash,
            token,
            answer,
        }
    }

    fn binding(sample: &Sample) -> Binding<'_> {
        Binding {
            cluster: CLUSTER,
            key_digest: sample.key.digest(),
            request_hash: sample.request_hash,
            paste_id: &sample.paste_id,
        }
    }

    #[test]
    fn k16_an_answer_opens_for_its_key_and_secret_alone() {
        let sample = sample();
        let opened = open(
            &sample.key,
            &sample.secret,
            binding(&sample),
            &sample.answer,
        );
        assert_eq!(opened, Ok((Timestamp(99), sample.token.clone())));

        let other_key = IdempotencyKey::mint(|bytes| bytes.fill(1));
        let refused = open(&other_key, &sample.secret, binding(&sample), &sample.answer);
        assert_eq!(refused, Err(NotOpened));
        let refused = open(&sample.key, &secret(9), binding(&sample), &sample.answer);
        assert_eq!(refused, Err(NotOpened));
    }

    #[test]
    fn k16_a_seal_is_bound_to_everything_around_it() {
        let sample = sample();
        let other_id = PasteId::mint(Slot(4), |bytes| bytes.fill(9));
        let good = binding(&sample);
        let bindings = [
            Binding {
                cluster: ClusterId([4; 16]),
                ..good
            },
            Binding {
                key_digest: KeyDigest([0; 16]),
                ..good
            },
            Binding {
                request_hash: RequestHash([0; 32]),
                ..good
            },
            Binding {
                paste_id: &other_id,
                ..good
            },
        ];
        for (at, other) in bindings.into_iter().enumerate() {
            let refused = open(&sample.key, &sample.secret, other, &sample.answer);
            assert_eq!(refused, Err(NotOpened), "binding {at}");
        }
        for at in 0..sample.answer.bytes.len() {
            let mut answer = sample.answer;
            answer.bytes[at] ^= 1;
            let refused = open(&sample.key, &sample.secret, good, &answer);
            assert_eq!(refused, Err(NotOpened), "byte {at}");
        }
        let answer = SealedAnswer {
            generation: 2,
            ..sample.answer
        };
        assert_eq!(
            open(&sample.key, &sample.secret, good, &answer),
            Err(NotOpened)
        );
    }

    #[test]
    fn k16_the_token_is_not_in_the_sealed_bytes() {
        let sample = sample();
        let found = sample
            .answer
            .bytes
            .windows(16)
            .any(|bytes| bytes == sample.token.expose());
        assert!(!found);
    }
}
