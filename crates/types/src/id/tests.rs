use proptest::prelude::*;

use super::*;

fn counting() -> impl FnMut(&mut [u8]) {
    let mut next = 0u8;
    move |bytes| {
        for byte in bytes {
            *byte = next;
            next = next.wrapping_add(1);
        }
    }
}

#[test]
fn k06_a_prefix_of_256_or_more_is_no_id() {
    assert_eq!(
        PasteId::parse("47000000000000").map(|id| id.slot()),
        Ok(Slot(255))
    );
    for prefix in ["48", "49", "4z", "50", "zz"] {
        assert_eq!(
            PasteId::parse(&format!("{prefix}000000000000")),
            Err(IdError::NoSuchSlot)
        );
    }
    for text in ["00-000000000000", "00_00000000000", "é0000000000000"] {
        assert!(PasteId::parse(text).is_err(), "{text}");
    }
    for text in ["", "00", "0000000000000", "000000000000000"] {
        assert_eq!(PasteId::parse(text), Err(IdError::Length), "{text}");
    }
}

#[test]
fn k06_a_minted_id_names_its_slot() {
    for slot in Slot::all() {
        let id = PasteId::mint(slot, counting());
        assert_eq!(id.slot(), slot);
        assert_eq!(PasteId::parse(id.as_str()), Ok(id));
        assert_eq!(PasteId::from_parts(slot, id.random_part()), Ok(id));
        let outbox = OutboxId::mint(slot, counting());
        assert_eq!(outbox.slot(), slot);
        assert_eq!(OutboxId::parse(&outbox.to_string()), Ok(outbox));
    }
}

#[test]
fn a_minted_digit_is_uniform_over_the_accepted_bytes() {
    let mut all = counting();
    let mut counts = [0usize; 128];
    // All byte values once; the last eight are drawn again and give nothing.
    for digit in random_digits(&mut all).take(248) {
        counts[usize::from(digit)] += 1;
    }
    assert_eq!(counts.iter().filter(|&&count| count == 4).count(), 62);
    let mut first = true;
    let mut rejected_first = |bytes: &mut [u8]| {
        bytes.fill(if std::mem::take(&mut first) { 255 } else { 61 });
    };
    assert_eq!(random_digits(&mut rejected_first).next(), Some(b'z'));
}

#[test]
fn an_outbox_id_beyond_its_range_is_refused() {
    assert_eq!(
        OutboxId::from_parts(Slot(0), &[0xff; 15]),
        Err(IdError::OutOfRange)
    );
    let top = OutboxId::parse("47zzzzzzzzzzzzzzzzzzzz").expect("the highest id");
    assert_eq!(top.to_string(), "47zzzzzzzzzzzzzzzzzzzz");
}

#[test]
fn object_keys_are_read_back() {
    let id = PasteId::mint(Slot(200), counting());
    let key = id.object_key();
    assert_eq!(key, format!("p/3E/{id}"));
    assert_eq!(PasteId::from_object_key(&key), Some(id));
    for other in [
        format!("p/00/{id}"),
        format!("q/3E/{id}"),
        format!("p/3E/{id}x"),
        String::new(),
    ] {
        assert_eq!(PasteId::from_object_key(&other), None, "{other}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_parsing_panic(text in ".{0,30}") {
        let _ = PasteId::parse(&text);
        let _ = OutboxId::parse(&text);
        let _ = PasteId::from_object_key(&text);
    }
}
