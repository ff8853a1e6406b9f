//! Masking of RFC 6455, 5.3: each payload byte XOR one of the four mask bytes in turn.

/// Applies or removes the mask. `at` is the offset of `bytes` in the payload.
pub(super) fn unmask(bytes: &mut [u8], mask: [u8; 4], at: usize) {
    let mask: [u8; 4] = std::array::from_fn(|turn| mask[(at + turn) % 4]);
    let word = u64::from_ne_bytes(std::array::from_fn(|turn| mask[turn % 4]));
    let mut words = bytes.chunks_exact_mut(8);
    for chunk in &mut words {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        let plain = u64::from_ne_bytes(eight) ^ word;
        chunk.copy_from_slice(&plain.to_ne_bytes());
    }
    for (turn, byte) in words.into_remainder().iter_mut().enumerate() {
        *byte ^= mask[turn % 4];
    }
}
